# SPDX-License-Identifier: Apache-2.0
"""Tests of feature columns that read tables, in TensorFlow's layers, with TensorFlow's columns."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import feature_column as fc
from rec_estimator.table.table import graph_tables

BANK = np.arange(12, dtype=np.float32).reshape(6, 2) + 1
INIT = rec.InitializerOption(tf.constant_initializer(BANK), default_value_dim=len(BANK))
OPTION = rec.EmbeddingVariableOption(init_option=INIT)
FILTERED = rec.EmbeddingVariableOption(init_option=INIT, filter_option=rec.CounterFilter(2))


def column(key="f", dtype=tf.int64, partition_num=None, ev_option=OPTION):
    return fc.categorical_column_with_embedding(key, dtype, partition_num, ev_option)


def dense(key="f", **arguments):
    return fc.embedding_column(column(key), 2, **arguments)


def run(fetches, feed_dict=None):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(fetches, feed_dict)


def input_layer(features, columns):
    return run(tf.feature_column.input_layer(features, columns))


def minimize(loss, learning_rate=1.0):
    step = tf.train.get_or_create_global_step()
    optimizer = rec.optimizers.GradientDescentOptimizer(learning_rate)
    return optimizer.minimize(loss, global_step=step)


def hashed(values):
    """The keys of strings, as in DeepRec."""
    return run(tf.strings.to_hash_bucket_fast(values, 2**63 - 1))


DENSE_IDS = np.array([[1, 2, -1], [3, 3, 4], [-1, -1, -1], [0, -1, 5]])
MASK = DENSE_IDS >= 0


def as_sparse(values):
    return tf.SparseTensor(np.argwhere(MASK), values[MASK], DENSE_IDS.shape)


# ------------------------------------------------------------------ the same as TensorFlow's


@pytest.mark.long
@pytest.mark.each_value
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_vectors_equal_those_of_tensorflows_column(combiner, weighted):
    weights = np.where(MASK, [[0.5, 2.0, 1.0], [1.5, -1.0, 3.0], [1, 1, 1], [2, 1, 0.25]], 0)
    weights = weights.astype(np.float32)
    batches = {
        "dense": {"f": tf.constant(DENSE_IDS, tf.int64), "w": tf.constant(weights)},
        "sparse": {"f": as_sparse(DENSE_IDS.astype(np.int64)), "w": as_sparse(weights)},
    }
    built = {}
    for form, max_norm, shards in (
        *(("dense", None, None), ("sparse", None, None)),
        *(("dense", 3.0, None), ("sparse", None, 3)),
    ):
        ours = column(partition_num=shards)
        theirs = tf.feature_column.categorical_column_with_identity("f", len(BANK))
        if weighted:
            ours = fc.weighted_categorical_column(ours, "w")
            theirs = tf.feature_column.weighted_categorical_column(theirs, "w")
        ours = fc.embedding_column(ours, 2, combiner=combiner, max_norm=max_norm)
        theirs = tf.feature_column.embedding_column(
            theirs, 2, combiner, tf.constant_initializer(BANK), max_norm=max_norm
        )
        assert ours.name == theirs.name
        built[form, max_norm, shards] = [
            tf.feature_column.input_layer(batches[form], [each]) for each in (ours, theirs)
        ]
    for (form, max_norm, shards), (found, expected) in run(built).items():
        # Weights, norms and shards change the order of summation.
        exact = not weighted and max_norm is None and shards is None
        np.testing.assert_allclose(
            found, expected, rtol=0 if exact else 1e-6, err_msg=str((form, max_norm, shards))
        )


def test_one_layer_takes_columns_of_both_kinds():
    batch = {
        "f": tf.constant([[1, 2], [3, -1]], tf.int64),
        "price": tf.constant([0.5, 1.5]),
        "city": tf.constant(["a", "b"]),
        "kind": tf.constant([0, 2], tf.int64),
    }
    city = tf.feature_column.categorical_column_with_hash_bucket("city", 10)
    kind = tf.feature_column.categorical_column_with_identity("kind", 3)
    columns = [
        dense(),
        tf.feature_column.numeric_column("price"),
        tf.feature_column.embedding_column(city, 3),
        tf.feature_column.indicator_column(kind),
    ]
    found = input_layer(batch, columns)
    # Ordered by name: city_embedding, f_embedding, kind_indicator, price.
    assert found.shape == (2, 3 + 2 + 3 + 1)
    np.testing.assert_array_equal(found[:, 3:5], [(BANK[1] + BANK[2]) / 2, BANK[3]])
    np.testing.assert_array_equal(found[:, 5:], [[1, 0, 0, 0.5], [0, 0, 1, 1.5]])
    assert [variable.op.name for variable in tf.trainable_variables()] == [
        "input_layer/city_embedding/embedding_weights",
        "input_layer/f_embedding/embedding_weights",
    ]


def test_training_equals_that_of_tensorflows_column():
    # Distinct ids: TensorFlow would sum the gradients of equal ids before it subtracts them.
    ids = tf.constant([[1, 2, -1], [3, 4, -1], [-1, -1, -1], [0, -1, 5]], tf.int64)
    theirs = tf.feature_column.embedding_column(
        tf.feature_column.categorical_column_with_identity("f", len(BANK)),
        *(2, "mean", tf.constant_initializer(BANK)),
    )
    target = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    found = []
    for each in (dense(), theirs):
        net = tf.feature_column.input_layer({"f": ids}, [each])
        train = minimize(tf.reduce_sum(tf.square(net - target)), learning_rate=0.125)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(5):
                session.run(train)
            found.append(session.run(net))
    np.testing.assert_array_equal(*found)


# ------------------------------------------------------------------ ids


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32])
def test_integers_are_the_keys(dtype):
    batch = {"f": tf.constant([[-7, -1], [13, 2]], dtype)}
    found = input_layer(batch, [fc.embedding_column(column(dtype=dtype), 2)])
    np.testing.assert_array_equal(found, [BANK[-7 % 6], (BANK[1] + BANK[2]) / 2])


def test_strings_are_hashed_and_empty_ones_are_padding():
    batch = {"f": tf.constant([["x", "", "y"], ["", "", ""]])}
    x, y = hashed(["x", "y"])
    found = input_layer(batch, [fc.embedding_column(column(dtype=tf.string), 2, "sum")])
    np.testing.assert_array_equal(found, [BANK[x % 6] + BANK[y % 6], [0, 0]])


def test_every_value_of_sparse_ids_is_a_key():
    ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([-1, -7], tf.int64), [3, 1])
    found = input_layer({"f": ids}, [dense()])
    np.testing.assert_array_equal(found, [BANK[-1 % 6], BANK[-7 % 6], [0, 0]])


@pytest.mark.parametrize(
    "dtype, ids", [(tf.string, [1]), (tf.int64, ["a"]), (tf.int64, [1.5])], ids=str
)
def test_ids_of_another_type_are_an_error_that_names_the_feature(dtype, ids):
    with pytest.raises(
        TypeError,
        match=f"feature 'f' must have ids of the declared dtype {dtype}".replace(
            "<dtype: '", ""
        ).replace("'>", ""),
    ):
        input_layer({"f": tf.constant(ids)}, [fc.embedding_column(column(dtype=dtype), 2)])


def test_padding_is_neither_counted_nor_inserted():
    ids = tf.constant(DENSE_IDS, tf.int64)
    net = tf.feature_column.input_layer({"f": ids}, [dense()])
    (table,) = graph_tables()
    train = minimize(tf.reduce_sum(net))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(table.size()) == 6
        frequencies = session.run(table.get_frequency([-1, 0, 1, 2, 3, 4, 5]))
        assert frequencies.tolist() == [0, 1, 1, 1, 2, 1, 1]


def test_filter_of_the_option_is_applied():
    ids = tf.constant([[1, 1], [2, -1]], tf.int64)
    net = tf.feature_column.input_layer(
        {"f": ids}, [fc.embedding_column(column(ev_option=FILTERED), 2)]
    )
    train = minimize(tf.reduce_sum(net), learning_rate=0.5)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(net).tolist() == [[0, 0], [0, 0]]
        session.run(train)
        # Two occurrences with weight 1/2 each.
        np.testing.assert_array_equal(session.run(net), [BANK[1] - 0.5, [0, 0]])


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_weights_belong_to_ids_by_their_order_as_in_tensorflows_columns(combiner):
    batch = {
        "f": tf.sparse.from_dense(tf.constant([[1, 2], [0, 3]], tf.int64)),
        "w": tf.sparse.from_dense([[1.0, 0.0], [2.0, 3.0]]),
    }
    theirs = tf.feature_column.categorical_column_with_identity("f", len(BANK))
    ours, theirs = (
        fc.embedding_column(
            fc.weighted_categorical_column(each, "w"), 2, combiner, tf.constant_initializer(BANK)
        )
        for each in (column(), theirs)
    )
    found, expected = run([tf.feature_column.input_layer(batch, [each]) for each in (ours, theirs)])
    assert found.tolist() == expected.tolist()
    if combiner == "sum":
        assert found.tolist() == [(BANK[1] + 2 * BANK[2]).tolist(), (3 * BANK[3]).tolist()]


def test_more_weights_than_ids_are_an_error():
    batch = {"f": tf.constant([[1, -1]], tf.int64), "w": tf.constant([[1.0, 2.0]])}
    weighted = fc.embedding_column(fc.weighted_categorical_column(column(), "w"), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must be as many as ids"):
        input_layer(batch, [weighted])


# ------------------------------------------------------------------ tables


def test_table_has_the_name_of_tensorflows_variable():
    batch = {"f": tf.constant([1], tf.int64)}
    with tf.variable_scope("tower"):
        tf.feature_column.input_layer(batch, [dense()], weight_collections=["mine"])
    (table,) = graph_tables()
    assert table.name == "tower/input_layer/f_embedding/embedding_weights"
    assert tf.get_collection("mine") == [table]
    assert tf.get_collection(tf.GraphKeys.MODEL_VARIABLES) == []
    assert table.ev_option == OPTION


def test_partition_num_or_else_the_scope_determines_the_shards():
    batch = {key: tf.constant([1], tf.int64) for key in "fg"}
    with tf.variable_scope("s", partitioner=tf.fixed_size_partitioner(4)):
        tf.feature_column.input_layer(
            batch, [dense(), fc.embedding_column(column("g", partition_num=3), 2)]
        )
    assert {len(table.shards): table.name for table in graph_tables()} == {
        4: "s/input_layer/f_embedding/embedding_weights",
        3: "s/input_layer/g_embedding/embedding_weights",
    }


@pytest.mark.parametrize(
    "arguments, given", [({"trainable": False}, True), ({"trainable": True}, False)]
)
def test_table_that_is_not_trainable_is_not_updated(arguments, given):
    batch = {"f": tf.constant([1], tf.int64)}
    net = tf.feature_column.input_layer(batch, [dense(**arguments)], trainable=given)
    (table,) = graph_tables()
    assert not table.trainable
    bias = tf.get_variable("bias", [])
    train = minimize(bias + tf.reduce_sum(net))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(table.size()) == 0


def test_initializer_of_the_option_takes_precedence_over_that_of_the_column():
    batch = {key: tf.constant([1], tf.int64) for key in "abc"}
    none = rec.EmbeddingVariableOption()
    columns = [
        fc.embedding_column(column("a"), 2, initializer=tf.ones_initializer()),
        fc.embedding_column(column("b", ev_option=none), 2, initializer=tf.ones_initializer()),
        fc.embedding_column(column("c", ev_option=none), 64),
    ]
    tf.feature_column.input_layer(batch, columns)
    a, b, c = (run(table.initial_value) for table in graph_tables())
    np.testing.assert_array_equal(a, BANK)
    assert (b == 1).all()
    # Truncated at two standard deviations of 1/8.
    assert 0.2 < np.abs(c).max() <= 0.25


LAYERS = {
    "input": tf.feature_column.input_layer,
    "sequence": lambda features, columns: sequence_layer(features, columns)[0],
    "linear": lambda features, columns: fc.linear_model(features, columns, units=2),
}


@pytest.mark.parametrize(
    "make, layer",
    [
        (fc.categorical_column_with_embedding, "input"),
        (fc.sparse_column_with_embedding, "input"),
        pytest.param(
            *(fc.sequence_categorical_column_with_embedding, "sequence"),
            marks=[pytest.mark.keras_2, pytest.mark.long],
        ),
        (fc.categorical_column_with_embedding, "linear"),
    ],
)
def test_a_regularizer_of_the_column_is_that_of_its_table(make, layer):
    categorical = make("f", tf.int64, ev_option=OPTION, regularizer=rec.L2Regularizer(0.25))
    of_layer = categorical if layer == "linear" else fc.embedding_column(categorical, 2)
    ids = tf.sparse.from_dense(tf.constant([[1, 2]], tf.int64))
    out = LAYERS[layer]({"f": ids}, [of_layer])
    (table,) = graph_tables()
    before = rec.embedding_lookup(table, tf.constant([1, 2], tf.int64))
    step = minimize(0.0 * tf.reduce_sum(out))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rows = session.run(before)
        session.run(step)
        np.testing.assert_array_equal(session.run(before), 0.75 * rows)


def test_layers_that_reuse_a_scope_share_the_table():
    batch = {"f": tf.constant([1], tf.int64)}
    layer = tf.make_template("net", lambda: tf.feature_column.input_layer(batch, [dense()]))
    layer(), layer()
    assert len(graph_tables()) == 1
    tf.feature_column.input_layer(batch, [dense()])
    assert len(graph_tables()) == 2


# ------------------------------------------------------------------ shared tables


def test_shared_columns_train_and_count_in_one_table():
    batch = {"a": tf.constant([[1, 2]], tf.int64), "b": tf.constant([[2, -1]], tf.int64)}
    columns = fc.shared_embedding_columns([column("b"), column("a")], 2, combiner="sum")
    assert [each.name for each in columns] == ["b_shared_embedding", "a_shared_embedding"]
    net = tf.feature_column.input_layer(batch, columns)
    (table,) = graph_tables()
    assert table.name == "input_layer/a_b_shared_embedding/embedding_weights"
    train = minimize(tf.reduce_sum(net))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(net), [[*(BANK[1] + BANK[2]), *BANK[2]]])
        session.run(train)
        assert session.run(table.get_frequency([1, 2, -1])).tolist() == [1, 2, 0]
        np.testing.assert_array_equal(session.run(net)[0, 2:], BANK[2] - 2)


def test_shared_name_is_shared_by_several_layers_of_a_graph():
    batch = {"a": tf.constant([1], tf.int64), "b": tf.constant([2], tf.int64)}
    first = fc.shared_embedding_columns([column("a")], 2, shared_embedding_collection_name="ab")
    second = fc.shared_embedding_columns([column("b")], 2, shared_embedding_collection_name="ab")
    tf.feature_column.input_layer(batch, first)
    tf.feature_column.input_layer(batch, second)
    assert [table.name for table in graph_tables()] == ["input_layer/ab/embedding_weights"]
    other = fc.shared_embedding_columns([column("a")], 3, shared_embedding_collection_name="ab")
    with pytest.raises(ValueError, match="must have the settings it was made with, got dim = 3"):
        tf.feature_column.input_layer(batch, other)


def test_shared_name_of_another_collection_is_an_error():
    tf.add_to_collection("ab", tf.constant(1))
    columns = fc.shared_embedding_columns([column("a")], 2, shared_embedding_collection_name="ab")
    with pytest.raises(ValueError, match="must name a collection of one table, got .* in 'ab'"):
        tf.feature_column.input_layer({"a": tf.constant([1], tf.int64)}, columns)


def test_shared_columns_may_be_weighted():
    batch = {
        "a": tf.constant([[1, 2]], tf.int64),
        "w": tf.constant([[2.0, 3.0]]),
        "b": tf.constant([[2, -1]], tf.int64),
    }
    weighted = fc.weighted_categorical_column(column("a"), "w")
    columns = fc.shared_embedding_columns([weighted, column("b")], 2, combiner="sum")
    found = input_layer(batch, columns)
    np.testing.assert_array_equal(found, [[*(2 * BANK[1] + 3 * BANK[2]), *BANK[2]]])


@pytest.mark.parametrize(
    "other",
    [column("b", dtype=tf.string), column("b", partition_num=2), column("b", ev_option=FILTERED)],
    ids=["type", "shards", "option"],
)
def test_columns_that_cannot_share_a_table_are_an_error(other):
    with pytest.raises(ValueError, match="categorical_columns must have the same ev_option"):
        fc.shared_embedding_columns([column("a"), other], 2)


# ------------------------------------------------------------------ sequences


def sequence_layer(features, columns):
    """TensorFlow's layer for sequence columns, the only one that accepts them."""
    layer = tf.keras.experimental.SequenceFeatures(columns)
    return layer(features)


@pytest.mark.keras_2
def test_sequence_gives_one_vector_per_id():
    ids = tf.sparse.from_dense(tf.constant([[3, 1, 4], [0, 0, 0], [5, 0, 0]], tf.int64))
    history = fc.sequence_categorical_column_with_embedding("f", tf.int64, ev_option=OPTION)
    vectors, lengths = sequence_layer({"f": ids}, [fc.embedding_column(history, 2)])
    (table,) = graph_tables()
    train = minimize(tf.reduce_sum(vectors))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, found_lengths = session.run([vectors, lengths])
        session.run(train)
        counts = session.run(table.get_frequency([1, 3, 4, 5, 0]))
    zeros = [[0, 0]] * 3
    np.testing.assert_array_equal(
        found, [BANK[[3, 1, 4]], zeros, np.concatenate([BANK[5:], zeros[:2]])]
    )
    assert found_lengths.tolist() == [3, 0, 1]
    assert counts.tolist() == [1, 1, 1, 1, 0]


@pytest.mark.keras_2
def test_sequence_shares_its_table_with_a_single_id():
    batch = {
        "item": tf.sparse.from_dense(tf.constant([[2]], tf.int64)),
        "f": tf.sparse.from_dense(tf.constant([[2, 1]], tf.int64)),
    }
    history = fc.sequence_categorical_column_with_embedding("f", tf.int64, ev_option=OPTION)
    item, history = fc.shared_embedding_columns([column("item"), history], 2)
    net = tf.keras.layers.DenseFeatures([item])(batch)
    vectors, _ = sequence_layer(batch, [history])
    assert [table.name for table in graph_tables()] == [
        "dense_features/item_shared_embedding/embedding_weights"
    ]
    found = run([net, vectors])
    np.testing.assert_array_equal(found[0], BANK[2:3])
    np.testing.assert_array_equal(found[1], [BANK[[2, 1]]])


@pytest.mark.keras_2
def test_sequence_columns_in_other_layers_are_an_error():
    batch = {"f": tf.constant([[1, 2]], tf.int64)}
    history = fc.sequence_categorical_column_with_embedding("f", tf.int64)
    with pytest.raises(ValueError, match="column 'f_embedding' must be no sequence column here"):
        tf.feature_column.input_layer(batch, [fc.embedding_column(history, 2)])
    with pytest.raises(ValueError, match="column 'f_embedding' must be a sequence column here"):
        sequence_layer(batch, [dense()])


# ------------------------------------------------------------------ linear models, model functions


def test_linear_model_takes_an_embedding_column():
    batch = {"f": tf.constant([1, 2], tf.int64), "price": tf.constant([0.5, 1.5])}
    logits = tf.feature_column.linear_model(
        batch, [dense(), tf.feature_column.numeric_column("price")]
    )
    (table,) = graph_tables()
    assert table.name == "linear_model/f_embedding/embedding_weights"
    variables = tf.trainable_variables("linear_model/f_embedding")
    weights = [variable for variable in variables if variable is not table]
    assert [weight.shape.as_list() for weight in weights] == [[2, 1]]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(weights[0].assign([[1.0], [10.0]]))
        np.testing.assert_array_equal(session.run(logits), BANK[1:3] @ [[1.0], [10.0]])


@pytest.mark.parametrize(
    "use",
    [
        lambda batch: tf.feature_column.linear_model(batch, [column()]),
        lambda batch: tf.feature_column.input_layer(
            batch, [tf.feature_column.embedding_column(column(), 2)]
        ),
        lambda batch: tf.feature_column.input_layer(
            batch, [tf.feature_column.indicator_column(column())]
        ),
    ],
    ids=["linear_model", "embedding_column", "indicator_column"],
)
def test_use_that_needs_a_vocabulary_is_an_error_with_a_remedy(use):
    with pytest.raises(ValueError, match="'f' must be in embedding_column or linear_model of"):
        use({"f": tf.constant([1], tf.int64)})


def test_crossed_column_takes_the_keys():
    batch = {"f": tf.constant([1, 2, 1], tf.int64), "g": tf.constant(["a", "a", "a"])}
    crossed = tf.feature_column.crossed_column([column(), "g"], 1000)
    found = input_layer(batch, [tf.feature_column.indicator_column(crossed)])
    assert found.sum(axis=1).tolist() == [1, 1, 1]
    assert (found[0] == found[2]).all() and (found[0] != found[1]).any()


COLUMNS = {
    "user": lambda: fc.embedding_column(column("user", dtype=tf.string), 2),
    "tags": lambda: fc.embedding_column(fc.weighted_categorical_column(column("tags"), "w"), 2),
    "small": lambda: fc.embedding_column(column("small", dtype=tf.int32), 2),
}


@pytest.mark.parametrize("newer", [False, True])
def test_parse_example_spec_has_the_columns(newer):
    columns = [make() for make in COLUMNS.values()]
    columns.append(tf.feature_column.numeric_column("price"))
    api = tf.compat.v2 if newer else tf
    spec = api.feature_column.make_parse_example_spec(columns)
    assert spec == {
        "user": tf.io.VarLenFeature(tf.string),
        "tags": tf.io.VarLenFeature(tf.int64),
        "w": tf.io.VarLenFeature(tf.float32),
        "small": tf.io.VarLenFeature(tf.int64),
        "price": tf.io.FixedLenFeature((1,), tf.float32),
    }


@pytest.mark.long
def test_columns_in_a_plain_model_fn_train_evaluate_and_predict(tmp_path):
    params = {
        "columns": [
            *(make() for make in COLUMNS.values()),
            tf.feature_column.numeric_column("price"),
        ]
    }

    def example(user, tags, price):
        feature = {
            "user": tf.train.Feature(bytes_list=tf.train.BytesList(value=[user])),
            "tags": tf.train.Feature(int64_list=tf.train.Int64List(value=tags)),
            "w": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * len(tags))),
            "small": tf.train.Feature(int64_list=tf.train.Int64List(value=tags[:1])),
            "price": tf.train.Feature(float_list=tf.train.FloatList(value=[price])),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    examples = [example(b"x", [1, 2], 1.0), example(b"y", [], 2.0)]

    def input_fn():
        spec = tf.feature_column.make_parse_example_spec(params["columns"])
        features = tf.data.Dataset.from_tensors(examples).map(
            lambda batch: tf.io.parse_example(batch, spec)
        )
        return features.map(lambda features: (features, features["price"])).repeat(2)

    def model_fn(features, labels, mode, params):
        net = tf.feature_column.input_layer(features, params["columns"])
        logits = tf.reduce_sum(net, axis=1, keepdims=True)
        if mode == rec.ModeKeys.PREDICT:
            return rec.EstimatorSpec(mode, predictions={"logits": logits})
        loss = tf.reduce_mean(tf.square(logits - labels))
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step()
        )
        return rec.EstimatorSpec(mode, loss=loss, train_op=train)

    estimator = rec.RecEstimator(model_fn, str(tmp_path), params=params)
    losses = []
    for _ in range(2):
        estimator.train(input_fn)
        losses.append(estimator.evaluate(input_fn)["loss"])
    assert losses[0] > losses[1]
    path = tf.train.latest_checkpoint(str(tmp_path))
    saved = dict(tf.train.list_variables(path))
    for name, rows in (("user", 2), ("tags_weighted_by_w", 2), ("small", 1)):
        assert saved[f"input_layer/{name}_embedding/embedding_weights-keys"] == [rows]
    user = tf.train.load_variable(path, "input_layer/user_embedding/embedding_weights-freqs")
    assert user.tolist() == [4, 4]
    assert len(list(estimator.predict(input_fn))) == 4
