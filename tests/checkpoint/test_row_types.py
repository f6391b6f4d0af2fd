# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of rows of each type, restored into tables of each type."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from narrow_tables import save_and_restore

import rec_estimator as rec


def pairs_of(*dtypes):
    """All pairs of the types in a checkpoint and in the table that restores it."""
    pairs = list(itertools.product(dtypes, repeat=2))
    return pairs, [f"{saved.name}-to-{restored.name}" for saved, restored in pairs]


VALUES, VALUE_NAMES = pairs_of(tf.float32, tf.bfloat16, tf.float16)
SLOTS, SLOT_NAMES = pairs_of(tf.float32, tf.bfloat16)


def as_stored(numbers, dtype):
    """float32. The nearest numbers of a type."""
    return numbers.astype(dtype.as_numpy_dtype).astype(np.float32)


@pytest.mark.each_value
@pytest.mark.parametrize("make_saver", [rec.Saver, tf.train.Saver], ids=["ours", "stock"])
@pytest.mark.parametrize("slot_types", SLOTS, ids=SLOT_NAMES)
@pytest.mark.parametrize("value_types", VALUES, ids=VALUE_NAMES)
def test_restored_numbers_are_the_nearest_of_the_type(
    tmp_path, value_types, slot_types, make_saver
):
    saved, restored = (
        dict(value_dtype=value, slot_dtype=slot) for value, slot in zip(value_types, slot_types)
    )
    reader, before, after = save_and_restore(tmp_path, make_saver, saved, {**restored, "shards": 2})
    types = reader.get_variable_to_dtype_map()
    assert (types["t-values"], types["t/Adagrad-values"]) == (value_types[0], slot_types[0])
    assert types["t/default_values"] == tf.float32
    in_file = {
        name: dict(zip(reader.get_tensor(f"{name}-keys"), reader.get_tensor(f"{name}-values")))
        for name in ("t", "t/Adagrad")
    }
    for key, (value, slots, *_) in before.items():
        for name, place, live, to in (
            ("t", after[key][0], value, value_types[1]),
            ("t/Adagrad", after[key][1]["accumulator"], slots["accumulator"], slot_types[1]),
        ):
            np.testing.assert_array_equal(in_file[name][key].astype(np.float32), live)
            np.testing.assert_array_equal(place, as_stored(live, to))
