# SPDX-License-Identifier: Apache-2.0
"""IdsWithoutPadding, and what features read by it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_behavior

import rec_estimator as rec
from rec_estimator import _ops
from rec_estimator import feature_column as fc

OP = "RecEstimator>IdsWithoutPadding"
LEAST, LARGEST = -(2**63), 2**63 - 1
IDS = {
    tf.int32: [-1, 0, 5, 2**31 - 1, -(2**31)],
    tf.int64: [-1, 0, 5, LARGEST, LEAST],
    tf.string: ["", "-1", "\0", "a longer string than fits into 24 bytes"],
}


def run(fetches, feed=None):
    """(values, types of the ops that the step runs)"""
    config = tf.ConfigProto(operation_timeout_in_ms=60_000)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    with tf.Session(config=config) as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        values = session.run(fetches, feed, options, metadata)
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    return values, [node.op for node in nodes]


def of_tensorflow(ids):
    """What the op does, by TensorFlow's ops."""
    indices = tf.where(tf.not_equal(ids, "" if ids.dtype == tf.string else -1))
    return [indices, tf.gather_nd(ids, indices)]


@pytest.mark.parametrize("shape", [[0], [6], [4, 1], [3, 4], [0, 3], [2, 3, 2], [2, 0, 2]])
@pytest.mark.parametrize("dtype", IDS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("first", [0, 1], ids=["padded", "whole"])
def test_the_op_gives_what_tensorflows_ops_give(shape, dtype, first):
    random = np.random.RandomState(sum(shape))
    choices = np.array(IDS[dtype], dtype.as_numpy_dtype)[first:]
    ids = tf.constant(random.choice(choices, shape), dtype)
    (actual, expected), _ = run(
        [list(_ops.gen.rec_estimator_ids_without_padding(ids)), of_tensorflow(ids)]
    )
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


def test_ids_have_no_gradient():
    ids = tf.placeholder(tf.int64, [None])
    _, values = _ops.gen.rec_estimator_ids_without_padding(ids)
    assert tf.gradients(tf.cast(values, tf.float32), ids) == [None]


@pytest.mark.parametrize("dtype", [tf.int64, tf.string])
def test_ids_without_padding_keep_their_memory_and_are_not_overwritten(dtype):
    ids = tf.placeholder(dtype, [None])
    _, values = _ops.gen.rec_estimator_ids_without_padding(ids)
    # Overwrites its input where nothing else reads it.
    more, one = (tf.strings.join, "1") if dtype == tf.string else (lambda pair: pair[0] + 1, 1)
    fed = np.arange(5).astype(dtype.as_numpy_dtype).astype(str if dtype == tf.string else int)
    (found, first), _ = run([more([values, one]), tf.identity(ids)], {ids: fed})
    np.testing.assert_array_equal(first.astype(fed.dtype), fed)
    expected = np.char.add(fed, "1") if dtype == tf.string else fed + 1
    np.testing.assert_array_equal(found.astype(fed.dtype.kind), expected)


def test_indices_that_are_kept_for_the_next_step_are_not_overwritten():
    ids = tf.placeholder(tf.int64)
    indices, _ = _ops.gen.rec_estimator_ids_without_padding(ids)
    doubled = indices * 2  # Overwrites its input where nothing else reads it.
    shapes = [(3, 2), (6,), (6, 1), (1, 6), (2, 3), (3, 2, 1), (2, 3, 1), (1, 2, 3), (3, 1, 2)] * 3
    shapes.append((70_000, 1))  # Too large to be kept.
    with tf.Session() as session:
        for shape in shapes:
            expected = np.argwhere(np.ones(shape))
            for fetch, factor in ((indices, 1), (doubled, 2), (indices, 1)):
                found = session.run(fetch, {ids: np.zeros(shape, np.int64)})
                np.testing.assert_array_equal(found, factor * expected)
                found[...] = -5  # The caller's own memory.
            some = np.arange(np.prod(shape)).reshape(shape) - 1
            np.testing.assert_array_equal(session.run(indices, {ids: some}), expected[1:])


def features(user, item, weights):
    looked_up = rec.features.lookup_features(
        {"user": user, "item": item, "weights": weights},
        [
            rec.EmbeddingFeature("user", 3, initializer=tf.random_normal_initializer(seed=1)),
            rec.EmbeddingFeature("item", 2, initializer=tf.random_normal_initializer(seed=2)),
            rec.EmbeddingFeature("other", 2, source="item", table="item", weight="weights"),
            rec.EmbeddingFeature(
                "list", 2, source="item", table="item", combiner=None, max_length=2
            ),
        ],
    )
    return [looked_up[name] for name in ("user", "item", "other", "list")]


def columns(user, item, weights):
    del user, weights
    categorical = fc.categorical_column_with_embedding("item", tf.int64)
    column = fc.embedding_column(categorical, 3, initializer=tf.random_normal_initializer(seed=1))
    return [tf.feature_column.input_layer({"item": item}, [column])]


def without_padding(ids, values=None):
    """A SparseTensor, by TensorFlow's ops."""
    indices, kept = of_tensorflow(ids)
    if values is not None:
        kept = tf.gather_nd(values, indices)
    return tf.SparseTensor(indices, kept, tf.shape(ids, out_type=tf.int64))


@pytest.mark.parametrize("look_up", [features, columns])
def test_features_read_dense_ids_as_the_sparse_ids_without_their_padding(look_up):
    ids = tf.placeholder(tf.int64, [3, 2])
    weights = tf.cast(ids, tf.float32) / 4
    vectors = look_up(ids[:, 0], ids, weights)
    user, item = without_padding(ids[:, :1]), without_padding(ids)
    from_sparse = look_up(user, item, without_padding(ids, weights))
    for fed in ([[3, 5], [5, -1], [0, 3]], [[1, 2], [3, 4], [5, 6]], [[-1, -1]] * 3):
        feed = {ids: np.array(fed, np.int64)}
        (actual, expected), _ = run([vectors, from_sparse], feed)
        for dense, sparse in zip(actual, expected):
            np.testing.assert_array_equal(dense, sparse)
        _, types = run(vectors, feed)
        assert OP in types and "Where" not in types


@pytest.mark.parametrize("version", [1, 2])
def test_ids_in_a_branch_lose_their_padding_there(version):
    with tf_behavior.control_flow(version):
        ids = tf.placeholder(tf.int64, [None])
        kept = tf.cond(
            tf.reduce_sum(ids) > 0,
            lambda: _ops.gen.rec_estimator_ids_without_padding(ids).values,
            lambda: ids[:0],
        )
        for fed, expected in (([3, -1, 4], [3, 4]), ([-1, -2], [])):
            np.testing.assert_array_equal(run(kept, {ids: np.array(fed)})[0], expected)
