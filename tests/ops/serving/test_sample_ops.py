# SPDX-License-Identifier: Apache-2.0
"""The ops of a compressed model: agreement with the oracle, gradients and errors."""

import numpy as np
import oracle
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.sample_compression.rewrite import expansion  # noqa: F401  (registers the gradients)

SIZES = [[], [0], [1], [4], [2, 0, 3], [0, 0], [1, 1, 1], [0, 5, 0]]


def splits_of(sizes):
    return np.cumsum([0, *sizes]).astype(np.int32)


def fed(*arrays):
    """Returns placeholders without static shape, so that only the kernels check, and their feed."""
    arrays = [np.asarray(array) for array in arrays]
    kinds = [tf.string if a.dtype == object else tf.as_dtype(a.dtype) for a in arrays]
    tensors = [tf.placeholder(kind) for kind in kinds]
    return tensors, dict(zip(tensors, arrays))


def run(op, arrays, **attrs):
    tensors, feed = fed(*arrays)
    with tf.Session() as session:
        return session.run(getattr(_ops.gen, f"rec_estimator_{op}")(*tensors, **attrs), feed)


def refused(op, arrays, match, **attrs):
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        run(op, arrays, **attrs)


class TestRepeatRows:
    @pytest.mark.parametrize("sizes", SIZES)
    @pytest.mark.parametrize(("axis", "per_row"), [(0, 1), (1, 1), (0, 3), (1, 2)])
    def test_equals_the_oracle_for_numbers_and_strings(self, sizes, axis, per_row):
        shape = [2, 3]
        shape.insert(axis, len(sizes) * per_row)
        numbers = np.arange(np.prod(shape)).reshape(shape)
        splits = splits_of(sizes)
        expected = oracle.repeat_rows(numbers, sizes, axis)
        for dtype in (np.float32, np.float64, np.int64, np.int8, np.complex128):
            got = run("repeat_rows", [numbers.astype(dtype), splits], axis=axis)
            np.testing.assert_array_equal(got, expected.astype(dtype))
        got = run("repeat_rows", [numbers.astype(str).astype(object), splits], axis=axis)
        np.testing.assert_array_equal(got.astype(str), expected.astype(str))

    def test_keep_one_returns_the_row_of_a_single_user_once(self):
        values = np.ones([1, 3], np.float32)
        assert run("repeat_rows", [values, splits_of([7])], keep_one=True).shape == (1, 3)
        assert run("repeat_rows", [values, splits_of([7])]).shape == (7, 3)

    @pytest.mark.parametrize("sizes", SIZES)
    @pytest.mark.parametrize(("axis", "per_row"), [(0, 1), (1, 2)])
    def test_the_gradient_sums_over_a_users_candidates(self, sizes, axis, per_row):
        shape = [2, 3]
        shape.insert(axis, len(sizes) * per_row)
        values = np.random.uniform(size=shape)
        grads = np.random.uniform(size=oracle.repeat_rows(values, sizes, axis).shape)
        tensors, feed = fed(values, grads)
        repeated = _ops.gen.rec_estimator_repeat_rows(tensors[0], splits_of(sizes), axis=axis)
        with tf.Session() as session:
            got = session.run(tf.gradients(repeated, tensors[0], tensors[1])[0], feed)
        np.testing.assert_allclose(got, oracle.sum_rows(grads, values, sizes, axis), rtol=1e-12)

    def test_the_gradient_of_a_row_returned_once_is_unchanged(self):
        grads = np.arange(3.0)[np.newaxis]
        shape = np.array([1, 3], np.int32)
        got = run("repeat_rows_grad", [grads, splits_of([7]), shape])
        np.testing.assert_array_equal(got, grads)

    def test_bad_input_is_refused(self):
        values = np.ones([4, 2], np.float32)
        refused("repeat_rows", [values, splits_of([1, 1, 1])], "multiple of 3 users")
        refused("repeat_rows", [values, splits_of([])], "multiple of 0 users")
        refused("repeat_rows", [values, splits_of([1, 1])], "below the rank, got 2", axis=2)
        refused("repeat_rows", [values, np.zeros([0], np.int32)], r"row_splits must be \[B \+ 1\]")
        refused("repeat_rows", [values, np.array([1, 2], np.int32)], "start with 0")
        refused("repeat_rows", [values, np.array([0, 2, 1], np.int32)], "decrease, got 1 at 2")
        shape = np.array([2, 2], np.int32)
        refused("repeat_rows_grad", [values, splits_of([1, 2]), shape], r"grads must be \[")
        refused(
            "repeat_rows_grad",
            [values, splits_of([1, 2]), shape[:1, None]],
            r"shape must be \[rank\]",
        )


class TestSegmentMatMul:
    @pytest.mark.parametrize("sizes", SIZES)
    @pytest.mark.parametrize(("inner", "outer"), [(0, 2), (1, 1), (3, 5), (20, 70)])
    @pytest.mark.parametrize("flip", [False, True])
    def test_output_and_gradients_equal_the_oracle(self, sizes, inner, outer, flip):
        rows = np.random.uniform(-1, 1, [sum(sizes), inner])
        matrices = np.random.uniform(-1, 1, [len(sizes), inner, outer])
        grads = np.random.uniform(-1, 1, [sum(sizes), outer])
        given = matrices.transpose(0, 2, 1) if flip else matrices
        tensors, feed = fed(rows, given, grads)
        products = _ops.gen.rec_estimator_segment_mat_mul(
            *tensors[:2], splits_of(sizes), transpose_matrices=flip
        )
        fetches = [products, *tf.gradients(products, tensors[:2], tensors[2])]
        with tf.Session() as session:
            got, row_grads, matrix_grads = session.run(fetches, feed)
        np.testing.assert_allclose(got, oracle.multiply_by_user(rows, matrices, sizes), atol=1e-12)
        flipped = matrices.transpose(0, 2, 1)
        wanted = oracle.multiply_by_user(grads, flipped, sizes)
        np.testing.assert_allclose(row_grads, wanted, atol=1e-12)
        outer_products = rows[:, :, np.newaxis] * grads[:, np.newaxis]
        wanted = oracle.sum_rows(outer_products, matrices, sizes, axis=0)
        matrix_grads = matrix_grads.transpose(0, 2, 1) if flip else matrix_grads
        np.testing.assert_allclose(matrix_grads, wanted, atol=1e-12)

    def test_bad_input_is_refused(self):
        rows, matrices = np.ones([3, 2]), np.ones([2, 2, 4])
        splits = splits_of([1, 2])
        refused("segment_mat_mul", [rows[:2], matrices, splits], r"rows must be \[3, K\]")
        refused("segment_mat_mul", [rows, matrices[:1], splits], "one for each of 2 users")
        refused("segment_mat_mul", [rows, matrices[:, :1], splits], "for rows of 2 columns, got")
        refused("segment_mat_mul", [rows, matrices, splits], "got", transpose_matrices=True)
        refused("segment_mat_mul", [rows, matrices[0], splits], "got")
        refused("segment_mat_mul_grad", [rows, rows[:2], splits], r"grads must be \[3, K\]")


class TestSegmentLayer:
    def arrays(self, sizes, count, inner, outer):
        users, rows = len(sizes), sum(sizes)
        shapes = (
            [users, count, inner],
            [rows, inner],
            [inner, outer],
            [users, count, outer],
            [rows, outer],
        )
        return [np.random.uniform(-1, 1, shape) for shape in shapes]

    @pytest.mark.parametrize("sizes", SIZES)
    @pytest.mark.parametrize(
        ("count", "inner", "outer"), [(0, 2, 3), (1, 1, 1), (5, 3, 32), (30, 7, 40), (2, 0, 3)]
    )
    def test_output_and_gradients_equal_the_oracle(self, sizes, count, inner, outer):
        arrays = self.arrays(sizes, count, inner, outer)
        tensors, feed = fed(*arrays)
        outputs = _ops.gen.rec_estimator_segment_layer(
            *tensors[:3], splits_of(sizes), user_bias=tensors[3], row_bias=tensors[4]
        )
        grads = np.random.uniform(-1, 1, [sum(sizes), count, outer])
        with tf.Session() as session:
            got, *gradients = session.run(
                [outputs, *tf.gradients(outputs, tensors, tf.constant(grads))], feed
            )
        np.testing.assert_allclose(got, oracle.layer_by_user(*arrays, sizes), atol=1e-12)
        entries, rows, kernel, user_bias, _ = arrays
        owners = np.repeat(np.arange(len(sizes)), sizes)
        by_entry = np.einsum("nth,dh,nd->ntd", grads, kernel, rows)
        expected = [
            oracle.sum_rows(by_entry, entries, sizes, axis=0),
            np.einsum("nth,dh,ntd->nd", grads, kernel, entries[owners]),
            np.einsum("nth,nd,ntd->dh", grads, rows, entries[owners]),
            oracle.sum_rows(grads, user_bias, sizes, axis=0),
            grads.sum(1),
        ]
        for wanted, gradient in zip(expected, gradients):
            np.testing.assert_allclose(gradient, wanted, atol=1e-11)

    def test_bad_input_is_refused(self):
        sizes = [1, 2]
        entries, rows, kernel, *biases = self.arrays(sizes, 4, 3, 5)
        splits = splits_of(sizes)

        def layer(match, *arrays):
            refused("segment_layer", arrays, match)

        layer(r"rows must be \[3, K\]", entries, rows[:2], kernel, splits, *biases)
        layer(r"entries .* \[2, T, 3\]", entries[:1], rows, kernel, splits, *biases)
        layer(r"entries .* \[2, T, 3\]", entries[0], rows, kernel, splits, *biases)
        layer(r"kernel must .* \[3, H\]", entries, rows, kernel[:2], splits, *biases)
        layer(r"user_bias .* \[2,4,5\]", entries, rows, kernel, splits, *biases[::-1])
        layer("row_bias", entries, rows, kernel, splits, biases[0], biases[1][:1])
        grads = np.zeros([3, 4, 1])
        refused("segment_layer_grad", [entries, rows, kernel, splits, grads], "grads must be")


class TestSampleRows:
    def rows(self, item_size, tensors, kinds, num_users=1):
        made, feed = fed(item_size, *tensors)
        outputs = _ops.gen.rec_estimator_sample_rows(
            item_size=made[0],
            tensors=made[1:],
            kinds=kinds,
            names=[f"t{i}" for i in range(len(tensors))],
            num_users=num_users,
            size_name="sizes",
        )
        with tf.Session() as session:
            return session.run(outputs, feed)

    @pytest.mark.parametrize("dtype", [np.int32, np.int64])
    def test_assigns_each_candidate_to_its_user(self, dtype):
        sparse, ragged = np.array([3, 9]), np.array([0, 5, 5, 7])
        tensors = [sparse, ragged, np.zeros([3, 2]), np.array(["x"] * 5, object)]
        kinds = ["sparse", "ragged", "dense", "dense"]
        got = self.rows(np.array([2, 0, 3], dtype), tensors, kinds, num_users=3)
        assert (got.users, got.items) == (3, 5)
        np.testing.assert_array_equal(got.row_splits, [0, 2, 2, 5])
        np.testing.assert_array_equal(got.index, [0, 0, 2, 2, 2])

    def test_a_single_size_holds_for_all_users(self):
        got = self.rows(np.array([2], np.int32), [np.zeros(3), np.zeros(6)], ["dense"] * 2)
        np.testing.assert_array_equal(got.row_splits, [0, 2, 4, 6])

    @pytest.mark.parametrize(
        ("item_size", "tensors", "kinds", "match"),
        [
            ([2, 1], [np.zeros(3), np.zeros(3)], "dd", "user tensor t0 .* sizes, 2, got 3"),
            ([2, 1], [np.zeros(2), np.zeros(4)], "dd", "item tensor t1 .* rows, 3, got 4"),
            ([2, -1], [np.zeros(2), np.zeros(1)], "dd", "below 0 .* got -1 of user 1"),
            ([[2]], [np.zeros(1), np.zeros(2)], "dd", r"sizes must be \[B\] or \[1\]"),
            ([1], [np.float64(1), np.zeros(1)], "dd", "t0 must have rows"),
            ([1], [np.zeros([0], np.int64), np.zeros(1)], "sd", "dense_shape of t0"),
            ([1], [np.zeros([1]), np.zeros(1)], "sd", "dense_shape of t0"),
            ([1], [np.zeros([0], np.int64), np.zeros(1)], "rd", "row_splits of t0"),
            ([1], [np.array([-3, 1]), np.zeros(1)], "sd", "users must be"),
            ([2**31 - 1] * 2, [np.zeros(2), np.zeros(1)], "dd", "rows, 4294967294, got 1"),
        ],
    )
    def test_an_inconsistent_request_is_refused(self, item_size, tensors, kinds, match):
        names = {"d": "dense", "s": "sparse", "r": "ragged"}
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            self.rows(np.array(item_size, np.int32), tensors, [names[kind] for kind in kinds])

    def test_inconsistent_attributes_are_refused(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="kinds and names must be of"):
            self.rows(np.array([1], np.int32), [np.zeros(1)], ["dense", "dense"])
        with pytest.raises(tf.errors.InvalidArgumentError, match="num_users"):
            self.rows(np.array([1], np.int32), [np.zeros(1)], ["dense"], num_users=2)
