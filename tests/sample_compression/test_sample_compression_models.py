# SPDX-License-Identifier: Apache-2.0
"""Sample-aware compression of common parts of models: outputs stay the same, and ops move."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import F, arrays, both, enable, expect_equal, uniform

from rec_estimator import graph_optimizer, sample_compression


def types_left(report):
    return {kind for _, kind, _ in report.left}


class TestAssertions:
    """A tensor must not be computed before the assertion that guards it."""

    def model(self, user, item, kernel):
        twice = user * 2
        assertion = tf.debugging.assert_less(item, tf.constant(5.0, F), message="too large")
        with tf.control_dependencies([assertion]):
            guarded = tf.concat([user, item, twice], axis=1)
        return tf.matmul(guarded, kernel)

    def test_a_split_layer_waits_for_the_assertion_on_its_parts(self):
        user, item = tf.placeholder(F, [None, 3]), tf.placeholder(F, [None, 2])
        item_size = enable([user], [item])
        out = graph_optimizer.compress(self.model(user, item, tf.constant(uniform(8, 3))))
        assert "MatMul" in graph_optimizer.compression_report().split
        feed = {user: uniform(1, 3), item: uniform(2, 2), item_size: [2]}
        with tf.Session() as session:
            assert session.run(out, feed).shape == (2, 3)
            with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
                session.run(out, {**feed, item: [[0, 0], [0, 9]]})

    def test_a_kernel_that_waits_is_read_in_every_request(self):
        user, item = tf.placeholder(F, [None, 3]), tf.placeholder(F, [None, 2])
        item_size = enable([user], [item])
        sample_compression.use_stock_ops()
        kernel = tf.get_variable("kernel", [8, 3], F)
        with tf.control_dependencies([tf.debugging.assert_less(item, tf.constant(5.0, F))]):
            scores = self.model(user, item, tf.identity(kernel))
        out = graph_optimizer.compress(scores)
        assert "MatMul" in graph_optimizer.compression_report().split
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())
            feed = {user: uniform(1, 3), item: uniform(2, 2), item_size: [2]}
            assert session.run(out, feed).shape == (2, 3)


class TestLinearSplit:
    @pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
    def test_16_bit_layers_are_not_split(self, dtype):
        def model(users, items):
            x = tf.concat([tf.cast(users[0], dtype), tf.cast(items[0], dtype)], axis=1)
            y = tf.nn.relu(tf.matmul(x, tf.cast(tf.constant(uniform(24, 8)), dtype)))
            return tf.cast(y, F)

        expected, got, _ = both(model, [uniform(4, 16)], [uniform(6, 8)])
        expect_equal(expected, got)

    @pytest.mark.long
    def test_a_long_sum_is_not_split(self):
        def model(users, items):
            total = users[0]
            for _ in range(1200):
                total += items[0]
            return tf.matmul(total, tf.constant(uniform(3, 2)))

        expected, got, _ = both(model, [uniform(4, 3)], [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)

    def test_long_arithmetic_on_constants_takes_no_time(self):
        def model(users, items):
            axis = tf.constant(0) + 1
            for _ in range(60):
                axis = axis + axis  # A walk without a limit would take twice the time for each.
            with tf.control_dependencies([tf.debugging.assert_less(items[0], tf.constant(2.0, F))]):
                twice = tf.concat([users[0], items[0], users[0]], axis=1)
                return tf.tile(tf.matmul(twice, tf.constant(uniform(4, 2))), [1, 1 + 0 * axis])

        expected, got, _ = both(model, [uniform(4, 1)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)

    def test_a_short_sum_is_split(self):
        def model(users, items):
            total = users[0] - items[0][:, tf.newaxis] + users[1]
            return tf.matmul(total, tf.constant(uniform(3, 2)))

        users = [uniform(4, 5, 3), uniform(4, 5, 3)]
        expected, got, report = both(model, users, [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)
        assert any("MatMul" in name for name in report.split)


class TestHistories:
    """Layers over the history of a user, which must run on users' rows."""

    def test_softmax_along_an_inner_axis(self, version):
        def routed(history):
            """Interest capsules: weights are normalized over the interests."""

            def step(i, logits):
                capsules = tf.tanh(tf.matmul(tf.nn.softmax(logits, axis=1), history))
                return i + 1, logits + tf.matmul(capsules, history, transpose_b=True)

            start = tf.tile(tf.constant(uniform(1, 2, 5)), [tf.shape(history)[0], 1, 1])
            shapes = [tf.TensorShape([]), tf.TensorShape([None, 2, 5])]
            return tf.while_loop(lambda i, _: i < 3, step, [0, start], shapes)[1]

        def model(users, items):
            weights = tf.nn.softmax(tf.reduce_sum(users[0], axis=2, keepdims=True), axis=1)
            interest = tf.reduce_sum(users[0] * weights, axis=1)
            return interest, interest * items[0], routed(users[0]) * items[0][:, :1, tf.newaxis]

        expected, got, report = both(model, [uniform(4, 5, 3)], [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)
        assert types_left(report) == {"Mul"}

    @pytest.mark.keras_2
    def test_a_recurrent_network_in_both_directions(self, version):
        def model(users, items):
            def cell(name):
                return tf.nn.rnn_cell.BasicRNNCell(3, name=name, dtype=F)

            with pytest.warns(UserWarning, match="deprecated"):
                outputs, _ = tf.nn.bidirectional_dynamic_rnn(
                    cell("a"), cell("b"), users[0], sequence_length=users[1], dtype=F
                )
            return tf.concat(outputs, axis=2) * items[0][:, tf.newaxis]

        users = [uniform(4, 5, 2), np.array([5, 1, 0, 3])]
        expected, got, report = both(model, users, [uniform(6, 1)])
        expect_equal(expected, got, 1e-12)
        assert not types_left(report) & {"ReverseSequence", "StatelessWhile", "While", "Merge"}

    def test_a_reversed_sequence_with_other_lengths_than_the_rows_stays(self):
        def model(users, items):
            by_entry = tf.reverse_sequence(users[0], [1, 2, 3, 1, 2], seq_axis=2, batch_axis=1)
            rows = tf.reverse_sequence(users[0], [tf.shape(items[0])[0]] * 5, 0, batch_axis=1)
            return by_entry, rows, tf.reverse_sequence(items[0], users[1], seq_axis=1)

        users = [uniform(4, 5, 3), np.array([3, 1, 0, 2])]
        expected, got, report = both(model, users, [uniform(6, 3)])
        expect_equal(expected, got)
        assert "ReverseSequence" in report.moved
        assert len([kind for _, kind, _ in report.left if kind == "ReverseSequence"]) == 2

    def test_a_mask_as_long_as_the_longest_history(self):
        def model(users, items):
            mask = tf.cast(tf.sequence_mask(users[1]), F)[..., tf.newaxis]
            history = users[0][:, : tf.shape(mask)[1]]
            return tf.reduce_sum(history * mask, axis=1) * items[0], tf.shape(mask)

        # The user with the longest history has no candidates.
        users = [uniform(4, 5, 2), np.array([2, 5, 1, 3])]
        expected, got, report = both(model, users, [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert got[1].tolist() == [6, 3, 1]
        assert {"mul", "Sum"} <= set(report.moved)


class TestFunctions:
    def test_shapes_computed_inside(self):
        @tf.function
        def flat(x):
            sizes = tf.shape(x)
            return tf.reshape(x, [sizes[0], sizes[1] * sizes[2]])

        expected, got, report = both(
            lambda users, items: flat(users[0]) * items[0], [uniform(4, 2, 3)], [uniform(6, 1)]
        )
        expect_equal(expected, got)
        assert types_left(report) == {"Mul"}

    def test_custom_gradients(self):
        @tf.custom_gradient
        def layer(x, kernel):
            return tf.matmul(x, kernel), lambda grad: (grad, grad)

        def model(users, items):
            unknown = tf.placeholder_with_default(tf.constant(uniform(3)), None)
            rows, whole = tf.identity_n([users[0], unknown])
            return layer(users[0], tf.constant(uniform(3, 2))) * items[0], rows, whole

        expected, got, report = both(model, [uniform(4, 3)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert {"Mul", "IdentityN"} == types_left(report)  # The Mul of unknown rank stays.


class TestReport:
    def flops(self, model, users, items):
        """FLOPs before and after, for 1 user with 10 candidates."""
        with tf.Graph().as_default():
            users = [tf.placeholder(F, [None, *shape]) for shape in users]
            items = [tf.placeholder(F, [None, *shape]) for shape in items]
            enable(users, items)
            graph_optimizer.compress(model(users, items))
            report = graph_optimizer.compression_report(users=1, items=10)
        return report.flops_before, report.flops_after

    def test_products_sums_and_convolutions_count_their_additions(self):
        found = self.flops(
            lambda u, i: tf.einsum("btd,dh->bth", u[0], tf.ones([4, 5], F)) * i[0],
            [[3, 4]],
            [[1, 5]],
        )
        assert found == (10 * 2 * 3 * 4 * 5 + 10 * 3 * 5, 2 * 3 * 4 * 5 + 10 * 3 * 5)
        found = self.flops(lambda u, i: tf.reduce_sum(u[0], [1, 2]) * i[0], [[3, 4]], [[]])
        assert found == (10 * 3 * 4 + 10, 3 * 4 + 10)
        images = self.flops(
            lambda u, i: tf.nn.conv2d(u[0], tf.ones([2, 2, 1, 3], F), 1, "SAME") * i[0],
            [[4, 4, 1]],
            [[1, 1, 1]],
        )
        assert images == (10 * 48 * 2 * 4 + 10 * 48, 48 * 2 * 4 + 10 * 48)

    def test_ops_that_move_numbers_count_as_nothing(self):
        def model(users, items):
            x = tf.transpose(tf.reshape(users[0], [-1, 2, 2]), [0, 2, 1])
            return tf.concat([x, items[0]], axis=1)

        assert self.flops(model, [[4]], [[1, 2]]) == (0, 0)

    def test_layers_of_candidates_count_too(self):
        found = self.flops(lambda u, i: tf.tanh(tf.tanh(u[0] + i[0])), [[3]], [[3]])
        assert found == (90, 90)

    def test_loops_count_one_round_and_the_report_says_so(self, version):
        def model(users, items):
            def body(i, x):
                return i + 1, tf.matmul(tf.tanh(x), tf.ones([3, 3], F))

            out = tf.while_loop(lambda i, _: i < 7, body, [0, users[0]])[1]
            return out + items[0]

        assert self.flops(model, [[3]], [[3]]) == (10 * (3 + 18) + 30, 3 + 18 + 30)
        _, _, report = both(model, [uniform(4, 3)], [uniform(6, 3)])
        assert report.loops
        assert "of loops one round is counted" in str(report)

    def test_it_names_the_ops_that_stayed(self):
        def model(users, items):
            return tf.cumsum(users[0], axis=0, name="my_sum") + items[0]

        expected, got, report = both(model, [uniform(4, 1)], [uniform(6, 1)])
        expect_equal(list(arrays(expected)), list(arrays(got)), 1e-12)
        assert "1 x Cumsum runs along the axis of the rows: my_sum" in str(report)

    def test_an_op_that_only_moves_numbers_is_not_reported_as_split(self):
        def model(users, items):
            both = tf.concat([users[0], items[0]], axis=1)
            return tf.tensordot(tf.exp(both), tf.constant(uniform(5, 2)), 1)

        _, _, report = both(model, [uniform(4, 2, 5)], [uniform(6, 1, 5)])
        assert report.split == ()
