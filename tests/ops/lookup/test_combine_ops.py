# SPDX-License-Identifier: Apache-2.0
"""CombineWeighted and its gradients."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import combine_weighted, spread_weighted
from session_threads import session_with_threads

from rec_estimator import _ops

COMBINERS = ["sum", "mean", "sqrtn"]
TYPES = [np.float32, np.float64]


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def indices_of(row_ids, rank=2):
    """Returns indices [n, rank] with the row ids in column 0 and arbitrary numbers elsewhere."""
    indices = np.full([len(row_ids), rank], -7, np.int64)
    indices[:, 0] = row_ids
    return indices


class Lookups:
    """The inputs of CombineWeighted, or of its gradient, one lookup at a time."""

    def __init__(self):
        self.inputs = {"values": [], "weights": [], "indices": [], "dense_shapes": []}
        self.grads, self.combiners = [], []

    def add(self, values, weights, row_ids, rows, combiner="sum", rank=2):
        """The gradient is random."""
        shape = np.array([rows] + [0] * (rank - 1), np.int64)
        given = (values, weights, indices_of(row_ids, rank), shape)
        for each, value in zip(self.inputs.values(), given):
            each.append(value)
        self.grads.append(normal(rows, values.shape[1], seed=1, dtype=values.dtype))
        self.combiners.append(combiner)
        return self

    def combine(self, session):
        return self._run(session, _ops.gen.rec_estimator_combine_weighted, self.inputs)

    def spread(self, session):
        inputs = {name: self.inputs[name] for name in ("weights", "indices")}
        inputs["grads"] = self.grads
        return self._run(session, _ops.gen.rec_estimator_combine_weighted_grad, inputs)

    def _run(self, session, op, inputs):
        feeds = {
            name: [tf.placeholder(np.asarray(value).dtype) for value in values]
            for name, values in inputs.items()
        }
        outputs = op(combiners=self.combiners, **feeds)
        fed = dict(zip(tf.nest.flatten(feeds), tf.nest.flatten(inputs)))
        return session.run(outputs, fed)

    def check(self, session):
        """Compares all bits with the oracle."""
        per_lookup = zip(
            self.inputs["values"],
            self.inputs["weights"],
            [indices[:, 0] for indices in self.inputs["indices"]],
            self.grads,
            self.combiners,
        )
        found = zip(self.combine(session), self.spread(session))
        for (values, weights, ids, grads, combiner), (actual, of_values) in zip(per_lookup, found):
            expect_bits(actual, combine_weighted(values, weights, ids, len(grads), combiner))
            expect_bits(of_values, spread_weighted(grads, weights, ids, combiner))


def expect_bits(actual, expected):
    assert actual.dtype == expected.dtype
    integers = np.dtype(f"i{actual.itemsize}")
    np.testing.assert_array_equal(actual.view(integers), expected.view(integers))


# ------------------------------------------------------------------ shape functions


def combine(**changed):
    inputs = {
        "values": [tf.placeholder(tf.float32, [None, 3])],
        "weights": [tf.placeholder(tf.float32, [None])],
        "indices": [tf.placeholder(tf.int64, [None, 2])],
        "dense_shapes": [tf.placeholder(tf.int64, [2])],
        "combiners": ["mean"],
    }
    inputs.update(changed)
    return _ops.gen.rec_estimator_combine_weighted(**inputs)[0]


def test_constant_row_counts_are_known():
    assert combine().shape.as_list() == [None, 3]
    assert combine(dense_shapes=[tf.constant([4, 9], tf.int64)]).shape.as_list() == [4, 3]
    assert combine(values=[tf.placeholder(tf.float32)]).shape.as_list() == [None, None]


def test_a_gradient_has_a_row_per_key():
    (grads,) = _ops.gen.rec_estimator_combine_weighted_grad(
        weights=[tf.zeros([7])],
        indices=[tf.placeholder(tf.int64, [None, 2])],
        grads=[tf.zeros([4, 3])],
        combiners=["sum"],
    )
    assert grads.shape == [7, 3]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"values": [np.zeros([4], np.float32)]}, "Shape must be rank 2 but is rank 1"),
        ({"weights": [np.zeros([4, 1], np.float32)]}, "Shape must be rank 1 but is rank 2"),
        ({"indices": [np.zeros([4], np.int64)]}, "Shape must be rank 2 but is rank 1"),
        ({"dense_shapes": [np.int64(4)]}, "Shape must be rank 1 but is rank 0"),
        ({"dense_shapes": [np.zeros([3], np.int64)]}, "Dimensions must be equal"),
        (
            {"values": [np.zeros([4, 3], np.float32)], "weights": [np.zeros([5], np.float32)]},
            "Dimensions must be equal, but are 4 and 5",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused_when_the_graph_is_built(changed, message):
    with pytest.raises(ValueError, match=message):
        combine(**changed)


# ------------------------------------------------------------------ run-time errors


ERRORS = {
    "values of rank 1": ("values", normal(2), r"values of lookup 1 must be \[n, dim\]"),
    "fewer values": ("values", normal(1, 3), r"indices of lookup 1 must be \[n, r\], n = 1"),
    "weights of rank 2": ("weights", normal(2, 1), r"weights of lookup 1 must be \[n\]"),
    "fewer weights": ("weights", normal(1), r"must be \[n\], one weight per id, n = 2"),
    "indices of rank 1": ("indices", np.zeros([2], np.int64), r"must be \[n, r\], n = 2"),
    "shape of rank 0": ("dense_shapes", np.int64(3), r"dense_shapes of lookup 1 must be \[r\]"),
    "shape too short": ("dense_shapes", np.ones([1], np.int64), r"must be \[r\], r = 2"),
    "negative rows": ("dense_shapes", np.array([-1, 1]), "rows >= 0, got -1"),
    "row beyond the rows": ("indices", indices_of([0, 3]), r"rows in \[0, 3\).*, got 3 at 1"),
    "negative row": ("indices", indices_of([-1, 0]), r"rows in \[0, 3\).*, got -1 at 0"),
    "decreasing": ("indices", indices_of([2, 1]), "got 1 at 1 after 2; tf.sparse.reorder"),
}


@pytest.mark.parametrize("name, value, message", ERRORS.values(), ids=ERRORS)
def test_errors_name_the_lookup_and_the_problem(session, name, value, message):
    lookups = Lookups()
    for _ in range(2):
        lookups.add(normal(2, 3), normal(2), [0, 1], 3)
    lookups.inputs[name][1] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        lookups.combine(session)


def test_indices_without_columns_are_refused(session):
    lookups = Lookups().add(normal(2, 3), normal(2), [0, 1], 3)
    lookups.inputs["indices"][0] = np.zeros([2, 0], np.int64)
    lookups.inputs["dense_shapes"][0] = np.zeros([0], np.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be \[n, r\], .*r >= 1"):
        lookups.combine(session)


@pytest.mark.parametrize("rows", [2**62, 2**63 - 1], ids=["2^62", "2^63-1"])
def test_more_rows_than_a_tensor_can_have_are_an_error(session, rows):
    lookups = Lookups().add(normal(1, 3), normal(1), [0], 1)
    lookups.inputs["dense_shapes"][0][0] = rows
    with pytest.raises(tf.errors.InvalidArgumentError):
        lookups.combine(session)


GRAD_ERRORS = {
    "grads of rank 1": ("grads", normal(3), r"grads of lookup 0 must be \[rows, dim\]"),
    "indices of rank 1": ("indices", np.zeros([2], np.int64), r"must be \[n, r\], r >= 1"),
    "no columns": ("indices", np.zeros([2, 0], np.int64), r"must be \[n, r\], r >= 1"),
    "fewer weights": ("weights", normal(1), r"must be \[n\], one weight per id, n = 2"),
    "row beyond": ("indices", indices_of([0, 3]), r"rows in \[0, 3\).*, got 3 at 1"),
    "decreasing": ("indices", indices_of([1, 0]), "got 0 at 1 after 1"),
}


@pytest.mark.parametrize("name, value, message", GRAD_ERRORS.values(), ids=GRAD_ERRORS)
def test_errors_of_the_gradient_name_the_problem(session, name, value, message):
    lookups = Lookups().add(normal(2, 3), normal(2), [0, 1], 3)
    (lookups.grads if name == "grads" else lookups.inputs[name])[0] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        lookups.spread(session)


def test_an_unknown_combiner_is_an_error_that_lists_them(session):
    lookups = Lookups().add(normal(1, 3), normal(1), [0], 1, "max")
    message = "combiners must each be 'sum', 'mean' or 'sqrtn', got 'max'"
    for run in (lookups.combine, lookups.spread):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(session)


# ------------------------------------------------------------------ results


LENGTHS = {
    "no rows": [],
    "no keys": [0, 0, 0],
    "one key each": [1] * 50,
    "empty rows around": [0, 0, 3, 0, 1, 2, 0],
    "a long row": [1, 20_000, 0, 1],
    "many": np.random.default_rng(2).integers(0, 6, 5000),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_results_and_gradients_have_the_bits_of_the_oracle(session, lengths, combiner, dtype):
    row_ids = np.repeat(np.arange(len(lengths)), lengths)
    lookups = Lookups()
    for dim in (0, 1, 3, 16, 33):
        values = normal(len(row_ids), dim, seed=dim, dtype=dtype)
        weights = normal(len(row_ids), seed=dim + 1, dtype=dtype)
        lookups.add(values, weights, row_ids, len(lengths), combiner, rank=1 + dim % 3)
    lookups.check(session)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_rows_whose_weights_are_zero_or_cancel_give_zeros(session, combiner):
    weights = np.array([0, -0.0, 2, -2, 1, 0], np.float32)
    lookups = Lookups().add(normal(6, 4), weights, [0, 0, 1, 1, 2, 2], 3, combiner)
    lookups.check(session)
    (combined,) = lookups.combine(session)
    assert not combined[0].any()
    assert (combiner == "mean") == (not combined[1].any())


@pytest.mark.parametrize("combiner", COMBINERS)
def test_infinite_and_missing_numbers_stay_in_their_row(session, combiner):
    values = np.array([[np.inf, 1], [np.nan, 2], [3, 4]], np.float32)
    lookups = Lookups().add(values, np.ones(3, np.float32), [0, 1, 2], 3, combiner)
    (combined,) = lookups.combine(session)
    np.testing.assert_array_equal(combined, values)


def test_values_that_something_else_reads_are_left_alone():
    """With one key a row, results may take the memory of the values."""
    given, factor = normal(1000, 16), normal(1000, seed=3)
    indices = indices_of(np.arange(1000))
    values = tf.placeholder(tf.float32, [1000, 16]) + 1.0
    arguments = {"weights": [factor], "indices": [indices], "combiners": ["sum"]}
    combined = _ops.gen.rec_estimator_combine_weighted(
        values=[values], dense_shapes=[[1000, 1]], **arguments
    )[0]
    of_grads = _ops.gen.rec_estimator_combine_weighted_grad(grads=[values], **arguments)[0]
    alone = _ops.gen.rec_estimator_combine_weighted(
        values=[values * 2.0], dense_shapes=[[1000, 1]], **arguments
    )[0]
    with tf.Session() as session:
        feed = {values.op.inputs[0]: given}
        results = session.run([values, combined, of_grads, alone, values - 1.0], feed)
    expected = (given + np.float32(1)) * factor[:, np.newaxis]
    expect_bits(results[0], given + np.float32(1))
    for result, scale in zip(results[1:4], (1, 1, 2)):
        np.testing.assert_array_equal(result, expected * np.float32(scale))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_bits_do_not_depend_on_threads(threads):
    lengths = np.random.default_rng(5).integers(0, 9, 30_000)
    row_ids = np.repeat(np.arange(len(lengths)), lengths)
    with session_with_threads(threads, threads) as session:
        lookups = Lookups()
        for combiner in COMBINERS:
            values = normal(len(row_ids), 8)
            lookups.add(values, normal(len(row_ids), seed=1), row_ids, len(lengths), combiner)
        lookups.check(session)


# ------------------------------------------------------------------ gradients


def with_stock_ops(values, weights, row_ids, rows, combiner):
    """The same as CombineWeighted of TensorFlow's ops, which have gradients of any order."""
    total = tf.math.unsorted_segment_sum(values * weights[:, tf.newaxis], row_ids, rows)
    if combiner == "sum":
        return total
    powers = weights if combiner == "mean" else tf.square(weights)
    divisor = tf.math.unsorted_segment_sum(powers, row_ids, rows)
    divisor = divisor if combiner == "mean" else tf.sqrt(divisor)
    return total / divisor[:, tf.newaxis]


@pytest.mark.parametrize("combiner", COMBINERS)
def test_gradients_of_values_and_weights_of_both_orders_equal_those_of_stock_ops(session, combiner):
    row_ids = np.array([0, 0, 0, 1, 3, 3])
    values = tf.constant(normal(6, 4, dtype=np.float64))
    weights = tf.constant(np.abs(normal(6, seed=1, dtype=np.float64)) + 0.1)
    grads = []
    for combined in (
        _ops.gen.rec_estimator_combine_weighted(
            [values], [weights], [indices_of(row_ids)], [[4, 9]], combiners=[combiner]
        )[0],
        with_stock_ops(values, weights, row_ids, 4, combiner)[:4],
    ):
        used = tf.gather(combined, [0, 1, 3])  # Row 2 is empty: 0 / 0 of stock ops.
        first = tf.gradients(tf.tanh(used), [values, weights])
        penalty = tf.add_n([tf.reduce_sum(tf.square(each)) for each in first])
        grads.append([*first, *tf.gradients(penalty, [values, weights])])
    actual, expected = session.run(grads)
    for a, e in zip(actual, expected):
        assert np.abs(e).max() > 0.01
        np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-12)  # Sums in another order.


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_of_zero_have_gradients_of_numbers(session, combiner):
    weights = tf.constant([0.0, 0.0, 1.0])
    (combined,) = _ops.gen.rec_estimator_combine_weighted(
        [normal(3, 2)], [weights], [indices_of([0, 0, 1])], [[2, 9]], combiners=[combiner]
    )
    (grads,) = session.run(tf.gradients(combined, weights))
    assert np.isfinite(grads).all()
