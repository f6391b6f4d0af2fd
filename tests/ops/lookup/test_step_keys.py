# SPDX-License-Identifier: Apache-2.0
"""What the lookups of a step hand over to its update (ops/lookup/step_keys.h) changes no result.

The control edge that makes the update wait: tests/ops/passes/test_hand_over_pass.py.
"""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_behavior
from optimizer_rules import (
    EXACT_RULES,
    assert_same_bits,
    initial_vectors,
    initialized_session,
    ours,
    rows_of,
    table_from,
    tensorflows,
)

import rec_estimator as rec

ROWS = 2000
N = 600  # Lookups of fewer than 256 keys hand nothing over.
STEPS = 8  # The first one hands nothing over.


def single(table, keys):
    return rec.embedding_lookup(table, keys)


def grouped(table, keys):
    """By the op that combines rows, here of one key each."""
    rows = tf.range(tf.size(keys, out_type=tf.int64))
    shape = tf.stack([tf.size(keys, out_type=tf.int64), 1])
    ids = tf.SparseTensor(tf.stack([rows, tf.zeros_like(rows)], axis=1), keys, shape)
    return rec.embedding_lookup_sparse(table, ids, combiner="mean")


def twice(table, keys):
    """The gradient's keys are not the tensor that a lookup has read."""
    return rec.embedding_lookup(table, keys) + rec.embedding_lookup(table, keys + 1)


def in_parts(table, keys):
    """Parts of one tensor, which begin at the same address or not."""
    parts = [keys[:300], keys[300:]]
    return tf.concat([rec.embedding_lookup(table, part) for part in parts], axis=0)


def examples_of(keys):
    """Three of the keys an example, and no key in every fifth example."""
    n = tf.size(keys, out_type=tf.int64)
    rows = tf.range(n) // 3 * 5 // 4
    indices = tf.stack([rows, tf.range(n) % 3], axis=1)
    return tf.SparseTensor(indices, keys, tf.stack([rows[-1] + 3, 3]))


@pytest.mark.parametrize("n", [600, 8190, 8193])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_keys_that_are_combined_train_as_dense_variables_do(combiner, n):
    """Lists of 8191 keys and fewer are handed over."""
    keys = tf.placeholder(tf.int64, [None])
    bank = initial_vectors(5, ROWS)
    table, dense = table_from(bank), tf.get_variable("dense", initializer=bank)
    ids, rule = examples_of(keys), EXACT_RULES["adagrad"]
    values = rec.embedding_lookup_sparse(table, ids, combiner=combiner)
    # Rows of keys in a variable: the same op as for a table that hands nothing over.
    segments = {
        "sum": tf.sparse.segment_sum,
        "mean": tf.sparse.segment_mean,
        "sqrtn": tf.sparse.segment_sqrt_n,
    }
    size = tf.size(keys)
    expected = segments[combiner](
        tf.gather(dense, keys), tf.range(size), ids.indices[:, 0], num_segments=ids.dense_shape[0]
    )
    train = [
        ours(rule).minimize(tf.reduce_sum(tf.square(values)), var_list=[table]),
        tensorflows(rule).minimize(tf.reduce_sum(tf.square(expected)), var_list=[dense]),
    ]
    rows = rows_of(table, np.arange(ROWS))
    random = np.random.RandomState(n)
    with initialized_session() as session:
        for _ in range(STEPS):
            feed = {keys: (ROWS * random.rand(n) ** 2).astype(np.int64)}
            *both, _ = session.run([values, expected, train], feed)
            assert_same_bits(*both)
        assert_same_bits(*session.run([rows, dense]))


LOOKUPS = [single, grouped, twice, in_parts]


def keys_of(step):
    """Keys [N] of which some are frequent, and others are new in each step."""
    random = np.random.RandomState(step)
    return (200 * (step + 1) * random.rand(N) ** 2).astype(np.int64)


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("rule", ["gradient_descent", "adagrad", "ftrl"])
def test_tables_that_read_the_same_keys_train_as_dense_variables_do(lookup, rule):
    rule = EXACT_RULES[rule]
    keys = tf.placeholder(tf.int64, [None])
    tables, variables = [], []
    losses = {"ours": 0.0, "dense": 0.0}
    for dim in (16, 1):
        bank = initial_vectors(dim, ROWS)
        tables.append(table_from(bank, f"table_{dim}"))
        variables.append(tf.get_variable(f"dense_{dim}", initializer=bank))
        losses["ours"] += tf.reduce_sum(tf.square(lookup(tables[-1], keys)))
        dense = {
            single: lambda variable: tf.gather(variable, keys),
            grouped: lambda variable: tf.gather(variable, keys),
            twice: lambda variable: tf.gather(variable, keys) + tf.gather(variable, keys + 1),
            in_parts: lambda variable: tf.concat(
                [tf.gather(variable, keys[:300]), tf.gather(variable, keys[300:])], axis=0
            ),
        }[lookup]
        losses["dense"] += tf.reduce_sum(tf.square(dense(variables[-1])))
    train = [
        ours(rule).minimize(losses["ours"], var_list=tables),
        tensorflows(rule).minimize(losses["dense"], var_list=variables),
    ]
    rows = [rows_of(table, np.arange(ROWS)) for table in tables]
    buffer = np.zeros([N], np.int64)  # TensorFlow reads fed arrays where they are.
    with initialized_session() as session:
        for step in range(STEPS):
            buffer[:] = keys_of(step)
            session.run(train, {keys: buffer})
        actual, expected = session.run([rows, variables])
    for ours_, dense_ in zip(actual, expected):
        assert_same_bits(ours_, dense_)


@pytest.mark.parametrize("lookup", [single, grouped])
@pytest.mark.parametrize("n", [8192, 8193, 50000])
def test_the_longest_short_list_and_long_ones_train_as_dense_variables_do(lookup, n):
    keys = tf.placeholder(tf.int64, [None])
    bank = initial_vectors(3, ROWS)
    table, dense = table_from(bank), tf.get_variable("dense", initializer=bank)
    rule = EXACT_RULES["adagrad"]
    train = [
        ours(rule).minimize(tf.reduce_sum(tf.square(lookup(table, keys))), var_list=[table]),
        tensorflows(rule).minimize(
            tf.reduce_sum(tf.square(tf.gather(dense, keys))), var_list=[dense]
        ),
    ]
    rows = rows_of(table, np.arange(ROWS))
    random = np.random.RandomState(n)
    with initialized_session() as session:
        for _ in range(STEPS):
            session.run(train, {keys: (ROWS * random.rand(n) ** 2).astype(np.int64)})
        assert_same_bits(*session.run([rows, dense]))


@pytest.mark.parametrize("lookup", [single, grouped])
@pytest.mark.long
def test_long_lists_of_several_tables_train_as_dense_variables_do(lookup):
    """The first two tables read one list. With the fourth, lists have too many keys in all."""
    sizes = [20000, 30000, 4 * 2**20 - 40000]
    lists = [tf.placeholder(tf.int64, [None]) for _ in sizes]
    rule, losses, tables, variables = EXACT_RULES["adagrad"], [0.0, 0.0], [], []
    for i, keys in enumerate([lists[0], *lists]):
        bank = initial_vectors(1, ROWS)
        tables.append(table_from(bank, f"table_{i}"))
        variables.append(tf.get_variable(f"dense_{i}", initializer=bank))
        losses[0] += tf.reduce_sum(tf.square(lookup(tables[i], keys)))
        losses[1] += tf.reduce_sum(tf.square(tf.gather(variables[i], keys)))
    train = [
        ours(rule).minimize(losses[0], var_list=tables),
        tensorflows(rule).minimize(losses[1], var_list=variables),
    ]
    rows = [rows_of(table, np.arange(ROWS)) for table in tables]
    random = np.random.RandomState(4)
    with initialized_session() as session:
        for _ in range(3):
            feed = {
                keys: (ROWS * random.rand(n) ** 2).astype(np.int64) for keys, n in zip(lists, sizes)
            }
            session.run(train, feed)
        for ours_, dense in zip(*session.run([rows, variables])):
            assert_same_bits(ours_, dense)


def test_lookups_that_no_step_follows_change_nothing():
    table, keys, train = trained_table()
    values = rec.embedding_lookup(table, keys)
    rows = rows_of(table, np.arange(ROWS))
    feed = {keys: keys_of(1)}
    with initialized_session() as session:
        for _ in range(3):
            session.run(train, feed)
        before = session.run(rows)
        for _ in range(40):  # After 32, they hand nothing over.
            np.testing.assert_array_equal(session.run(values, feed), before[feed[keys]])
        for _ in range(2):
            session.run(train, feed)
        after = session.run(rows)
    counts = np.bincount(feed[keys], minlength=ROWS)
    # Each occurrence subtracts 1 and rounds once.
    np.testing.assert_allclose(before - after, np.repeat(2.0 * counts[:, None], 2, 1), atol=1e-2)


def test_a_table_whose_lookups_hand_over_in_vain_trains_on():
    keys = tf.placeholder(tf.int64, [None])
    bank = initial_vectors(3, ROWS)
    table, dense = table_from(bank), tf.get_variable("dense", initializer=bank)
    loss = tf.reduce_sum(tf.square(twice(table, keys)))
    dense_loss = tf.reduce_sum(tf.square(tf.gather(dense, keys) + tf.gather(dense, keys + 1)))
    rule = EXACT_RULES["adagrad"]
    train = [
        ours(rule).minimize(loss, var_list=[table]),
        tensorflows(rule).minimize(dense_loss, var_list=[dense]),
    ]
    rows = rows_of(table, np.arange(ROWS))
    with initialized_session() as session:
        for step in range(40):
            session.run(train, {keys: keys_of(step % STEPS)})
        assert_same_bits(*session.run([rows, dense]))


def lookups_before_update(session, fetches, feed):
    """(values, names of the ops that the reservation of the update waits for)"""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    values = session.run(fetches, feed, options, metadata)
    [reserve] = [
        node
        for part in metadata.partition_graphs
        for node in part.node
        if node.op == "RecEstimator>TablesReserve"
    ]
    return values, {each[1:] for each in reserve.input if each.startswith("^")}


def test_an_update_is_reserved_after_the_lookups_of_its_keys():
    keys = tf.placeholder(tf.int64, [None])
    others = tf.placeholder(tf.int64, [None])
    tables = [table_from(initial_vectors(dim, ROWS), f"table_{dim}") for dim in (16, 1)]
    values = [rec.embedding_lookup(table, keys) for table in tables]
    unrelated = rec.embedding_lookup(tables[0], others)
    loss = sum(map(tf.reduce_sum, values))
    train = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss, var_list=tables)
    with tf.control_dependencies([train]):
        after = rec.embedding_lookup(tables[1], keys)
    with initialized_session() as session:
        fetches = [train, unrelated, after, values[1]]
        feed = {keys: [3, 4, 3], others: [5]}
        (_, _, new, old), waited_for = lookups_before_update(session, fetches, feed)
    assert waited_for == {value.op.name for value in values}
    # Each occurrence subtracts 1 and rounds once.
    np.testing.assert_allclose(new, old - [[2], [1], [2]], rtol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_an_update_does_not_wait_for_a_lookup_in_a_branch(version):
    with tf_behavior.control_flow(version):
        table, keys, train = trained_table()
        is_taken = tf.placeholder(tf.bool, [])
        chosen = tf.cond(
            is_taken, lambda: rec.embedding_lookup(table, keys), lambda: tf.zeros([1, 2])
        )
        rows = rows_of(table, np.arange(ROWS))
        with initialized_session() as session:
            before = session.run(rows)
            for taken in (True, False):
                feed = {keys: [3, 4, 3], is_taken: taken}
                _, waited_for = lookups_before_update(session, [train, chosen], feed)
                assert len(waited_for) == 1
            after = session.run(rows)
    np.testing.assert_allclose(before[[3, 4]] - after[[3, 4]], [[4, 4], [2, 2]], rtol=1e-5)


def trained_table():
    """A table of dim 2, its keys, and an op that subtracts 1 for each occurrence."""
    table = table_from(initial_vectors(2, ROWS))
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss, var_list=[table])
    return table, keys, train


def test_more_lookups_in_a_loop_than_a_step_keeps_read_their_rows():
    table, keys, train = trained_table()
    turns = 1100

    def body(i, total):
        read = tf.range(tf.cast(i, tf.int64), tf.cast(i, tf.int64) + 256)
        return i + 1, total + tf.reduce_sum(rec.embedding_lookup(table, read), axis=0)

    _, total = tf.while_loop(
        lambda i, _: i < turns, body, [0, tf.zeros([2])], parallel_iterations=4
    )
    rows = rows_of(table, np.arange(ROWS))
    with initialized_session() as session:
        for step in range(2):
            session.run(train, {keys: keys_of(step)})
        actual, values = session.run([total, rows])
    expected = sum(values[i : i + 256].astype(np.float64).sum(axis=0) for i in range(turns))
    # 1,100 sums of 256 floats of about 1, in another order.
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1)


def test_steps_that_run_at_the_same_time_lose_no_gradient():
    table, keys, train = trained_table()
    rows = rows_of(table, np.arange(ROWS))
    frequency = table.get_frequency(tf.range(ROWS, dtype=tf.int64))
    with initialized_session() as session:
        session.run(train, {keys: keys_of(0)})
        before = session.run(rows)

        def work(worker):
            for step in range(20):
                session.run(train, {keys: keys_of((worker + step) % STEPS)})

        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        after, counts = session.run([rows, frequency])
    expected = np.zeros([ROWS])
    for worker in range(4):
        for step in range(20):
            np.add.at(expected, keys_of((worker + step) % STEPS), 1)
    first = np.bincount(keys_of(0), minlength=ROWS)
    np.testing.assert_array_equal(counts, expected + first)
    # Each occurrence subtracts 1 and rounds once.
    np.testing.assert_allclose(before - after, np.repeat(expected[:, None], 2, 1), atol=1e-2)
