# SPDX-License-Identifier: Apache-2.0
"""IdsWithoutPadding, and the graph pass that puts it in place of TensorFlow's ops."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_behavior

import rec_estimator as rec
from rec_estimator import _ops
from rec_estimator import feature_column as fc

OP = "RecEstimator>IdsWithoutPadding"


def config(with_pass=True):
    """With the pass or without. Nothing else differs."""
    options = tf.ConfigProto(operation_timeout_in_ms=60_000)
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    optimizer = options.graph_options.optimizer_options
    optimizer.do_constant_folding = optimizer.do_common_subexpression_elimination = True
    optimizer.opt_level = tf.OptimizerOptions.L1 if with_pass else tf.OptimizerOptions.L0
    return options


def run(fetches, feed=None, with_pass=True):
    """(values, types of the ops that the step runs)"""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    with tf.Session(config=config(with_pass)) as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        values = session.run(fetches, feed, options, metadata)
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    return values, [node.op for node in nodes]


def ids_without_padding(ids, padding=-1):
    """What the pass looks for."""
    indices = tf.where(tf.not_equal(ids, padding))
    return indices, tf.gather_nd(ids, indices)


@pytest.mark.parametrize("shape", [[0], [6], [4, 1], [3, 4], [0, 3], [2, 3, 2], [2, 0, 2]])
@pytest.mark.parametrize("padding", [-1, 0, 2**63 - 1, -(2**63)])
def test_the_op_gives_what_tensorflows_ops_give(shape, padding):
    random = np.random.RandomState(sum(shape))
    ids = random.choice([-1, 0, 5, 2**63 - 1, -(2**63)], shape).astype(np.int64)
    expected, _ = run(ids_without_padding(tf.constant(ids), padding), with_pass=False)
    actual, _ = run(list(_ops.gen.rec_estimator_ids_without_padding(ids, padding=padding)))
    for ours, tensorflows in zip(actual, expected):
        assert ours.dtype == tensorflows.dtype
        np.testing.assert_array_equal(ours, tensorflows)


def test_the_shapes_of_the_op_are_known_when_the_graph_is_built():
    indices, values = _ops.gen.rec_estimator_ids_without_padding(
        tf.placeholder(tf.int64, [None, 3])
    )
    assert indices.shape.as_list() == [None, 2] and values.shape.as_list() == [None]
    indices, _ = _ops.gen.rec_estimator_ids_without_padding(tf.placeholder(tf.int64))
    assert indices.shape.as_list() == [None, None]


def test_ids_without_padding_keep_their_memory_and_are_not_overwritten():
    ids = tf.placeholder(tf.int64, [None])
    indices, values = ids_without_padding(ids)
    plus_one = values + 1  # Overwrites its input where nothing else reads it.
    (more, first), types = run([plus_one, ids + 0], {ids: np.arange(5)})
    assert OP in types
    np.testing.assert_array_equal(first, np.arange(5))
    np.testing.assert_array_equal(more, np.arange(5) + 1)
    del indices


def test_indices_that_are_kept_for_the_next_step_are_not_overwritten():
    ids = tf.placeholder(tf.int64)
    indices, _ = _ops.gen.rec_estimator_ids_without_padding(ids)
    doubled = indices * 2  # Overwrites its input where nothing else reads it.
    shapes = [(3, 2), (6,), (6, 1), (1, 6), (2, 3), (3, 2, 1), (2, 3, 1), (1, 2, 3), (3, 1, 2)] * 3
    shapes.append((70_000, 1))  # Too large to be kept.
    with tf.Session(config=config()) as session:
        for shape in shapes:
            expected = np.argwhere(np.ones(shape))
            for fetch, factor in ((indices, 1), (doubled, 2), (indices, 1)):
                found = session.run(fetch, {ids: np.zeros(shape, np.int64)})
                np.testing.assert_array_equal(found, factor * expected)
                found[...] = -5  # The caller's own memory.
            some = np.arange(np.prod(shape)).reshape(shape) - 1
            np.testing.assert_array_equal(session.run(indices, {ids: some}), expected[1:])


def features(ids):
    sources = {"user": ids[:, 0], "item": ids, "weights": tf.cast(ids, tf.float32) / 4}
    return rec.features.lookup_features(
        sources,
        [
            rec.EmbeddingFeature("user", 3, initializer=tf.random_normal_initializer(seed=1)),
            rec.EmbeddingFeature("item", 2, initializer=tf.random_normal_initializer(seed=2)),
            rec.EmbeddingFeature("other", 2, source="item", table="item", weight="weights"),
            rec.EmbeddingFeature(
                "list", 2, source="item", table="item", combiner=None, max_length=2
            ),
        ],
    )


def columns(ids):
    categorical = fc.categorical_column_with_embedding("item", tf.int64)
    column = fc.embedding_column(categorical, 3, initializer=tf.random_normal_initializer(seed=1))
    return {"item": tf.feature_column.input_layer({"item": ids}, [column])}


@pytest.mark.parametrize("look_up", [features, columns])
def test_features_read_the_same_with_the_pass_and_without(look_up):
    ids = tf.placeholder(tf.int64, [3, 2])
    names = ("user", "item", "other", "list")
    vectors = [value for name, value in look_up(ids).items() if name in names]
    for fed in ([[3, 5], [5, -1], [0, 3]], [[1, 2], [3, 4], [5, 6]], [[-1, -1]] * 3):
        feed = {ids: np.array(fed, np.int64)}
        actual, types = run(vectors, feed)
        expected, without = run(vectors, feed, with_pass=False)
        assert OP in types and "Where" not in types
        assert OP not in without and "Where" in without
        for ours, tensorflows in zip(actual, expected):
            np.testing.assert_array_equal(ours, tensorflows)


def test_what_else_reads_the_test_and_the_places_still_does():
    ids = tf.placeholder(tf.int64, [None, 2])
    is_id = tf.not_equal(ids, -1)
    indices = tf.where(is_id)
    values = tf.gather_nd(ids, indices)
    others = tf.gather_nd(tf.cast(ids, tf.float32), indices)
    feed = {ids: np.array([[4, -1], [-1, 7]])}
    (mask, places, kept, cast), types = run([is_id, indices, values, others], feed)
    assert OP in types and "NotEqual" in types
    np.testing.assert_array_equal(mask, [[True, False], [False, True]])
    np.testing.assert_array_equal(places, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(kept, [4, 7])
    np.testing.assert_array_equal(cast, [4, 7])


def test_the_padding_may_come_first():
    """TensorFlow's optimizer sorts the inputs of NotEqual by name."""
    ids = tf.placeholder(tf.int64, [None])
    indices = tf.where(tf.not_equal(tf.constant(-1, tf.int64), ids))
    (places, kept), types = run([indices, tf.gather_nd(ids, indices)], {ids: [-1, 4]})
    assert OP in types and places == [[1]] and kept == [4]


def other_ids(ids):
    indices = tf.where(tf.not_equal(ids, -1))
    return [indices, tf.gather_nd(ids + 1, indices)]


def padding_of_a_feed(ids):
    return list(ids_without_padding(ids, tf.placeholder_with_default(np.int64(-1), [])))


def paddings_by_column(ids):
    return list(ids_without_padding(ids, tf.constant([-1, -2], tf.int64)))


def narrow_ids(ids):
    return list(ids_without_padding(tf.cast(ids, tf.int32)))


@pytest.mark.parametrize("almost", [other_ids, padding_of_a_feed, paddings_by_column, narrow_ids])
def test_ops_that_do_something_else_stay(almost):
    ids = tf.placeholder(tf.int64, [None, 2])
    feed = {ids: np.array([[4, -1], [-1, 7]])}
    fetches = almost(ids)
    actual, types = run(fetches, feed)
    expected, _ = run(fetches, feed, with_pass=False)
    assert OP not in types and "Where" in types
    for ours, tensorflows in zip(actual, expected):
        np.testing.assert_array_equal(ours, tensorflows)


@pytest.mark.parametrize("version", [1, 2])
def test_ids_in_a_branch_lose_their_padding_there(version):
    with tf_behavior.control_flow(version):
        ids = tf.placeholder(tf.int64, [None])
        kept = tf.cond(tf.reduce_sum(ids) > 0, lambda: ids_without_padding(ids)[1], lambda: ids[:0])
        for fed, expected in (([3, -1, 4], [3, 4]), ([-1, -2], [])):
            np.testing.assert_array_equal(run(kept, {ids: np.array(fed)})[0], expected)


def test_the_op_waits_for_what_the_ops_wait_for():
    ids = tf.placeholder(tf.int64, [None])
    with tf.control_dependencies([tf.debugging.assert_less(ids, np.int64(5))]):
        indices, values = ids_without_padding(ids)
    (places, kept), types = run([indices, values], {ids: [-1, 4]})
    assert OP in types and places == [[1]] and kept == [4]
    with pytest.raises(tf.errors.InvalidArgumentError, match="assert_less"):
        run([indices, values], {ids: [-1, 5]})


def test_what_waits_for_the_ops_waits_for_the_one():
    ids = tf.constant([3, -1], tf.int64)
    indices, values = ids_without_padding(ids)
    with tf.control_dependencies([values, indices]):
        after = tf.constant(1.0) + 1
    value, _ = run(after)
    assert value == 2
