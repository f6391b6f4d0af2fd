# SPDX-License-Identifier: Apache-2.0
"""What moves to users' rows as a whole: loops, branches, functions, lookups of sparse ids."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import INT, F, both, enable, expect_equal, sparse_value, uniform

import rec_estimator as rec
from rec_estimator import graph_optimizer


def types(report):
    return {kind for _, kind, _ in report.left}


def recurrent(user, rows):
    """States [rows, T, D] over the steps of user [rows, T, D]."""
    width = user.shape[2]
    inputs = tf.TensorArray(F, tf.shape(user)[1]).unstack(tf.transpose(user, [1, 0, 2]))
    outputs = tf.TensorArray(F, tf.shape(user)[1])
    kernel = tf.constant(uniform(int(width), int(width)))

    def step(time, state, outputs):
        state = tf.tanh(tf.matmul(state, kernel) + inputs.read(time))
        return time + 1, state, outputs.write(time, state)

    start = [0, tf.zeros([rows, width], F), outputs]
    _, state, outputs = tf.while_loop(lambda time, *_: time < tf.shape(user)[1], step, start)
    return state, tf.transpose(outputs.stack(), [1, 0, 2])


class TestLoops:
    def test_a_recurrent_network_runs_on_the_users_rows(self, version):
        def model(users, items):
            state, states = recurrent(users[0], tf.shape(users[0])[0])
            return state, states, tf.reduce_sum(states * items[0][:, tf.newaxis], axis=2)

        expected, got, report = both(model, [uniform(4, 5, 3)], [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)
        assert types(report) == {"Mul"}  # The op where users meet candidates.

    def test_the_first_state_may_be_filled_by_the_number_of_candidates(self, version):
        def model(users, items):
            return recurrent(users[0], tf.shape(items[0])[0])

        expected, got, report = both(model, [uniform(4, 5, 3)], [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)
        assert not report.left

    def test_a_loop_that_takes_candidates_stays(self, version):
        def model(users, items):
            steps = tf.TensorArray(F, 5).unstack(tf.transpose(users[0], [1, 0, 2]))
            return tf.while_loop(
                lambda time, _: time < 5,
                lambda time, y: (time + 1, tf.tanh(y + steps.read(time))),
                [0, items[0]],
            )[1]

        expected, got, report = both(model, [uniform(4, 5, 3)], [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)
        assert report.left

    @pytest.mark.parametrize(
        "body",
        [
            lambda x, y: y + tf.reduce_sum(y, axis=0),
            lambda x, y: y * tf.cast(tf.shape(y)[0], F),
            lambda x, y: tf.reshape(tf.transpose(y), tf.shape(y)),
            lambda x, y: y + tf.cast(tf.range(tf.shape(x)[0]), F)[:, tf.newaxis],
            lambda x, y: tf.cond(tf.reduce_sum(y) > 0, lambda: y * 2, lambda: x),
            lambda x, y: tf.concat([y[1:], y[:1]], axis=0),
        ],
    )
    def test_a_loop_that_mixes_rows_stays(self, body, version):
        def model(users, items):
            (x,) = users
            y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, body(x, y)), [0, x])[1]
            return y, y * items[0]

        expected, got, report = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        kind = "StatelessWhile" if version == 2 else "Enter"
        assert kind in types(report)

    def test_a_loop_of_as_many_rounds_as_rows_stays(self, version):
        def model(users, items):
            rows = tf.shape(users[0])[0]
            return tf.while_loop(lambda i, _: i < rows, lambda i, y: (i + 1, y + 1), [0, users[0]])

        expected, got, _ = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)

    def test_loops_in_loops_and_branches_in_loops(self, version):
        def model(users, items):
            (x,) = users

            def inner(i, y):
                y = tf.cond(tf.equal(i % 2, 0), lambda: y + x, lambda: tf.sin(y))
                again = tf.while_loop(lambda j, _: j < 2, lambda j, z: (j + 1, z * 0.5 + x), [0, y])
                return i + 1, again[1]

            return tf.while_loop(lambda i, _: i < 3, inner, [0, x])[1] * items[0]

        expected, got, report = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert types(report) == {"Mul"}

    @pytest.mark.long
    def test_gradients_are_those_of_the_flat_model(self, version):
        def outputs(compressed):
            user, item = tf.placeholder(F, [None, 5, 3]), tf.placeholder(F, [None, 3])
            with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
                kernel = tf.get_variable("kernel", [3, 3], F, tf.constant_initializer(0.1))
            rows = np.repeat([0, 1], [2, 3])
            feed = {user: histories[rows], item: items}
            if compressed:
                feed = {user: histories, item: items, enable([user], [item]): [2, 3]}
            hidden = tf.einsum("btd,dh->bth", user, kernel)
            states = recurrent(hidden, tf.shape(hidden)[0])[1]
            pairs = states * item[:, tf.newaxis]
            loss = tf.reduce_sum(tf.tanh(tf.reduce_sum(pairs, axis=2)))
            if compressed:
                loss = graph_optimizer.compress(loss)
            fetches = [loss, *tf.gradients(loss, [kernel])]
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                return session.run(fetches, feed)

        histories, items = uniform(2, 5, 3), uniform(5, 3)
        found = []
        for compressed in (False, True):
            np.random.seed(3)
            with tf.Graph().as_default():
                found.append(outputs(compressed))
        expect_equal(*found, 1e-12)


class TestBranches:
    def test_branches_run_on_the_users_rows(self, version):
        def model(users, items):
            total = tf.reduce_sum(users[0])
            chosen = tf.cond(total > 0, lambda: users[0] * 2, lambda: tf.sin(users[0]))
            case = tf.switch_case(tf.constant(1), [lambda: users[0], lambda: chosen * 3])
            return chosen, case * items[0]

        expected, got, report = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert types(report) == {"Mul", "Sum"}

    def test_a_function_runs_on_the_users_rows(self):
        def model(users, items):
            made = tf.function(lambda x: tf.reshape(x * 2, [tf.shape(x)[0], -1]))
            return made(users[0]) * items[0]

        expected, got, report = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert types(report) == {"Mul"}


LISTS = [[1, 2, 3], [4, 2], [5], [6, 1]]


def sparse_input(lists):
    return (
        lists,
        lambda _: tf.sparse_placeholder(INT, [None, None]),
        lambda value: sparse_value(value, np.int64),
    )


class TestSparseIds:
    @pytest.mark.each_value
    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
    @pytest.mark.parametrize("is_weighted", [False, True])
    @pytest.mark.parametrize("lookup", ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"])
    def test_tensorflows_lookups_run_on_the_users_rows(self, lookup, is_weighted, combiner):
        looked_up = []

        def model(users, items):
            (ids,) = users
            rows = tf.get_variable("rows", [10, 3], F, tf.random_normal_initializer())
            weights = ids.with_values(1 / tf.cast(ids.values, F)) if is_weighted else None
            if lookup.startswith("safe"):
                vectors = tf.nn.safe_embedding_lookup_sparse(rows, ids, weights, combiner)
            else:
                vectors = tf.nn.embedding_lookup_sparse(rows, ids, weights, combiner=combiner)
            looked_up.append(vectors.op.name)
            return vectors, tf.concat([vectors, items[0]], axis=1)

        expected, got, report = both(model, [sparse_input(LISTS)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert types(report) <= {"ConcatV2", "GatherV2"}
        assert looked_up[0] in report.moved

    def test_invalid_ids_are_dropped_and_rows_may_be_empty(self):
        def model(users, items):
            rows = tf.get_variable("rows", [10, 3], F, tf.random_normal_initializer())
            vectors = tf.nn.safe_embedding_lookup_sparse(rows, users[0], combiner="mean")
            return vectors, vectors[:, :2] + items[0]

        for lists in ([[1, -2], [], [-1], [3, 3, 4]], [[], [], [], []]):
            expected, got, _ = both(model, [sparse_input(lists)], [uniform(6, 2)])
            expect_equal(expected, got, 1e-12)

    def test_last_rows_without_ids_are_zeros(self):
        ids, item = tf.sparse_placeholder(INT, [None, None]), tf.placeholder(F, [None, 2])
        item_size = enable([ids], [item])
        rows = tf.constant(uniform(10, 2))
        scores = tf.nn.embedding_lookup_sparse(rows, ids, None, combiner="sum") + item
        scores = graph_optimizer.compress(scores)
        feed = {ids: sparse_value([[1], []], np.int64), item: np.zeros([4, 2]), item_size: [1, 3]}
        with tf.Session() as session:
            got, table = session.run([scores, rows], feed)
        np.testing.assert_array_equal(got, [table[1], *np.zeros([3, 2])])

    def test_distinct_ids_are_those_of_the_candidates(self):
        def model(users, items):
            distinct, places = tf.unique(users[0].values)
            return distinct, tf.gather(distinct * 2, places), places, tf.size(distinct)

        expected, got, _ = both(model, [sparse_input(LISTS)], [uniform(6, 2)])
        expect_equal(expected, got)

    def test_feature_columns_run_on_the_users_rows(self):
        def model(users, items):
            word = tf.feature_column.categorical_column_with_hash_bucket("word", 10)
            number = tf.feature_column.categorical_column_with_identity("number", 10)
            ours = rec.categorical_column_with_embedding("number", tf.int64)
            columns = [
                tf.feature_column.embedding_column(word, 3),
                tf.feature_column.indicator_column(number),
                rec.embedding_column(ours, 2),
                tf.feature_column.numeric_column("price", [2]),
            ]
            features = {"word": users[0], "number": users[1], "price": items[0]}
            return tf.feature_column.input_layer(features, columns)

        words = np.array([["a", "b"], ["c", ""], ["d", "d"], ["", ""]], object)
        numbers = np.array([[1, 2], [3, -1], [1, 1], [-1, -1]])
        prices = uniform(6, 2).astype(np.float32)
        expected, got, report = both(model, [words, numbers], [prices])
        expect_equal(expected, got, 1e-6)
        assert types(report) == {"ConcatV2"}  # The op where users meet candidates.


class TestSmallGroups:
    def test_a_product_with_one_entry_that_broadcasts(self):
        def model(users, items):
            pairs = users[0] * items[0][:, tf.newaxis] + users[1]
            pairs = tf.concat([pairs, users[1]], axis=2)
            return tf.einsum("btd,dh->bth", pairs, tf.constant(kernel))

        kernel = uniform(6, 5)
        users = [uniform(4, 1, 3), uniform(4, 7, 3)]
        expected, got, _ = both(model, users, [uniform(6, 3)])
        expect_equal(expected, got, 1e-12)

    def test_an_attention_layer_with_gradients_in_many_small_groups(self):
        def outputs(compressed):
            history, item = tf.placeholder(F, [None, 4, 3]), tf.placeholder(F, [None, 3])
            feed = {history: histories[np.repeat(range(4), sizes)], item: items}
            if compressed:
                feed = {history: histories, item: items, enable([history], [item]): sizes}
            queries = tf.tile(item[:, tf.newaxis], [1, 4, 1])
            pairs = tf.concat([history, queries, history - queries, history * queries], axis=-1)
            kernel = tf.get_variable("kernel", [12, 5], F, tf.constant_initializer(table))
            hidden = tf.tanh(tf.matmul(tf.reshape(pairs, [-1, 12]), kernel))
            weights = tf.nn.softmax(tf.reduce_sum(tf.reshape(hidden, [-1, 4, 5]), axis=2))
            interest = tf.reduce_sum(history * weights[..., tf.newaxis], axis=1)
            loss = tf.reduce_sum(tf.square(interest) * item)
            if compressed:
                loss = graph_optimizer.compress(loss)
            history_grads, *grads = tf.gradients(loss, [history, item, kernel])
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                got = session.run([loss, history_grads, *grads], feed)
            if not compressed:  # The gradient of a user is the sum over the candidates.
                rows = np.repeat(range(4), sizes)
                got[1] = np.array([got[1][rows == user].sum(0) for user in range(4)])
            return got

        sizes = [2, 0, 3, 1]
        histories, items, table = uniform(4, 4, 3), uniform(6, 3), uniform(12, 5)
        found = []
        for compressed in (False, True):
            with tf.Graph().as_default():
                found.append(outputs(compressed))
        expect_equal(*found, 1e-12)
