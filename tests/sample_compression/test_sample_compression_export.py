# SPDX-License-Identifier: Apache-2.0
"""Compressed exports of RecEstimator: models of the zoo, receivers, and their requests."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import predict

import rec_estimator as rec
from model_zoo import data, runner
from model_zoo.models import MODELS
from model_zoo.runner import config
from model_zoo.runner.build import build_estimator
from rec_estimator import sample_compression
from rec_estimator.graph_passes.walk import ancestors

SIZES = np.array([3, 0, 4], np.int32)
ROW = np.repeat(np.arange(3), SIZES)


@pytest.fixture(scope="module")
def clicks():
    return data.load("generated")


def request_of(clicks):
    """(values of the users' columns, of the candidates' columns) for SIZES."""
    users, items = {}, {}
    for column in clicks.columns:
        rows = clicks.in_memory("train").features[column.name]
        if column.role == "item":
            items[column.name] = rows[: SIZES.sum()]
        else:
            users[column.name] = rows[5 : 5 + len(SIZES)]
    return users, items


# tests/model_zoo/test_models.py does this with all models.
@pytest.mark.parametrize("model", ["din", "wide_and_deep"])
@pytest.mark.long
def test_compressed_models_of_the_zoo_give_the_same_scores(model, clicks, tmp_path):
    params = {"dim": 4, "hidden_units": [8, 4]}
    params = {name: value for name, value in params.items() if name in MODELS[model].DEFAULTS}
    settings = config.Config(model=model, params=params)
    estimator = build_estimator(settings, clicks, str(tmp_path / "model"))
    estimator.train(clicks.input_fn("train", 64), steps=2)
    users, items = request_of(clicks)
    plain = estimator.export_saved_model(str(tmp_path / "plain"), clicks.receiver_fn())
    repeated = {name: value[ROW] for name, value in users.items()}
    expected = predict(plain, {**repeated, **items})
    compressed = settings.replace(export__kind="compressed")
    exported = estimator.export_saved_model(
        str(tmp_path / "small"), runner.receiver_fn(compressed, clicks)
    )
    # Keys have a second axis in compressed requests, numbers do not.
    matrices = {
        name: value[:, None] if value.dtype == np.int64 and value.ndim == 1 else value
        for name, value in {**users, **items}.items()
    }
    got = predict(exported, {**matrices, "item_size": SIZES})
    assert got and set(got) == set(expected)
    for name in got:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-6)


FEATURES = {
    "user": rec.EmbeddingFeature("user", 4),
    "word": rec.EmbeddingFeature("word", 4, dtype=tf.string, combiner="sum", weight="weight"),
    "history": rec.EmbeddingFeature("history", 4, table="item", combiner=None, max_length=3),
    "item": rec.EmbeddingFeature("item", 4),
}


def small_model_fn(features, labels, mode):
    side = tf.reduce_sum(features["user"], axis=1) + features["age"][:, 0]
    weights = tf.nn.softmax(tf.reduce_sum(features["history"] * features["item"][:, None], axis=2))
    weights *= tf.cast(features["history_mask"], tf.float32)
    interest = tf.reduce_sum(features["history"] * weights[..., None], axis=1)
    inputs = tf.concat([features["word"], features["item"], features["price"], interest], axis=1)
    kernel = tf.get_variable("kernel", [inputs.shape[1], 3])
    hidden = tf.nn.relu(tf.matmul(inputs, kernel))
    scores = tf.reduce_sum(hidden, axis=1) + side
    loss = train_op = None
    if mode != rec.ModeKeys.PREDICT:
        loss = tf.reduce_mean(tf.square(scores - labels))
        optimizer = rec.optimizers.AdagradOptimizer(0.5)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    outputs = {
        "predict": rec.PredictOutput({"scores": scores, "side": side}),
        "regress": rec.export.RegressionOutput(scores),
        "classify": rec.export.ClassificationOutput(
            scores=side[:, None], classes=tf.as_string(features["history_mask"])
        ),
    }
    outputs[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY] = outputs["predict"]
    return rec.EstimatorSpec(
        mode,
        predictions={"scores": scores, "side": side},
        loss=loss,
        train_op=train_op,
        export_outputs=outputs,
    )


def batch(rows):
    random = np.random.RandomState(rows)
    return {
        "user": random.randint(0, 9, rows),
        "word": random.choice(["a", "b", "", "c"], (rows, 2)).astype(object),
        "weight": random.uniform(0.5, 1, (rows, 2)).astype(np.float32),
        "history": random.randint(-1, 9, (rows, 5)),
        "age": random.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "item": random.randint(0, 9, rows),
        "price": random.uniform(-1, 1, (rows, 2)).astype(np.float32),
    }


USER_NAMES = ("user", "word", "weight", "history", "age")
PLACEHOLDERS = {
    "user": (tf.int64, [None]),
    "word": (tf.string, [None, 2]),
    "weight": (tf.float32, [None, 2]),
    "history": (tf.int64, [None, 5]),
    "age": (tf.float32, [None, 1]),
    "item": (tf.int64, [None]),
    "price": (tf.float32, [None, 2]),
}


def plain_receiver():
    tensors = {
        name: tf.placeholder(*spec, name=f"in_{name}") for name, spec in PLACEHOLDERS.items()
    }
    return rec.ServingInputReceiver(tensors, tensors)


def pages_receiver(exact=False, shapes=()):
    """The receiver of DeepRec's documentation. `shapes` replaces some shapes of PLACEHOLDERS."""

    def receiver():
        item_size = tf.placeholder(tf.int32, [None], name="item_size")
        tensors = {
            name: tf.placeholder(dtype, dict(shapes).get(name, shape), name=f"in_{name}")
            for name, (dtype, shape) in PLACEHOLDERS.items()
        }
        users = [tensors[name] for name in USER_NAMES]
        items = [tensors[name] for name in ("item", "price")]
        rec.graph_optimizer.enable_sample_awared_graph_compression(
            users, items, item_size, exact=exact
        )
        return rec.ServingInputReceiver(tensors, {**tensors, "item_size": item_size})

    return receiver


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimator")
    made = rec.RecEstimator(
        small_model_fn,
        model_dir=str(folder),
        config=rec.RunConfig(tf_random_seed=3),
        embedding_features=list(FEATURES.values()),
    )
    labels = np.arange(64, dtype=np.float32) / 64
    features = {**batch(64), "word": batch(64)["word"].astype("S")}
    made.train(rec.inputs.numpy_input_fn(features, labels, batch_size=16, shuffle=False), steps=4)
    return made


@pytest.fixture(scope="module")
def whole(estimator, tmp_path_factory):
    """The SavedModel of the uncompressed model."""
    return estimator.export_saved_model(str(tmp_path_factory.mktemp("whole")), plain_receiver)


def requests():
    """The same rows as (plain, compressed) requests."""
    users = {name: value for name, value in batch(3).items() if name in USER_NAMES}
    items = {name: value for name, value in batch(7).items() if name not in USER_NAMES}
    repeated = {name: value[ROW] for name, value in users.items()}
    return {**repeated, **items}, {**users, **items, "item_size": SIZES}


@pytest.mark.parametrize(
    "method", ["export_savedmodel", "export_saved_model", "experimental_export_all_saved_models"]
)
@pytest.mark.long
def test_every_export_compresses_if_the_receiver_enables_it(method, estimator, whole, tmp_path):
    receiver = pages_receiver()
    if method == "experimental_export_all_saved_models":
        receiver = {rec.ModeKeys.PREDICT: receiver}
    small = getattr(estimator, method)(str(tmp_path), receiver)
    plain, compressed = requests()
    for signature in ("predict", "regress", "classify"):
        expected = predict(whole, plain, signature)
        got = predict(small, compressed, signature)
        assert set(expected) == set(got)
        for name, value in expected.items():
            assert got[name].shape == value.shape
            if value.dtype == object:
                np.testing.assert_array_equal(got[name], value)
            else:
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


def expect_the_check_first(graph, signature):
    """Only the check may meet inputs that do not fit; otherwise another error may come first."""
    inputs = {graph.get_tensor_by_name(info.name).op for info in signature.inputs.values()}
    kinds = ("Assert", "RecEstimator>SampleRows")
    (check,) = (
        op
        for op in graph.get_operations()
        if op.type in kinds and op.name.startswith("sample_compression/rows/")
    )
    before = ancestors([check])
    outputs = [graph.get_tensor_by_name(info.name).op for info in signature.outputs.values()]
    for op in ancestors(outputs) - before:
        assert check in ancestors([op]) or len(inputs & ancestors([op])) <= 1, op.name


@pytest.mark.long
@pytest.mark.parametrize("portable", [False, True])
def test_a_compressed_model_with_rows_of_8_bits_gives_the_scores_of_the_whole_one(
    portable, estimator, whole, tmp_path
):
    plain, request = requests()
    arguments = {"row_dtype": "int8", "portable": portable}
    made = [
        estimator.export_saved_model(str(tmp_path / str(number)), receiver, **arguments)
        for number, receiver in enumerate([plain_receiver, pages_receiver()])
    ]
    expected, got = predict(made[0], plain), predict(made[1], request)
    np.testing.assert_allclose(got["scores"], expected["scores"], rtol=1e-5, atol=1e-6)
    assert np.abs(expected["scores"] - predict(whole, plain)["scores"]).max() > 1e-5


@pytest.mark.long
@pytest.mark.parametrize("portable", [False, True])
def test_a_saved_model_names_the_tensor_that_does_not_fit(portable, estimator, whole, tmp_path):
    exported = estimator.export_saved_model(str(tmp_path), pages_receiver(), portable=portable)
    plain, request = requests()
    expected = predict(whole, plain)
    with tf.Session(graph=tf.Graph()) as session:
        model = tf.saved_model.load(session, ["serve"], tf.compat.as_str(exported))
        signature = model.signature_def["predict"]
        outputs = {name: output.name for name, output in signature.outputs.items()}
        expect_the_check_first(session.graph, signature)

        def run(**changes):
            values = {**request, **changes}
            return session.run(
                outputs, {signature.inputs[name].name: value for name, value in values.items()}
            )

        for changes, message in [
            ({"item_size": [3, 0, 3]}, "item tensor.*in_item.*6.*7"),
            ({"item_size": [3, 4]}, "user tensor.*in_user.*2.*3"),
            ({"item_size": [8, -4, 3]}, "item_size.*-4"),
            ({"age": request["age"][:2]}, "user tensor.*in_age.*3.*2"),
            ({"price": request["price"][:5]}, "item tensor.*in_price.*7.*5"),
        ]:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                run(**changes)
        feed = {signature.inputs[name].name: value for name, value in request.items()}
        del feed[signature.inputs["item_size"].name]
        with pytest.raises(tf.errors.InvalidArgumentError, match="'item_size'"):
            session.run(outputs, feed)
        # The model still works.
        for name, value in run().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_exports_do_not_disturb_each_other(estimator, tmp_path):
    def broken():
        pages_receiver()()
        raise RuntimeError("in the middle")

    plain, compressed = requests()
    small = estimator.export_saved_model(str(tmp_path / "1"), pages_receiver())
    with pytest.raises(RuntimeError, match="in the middle"):
        estimator.export_saved_model(str(tmp_path / "2"), broken)
    plain_again = estimator.export_saved_model(str(tmp_path / "3"), plain_receiver)
    again = estimator.export_saved_model(str(tmp_path / "4"), pages_receiver())
    expected = predict(plain_again, plain)["scores"]
    for exported in (small, again):
        got = predict(exported, compressed)["scores"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    "shapes",
    [
        {"user": [1], "history": [1, 5], "age": [1, 1]},
        {"history": [5], "word": [2], "weight": [2], "age": [1]},
        {"user": [], "history": [5]},
    ],
)
def test_user_tensors_of_a_single_user_need_no_open_batch_axis(shapes, estimator, whole, tmp_path):
    one = {name: value for name, value in batch(3).items() if name in USER_NAMES}
    one = {name: value[:1] for name, value in one.items()}
    items = {name: value for name, value in batch(7).items() if name not in USER_NAMES}
    plain = {**{name: np.repeat(value, 7, axis=0) for name, value in one.items()}, **items}
    fed = {name: value.reshape(shapes.get(name, value.shape)) for name, value in one.items()}
    if shapes.get("age") == [1]:
        fed["age"] = one["age"]  # [1] may be the row or the column of one user.
        shapes = {name: shape for name, shape in shapes.items() if name != "age"}
    small = estimator.export_saved_model(str(tmp_path / "2"), pages_receiver(shapes=shapes))
    got = predict(small, {**fed, **items, "item_size": np.array([7], np.int32)})
    expected = predict(whole, plain)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


def test_a_user_tensor_of_fixed_size_must_not_be_used_by_the_receiver(estimator, tmp_path):
    def receiver():
        made = pages_receiver(shapes={"age": [1, 1]})()
        made.features["age"] + 1.0
        return made

    with pytest.raises(ValueError, match=r"'in_age' must have a batch axis of unknown size"):
        estimator.export_saved_model(str(tmp_path), receiver)


def sequence_example(user, items):
    def feature(value):
        value = np.ravel(value)
        if value.dtype == object:
            values = [text.encode() for text in value if text]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if value.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value[value != -1]))

    lists = {
        name: tf.train.FeatureList(feature=[feature(row) for row in rows])
        for name, rows in items.items()
    }
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={name: feature(v) for name, v in user.items()}),
        feature_lists=tf.train.FeatureLists(feature_list=lists),
    ).SerializeToString()


@pytest.mark.long
def test_requests_as_sequence_examples(estimator, whole, tmp_path):
    plain, compressed = requests()
    # A missing word has no weight either.
    for request in (plain, compressed):
        request["word"] = np.where(request["word"] == "", "d", request["word"])
    ends = np.cumsum(SIZES)
    examples = [
        sequence_example(
            {name: compressed[name][i] for name in USER_NAMES},
            {name: compressed[name][end - size : end] for name in ("item", "price")},
        )
        for i, (size, end) in enumerate(zip(SIZES, ends))
    ]
    receiver = rec.compressed_serving_input_receiver_fn(
        user=[
            *(FEATURES[name] for name in ("user", "word", "history")),
            tf.TensorSpec([None, 1], name="age"),
        ],
        item=[FEATURES["item"], tf.TensorSpec([None, 2], name="price")],
        serialized=True,
    )
    small = estimator.export_saved_model(str(tmp_path / "2"), receiver)
    expected = predict(whole, plain)
    got = predict(small, {"examples": np.array(examples, object)})
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
    nothing = predict(small, {"examples": np.array([], object)})
    assert {name: value.shape for name, value in nothing.items()} == {"scores": (0,), "side": (0,)}


@pytest.mark.long
@pytest.mark.parametrize("width", [1, 3])
def test_weights_of_another_width_than_their_ids_are_refused(estimator, tmp_path, width):
    receiver = rec.compressed_serving_input_receiver_fn(
        user=[
            *(FEATURES[name] for name in ("user", "word", "history")),
            tf.TensorSpec([None, 1], name="age"),
        ],
        item=[FEATURES["item"], tf.TensorSpec([None, 2], name="price")],
    )
    exported = estimator.export_saved_model(str(tmp_path), receiver)
    _, request = requests()
    for name in ("user", "item"):
        request[name] = request[name][:, None]
    request["weight"] = np.ones([len(request["weight"]), width], np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must have the shape of the"):
        predict(exported, request)


def test_looked_up_features_run_on_the_users_rows():
    users = {name: PLACEHOLDERS[name] for name in USER_NAMES}
    tensors = {name: tf.placeholder(*spec) for name, spec in PLACEHOLDERS.items()}
    rec.graph_optimizer.enable_sample_awared_graph_compression(
        [tensors[name] for name in users],
        [tensors["item"], tensors["price"]],
        tf.placeholder(tf.int32, [None]),
    )
    from rec_estimator.features import lookup_features

    looked_up = lookup_features(tensors, list(FEATURES.values()))
    sample_compression.compress(looked_up)
    report = rec.graph_optimizer.compression_report()
    assert report.left == ()
    with pytest.raises(ValueError, match="inside of the lookup of a feature"):
        lookup = next(
            op for op in tf.get_default_graph().get_operations() if op.type.endswith("GroupLookup")
        )
        sample_compression.compress(lookup.inputs[1])


class TestReceiver:
    def test_bad_declarations_are_refused(self):
        make = rec.compressed_serving_input_receiver_fn
        user, item = FEATURES["user"], FEATURES["item"]
        with pytest.raises(ValueError, match="got 'user' for both"):
            make(user=[user], item=[user])
        with pytest.raises(ValueError, match="user must list at least one feature"):
            make(user=[], item=[item])
        with pytest.raises(ValueError, match="once, got 'item' twice"):
            make(user=[user], item=[item, item])
        with pytest.raises(TypeError, match="got 'item'"):
            make(user=[user], item=["item"])
        with pytest.raises(TypeError, match="named tf.TensorSpec"):
            make(user=[user], item=[tf.TensorSpec([None])])
        with pytest.raises(ValueError, match=r"shape \[None, ...\], got \(2,\)"):
            make(user=[user], item=[tf.TensorSpec([2], name="price")])
        with pytest.raises(ValueError, match="leave the name 'item_size'"):
            make(user=[user], item=[tf.TensorSpec([None], name="item_size")])

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_a_context_feature_of_another_size_is_an_error(self, count):
        receiver = rec.compressed_serving_input_receiver_fn(
            user=[tf.TensorSpec([None, 2], name="age")], item=[FEATURES["item"]], serialized=True
        )()
        example = sequence_example({"age": np.ones(count, np.float32)}, {"item": np.array([[1]])})
        with tf.Session() as session:
            message = "context feature .*age.* must have 2 values in each request"
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(
                    receiver.features["age"], {receiver.receiver_tensors["examples"]: [example]}
                )

    def test_feature_lists_of_different_lengths_are_an_error(self):
        receiver = rec.compressed_serving_input_receiver_fn(
            user=[FEATURES["user"]],
            item=[FEATURES["item"], tf.TensorSpec([None, 2], name="price")],
            serialized=True,
        )()
        total = sample_compression.compress(
            receiver.features["price"] + tf.cast(receiver.features["user"].to_tensor(), tf.float32)
        )
        example = sequence_example(
            {"user": np.array([1])}, {"item": np.zeros([2], int), "price": np.zeros([1, 2])}
        )
        with tf.Session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="lists .*item.* and .*price"):
                session.run(total, {receiver.receiver_tensors["examples"]: [example]})
