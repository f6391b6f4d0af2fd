# SPDX-License-Identifier: Apache-2.0
"""linear_model over tables: the numbers, names and training of TensorFlow's linear_model."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table.table import graph_tables

IDS = np.array([[1, 2, -1], [3, 3, 4], [-1, -1, -1], [0, -1, 5]])
MASK = IDS >= 0
WEIGHTS = np.where(MASK, [[0.5, 2, 1], [1.5, -1, 3], [1, 1, 1], [2, 1, 0.25]], 0)
PRICE = np.array([0.5, -1.5, 2.0, 1.0], np.float32)
LABELS = np.array([[1.0], [0.0], [1.0], [0.0]], np.float32)


def sparse(values):
    return tf.SparseTensor(np.argwhere(MASK), values[MASK], MASK.shape)


BATCHES = {
    "dense": lambda: {
        "user": tf.constant(IDS, tf.int64),
        "w": tf.constant(WEIGHTS, tf.float32),
        "price": tf.constant(PRICE),
    },
    "sparse": lambda: {
        "user": sparse(IDS.astype(np.int64)),
        "w": sparse(WEIGHTS.astype(np.float32)),
        "price": tf.constant(PRICE),
    },
    "one id": lambda: {"user": tf.constant(IDS[:, 0], tf.int64), "price": tf.constant(PRICE)},
}


def ours(key="user", **arguments):
    return rec.categorical_column_with_embedding(key, tf.int64, **arguments)


def theirs(key="user"):
    return tf.feature_column.categorical_column_with_identity(key, 6)


OPTIMIZERS = {
    "sgd": (rec.optimizers.GradientDescentOptimizer, tf.train.GradientDescentOptimizer),
    "adagrad": (rec.optimizers.AdagradOptimizer, tf.train.AdagradOptimizer),
    "ftrl": (rec.optimizers.FtrlOptimizer, tf.train.FtrlOptimizer),
}


def train(model, column, batch, optimizer, **arguments):
    """The logits before training and after each of three steps; and the variables by name."""
    with tf.Graph().as_default():
        columns = [column, tf.feature_column.numeric_column("price")]
        logits = model(batch(), columns, **arguments)
        labels = np.repeat(LABELS, logits.shape[1], axis=1)
        loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        step = tf.train.get_or_create_global_step()
        train_op = optimizer(0.125).minimize(loss, global_step=step)
        found = []
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.tables_initializer()])
            for _ in range(3):
                found.append(session.run(logits))
                session.run(train_op)
            found.append(session.run(logits))
        names = sorted(variable.op.name for variable in tf.trainable_variables())
    return found, names


@pytest.mark.each_value
@pytest.mark.parametrize("form", BATCHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_equals_that_of_tensorflows_linear_model(form, optimizer):
    our_optimizer, stock = OPTIMIZERS[optimizer]
    found, names = train(rec.linear_model, ours(), BATCHES[form], our_optimizer)
    expected, stock_names = train(tf.feature_column.linear_model, theirs(), BATCHES[form], stock)
    assert names == stock_names
    assert not found[0].any() and found[1].all()
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.each_value
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shards", [None, 3])
def test_several_outputs_weights_and_combiners_are_those_of_tensorflow(combiner, weighted, shards):
    columns = [ours(partition_num=shards), theirs()]
    if weighted:
        columns = [rec.weighted_categorical_column(each, "w") for each in columns]
    arguments = {"units": 2, "sparse_combiner": combiner}
    batch = BATCHES["sparse"]
    our_optimizer, stock = OPTIMIZERS["adagrad"]
    found, _ = train(rec.linear_model, columns[0], batch, our_optimizer, **arguments)
    expected, _ = train(tf.feature_column.linear_model, columns[1], batch, stock, **arguments)
    for one, other in zip(found, expected):
        assert one.shape == (4, 2)
        # Weights and shards change the order of float32 sums of weights up to 1.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 if weighted or shards else 0)


def names_of(model, column, build):
    with tf.Graph().as_default():
        build(
            lambda: model(BATCHES["dense"](), [column, tf.feature_column.numeric_column("price")])
        )
        return [variable.op.name for variable in tf.trainable_variables()]


def twice(model):
    model()
    model()


def in_a_scope(model):
    with tf.variable_scope("outer"):
        model()


def reused(model):
    for _ in range(2):
        with tf.variable_scope("outer", reuse=tf.AUTO_REUSE):
            model()


@pytest.mark.parametrize("build", [twice, in_a_scope, reused])
def test_variables_have_the_names_that_tensorflow_gives(build):
    found = names_of(rec.linear_model, ours(), build)
    expected = names_of(tf.feature_column.linear_model, theirs(), build)
    assert sorted(found) == sorted(expected)


@pytest.mark.long
def test_columns_of_tensorflow_alone_give_its_model():
    city = tf.feature_column.categorical_column_with_hash_bucket("city", 9)
    bucket = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("price"), [0.0])
    columns = [city, bucket, tf.feature_column.embedding_column(city, 2)]
    batch = {"city": tf.constant(["a", "b", "a", ""]), "price": tf.constant(PRICE)}
    with tf.variable_scope("m", initializer=tf.ones_initializer()):
        expected = tf.feature_column.linear_model(batch, columns)
    names = {variable.op.name: variable for variable in tf.global_variables()}
    with tf.variable_scope("m", reuse=True):
        found = rec.linear_model(batch, columns)
    assert {variable.op.name for variable in tf.global_variables()} == set(names)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for number, variable in enumerate(names.values()):
            session.run(variable.assign(tf.fill(variable.shape, 0.25 * (number + 1))))
        found, expected = session.run([found, expected])
    assert found.any()
    np.testing.assert_array_equal(found, expected)


def test_columns_are_mapped_to_their_variables():
    column, price = ours(), tf.feature_column.numeric_column("price")
    found = {}
    rec.linear_model(BATCHES["dense"](), [column, price], cols_to_vars=found)
    (table,) = graph_tables()
    assert found[column] == [table] and table.name == "linear_model/user/weights"
    assert [variable.op.name for variable in found[price]] == ["linear_model/price/weights"]
    assert [variable.op.name for variable in found["bias"]] == ["linear_model/bias_weights"]


def test_the_options_of_a_column_are_those_of_its_table():
    option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2))
    logits = rec.linear_model(
        {"user": tf.constant([1, 1, 2], tf.int64)},
        [ours(ev_option=option, partition_num=2)],
        weight_collections=["mine"],
    )
    (table,) = graph_tables()
    assert table.ev_option == option and len(table.shards) == 2
    assert tf.get_collection("mine")[0] is table
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(logits))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run(table.export().keys).tolist() == [1]


def test_a_model_that_is_not_trainable_is_not_in_the_collection():
    rec.linear_model(BATCHES["dense"](), [ours()], trainable=False)
    assert tf.trainable_variables() == [] and not graph_tables()[0].trainable


def test_a_sequence_is_summed():
    column = rec.sequence_categorical_column_with_embedding("user", tf.int64)
    logits = rec.linear_model({"user": tf.constant([[1, 1], [2, -1]], tf.int64)}, [column])
    train_op = rec.optimizers.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(logits))
    (table,) = graph_tables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        rows = session.run(rec.embedding_lookup(table, tf.constant([1, 2], tf.int64)))
    assert rows.tolist() == [[-2.0], [-1.0]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"units": 0}, "units must be an integer >= 1, got 0"),
        ({"units": True}, "units must be an integer >= 1, got True"),
        ({"sparse_combiner": "max"}, "sparse_combiner must be one of sum, mean, sqrtn, got 'max'"),
        ({"feature_columns": []}, "feature_columns must not be empty"),
        ({"feature_columns": [ours(), ours()]}, "Duplicate feature column name"),
        ({"feature_columns": ["user"]}, "must be a _FeatureColumn"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rec.linear_model(**{"features": {}, "feature_columns": [ours()], **arguments})


@pytest.mark.long
def test_a_wide_model_trains_in_an_estimator(tmp_path):
    columns = [ours("user"), ours("item"), tf.feature_column.numeric_column("price")]
    random = np.random.default_rng(1)
    batch = {
        "user": random.integers(0, 9, 400),
        "item": random.integers(0, 9, 400),
        "price": random.random(400).astype(np.float32),
    }
    labels = ((batch["user"] + batch["item"]) > 8).astype(np.float32)

    def model_fn(features, labels, mode):
        logits = tf.squeeze(rec.linear_model(features, columns), axis=1)
        if mode == rec.ModeKeys.PREDICT:
            return rec.EstimatorSpec(mode, predictions={"p": tf.sigmoid(logits)})
        loss = tf.losses.sigmoid_cross_entropy(labels, logits)
        train_op = rec.optimizers.FtrlOptimizer(0.5).minimize(loss, tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = rec.RunConfig(tf_random_seed=1)
    estimator = rec.RecEstimator(model_fn, str(tmp_path), config)
    estimator.train(rec.inputs.numpy_input_fn(batch, labels, batch_size=50, num_epochs=20))
    rows = estimator.get_variable_value("linear_model/user/weights-values")
    assert rows.shape == (9, 1)
    answers = estimator.predict(rec.inputs.numpy_input_fn(batch, labels, batch_size=50))
    right = (np.array([answer["p"] for answer in answers]) > 0.5) == labels
    # A line through two numbers separates the labels.
    assert right.mean() > 0.97
