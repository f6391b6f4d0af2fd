# SPDX-License-Identifier: Apache-2.0
"""Lookups made of TensorFlow's own ops."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.serving.stock_tables import replace_lookups

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
    _, replaced = replace_lookups([combined.op], bundle=None)
    fed = {feeds[name]: value for name, value in inputs.items()}
    return combined, replaced[combined.op.name], fed


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
