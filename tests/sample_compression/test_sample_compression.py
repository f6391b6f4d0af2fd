# SPDX-License-Identifier: Apache-2.0
"""Sample-aware compression: what it checks, what it moves, and that outputs stay the same."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import (
    INT,
    F,
    both,
    enable,
    expect_equal,
    ragged_placeholder,
    ragged_value,
    sparse_value,
    uniform,
)

import rec_estimator as rec
from rec_estimator import graph_optimizer

IDS = [[7, 8, 9], [], [7], [-1, 8]]


def sparse_input(lists, dtype=np.int64):
    kind = tf.string if dtype is object else tf.as_dtype(dtype)
    return (
        lists,
        lambda _: tf.sparse_placeholder(kind, [None, None]),
        lambda value: sparse_value(value, dtype),
    )


def ragged_input(lists, dtype=np.int64):
    kind = tf.string if dtype is object else tf.as_dtype(dtype)
    return lists, lambda _: ragged_placeholder(kind), lambda value: ragged_value(value, dtype)


class TestChecks:
    def inputs(self):
        user = tf.placeholder(F, [None, 2], name="user")
        return user, tf.placeholder(F, [None, 2], name="item")

    def test_a_tensor_in_both_lists_is_refused(self):
        user, item = self.inputs()
        with pytest.raises(ValueError, match="'user:0', which is in user_tensors already"):
            enable([user], [item, user])

    def test_a_tensor_given_twice_is_refused(self):
        user, item = self.inputs()
        with pytest.raises(ValueError, match="not given before"):
            enable({"a": user, "b": user}, [item])

    def test_a_tensor_of_another_graph_is_refused(self):
        with tf.Graph().as_default():
            foreign = tf.placeholder(F, [None])
        user, item = self.inputs()
        with pytest.raises(ValueError, match="user_tensors must be of the default graph"):
            enable([foreign], [item])
        with pytest.raises(ValueError, match="item_tensors must be of the default graph"):
            enable([user], [foreign])

    @pytest.mark.parametrize("side", ["user", "item"])
    def test_an_empty_list_is_refused(self, side):
        user, item = self.inputs()
        with pytest.raises(ValueError, match=f"{side}_tensors must name at least one tensor"):
            enable([] if side == "user" else [user], [] if side == "item" else [item])

    def test_other_objects_than_tensors_are_refused(self):
        user, item = self.inputs()
        with pytest.raises(TypeError, match="user_tensors must be Tensors"):
            enable([user, "user"], [item])

    def test_an_item_tensor_made_of_a_user_tensor_is_refused(self):
        user, _ = self.inputs()
        with pytest.raises(ValueError, match="item tensor 'mul' must not be made of .* 'user'"):
            enable([user], [tf.multiply(user, 2.0, name="mul")])

    def test_a_user_tensor_made_of_an_item_tensor_is_refused(self):
        _, item = self.inputs()
        with pytest.raises(ValueError, match="user tensor 'mul' must not be made of .* 'item'"):
            enable([tf.multiply(item, 2.0, name="mul")], [item])

    @pytest.mark.parametrize(
        ("item_size", "error"),
        [(None, TypeError), ([1], TypeError), (F, TypeError), ([None, None], ValueError)],
    )
    def test_a_wrong_item_size_is_refused(self, item_size, error):
        user, item = self.inputs()
        if item_size == F:
            item_size = tf.placeholder(F, [None])
        elif item_size == [None, None]:
            item_size = tf.placeholder(tf.int32, item_size)
        with pytest.raises(error, match="item_size must be"):
            graph_optimizer.enable_sample_awared_graph_compression([user], [item], item_size)

    def test_a_second_call_in_a_graph_is_refused(self):
        user, item = self.inputs()
        enable([user], [item])
        with pytest.raises(ValueError, match="got a second call"):
            enable([user], [item])

    def test_a_correct_call_may_follow_a_refused_one(self):
        user, item = self.inputs()
        with pytest.raises(ValueError, match="not given before"):
            enable([user, user], [item])
        enable([user], [item])

    def test_a_static_number_of_users_is_refused_outside_of_an_estimator(self):
        user, item = tf.placeholder(F, [1, 2], name="one"), tf.placeholder(F, [None, 2])
        enable([user], [item])
        with pytest.raises(ValueError, match=r"'one' must have a batch axis .* got shape \(1, 2\)"):
            graph_optimizer.compress(user + item)

    def test_a_static_number_of_users_of_sparse_and_ragged_tensors_is_refused_too(self):
        values, item = tf.placeholder(F, [3], name="values"), tf.placeholder(F, [None])
        sparse = tf.SparseTensor(tf.zeros([3, 2], INT), values, [1, 4])
        enable([sparse], [item])
        with pytest.raises(ValueError, match=r"'values' must have a batch .* shape \(1, 4\)"):
            graph_optimizer.compress(item)
        with tf.Graph().as_default():
            values, item = tf.placeholder(F, [3], name="values"), tf.placeholder(F, [None])
            ragged = tf.RaggedTensor.from_row_splits(values, tf.constant([0, 3], INT))
            enable([ragged], [item])
            with pytest.raises(ValueError, match=r"'values' must have a batch axis"):
                graph_optimizer.compress(item)

    def test_without_compression_nothing_changes(self):
        user, item = self.inputs()
        scores = user + item
        assert graph_optimizer.compress(scores) is scores
        with pytest.raises(ValueError, match="must be compressed before compression_report"):
            graph_optimizer.compression_report()

    def test_graphs_are_independent(self):
        user, item = self.inputs()
        enable([user], [item])
        with tf.Graph().as_default():
            other = tf.placeholder(F, [None])
            assert graph_optimizer.compress(other) is other
        assert graph_optimizer.compress(user) is not user

    @pytest.mark.parametrize(
        ("user_rows", "item_rows", "item_size", "message"),
        [
            (2, 5, [2, 2], "item tensor.*item.*4.*5"),
            (2, 3, [2, 2], "item tensor.*item.*4.*3"),
            (2, 5, [6, -1], "item_size.*0.*-1"),
            (3, 5, [2, 3], "user tensor.*user.*2.*3"),
            (1, 5, [2, 3], "user tensor.*user.*2.*1"),
            (2, 5, [], "user tensor.*user.*0.*2"),
            (2, 5, [5], "item tensor.*item.*10.*5"),
            (3, 4, [2**30, 2**30, 2**31 - 1, 2**31 - 1], "user tensor.*user.*4.*3"),
            (4, 2, [2**31 - 1, 2**31 - 1, 2, 2], "item tensor.*item.*4294967298.*2"),
        ],
    )
    def test_sizes_that_do_not_fit_are_an_error_with_both_numbers(
        self, user_rows, item_rows, item_size, message
    ):
        user, item = self.inputs()
        sizes = enable([user], [item])
        scores = graph_optimizer.compress(user + item)
        feed = {user: uniform(user_rows, 2), item: uniform(item_rows, 2), sizes: item_size}
        with tf.Session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(scores, feed)

    def test_a_missing_item_size_is_an_error(self):
        user, item = self.inputs()
        enable([user], [item])
        scores = graph_optimizer.compress(user + item)
        with tf.Session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="'item_size'"):
                session.run(scores, {user: uniform(1, 2), item: uniform(1, 2)})


class TestRequests:
    def model(self, users, items):
        hidden = tf.tanh(tf.matmul(users[0], tf.constant(uniform(3, 4))))
        scores = tf.reduce_sum(tf.concat([hidden, items[0]], axis=1), axis=1)
        return {"scores": scores, "hidden": hidden, "rows": tf.shape(hidden)[0]}

    @pytest.mark.parametrize("sizes", [[1], [4], [0, 3], [2, 0, 0], [1, 1, 1], [5, 2, 0, 1]])
    def test_ragged_requests(self, sizes):
        sizes = np.array(sizes, np.int32)
        users, items = [uniform(len(sizes), 3)], [uniform(sizes.sum(), 2)]
        expected, got, _ = both(self.model, users, items, sizes)
        expect_equal(expected, got, 1e-12)

    @pytest.mark.parametrize("sizes", [[0], [0, 0], []])
    def test_requests_without_candidates_give_nothing(self, sizes):
        sizes = np.array(sizes, np.int32)
        expected, got, _ = both(self.model, [uniform(len(sizes), 3)], [uniform(0, 2)], sizes)
        expect_equal(expected, got)

    def test_one_element_stands_for_all_users(self):
        user, item = tf.placeholder(F, [None]), tf.placeholder(F, [None])
        item_size = enable([user], [item])
        sums = graph_optimizer.compress(tf.square(user) + item)
        with tf.Session() as session:
            got = session.run(sums, {user: [1, 2, 3], item: np.zeros(6), item_size: [2]})
        np.testing.assert_array_equal(got, [1, 1, 4, 4, 9, 9])

    def test_item_size_may_be_of_int64(self):
        user, item = tf.placeholder(F, [None]), tf.placeholder(F, [None])
        item_size = tf.placeholder(INT, [None])
        graph_optimizer.enable_sample_awared_graph_compression([user], [item], item_size)
        sums = graph_optimizer.compress(tf.square(user) + item)
        with tf.Session() as session:
            got = session.run(sums, {user: [1, 2], item: np.zeros(3), item_size: [1, 2]})
        np.testing.assert_array_equal(got, [1, 4, 4])

    def test_outputs_that_depend_on_users_alone_have_a_row_per_candidate(self):
        expected, got, report = both(self.model, [uniform(4, 3)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert got["hidden"].shape == (6, 4)
        assert got["rows"] == 6
        assert {"MatMul", "Tanh"} <= set(report.moved)


class TestKinds:
    """User tensors of other kinds than floats, and lookups."""

    @pytest.mark.parametrize("make", [sparse_input, ragged_input])
    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
    def test_lookups_of_tables_run_on_the_users_rows(self, make, combiner):
        def model(users, items):
            table = rec.get_embedding_variable("user", embedding_dim=3)
            vectors = rec.embedding_lookup_sparse(table, users[0], combiner=combiner)
            return vectors, tf.reduce_sum(vectors * items[0], axis=1)

        items = [uniform(6, 3).astype(np.float32)]
        expected, got, report = both(model, [make(IDS)], items)
        expect_equal(expected, got, 1e-6)
        assert any("TableGroupLookup" in name for name in report.moved)

    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
    def test_weighted_lookups_of_tables_give_the_same(self, combiner):
        def model(users, items):
            table = rec.get_embedding_variable("user", embedding_dim=3)
            vectors = rec.embedding_lookup_sparse(table, *users, combiner=combiner)
            return vectors, tf.reduce_sum(vectors * items[0], axis=1)

        weights = [[0.5, 2, 1], [], [3], [1, -0.25]]
        users = [sparse_input(IDS), sparse_input(weights, np.float32)]
        items = [uniform(6, 3).astype(np.float32)]
        expected, got, report = both(model, users, items)
        expect_equal(expected, got, 1e-6)
        assert any("TableLookup" in name for name in report.moved)

    @pytest.mark.parametrize("make", [sparse_input, ragged_input])
    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
    def test_lookups_with_weights_of_their_ids_run_on_the_users_rows(self, make, combiner):
        def model(users, items):
            table = rec.get_embedding_variable("user", embedding_dim=3)
            ids = users[0]
            sparse = ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids
            weights = sparse.with_values(tf.cast(sparse.values, tf.float32) * 0.5 - 1.0)
            vectors = rec.embedding_lookup_sparse(table, sparse, weights, combiner=combiner)
            return vectors, tf.reduce_sum(vectors * items[0], axis=1)

        items = [uniform(6, 3).astype(np.float32)]
        expected, got, report = both(model, [make(IDS)], items)
        expect_equal(expected, got, 1e-6)
        assert any("CombineWeighted" in name for name in report.moved), report.moved

    def test_a_ragged_tensor_made_sparse_is_as_wide_as_the_candidates_rows(self):
        def model(users, items):
            return users[0].to_sparse(), items[0]

        lists = [
            [1, 2],
            [1, 2, 3, 4],
            [],
            [5, 6, 7],
        ]  # The user with the longest row has no candidates.
        expected, got, report = both(model, [ragged_input(lists)], [uniform(6)])
        expect_equal(tuple(expected[0]), tuple(got[0]))
        assert got[0].dense_shape.tolist() == [6, 3]
        assert not report.left

    def test_one_fused_lookup_serves_users_and_items(self):
        def model(users, items):
            tables = [rec.get_embedding_variable(n, embedding_dim=2) for n in ("a", "b", "c")]
            return rec.group_embedding_lookup_sparse(
                tables,
                [users[0], items[0], users[1]],
                [None, None, "mean"],
            )

        users = [np.array([3, 4, 3, 5]), sparse_input(IDS)]
        expected, got, report = both(model, users, [np.arange(6)])
        expect_equal(expected, got)
        assert not report.left

    @pytest.mark.parametrize("make", [sparse_input, ragged_input])
    @pytest.mark.parametrize("safe", [False, True])
    def test_tensorflows_sparse_lookups(self, make, safe):
        def model(users, items):
            rows = tf.get_variable("rows", [10, 3], F, tf.random_normal_initializer())
            ids = users[0].to_sparse() if isinstance(users[0], tf.RaggedTensor) else users[0]
            if safe:
                vectors = tf.nn.safe_embedding_lookup_sparse(rows, ids, combiner="sum")
            else:
                vectors = tf.nn.embedding_lookup_sparse(rows, ids, None, combiner="mean")
            return vectors, tf.concat([vectors, items[0]], axis=1)

        lists = [[1, 2, 3], [4], [5, 1], [6]]
        expected, got, _ = both(model, [make(lists)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)

    @pytest.mark.parametrize("make", [sparse_input, ragged_input])
    def test_components_of_sparse_and_ragged_tensors_are_repeated_together(self, make):
        def model(users, items):
            values = users[0].values * 2
            same = tf.concat([values, items[0]], axis=0)
            return [users[0], users[0].with_values(tf.square(values)), same]

        lists = [[0.5, 0.25], [1.0], [], [0.125, 2.0, 3.0]]
        expected, got, _ = both(model, [make(lists, np.float64)], [uniform(6)])
        expect_equal(expected, got, 1e-12)

    def test_a_sparse_tensor_whose_rows_are_not_in_order_is_repeated_in_order(self):
        user = tf.sparse_placeholder(INT, [None, None])
        item = tf.placeholder(F, [None])
        item_size = enable([user], [item])
        out = graph_optimizer.compress(user)
        value = tf.SparseTensorValue([[1, 0], [0, 1], [1, 2]], [10, 20, 30], [2, 3])
        with tf.Session() as session:
            got = session.run(out, {user: value, item: np.zeros(3), item_size: [1, 2]})
        np.testing.assert_array_equal(got.indices, [[0, 1], [1, 0], [1, 2], [2, 0], [2, 2]])
        np.testing.assert_array_equal(got.values, [20, 10, 30, 10, 30])
        np.testing.assert_array_equal(got.dense_shape, [3, 3])

    def test_a_ragged_tensor_of_two_ragged_axes(self):
        outer, inner = tf.placeholder(INT, [None]), tf.placeholder(INT, [None])
        values = tf.placeholder(F, [None])
        user = tf.RaggedTensor.from_nested_row_splits(values, [outer, inner], validate=False)
        item = tf.placeholder(F, [None])
        item_size = enable([user], [item])
        sums = tf.reduce_sum(tf.reduce_sum(user * 2.0, axis=2), axis=1) + item
        sums = graph_optimizer.compress(sums)
        feed = {outer: [0, 1, 3], inner: [0, 2, 2, 3], values: [1.0, 2.0, 4.0]}
        with tf.Session() as session:
            got = session.run(sums, {**feed, item: [0.0, 1.0, 2.0], item_size: [2, 1]})
        np.testing.assert_array_equal(got, [6.0, 7.0, 10.0])

    def test_strings(self):
        def model(users, items):
            joined = tf.strings.join([tf.strings.lower(users[0]), "_x"])
            split = tf.sparse.to_dense(tf.strings.split(users[0], sep="B"), default_value="")
            pairs = tf.strings.join([users[0], items[0]])
            return joined, split, pairs, tf.strings.to_hash_bucket_fast(joined, 100)

        users = [np.array(["aB", "B", "cBd", ""], object)]
        expected, got, report = both(model, users, [np.array(list("uvwxyz"), object)])
        expect_equal(expected, got)
        assert "StringJoin" in report.moved

    def test_hash_tables(self):
        def model(users, items):
            keys = tf.constant(["a", "b"])
            table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2], INT)), -1
            )
            return table.lookup(users[0]), table.lookup(items[0])

        users = [np.array([["a", "x"], ["b", "a"], ["x", "b"], ["b", "b"]], object)]
        expected, got, report = both(model, users, [np.array(list("abxaba"), object)])
        expect_equal(expected, got)
        assert not report.left

    def test_feature_columns(self):
        def model(users, items):
            column = tf.feature_column.categorical_column_with_hash_bucket("word", 10)
            columns = [
                tf.feature_column.embedding_column(column, 3),
                tf.feature_column.numeric_column("price", [2]),
            ]
            features = {"word": users[0], "price": items[0]}
            return tf.feature_column.input_layer(features, columns)

        users = [np.array([["a", "b"], ["c", ""], ["d", "d"], ["", ""]], object)]
        expected, got, _ = both(model, users, [uniform(6, 2).astype(np.float32)])
        expect_equal(expected, got, 1e-6)


class TestControlFlow:
    def test_cond_takes_a_row_per_candidate(self, version):
        def model(users, items):
            total = tf.reduce_sum(users[0]) + 10.0 * tf.cast(tf.shape(users[0])[0], F)
            chosen = tf.cond(total > 0, lambda: users[0] * 2, lambda: users[0])
            return chosen, chosen + items[0], total

        expected, got, _ = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)

    def test_while_loop_takes_a_row_per_candidate(self, version):
        def model(users, items):
            def body(i, state):
                return i + 1, tf.tanh(state) + users[0] + tf.reduce_mean(state, axis=0)

            _, state = tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros_like(users[0])])
            return state, state * items[0]

        expected, got, _ = both(model, [uniform(4, 2)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)


class TestLinearSplit:
    def attention(self, users, items):
        history, query = users[0], items[0]
        queries = tf.broadcast_to(query[:, tf.newaxis, :], tf.shape(history))
        queries.set_shape(history.shape)
        pairs = tf.concat([history, queries, history - queries, history * queries], axis=-1)
        kernel = tf.get_variable("kernel", [4 * history.shape[2], 5], F)
        hidden = tf.nn.bias_add(
            tf.matmul(tf.reshape(pairs, [-1, kernel.shape[0]]), kernel), tf.constant(uniform(5))
        )
        hidden = tf.reshape(hidden, tf.concat([tf.shape(pairs)[:-1], [5]], axis=0))
        weights = tf.nn.softmax(tf.reduce_sum(tf.nn.relu(hidden), axis=-1))
        return hidden, tf.reduce_sum(history * weights[..., tf.newaxis], axis=1)

    @pytest.mark.parametrize("sizes", [[6], [3, 3], [2, 0, 3, 1], [0, 6], [1, 1, 1, 1, 1, 1]])
    def test_attention_over_the_users_history(self, sizes):
        sizes = np.array(sizes, np.int32)
        users, items = [uniform(len(sizes), 7, 3)], [uniform(6, 3)]
        expected, got, report = both(self.attention, users, items, sizes)
        expect_equal(expected, got, 1e-12)
        assert {"MatMul", "BiasAdd", "Sum_1"} <= set(report.split)

    def test_attention_makes_no_copy_of_the_history_for_each_candidate(self):
        history, query = tf.placeholder(F, [None, 50, 3]), tf.placeholder(F, [None, 3])
        item_size = enable([history], [query])
        out = graph_optimizer.compress(self.attention([history], [query]))
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        metadata = tf.RunMetadata()
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            feed = {history: uniform(2, 50, 3), query: uniform(40, 3), item_size: [20, 20]}
            session.run(out[1], feed, options=options, run_metadata=metadata)
        copies = [
            node.node_name
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
            for output in node.output
            if [d.size for d in output.tensor_description.shape.dim] == [40, 50, 3]
        ]
        assert copies == []

    def dense(self, users, items):
        x = tf.concat([users[0], items[0], users[1]], axis=1)
        kernel = tf.get_variable("kernel", [x.shape[1], 4], F)
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), tf.constant(uniform(4))))

    def test_a_dense_layer_over_a_concat_is_split(self):
        users, items = [uniform(4, 6), uniform(4, 5)], [uniform(6, 4)]
        expected, got, report = both(self.dense, users, items)
        expect_equal(expected, got, 1e-12)
        assert set(report.split) == {"MatMul", "BiasAdd"}
        assert report.flops_after < report.flops_before / 2

    def test_exact_splits_no_layer_and_keeps_every_bit(self):
        users, items = [uniform(4, 3), uniform(4, 2)], [uniform(6, 4)]
        expected, got, report = both(self.dense, users, items, exact=True)
        expect_equal(expected, got)
        assert report.split == ()

    @pytest.mark.parametrize(
        "layer",
        [
            lambda x, w: tf.tensordot(x, w, 1),
            lambda x, w: tf.einsum("btd,dh->bth", x, w),
            tf.matmul,
        ],
    )
    def test_layers_over_three_axes_are_split(self, layer):
        def model(users, items):
            item = tf.tile(items[0][:, tf.newaxis, :], [1, 5, 1])
            x = tf.concat([users[0], item], axis=2)
            return layer(x, tf.get_variable("kernel", [x.shape[2], 4], F))

        expected, got, report = both(model, [uniform(4, 5, 3)], [uniform(6, 2)])
        expect_equal(expected, got, 1e-12)
        assert report.split


class TestReport:
    def test_it_gives_the_reason_why_an_op_stayed(self):
        def model(users, items):
            ranks = tf.argsort(users[0], axis=0)
            return tf.cast(tf.gather(users[0], ranks[:, 0]), F) + items[0]

        expected, got, report = both(model, [uniform(4, 1)], [uniform(6, 1)])
        expect_equal(expected, got)
        assert report.left
        assert all(reason for _, _, reason in report.left)
        assert "left: " in str(report)

    def test_flops_are_those_of_the_request(self):
        user, item = tf.placeholder(F, [None, 10]), tf.placeholder(F, [None, 4])
        enable([user], [item])
        hidden = tf.matmul(user, tf.constant(uniform(10, 4)))
        graph_optimizer.compress(hidden * item)
        report = graph_optimizer.compression_report(users=2, items=100)
        assert report.flops_before == 100 * 4 * 2 * 10 + 100 * 4
        assert report.flops_after == 2 * 4 * 2 * 10 + 100 * 4
