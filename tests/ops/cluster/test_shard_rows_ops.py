# SPDX-License-Identifier: Apache-2.0
"""The ops on shards, and the pass that puts them in place of TensorFlow's."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import _ops

MERGE, SPLIT = "RecEstimator>ShardRowsMerge", "RecEstimator>ShardRowsSplit"
KEYS_SPLIT = "RecEstimator>ShardKeysSplit"
LOOKUP = "RecEstimator>TableLookup"


def run_step(session, fetches, feed=None):
    """(values, types of the ops that the step runs)"""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    values = session.run(fetches, feed, options, metadata)
    return values, [node.op for part in metadata.partition_graphs for node in part.node]


def session(with_pass=True):
    config = tf.ConfigProto(operation_timeout_in_ms=60_000)
    level = tf.OptimizerOptions.L1 if with_pass else tf.OptimizerOptions.L0
    config.graph_options.optimizer_options.opt_level = level
    return tf.Session(config=config)


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
    shards, parts, places = evaluate(_ops.gen.rec_estimator_shard_keys_split(keys, N=n_shards))
    np.testing.assert_array_equal(shards, keys % 1000 % n_shards)
    assert len(parts) == len(places) == n_shards
    for shard in range(n_shards):
        [expected] = np.nonzero(shards == shard)
        np.testing.assert_array_equal(places[shard], expected)
        np.testing.assert_array_equal(parts[shard], keys[expected])


def test_keys_of_another_rank_are_refused():
    keys = tf.placeholder(tf.int64)
    split = _ops.gen.rec_estimator_shard_keys_split(keys, N=2)
    with session() as one:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"keys must be \[n\]"):
            one.run(split, {keys: [[1]]})


@pytest.mark.parametrize("row", [(), (1,), (3,), (2, 5), (0,)])
@pytest.mark.parametrize("n", [0, 1, 9000])
def test_rows_of_shards_are_spread_as_numpy_does(row, n):
    random = np.random.RandomState(n)
    shards = random.choice([0, 1, 3], n).astype(np.int32)  # Shard 2 has no rows.
    rows = [random.rand(k, 5).astype(np.float32) for k in (6, 1, 0, 3)]
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


def trained(with_pass, static):
    """(losses, rows, types of ops) of steps with two tables, of which one is read twice."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        ids = tf.placeholder(tf.int64, [500] if static else [None])
        loss = 0.0
        tables = []
        for dim, parts in ((4, 3), (1, 2)):
            table = rec.get_embedding_variable(
                f"table_{dim}",
                dim,
                partitioner=tf.fixed_size_partitioner(parts),
                initializer=tf.random_normal_initializer(seed=2),
            )
            tables.append(table)
            loss += tf.reduce_sum(tf.square(rec.embedding_lookup(table, ids) - 1))
        loss += tf.reduce_sum(rec.embedding_lookup(tables[0], tf.reshape(ids * 2, [-1, 1])) ** 2)
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        rows = [rec.embedding_lookup(table, tf.range(100, dtype=tf.int64)) for table in tables]
        losses = []
        with session(with_pass) as one:
            one.run(tf.global_variables_initializer())
            for step in range(4):
                feed = {ids: np.random.RandomState(step).randint(0, 100, 500)}
                (value, _), types = run_step(one, [loss, train], feed)
                losses.append(value)
            return losses, one.run(rows), types


@pytest.mark.parametrize("static", [False, True])
def test_partitioned_tables_train_the_same_with_the_pass_and_without(static):
    losses, rows, types = trained(True, static)
    expected_losses, expected_rows, expected_types = trained(False, static)
    assert types.count(MERGE) == types.count(SPLIT) == 3
    assert types.count(KEYS_SPLIT) == 3
    assert {"DynamicStitch", "DynamicPartition", "FloorMod"}.isdisjoint(types)
    assert MERGE not in expected_types and "DynamicStitch" in expected_types
    assert losses == expected_losses
    for ours, tensorflows in zip(rows, expected_rows):
        np.testing.assert_array_equal(ours, tensorflows)


def partitioned_table():
    return rec.get_embedding_variable(
        "table",
        4,
        partitioner=tf.fixed_size_partitioner(2),
        initializer=tf.random_normal_initializer(seed=2),
    )


def lookup_in_other_order(shards, parts):
    """Rows of the shards, each in descending order of the batch."""
    places = tf.dynamic_partition(tf.range(tf.size(shards))[::-1], shards[::-1], 2)
    return tf.dynamic_stitch(places, parts)


def every_second(shards, parts):
    places = tf.dynamic_partition(tf.range(0, 2 * tf.size(shards), 2), shards, 2)
    return tf.dynamic_stitch(places, parts)[::2]  # TensorFlow sets no others.


def other_rows(shards, parts):
    places = tf.dynamic_partition(tf.range(tf.size(shards)), shards, 2)
    return tf.dynamic_stitch(places, [part + 1 for part in parts])


def shards_swapped(shards, parts):
    places = tf.dynamic_partition(tf.range(tf.size(shards)), shards, 2)
    return tf.dynamic_stitch(places[::-1], parts[::-1])


@pytest.mark.parametrize(
    "stitch", [lookup_in_other_order, every_second, other_rows, shards_swapped]
)
def test_rows_that_are_stitched_otherwise_stay(stitch):
    keys = tf.placeholder(tf.int64, [None])
    table = partitioned_table()
    shards = tf.cast(tf.floormod(keys, 2), tf.int32)
    parts = [
        _ops.gen.rec_estimator_table_lookup(shard.handle, part, dim=4, unknown="initial")
        for shard, part in zip(table, tf.dynamic_partition(keys, shards, 2))
    ]
    result = stitch(shards, parts)
    values = []
    for with_pass in (True, False):
        with session(with_pass) as one:
            one.run(tf.global_variables_initializer())
            value, types = run_step(one, result, {keys: [3, 4, 6, 1, 5]})
            assert LOOKUP in types and MERGE not in types and "DynamicStitch" in types
            values.append(value)
    np.testing.assert_array_equal(*values)


def test_rows_that_were_merged_are_split_again():
    """The gathers read what the pass itself replaces."""
    keys = tf.placeholder(tf.int64, [None])
    values = rec.embedding_lookup(partitioned_table(), keys)
    [stitch] = [op for op in tf.get_default_graph().get_operations() if op.type == "DynamicStitch"]
    parts = [tf.gather(stitch.outputs[0], places) for places in stitch.inputs[:2]]
    feed = {keys: [3, 4, 6, 1, 5]}
    with session() as one:
        one.run(tf.global_variables_initializer())
        (whole, even, odd), types = run_step(one, [values, *parts], feed)
    assert MERGE in types and SPLIT in types and "GatherV2" not in types
    np.testing.assert_array_equal(even, whole[[1, 2]])
    np.testing.assert_array_equal(odd, whole[[0, 3, 4]])


def test_gathers_that_wait_for_each_other_stay():
    keys = tf.placeholder(tf.int64, [None])
    values = rec.embedding_lookup(partitioned_table(), keys)
    [stitch] = [op for op in tf.get_default_graph().get_operations() if op.type == "DynamicStitch"]
    even = tf.gather(values, stitch.inputs[0])
    with tf.control_dependencies([even + 1]):
        odd = tf.gather(values, stitch.inputs[1])
    with session() as one:
        one.run(tf.global_variables_initializer())
        (whole, rows), types = run_step(one, [values, odd], {keys: [3, 4, 6, 1, 5]})
    assert MERGE in types and SPLIT not in types
    np.testing.assert_array_equal(rows, whole[[0, 3, 4]])


def test_what_something_else_reads_of_the_division_stays():
    keys = tf.placeholder(tf.int64, [None])
    values = rec.embedding_lookup(partitioned_table(), keys)
    [stitch] = [op for op in tf.get_default_graph().get_operations() if op.type == "DynamicStitch"]
    places = list(stitch.inputs)[:2]
    shards = places[0].op.inputs[1]
    fetches = [values, places, shards, shards.op.inputs[0]]
    with session() as one:
        one.run(tf.global_variables_initializer())
        (_, found, of_keys, buckets), types = run_step(one, fetches, {keys: [3, 4, 6, 1, -5]})
    assert MERGE in types and KEYS_SPLIT in types and "DynamicPartition" not in types
    np.testing.assert_array_equal(found[0], [1, 2])
    np.testing.assert_array_equal(found[1], [0, 3, 4])
    np.testing.assert_array_equal(of_keys, [1, 0, 0, 1, 1])
    np.testing.assert_array_equal(buckets, [3, 4, 6, 1, 995])


def lookup_of_shards(keys, shards):
    """(values, what divides the keys) of a lookup with shards of its own."""
    places = tf.dynamic_partition(tf.range(tf.size(shards)), shards, 2)
    parts = tf.dynamic_partition(keys, shards, 2)
    rows = [
        _ops.gen.rec_estimator_table_lookup(shard.handle, part, dim=4, unknown="initial")
        for shard, part in zip(partitioned_table(), parts)
    ]
    return tf.dynamic_stitch(places, rows), parts


def shards_of(keys, buckets=1000, modulus=2):
    return tf.floormod(tf.cast(tf.floormod(keys, buckets), tf.int32), modulus)


@pytest.mark.parametrize(
    ("of_keys", "divided"),
    [
        (shards_of, True),
        (lambda keys: shards_of(keys, buckets=999), False),
        (lambda keys: shards_of(keys, modulus=1), False),
        (lambda keys: tf.floormod(tf.floormod(tf.cast(keys, tf.int32), 1000), 2), False),
        (lambda keys: tf.cast(tf.floormod(tf.floormod(keys, 1000), 2), tf.int32), False),
        (lambda keys: shards_of(keys + 1), True),  # The shards of other keys.
    ],
)
def test_only_the_shards_of_tables_are_found_by_one_op(of_keys, divided):
    keys = tf.placeholder(tf.int64, [None])
    fetches = lookup_of_shards(keys, of_keys(keys))
    found = []
    for with_pass in (True, False):
        with session(with_pass) as one:
            one.run(tf.global_variables_initializer())
            feed = {keys: [3, -4, 6, 1, 999, 1000, 2**40]}
            value, types = run_step(one, fetches, feed)
            assert (KEYS_SPLIT in types) == (divided and with_pass)
            found.append(value)
    tf.nest.map_structure(np.testing.assert_array_equal, *found)


def test_lookups_with_the_same_shards_share_their_division():
    keys = tf.placeholder(tf.int64, [None])
    shards = shards_of(keys)
    with tf.variable_scope("one"):
        one, parts = lookup_of_shards(keys, shards)
    with tf.variable_scope("other"):
        rows = [
            _ops.gen.rec_estimator_table_lookup(shard.handle, part, dim=4, unknown="initial")
            for shard, part in zip(partitioned_table(), parts)
        ]
        other = tf.dynamic_stitch(tf.dynamic_partition(tf.range(5), shards, 2), rows)
    found = []
    for with_pass in (True, False):
        with session(with_pass) as session_:
            session_.run(tf.global_variables_initializer())
            values, types = run_step(session_, [one, other], {keys: [3, -4, 6, 1, 999]})
            assert types.count(KEYS_SPLIT) == with_pass
            assert ("DynamicPartition" in types) != with_pass
            found.append(values)
    tf.nest.map_structure(np.testing.assert_array_equal, *found)


def test_a_division_waits_for_what_the_shards_waited_for():
    variable = tf.get_variable("v", [], tf.int64, tf.zeros_initializer(), use_resource=True)
    keys = tf.placeholder(tf.int64, [None])
    with tf.control_dependencies([variable.assign_add(1)]):
        shards = shards_of(keys)
    values, parts = lookup_of_shards(keys, shards)
    with tf.control_dependencies([parts[0]]):
        after = variable.read_value()
    with session() as one:
        one.run(tf.global_variables_initializer())
        for step in range(20):
            (_, count), types = run_step(one, [values, after], {keys: [3, 4]})
            assert KEYS_SPLIT in types and count == step + 1


def test_a_division_that_waits_for_its_own_shards_stays():
    """One op for both would wait for itself."""
    keys = tf.placeholder(tf.int64, [None])
    shards = shards_of(keys)
    parts = tf.dynamic_partition(keys, shards, 2)
    rows = [
        _ops.gen.rec_estimator_table_lookup(shard.handle, part, dim=4, unknown="initial")
        for shard, part in zip(partitioned_table(), parts)
    ]
    with tf.control_dependencies([tf.print("rows", rows[0])]):
        count = tf.range(tf.size(shards))
    values = tf.dynamic_stitch(tf.dynamic_partition(count, shards, 2), rows)
    found = []
    for with_pass in (True, False):
        with session(with_pass) as one:
            one.run(tf.global_variables_initializer())
            value, types = run_step(one, values, {keys: [3, 4]})
            assert KEYS_SPLIT not in types and (MERGE in types) == with_pass
            found.append(value)
    np.testing.assert_array_equal(*found)
