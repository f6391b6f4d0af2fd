# SPDX-License-Identifier: Apache-2.0
"""Tests of what benchmarks/compare_row_dtypes.py and rounds.py do besides measuring."""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import compare_row_dtypes, rounds


def test_rows_are_rounded_to_the_nearest_and_slots_stay():
    table = rec.get_embedding_variable("user", 3)
    optimizer = rec.optimizers.AdagradOptimizer(0.05)
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, [7, 9])))
    train = optimizer.minimize(loss)
    rounding = compare_row_dtypes.round_rows(table)
    rows, slots = table.export().values, optimizer.get_slot(table, "accumulator").export().values
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(train)
        trained, slots_before = session.run([rows, slots])
        session.run(rounding)
        rounded, slots_after = session.run([rows, slots])
    narrow = trained.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
    assert not np.array_equal(trained, narrow)
    np.testing.assert_array_equal(rounded, narrow)
    np.testing.assert_array_equal(slots_after, slots_before)


def test_a_system_of_another_interpreter_is_timed():
    build = rounds.Elsewhere(sys.executable, "builtins", "dict")
    seconds = rounds.alternate({"other": (build, ({"step": os.getpid},))}, ["step"], 2, 3)
    assert len(seconds["step"]["other"]) == 2
