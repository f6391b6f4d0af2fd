# SPDX-License-Identifier: Apache-2.0
"""What ops around lookups do, made of TensorFlow's own ops."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.serving.stock_ops import STOCK_FORMS
from rec_estimator.serving.stock_tables import replace_ops

ROWS = np.array([0, 0, 2, 2, 2, 5])


def combined_and_stock(weights, combiner, rows=ROWS):
    """The result of CombineWeighted, and that of the ops that replace it."""
    inputs = {
        "values": np.random.default_rng(0).normal(size=[len(ROWS), 3]).astype(np.float32),
        "weights": np.array(weights, np.float32),
        "indices": np.stack([rows, np.arange(len(rows))], axis=1),
        "dense_shapes": np.array([7, 9]),
    }
    feeds = {name: tf.placeholder(value.dtype) for name, value in inputs.items()}
    (combined,) = _ops.gen.rec_estimator_combine_weighted(
        **{name: [feed] for name, feed in feeds.items()}, combiners=[combiner]
    )
    _, replaced = replace_ops([combined.op], bundle=None)
    (stock,) = replaced[combined.op.name]
    return combined, stock, {feeds[name]: value for name, value in inputs.items()}


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weighted_sums_have_the_bits_of_our_op(combiner):
    weights = [0.5, 2, 1, -1, 0, 0]  # The second sum, and the third one, is 0.
    combined, stock, fed = combined_and_stock(weights, combiner)
    assert not stock.op.type.startswith("RecEstimator>")
    with tf.Session() as session:
        expected, actual = session.run([combined, stock], fed)
    np.testing.assert_array_equal(actual, expected)
    assert np.any(expected[0]) and not np.any(expected[5])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weights, rows", [([2.0], ROWS), ([2.0] * 6, [0, 0, 1, 1, 2, 7])])
def test_weights_and_rows_that_do_not_fit_are_an_error(weights, rows, combiner):
    *both, fed = combined_and_stock(weights, combiner, rows)
    with tf.Session() as session:
        for values in both:
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(values, fed)


def ids_without_padding(dtype):
    def call(rng, n):
        ids = rng.choice([-1, 0, 5], [n, 3])
        if dtype == tf.string:
            ids = np.where(ids == -1, "", ids.astype(str))
        return _ops.gen.rec_estimator_ids_without_padding(tf.constant(ids, dtype))

    return call


def shard_keys_split(rng, n):
    return _ops.gen.rec_estimator_shard_keys_split(rng.integers(-(2**63), 2**63, n), N=3)


def shard_rows_split(rng, n):
    shards = rng.choice([0, 2], n).astype(np.int32)  # Shard 1 has no rows.
    values = rng.normal(size=[n, 4]).astype(np.float32)
    return _ops.gen.rec_estimator_shard_rows_split(shards, values, N=3)


def shard_rows_merge(rng, n):
    split = shard_rows_split(rng, n)
    return _ops.gen.rec_estimator_shard_rows_merge(split[0].op.inputs[0], split)


CALLS = {
    "int32": ids_without_padding(tf.int32),
    "int64": ids_without_padding(tf.int64),
    "string": ids_without_padding(tf.string),
    "keys_split": shard_keys_split,
    "rows_split": shard_rows_split,
    "rows_merge": shard_rows_merge,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_every_output_has_the_bits_of_our_op(call, n):
    op = tf.nest.flatten(call(np.random.default_rng(n), n))[0].op
    stock = STOCK_FORMS[op.type](op)
    assert len(stock) == len(op.outputs)
    assert not any(each.op.type.startswith("RecEstimator>") for each in stock)
    with tf.Session() as session:
        expected, actual = session.run([list(op.outputs), stock])
    for ours, tensorflows in zip(expected, actual):
        assert ours.dtype == tensorflows.dtype
        np.testing.assert_array_equal(ours, tensorflows)
