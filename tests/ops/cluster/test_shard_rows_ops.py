# SPDX-License-Identifier: Apache-2.0
"""The ops on shards, and how lookups of partitioned tables use them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import _ops

MERGE, SPLIT = "RecEstimator>ShardRowsMerge", "RecEstimator>ShardRowsSplit"
KEYS_SPLIT = "RecEstimator>ShardKeysSplit"


def run_step(session, fetches, feed=None):
    """(values, types of the ops that the step runs)"""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    values = session.run(fetches, feed, options, metadata)
    return values, [node.op for part in metadata.partition_graphs for node in part.node]


def session():
    return tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=60_000))


def evaluate(fetches):
    with session() as one:
        return one.run(fetches)


@pytest.mark.parametrize("row", [(), (1,), (3,), (16,), (2, 5), (0,)])
@pytest.mark.parametrize("n", [0, 1, 7, 4096, 9000])
def test_split_and_merge_give_what_numpy_gives(row, n):
    random = np.random.RandomState(n)
    shards = random.choice([0, 1, 3], n).astype(np.int32)  # Shard 2 has no rows.
    values = random.rand(n, *row).astype(np.float32)
    split = _ops.gen.rec_estimator_shard_rows_split(shards, values, N=4)
    merged = _ops.gen.rec_estimator_shard_rows_merge(shards, split)
    parts, whole = evaluate([split, merged])
    for shard, part in enumerate(parts):
        np.testing.assert_array_equal(part, values[shards == shard])
    np.testing.assert_array_equal(whole, values)


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("n", [0, 1, 7, 2049, 4096, 9000])
def test_keys_are_split_as_numpy_splits_them(n_shards, n):
    random = np.random.RandomState(n)
    keys = random.randint(-(2**63), 2**63 - 1, n)
    keys[::3] = random.randint(-2000, 2000, len(keys[::3]))
    keys[1:5] = [-(2**63), 2**63 - 1, -1, -1000][: len(keys[1:5])]
    shards, parts, positions = evaluate(_ops.gen.rec_estimator_shard_keys_split(keys, N=n_shards))
    np.testing.assert_array_equal(shards, keys % 1000 % n_shards)
    assert len(parts) == len(positions) == n_shards
    for shard in range(n_shards):
        [expected] = np.nonzero(shards == shard)
        np.testing.assert_array_equal(positions[shard], expected)
        np.testing.assert_array_equal(parts[shard], keys[expected])


def test_keys_of_another_rank_are_refused():
    keys = tf.placeholder(tf.int64)
    split = _ops.gen.rec_estimator_shard_keys_split(keys, N=2)
    with session() as one:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"keys must be \[n\]"):
            one.run(split, {keys: [[1]]})


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("row", [(), (1,), (3,), (2, 5), (0,)])
@pytest.mark.parametrize("n", [0, 1, 9000])
def test_rows_of_shards_are_spread_as_numpy_does(row, n, dtype):
    random = np.random.RandomState(n)
    shards = random.choice([0, 1, 3], n).astype(np.int32)  # Shard 2 has no rows.
    rows = [random.rand(k, 5).astype(dtype.as_numpy_dtype) for k in (6, 1, 0, 3)]
    index = [
        random.randint(0, max(len(of_shard), 1), [np.sum(shards == shard), *row]).astype(np.int32)
        for shard, of_shard in enumerate(rows)
    ]
    expected = np.zeros([n, *row, 5], np.float32)
    for shard in (0, 1, 3):
        expected[shards == shard] = rows[shard][index[shard]]
    found = evaluate(_ops.gen.rec_estimator_shard_rows_spread(shards, rows, index))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shards", "rows", "index", "message"),
    [
        ([0, 2], [(2, 3), (2, 3)], [[0], [0]], r"shards must be in \[0, 2\), got 2 for row 1"),
        ([0, 1], [(2, 3), (2, 3)], [[0], [2]], r"index of shard 1 must be in \[0, 2\)"),
        ([0, 1], [(2, 3), (2, 3)], [[-1], [0]], r"index of shard 0 must be in \[0, 2\)"),
        ([0, 1], [(2, 3), (0, 3)], [[1], [0]], r"index of shard 1 must be in \[0, 0\)"),
        ([0, 1], [(2, 3), (2, 3)], [[0], [0, 0]], r"index of shard 1 must be \[1\], got shape"),
        ([0, 1], [(2, 3), (2, 3)], [[0], [[0]]], r"index of shard 1 must be \[1\], got shape"),
        ([0, 1], [(2, 3), (2, 3)], [0, [0]], r"index must be \[n, ...\], got shape \[\]"),
        ([0, 1], [(2, 3), (2, 4)], [[0], [0]], r"rows of shard 1 must be \[k, 3\], got shape"),
        ([0, 1], [(2, 3), (6,)], [[0], [0]], r"rows of shard 1 must be \[k, 3\], got shape"),
        ([0, 1], [(6,), (2, 3)], [[0], [0]], r"rows must be \[k, dim\], got shape \[6\]"),
    ],
)
def test_rows_are_not_spread_where_there_are_none(shards, rows, index, message):
    fed = [tf.placeholder(tf.int32)]
    fed += [tf.placeholder(tf.float32) for _ in rows] + [tf.placeholder(tf.int32) for _ in index]
    spread = _ops.gen.rec_estimator_shard_rows_spread(fed[0], fed[1:3], fed[3:])
    values = [shards, *(np.ones(shape, np.float32) for shape in rows), *index]
    with session() as one:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            one.run(spread, dict(zip(fed, values)))


ONE = np.ones([1, 2], np.float32)


@pytest.mark.parametrize(
    ("shards", "rows", "message"),
    [
        ([0, 2], [ONE, ONE], r"shards must be in \[0, 2\), got 2 for row 1"),
        ([0, -1], [ONE, ONE], r"shards must be in \[0, 2\), got -1"),
        ([[0, 1]], [ONE, ONE], r"shards must be \[n\]"),
        ([0, 0], [ONE, ONE], r"rows of shard 0 must be \[2,2\], got shape \[1,2\]"),
        ([0, 1], [ONE, ONE[:, :1]], r"rows of shard 1 must be \[1,2\], got shape \[1,1\]"),
        ([0, 1], [np.float32(1), ONE], r"rows must be \[n, ...\], got shape \[\]"),
    ],
)
def test_merge_refuses_rows_that_are_not_those_of_the_shards(shards, rows, message):
    fed = [tf.placeholder(tf.int32)] + [tf.placeholder(tf.float32) for _ in rows]
    merged = _ops.gen.rec_estimator_shard_rows_merge(fed[0], fed[1:])
    with session() as one:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            one.run(merged, dict(zip(fed, [shards, *rows])))


@pytest.mark.parametrize("values", [np.ones([3, 2]), np.float32(1)])
def test_split_refuses_values_of_another_batch(values):
    fed = tf.placeholder(tf.float32)
    split = _ops.gen.rec_estimator_shard_rows_split([0, 1], fed, N=2)
    with session() as one:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"values must be \[n, ...\], n ="):
            one.run(split, {fed: values})


def read_by_stock_ops(table, keys):
    """A lookup whose keys and rows TensorFlow's ops divide and merge: as older exports have it."""
    n_shards = len(list(table))
    flat = tf.reshape(keys, [-1])
    shards = tf.floormod(tf.cast(tf.floormod(flat, 1000), tf.int32), n_shards)
    positions = tf.dynamic_partition(tf.range(tf.size(flat)), shards, n_shards)
    parts = tf.dynamic_partition(flat, shards, n_shards)
    rows = [rec.table.lookup._lookup_shard(*pair, None, False) for pair in zip(table, parts)]
    values = tf.dynamic_stitch(positions, rows)
    return tf.reshape(values, tf.concat([tf.shape(keys), [table.dim]], axis=0))


def table_of(name, dim, parts):
    return rec.get_embedding_variable(
        name,
        dim,
        partitioner=tf.fixed_size_partitioner(parts),
        initializer=tf.random_normal_initializer(seed=2),
    )


def trained(read, static):
    """(losses, rows, types of ops) of steps with two tables, of which one is read twice."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        ids = tf.placeholder(tf.int64, [500] if static else [None])
        tables = [table_of("wide", 4, 3), table_of("narrow", 1, 2)]
        loss = sum(tf.reduce_sum(tf.square(read(table, ids) - 1)) for table in tables)
        loss += tf.reduce_sum(read(tables[0], tf.reshape(ids * 2, [-1, 1])) ** 2)
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        rows = [rec.embedding_lookup(table, tf.range(100, dtype=tf.int64)) for table in tables]
        losses = []
        with session() as one:
            one.run(tf.global_variables_initializer())
            for step in range(4):
                feed = {ids: np.random.RandomState(step).randint(0, 100, 500)}
                (value, _), types = run_step(one, [loss, train], feed)
                losses.append(value)
            return losses, one.run(rows), types


@pytest.mark.long
@pytest.mark.parametrize("static", [False, True])
def test_partitioned_tables_train_as_with_tensorflows_ops(static):
    losses, rows, types = trained(rec.embedding_lookup, static)
    expected_losses, expected_rows, expected_types = trained(read_by_stock_ops, static)
    assert types.count(MERGE) == types.count(SPLIT) == types.count(KEYS_SPLIT) == 3
    assert {"DynamicStitch", "DynamicPartition", "FloorMod", "GatherV2"}.isdisjoint(types)
    assert MERGE not in expected_types and "DynamicStitch" in expected_types
    assert losses == expected_losses
    for ours, tensorflows in zip(rows, expected_rows):
        np.testing.assert_array_equal(ours, tensorflows)


def test_lookups_of_the_same_keys_share_their_division():
    keys = tf.placeholder(tf.int64, [None])
    values = [rec.embedding_lookup(table_of(name, 4, 2), keys) for name in "ab"]
    with session() as one:
        one.run(tf.global_variables_initializer())
        _, types = run_step(one, values, {keys: [3, -4, 6, 1, 999]})
    assert types.count(KEYS_SPLIT) == 1 and types.count(MERGE) == 2


@pytest.mark.parametrize("power", [2, 3])
def test_gradients_of_gradients_are_those_of_tensorflows_ops(power):
    """Gradients of the rows of a batch, and of the rows of shards."""
    keys = tf.placeholder(tf.int64, [None, 2])
    table = table_of("table", 3, 2)
    found = []
    for read in (rec.embedding_lookup, read_by_stock_ops):
        values = read(table, keys)
        first = tf.gradients(values**power, [values, *table])
        penalty = sum(tf.reduce_sum(getattr(each, "values", each) ** 2) for each in first)
        second = tf.gradients(penalty, [values, *table])
        found.append([getattr(each, "values", each) for each in (*first, *second)])
    with session() as one:
        one.run(tf.global_variables_initializer())
        ours, tensorflows = one.run(found, {keys: [[3, -4], [6, 1], [3, 999]]})
    assert len(ours) == 6 and all(np.any(each) for each in ours)
    for each, expected in zip(ours, tensorflows):
        np.testing.assert_array_equal(each, expected)


def test_the_gradient_of_a_division_merges_what_reaches_some_of_its_parts():
    shards = tf.constant([1, 0, 1, 2])
    values = tf.constant(np.arange(8, dtype=np.float32).reshape(4, 2))
    split = _ops.gen.rec_estimator_shard_rows_split(shards, values, N=3)
    picked = tf.reduce_sum(tf.gather(split[1], [1, 1])) + tf.reduce_sum(split[2] * 3)
    [gradient] = tf.gradients(picked, values)
    np.testing.assert_array_equal(evaluate(gradient), [[0, 0], [0, 0], [2, 2], [3, 3]])


def test_keys_have_no_gradient():
    keys = tf.placeholder(tf.int64, [None])
    split = _ops.gen.rec_estimator_shard_keys_split(keys, N=2)
    assert tf.gradients(tf.cast(split.parts[0], tf.float32), keys) == [None]


def test_further_occurrences_are_divided_too():
    keys = tf.placeholder(tf.int64, [None])
    table = table_of("table", 4, 2)
    values = rec.embedding_lookup(table, keys, counts=tf.constant([1, 3, 2]))
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(values**2))
    with session() as one:
        one.run(tf.global_variables_initializer())
        _, types = run_step(one, train, {keys: [4, 7, 4]})
        counts = one.run(table.get_frequency([4, 7, 8]))
    assert counts.tolist() == [3, 3, 0]
    assert types.count(KEYS_SPLIT) == 2 and "DynamicPartition" not in types
