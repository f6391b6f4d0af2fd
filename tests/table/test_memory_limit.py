# SPDX-License-Identifier: Apache-2.0
"""One limit for all memory of a table with files: index, rows and buffers."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table.memory_limit import share_memory

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIM, BATCH, MIB = 16, 20_000, 1 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Training:
    """A session that trains a table in `folder` with a limit."""

    def __init__(self, folder, limit):
        kind = rec.StorageType.DRAM_SSDHASH
        option = rec.EmbeddingVariableOption(storage_option=rec.StorageOption(kind, str(folder)))
        table = rec.get_embedding_variable("item", DIM, ev_option=option)
        self.keys = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(rec.embedding_lookup(table, self.keys))
        self.train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        share_memory([table], limit)
        self.fetches = [table.memory_bytes(), table.size(), table.tier_counts().memory_rows]
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())
        self.step(np.arange(BATCH))

    def step(self, ranks):
        keys = (ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        self.session.run(self.train, {self.keys: keys})

    def state(self):
        """Bytes of the table, its rows, and those in memory."""
        return [int(each) for each in self.session.run(self.fetches)]


@pytest.mark.long
def test_a_table_of_three_times_the_limit_keeps_to_it(tmp_path):
    limit = 64 * MIB
    training = Training(tmp_path, limit)
    before = resident_bytes()
    most_rows = 0
    for first in range(BATCH, 60 * BATCH, BATCH):
        training.step(np.arange(first, first + BATCH))
        used, size, in_memory = training.state()
        assert used <= limit
        assert resident_bytes() - before <= 1.1 * limit
        most_rows = max(most_rows, in_memory)
    assert size == 60 * BATCH
    assert size * (2 * DIM * 4 + 35) > 2.5 * limit
    assert in_memory < most_rows / 2, "rows give way to the index"
    assert used > 0.8 * limit, "what is left is used"


def train_with_a_small_limit(folder):
    training = Training(folder, 2 * MIB)
    for first in range(BATCH, 10 * BATCH, BATCH):
        training.step(np.arange(first, first + BATCH))
    assert training.state()[1:] == [10 * BATCH, 64]


@pytest.mark.long
def test_a_limit_below_index_and_buffers_is_said_once(tmp_path):
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    warnings = [line for line in done.stderr.splitlines() if "memory limit" in line]
    assert len(warnings) == 1
    assert "table item: the memory limit must be above" in warnings[0]
    assert "got 2097152 bytes" in warnings[0]


if __name__ == "__main__":
    tf.disable_eager_execution()
    train_with_a_small_limit(sys.argv[1])
