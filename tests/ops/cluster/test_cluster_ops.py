# SPDX-License-Identifier: Apache-2.0
"""Tests of the ops with which the tasks of a cluster agree about a table."""

import re
import threading

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf
from table_steps import reserve_op

from rec_estimator import _ops

BANK = np.ones([1, 2], np.float32)


def train(table, keys):
    table.apply("GradientDescent", [0.1], keys, np.ones([len(keys), 2], np.float32))


def rows_after(table, keys, counted_keys=()):
    keys, counted_keys = np.asarray(keys, np.int64), np.asarray(counted_keys, np.int64)
    with table.session.graph.as_default():
        return list(table.session.run(reserve_op([table.handle], [keys], [counted_keys]).rows))


def test_rows_after_a_step_count_new_keys_once(make_table):
    table = make_table(2, BANK)
    train(table, [1, 2])
    assert rows_after(table, []) == [2]
    assert rows_after(table, [1, 3, 3], [3, 4, 2]) == [4]
    assert table.size() == 2


def test_rows_after_a_step_count_only_keys_that_the_filter_admits(make_table):
    table = make_table(2, BANK, filter_freq=2)
    train(table, [1])
    assert rows_after(table, [1, 2, 3], [3]) == [2]


def test_the_row_limit_holds_for_the_sum_of_the_shards():
    rows = [tf.constant(n, tf.int64) for n in (2, 0, 3)]
    fits, exceeds = (
        _ops.gen.rec_estimator_check_row_limit(rows, table_name="t", max_rows=n) for n in (5, 4)
    )
    with tf.Session() as session:
        session.run(fits)
        message = "table t must have at most 4 rows, got 5 with this step, nothing of which"
        with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
            session.run(exceeds)


@pytest.mark.parametrize(
    "rows, error, message",
    [
        (
            [2**62, 2, 2**62, 2],
            tf.errors.ResourceExhaustedError,
            "at most 7 rows, got 9223372036854",
        ),
        ([3, -1], tf.errors.InvalidArgumentError, "rows must be >= 0, got -1"),
    ],
)
def test_a_row_limit_is_not_fooled_by_numbers_that_no_table_has(rows, error, message):
    rows = [tf.constant(n, tf.int64) for n in rows]
    check = _ops.gen.rec_estimator_check_row_limit(rows, table_name="t", max_rows=7)
    with tf.Session() as session, pytest.raises(error, match=message):
        session.run(check)


def variable(value, dtype=tf.int64):
    return tf.Variable(value, dtype=dtype, use_resource=True)


def advance_time(time, reading):
    return _ops.gen.rec_estimator_advance_time(
        time.handle, reading, most_seconds=1000, tolerance=1000
    )


def test_the_time_that_many_threads_advance_is_their_latest_reading():
    latest = variable(0)
    value = tf.placeholder(tf.int64, [])
    advance = advance_time(latest, value).op
    seen = []
    with tf.Session() as session:
        session.run(latest.initializer)
        step = session.make_callable(advance, [value])
        read = session.make_callable(latest.read_value())

        def assign(values):
            for each in values:
                step(each)
                seen.append((each, read()))

        threads = [threading.Thread(target=assign, args=(range(i, 400, 4),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert read() == 399
    assert len(seen) == 400 and all(after >= assigned for assigned, after in seen)


def test_advance_time_refuses_another_variable():
    for latest, error, message in (
        (variable([0]), tf.errors.InvalidArgumentError, r"must be int64 \[\]"),
        (variable(0, tf.int32), tf.errors.InvalidArgumentError, r"must be int64 \[\]"),
    ):
        with tf.Session() as session:
            session.run(latest.initializer)
            with pytest.raises(error, match=message):
                session.run(advance_time(latest, np.int64(1)))
    with tf.Session() as session, pytest.raises(tf.errors.OpError, match="not|initialized"):
        session.run(advance_time(variable(0), np.int64(1)))


def test_the_fingerprint_of_the_ops_is_the_same_in_another_process():
    code = (
        "import tensorflow.compat.v1 as tf; from rec_estimator import _ops; "
        "tf.disable_v2_behavior(); fingerprint = _ops.gen.rec_estimator_ops_fingerprint(); "
        "print(tf.Session().run(fingerprint).decode())"
    )
    other = python_processes.run(["-c", code])
    with tf.Session() as session:
        here = session.run(_ops.gen.rec_estimator_ops_fingerprint()).decode()
    assert re.fullmatch("[0-9a-f]{8}", here) and other.stdout.split()[-1] == here
