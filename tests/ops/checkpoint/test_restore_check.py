# SPDX-License-Identifier: Apache-2.0
"""TableCheckRestore refuses what TableRestore refuses, and changes nothing."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import ADAGRAD, BANK, DIM, contents, rows_of, train, write

KEYS = np.array([1, 2, 2**40])
NEGATIVE = {"t-freqs": np.array([1, -1, 1])}
WIDE = {"t/default_values": np.zeros([5, DIM + 1], np.float32)}
DELTA = {"t-keys_erased": np.array([1]), "t-delta_of": np.array("missing")}
SLOT = {
    "t/Adagrad-keys": KEYS,
    "t/Adagrad-values": np.zeros([3, DIM + 1], np.float32),
}


def check(table, path, all_keys, **attrs):
    table.call(
        "check_restore",
        np.array(str(path)),
        np.array(all_keys),
        tensor_name="t",
        **{"part": 0, "num_parts": 1, "slot_names": ["Adagrad"], "slot_widths": [DIM]},
        **{"slot_initials": [0.1], **attrs},
    )


@pytest.mark.parametrize("all_keys", [False, True])
@pytest.mark.parametrize(
    "tensors, attrs, limit, error",
    [
        ({}, {"key_dtype": tf.int32}, 0, tf.errors.InvalidArgumentError),
        ({}, {}, 2, tf.errors.ResourceExhaustedError),
        (WIDE, {}, 0, tf.errors.InvalidArgumentError),
        (SLOT, {}, 0, tf.errors.InvalidArgumentError),
        (DELTA, {}, 0, tf.errors.NotFoundError),
        ({"t-values": np.zeros([2, DIM], np.float32)}, {}, 0, tf.errors.DataLossError),
    ],
    ids=["int32", "rows", "bank", "slot", "parent", "values"],
)
def test_a_table_that_cannot_be_restored_is_refused_and_unchanged(
    make_table, tmp_path, all_keys, tensors, attrs, limit, error
):
    path = write(tmp_path / "c", {**rows_of(KEYS), **tensors})
    table = make_table(DIM, BANK, max_rows=limit)
    train(table, [20, 21])
    before = contents(table)
    with pytest.raises(error):
        check(table, path, all_keys, **attrs)
    assert contents(table) == before


def test_only_a_check_of_all_keys_reads_the_counts(make_table, tmp_path):
    path = write(tmp_path / "c", {**rows_of(KEYS), **NEGATIVE})
    table = make_table(DIM, BANK)
    check(table, path, all_keys=False)
    with pytest.raises(tf.errors.DataLossError, match="counts >= 0, got -1 for key 2"):
        check(table, path, all_keys=True)


@pytest.mark.parametrize("all_keys", [False, True])
def test_a_table_that_can_be_restored_passes_and_is_unchanged(make_table, tmp_path, all_keys):
    path = write(tmp_path / "c", rows_of(KEYS))
    table = make_table(DIM, BANK, max_rows=3)
    train(table, [20, 21])
    before = contents(table)
    check(table, path, all_keys)
    assert contents(table) == before
    table.restore(path, BANK, slots=ADAGRAD)
    assert table.size() == 3
