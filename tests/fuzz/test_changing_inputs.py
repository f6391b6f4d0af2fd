# SPDX-License-Identifier: Apache-2.0
"""A short part of what `make test-sanitized` does for longer."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fuzz import changing_inputs, fuzz_calls

from rec_estimator import _ops

RUNS = 10


@pytest.mark.long
def test_no_op_crashes_while_a_thread_writes_to_its_inputs(tmp_path):
    config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
    rng = np.random.default_rng(0)
    refused = 0
    with tf.Session(config=config) as session:
        caller = fuzz_calls.Caller(_ops.gen, session, tmp_path)
        caller.write_files()
        for op, arguments in fuzz_calls.VALID_CALLS.items():
            refused += changing_inputs.call(caller, op, arguments, RUNS, rng)
    assert refused > 0, "no op has seen a number that the thread wrote"


def test_an_aligned_array_is_fed_without_a_copy():
    array = changing_inputs.aligned(np.arange(5))
    placeholder = tf.placeholder(tf.int64)

    def change():
        array[2] = 77
        return np.int64(0)

    with tf.control_dependencies([tf.py_func(change, [], tf.int64)]):
        seen = placeholder + 0
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(seen, {placeholder: array}), [0, 1, 77, 3, 4])


def test_a_thread_writes_hostile_numbers_and_leaves_the_valid_ones():
    array = changing_inputs.aligned(np.arange(5))
    with changing_inputs.changing(array, np.random.default_rng(0)):
        while (array == np.arange(5)).all():
            pass
    np.testing.assert_array_equal(array, np.arange(5))
