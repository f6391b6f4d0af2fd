# SPDX-License-Identifier: Apache-2.0
"""The same training with all rows in memory and with most of them on disk, to be compared."""

import contextlib
import resource

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.options import StorageOption

VOCABULARY = 4000

# Steps in which most keys are seen, and more MiB leave memory than fit into buffers.
STEPS = 60
DIM = 64
BANK = np.random.RandomState(1).randn(64, DIM).astype(np.float32)

# So many rows stay in memory at the least: 1.6 % of the vocabulary.
MEMORY_ROWS = 64


@contextlib.contextmanager
def largest_file(size):
    """Writes beyond this size of a file fail, as on a full disk. Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def on_disk(folder, strategy=rec.CacheStrategy.LFU, kind=rec.StorageType.DRAM_SSDHASH):
    """The storage of a table that keeps as few rows in memory as it can."""
    return rec.StorageOption(kind, str(folder), [1], strategy)


def make_table(storage, shards=1, name="t", value_dtype=None, **options):
    init = rec.InitializerOption(tf.constant_initializer(BANK), len(BANK))
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    option = rec.EmbeddingVariableOption(init_option=init, storage_option=storage, **options)
    return rec.get_embedding_variable(
        name, DIM, value_dtype=value_dtype, ev_option=option, partitioner=partitioner
    )


def batches(steps, seed=3, size=800):
    """Keys, some far more frequent than others and negative ones among them, and weights."""
    random = np.random.RandomState(seed)
    for _ in range(steps):
        keys = (VOCABULARY * random.rand(size) ** 2).astype(np.int64) - VOCABULARY // 2
        yield keys, random.randn(size, DIM).astype(np.float32)


class Run:
    """A graph that trains a table, with its session, which a server may run."""

    def __init__(self, optimizer, storage, shards=1, name="t", target="", **options):
        self.table = make_table(storage, shards, name, **options)
        self.keys = tf.placeholder(tf.int64, [None])
        self.weights = tf.placeholder(tf.float32, [None, DIM])
        values = rec.embedding_lookup(self.table, self.keys)
        self.loss = tf.reduce_sum(values * self.weights) + tf.reduce_mean(tf.square(values))
        step = tf.train.get_or_create_global_step()
        self.train = optimizer().minimize(self.loss, global_step=step)
        self.values = values
        self.counts = self.table.tier_counts()
        self.export = self.table.export()
        self.session = tf.Session(target)
        self.session.run(tf.global_variables_initializer())

    def step(self, keys, weights):
        feed = {self.keys: keys, self.weights: weights}
        return self.session.run([self.loss, self.train], feed)[0]

    def steps(self, count, seed=3):
        return [self.step(*batch) for batch in batches(count, seed)]

    def read(self, keys):
        return self.session.run(self.values, {self.keys: keys})

    def contents(self):
        """The rows, counts and versions, as a list of arrays."""
        return list(self.session.run(self.export))

    def tiers(self):
        return rec.TierCounts(*map(int, self.session.run(self.counts)))


def files_of(folder):
    """The bytes of the files of checkpoints: {name: bytes}.

    `checkpoint` has times, and a MetaGraph has the settings of the tables.
    """
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name != "checkpoint" and path.suffix != ".meta"
    }


def assert_same(actual, expected):
    """Compares nested results to the last bit."""
    tf.nest.assert_same_structure(actual, expected)
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        if isinstance(one, bytes):
            assert one == other
        else:
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def assert_same_in_memory_and_on_disk(tmp_path, scenario, is_ahead=False, **disk):
    """Runs a scenario with all rows in memory and with most of them on disk.

    Args:
      tmp_path: A folder.
      scenario: A function of a StorageOption and a folder for checkpoints, which returns results
        and, last, the TierCounts.
      is_ahead: Whether a dataset brings rows in ahead of their step.
      **disk: Arguments of on_disk.
    """
    results = []
    for name, storage in (
        ("memory", StorageOption()),
        ("disk", on_disk(tmp_path / "rows", **disk)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        with tf.Graph().as_default():
            tf.set_random_seed(3)
            results.append(scenario(storage, folder))
    (*expected, in_memory), (*actual, tiers) = results
    if is_ahead:
        assert tiers.spills > tiers.disk_rows + 1000 and tiers.misses < tiers.hits // 50, tiers
    else:
        assert tiers.misses > 0 and tiers.disk_rows > 9 * tiers.memory_rows, tiers
        assert tiers.bytes_read > 0 and tiers.bytes_written > 0, tiers
    assert in_memory.disk_rows == in_memory.misses == in_memory.file_bytes == 0, in_memory
    assert_same(actual, expected)
