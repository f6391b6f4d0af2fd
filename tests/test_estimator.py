# SPDX-License-Identifier: Apache-2.0
"""Tests of RecEstimator: train, evaluate, predict, export, resume, and its errors."""

import json
import os
import textwrap

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator._tensorflow import estimator as tf_estimator
from rec_estimator.graph_passes.walk import ancestors

RUN_CONFIG = dict(tf_random_seed=1, save_checkpoints_steps=50, log_step_count_steps=1000)


def columns(rows=256, seed=0):
    """Users like items with the parity of their own id, which two tables can learn."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 20, rows), rng.integers(0, 30, rows)
    return {"user": user, "item": item}, ((user + item) % 2 == 0).astype(np.float32)


def input_fn(batch_size=32, num_epochs=None, seed=0):
    features, labels = columns(seed=seed)

    def build():
        data = tf.data.Dataset.from_tensor_slices((features, labels))
        return data.shuffle(256, seed=3).repeat(num_epochs).batch(batch_size)

    return build


FEATURES = [rec.EmbeddingFeature("user", dim=8), rec.EmbeddingFeature("item", dim=8)]


def spec_of(features, labels, mode, optimizer):
    """A factorization machine over the vectors "user" and "item"."""
    bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
    logits = tf.reduce_sum(features["user"] * features["item"], axis=1) + bias
    predictions = {"probability": tf.sigmoid(logits)}
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={"serving_default": rec.PredictOutput(predictions)},
        )
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    metrics = {"auc": tf.metrics.auc(labels, predictions["probability"], num_thresholds=1000)}
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def our_model_fn(features, labels, mode):
    return spec_of(features, labels, mode, rec.optimizers.AdamOptimizer(0.03))


def stock_model_fn(features, labels, mode):
    return spec_of(features, labels, mode, tf.train.AdamOptimizer(0.03))


def own_lookup_model_fn(features, labels, mode, params):
    vectors = {
        name: rec.embedding_lookup(rec.get_embedding_variable(name, params["dim"]), features[name])
        for name in ("user", "item")
    }
    return spec_of(vectors, labels, mode, rec.optimizers.AdamOptimizer(0.03))


ESTIMATORS = {
    "declared features": lambda path: rec.RecEstimator(
        our_model_fn, path, rec.RunConfig(**RUN_CONFIG), embedding_features=FEATURES
    ),
    "stock model_fn": lambda path: rec.RecEstimator(
        stock_model_fn,
        path,
        rec.RunConfig(**RUN_CONFIG),
        embedding_features=FEATURES,
        table_optimizer=rec.optimizers.AdagradOptimizer(0.3),
    ),
    "own lookups": lambda path: rec.RecEstimator(
        own_lookup_model_fn, path, rec.RunConfig(**RUN_CONFIG), params={"dim": 8}
    ),
}


def receiver():
    return rec.build_raw_serving_input_receiver_fn(
        {
            "user": tf.placeholder(tf.int64, [None], name="user"),
            "item": tf.placeholder(tf.int64, [None], name="item"),
        }
    )()


@pytest.mark.long
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_trains_evaluates_predicts_exports_and_serves(tmp_path, kind):
    make = lambda: ESTIMATORS[kind](str(tmp_path / "model"))  # noqa: E731
    estimator = make()
    estimator.train(input_fn(), steps=150)
    before = estimator.evaluate(input_fn(num_epochs=1, seed=0))
    assert before["global_step"] == 150
    assert before["auc"] > 0.9
    # Evaluation changed nothing, and a second Estimator finds the state of the first.
    assert make().evaluate(input_fn(num_epochs=1, seed=0)) == before
    estimator.train(input_fn(), steps=20)
    assert estimator.evaluate(input_fn(num_epochs=1))["global_step"] == 170

    features, _ = columns()
    predicted = [
        p["probability"] for p in estimator.predict(input_fn(num_epochs=1, batch_size=256))
    ]
    assert len(predicted) == 256
    folder = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    old_name = estimator.export_savedmodel(str(tmp_path / "export"), receiver)
    results = []
    for path in (folder, old_name):
        with tf.Graph().as_default(), tf.Session() as session:
            model = tf.saved_model.load(session, ["serve"], path.decode())
            signature = model.signature_def["serving_default"]
            feed = {signature.inputs[name].name: features[name] for name in ("user", "item")}
            results.append(session.run(signature.outputs["probability"].name, feed))
    np.testing.assert_array_equal(*results)
    # predict() has another order and smaller batches, so float32 sums differ.
    np.testing.assert_allclose(np.sort(results[0]), np.sort(predicted), rtol=1e-6)


@pytest.mark.long
def test_export_answers_in_a_fresh_process(tmp_path):
    estimator = ESTIMATORS["declared features"](str(tmp_path / "model"))
    estimator.train(input_fn(), steps=30)
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    code = textwrap.dedent(
        """
        import sys, json
        import tensorflow as tf
        import rec_estimator
        loaded = [tf.saved_model.load(sys.argv[1]) for _ in range(2)]
        keys = tf.constant([1, 2, 10**12], tf.int64)
        out = [m.signatures["serving_default"](user=keys, item=keys)["probability"] for m in loaded]
        print(json.dumps([o.numpy().tolist() for o in out]))
        """
    )
    result = python_processes.run(["-c", code, path])
    first, second = json.loads(result.stdout.splitlines()[-1])
    assert first == second and len(first) == 3


@pytest.mark.long
def test_resumed_training_equals_uninterrupted_training(tmp_path):
    def checkpoint(folder, *steps):
        for some in steps:
            # Every step sees the same batch, wherever a run begins.
            data = lambda: tf.data.Dataset.from_tensors(columns(64)).repeat()  # noqa: E731
            ESTIMATORS["stock model_fn"](str(tmp_path / folder)).train(data, steps=some)
        return tf.train.NewCheckpointReader(tf.train.latest_checkpoint(str(tmp_path / folder)))

    whole, halves = checkpoint("whole", 80), checkpoint("halves", 40, 40)
    names = whole.get_variable_to_shape_map()
    assert names == halves.get_variable_to_shape_map()
    for name in names:
        assert whole.get_tensor(name).tobytes() == halves.get_tensor(name).tobytes(), name


@pytest.mark.long
def test_train_and_evaluate_exports_the_latest(tmp_path):
    estimator = ESTIMATORS["declared features"](str(tmp_path / "model"))
    rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(input_fn(), max_steps=60),
        rec.EvalSpec(
            input_fn(num_epochs=1),
            steps=None,
            throttle_secs=0,
            exporters=rec.LatestExporter("latest", receiver),
        ),
    )
    exports = os.listdir(tmp_path / "model" / "export" / "latest")
    assert len(exports) >= 1
    assert estimator.get_variable_value("global_step") == 60


@pytest.mark.long
def test_an_untrained_model_of_declared_features_is_undecided(tmp_path):
    estimator = ESTIMATORS["declared features"](str(tmp_path))
    estimator.train(input_fn(), steps=1)
    # Sums of 8 products of rows with a deviation of 0.05, and one step of Adam.
    assert estimator.evaluate(input_fn(num_epochs=1))["loss"] == pytest.approx(np.log(2), abs=0.01)


@pytest.mark.long
def test_features_share_a_table(tmp_path):
    features = [
        rec.EmbeddingFeature("user", dim=4, table="entity"),
        rec.EmbeddingFeature("item", dim=4, table="entity"),
    ]
    estimator = rec.RecEstimator(our_model_fn, str(tmp_path), embedding_features=features)
    estimator.train(input_fn(), steps=3)
    keys = estimator.get_variable_value("entity-keys")
    assert set(keys) <= set(range(30)) and len(keys) > 20
    # Both lookups of a step are counted, in one apply.
    assert estimator.get_variable_value("entity-freqs").sum() == 3 * 32 * 2


@pytest.mark.parametrize("use_resource", [True, False])
def test_table_optimizer_uses_the_values_from_before_the_step(tmp_path, use_resource):
    """The gradient of tables must not see the dense update of the stock optimizer."""
    data = lambda: tf.data.Dataset.from_tensors(({"user": [1]}, [1.0])).repeat()  # noqa: E731

    def model_fn(features, labels, mode):
        weight = tf.get_variable(
            "weight", [4], initializer=tf.ones_initializer(), use_resource=use_resource
        )
        loss = tf.reduce_sum(features["user"] * weight)
        train_op = tf.train.GradientDescentOptimizer(0.5).minimize(
            loss, global_step=tf.train.get_global_step()
        )
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    class Order(tf.train.SessionRunHook):
        """The order in which a session runs ops is random; control inputs are not."""

        def begin(self):
            ops = tf.get_default_graph().get_operations()
            (update,) = (op for op in ops if op.type.endswith("ApplyGradientDescent"))
            self.waited_for = {op.type for op in ancestors([update])}

    init = rec.InitializerOption(tf.ones_initializer())
    estimator = rec.RecEstimator(
        model_fn,
        str(tmp_path),
        embedding_features=[
            rec.EmbeddingFeature(
                "user", dim=4, ev_option=rec.EmbeddingVariableOption(init_option=init)
            )
        ],
        table_optimizer=rec.optimizers.GradientDescentOptimizer(0.5),
    )
    order = Order()
    estimator.train(data, steps=3, hooks=[order])
    assert "RecEstimator>TablesApply" in order.waited_for
    row, weight = np.float32(1), np.float32(1)
    for _ in range(3):
        row, weight = row - np.float32(0.5) * weight, weight - np.float32(0.5) * row
    assert estimator.get_variable_value("user-values").tolist() == [[row] * 4]
    assert estimator.get_variable_value("weight").tolist() == [weight] * 4
    assert estimator.get_variable_value("user-versions").tolist() == [2]


@pytest.mark.long
@pytest.mark.parametrize("order", ["ours first", "stock first", "bare increment"])
def test_rows_are_stamped_with_the_step_before_its_increment(tmp_path, order):
    data = lambda: tf.data.Dataset.from_tensors({"user": np.arange(20)}).repeat()  # noqa: E731

    def model_fn(features, mode):
        step = tf.train.get_global_step()
        weight = tf.get_variable("weight", [4], initializer=tf.ones_initializer())
        loss = tf.reduce_sum(features["user"] * weight)
        minimize = {
            "ours": lambda: rec.optimizers.AdagradOptimizer(0.1).minimize(
                loss, var_list=rec.get_embedding_variable("user", 4)
            ),
            "stock": lambda: tf.train.GradientDescentOptimizer(0.1).minimize(
                loss, step, var_list=[weight]
            ),
            "bare": lambda: tf.assign_add(step, 1).op,
        }
        names = {"ours first": "ours stock", "stock first": "stock ours"}.get(order, "ours bare")
        train_op = tf.group([minimize[name]() for name in names.split()])
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = rec.RecEstimator(
        model_fn,
        str(tmp_path),
        rec.RunConfig(save_checkpoints_steps=1, keep_checkpoint_max=None),
        embedding_features=[rec.EmbeddingFeature("user", dim=4)],
    )
    estimator.train(data, steps=30)
    for step in range(1, 31):
        reader = tf.train.NewCheckpointReader(str(tmp_path / f"model.ckpt-{step}"))
        assert reader.get_tensor("user-versions").tolist() == [step - 1] * 20


@pytest.mark.long
def test_training_graph_is_exported(tmp_path):
    estimator = ESTIMATORS["declared features"](str(tmp_path / "model"))
    estimator.train(input_fn(), steps=2)

    def supervised_receiver():
        features = receiver().features
        return rec.experimental.build_raw_supervised_input_receiver_fn(
            features, tf.placeholder(tf.float32, [None], name="label")
        )()

    path = estimator.experimental_export_all_saved_models(
        str(tmp_path / "export"), {rec.ModeKeys.TRAIN: supervised_receiver}
    )
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, ["train"], path.decode())
        loss = model.signature_def["train"].outputs["loss"].name
        feed = {t.name: np.ones(1) for t in [*model.signature_def["train"].inputs.values()]}
        assert session.run(loss, feed) > 0


def be_chief_with(monkeypatch, role):
    cluster = {"chief": ["127.0.0.1:1"], role: ["127.0.0.1:2"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def test_several_training_tasks_without_ps_are_refused(tmp_path, monkeypatch):
    be_chief_with(monkeypatch, "worker")
    with pytest.raises(ValueError, match="TF_CONFIG must have a ps task for 2 training tasks"):
        ESTIMATORS["declared features"](str(tmp_path))


def test_iterations_per_loop_is_refused_with_ps(tmp_path, monkeypatch):
    be_chief_with(monkeypatch, "ps")
    config = rec.RunConfig(iterations_per_loop=2)
    with pytest.raises(ValueError, match="iterations_per_loop must be 1 with ps tasks, got 2"):
        rec.RecEstimator(stock_model_fn, str(tmp_path), config)


@pytest.mark.parametrize("config_class", [rec.RunConfig, tf_estimator.RunConfig])
def test_a_session_config_of_the_user_gets_the_device_filters_of_its_task(
    tmp_path, monkeypatch, config_class
):
    be_chief_with(monkeypatch, "ps")
    for given, expected in ([], ["/job:ps", "/job:chief/task:0"]), (["/job:ps"], ["/job:ps"]):
        session_config = tf.ConfigProto(intra_op_parallelism_threads=3, device_filters=given)
        config = config_class(session_config=session_config)
        estimator = rec.RecEstimator(stock_model_fn, str(tmp_path), config)
        used = estimator.config.session_config
        assert list(used.device_filters) == expected and used.intra_op_parallelism_threads == 3
        assert list(session_config.device_filters) == given


def test_table_that_no_optimizer_covers_is_an_error_that_names_it(tmp_path):
    estimator = rec.RecEstimator(stock_model_fn, str(tmp_path), embedding_features=FEATURES)
    with pytest.raises(
        AttributeError, match="cannot take table 'user'; .*rec_estimator.optimizers"
    ):
        estimator.train(input_fn(), steps=1)


def bad_batch(change):
    return lambda: tf.data.Dataset.from_tensors(change(*columns(32))).repeat()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f, y: ({"user": f["user"]}, y), "'item'"),
        (lambda f, y: ({**f, "item": f["item"].astype(np.float32)}, y), "item.*float32"),
        (lambda f, y: (f, y[:31]), r"labels must have one row per example, got shape \(31,\)"),
        (lambda f, y: (f, y[0]), r"labels must have one row per example, got shape \(\)"),
    ],
    ids=["missing feature", "float ids", "too few labels", "one label"],
)
def test_bad_batch_is_an_error_that_names_what_is_wrong(tmp_path, change, message):
    estimator = ESTIMATORS["declared features"](str(tmp_path))
    with pytest.raises((ValueError, TypeError), match=message):
        estimator.train(bad_batch(change), steps=1)


def test_labels_may_be_of_one_of_two_sides(tmp_path):
    features, labels = columns(32)
    users, items = {"user": features["user"]}, {"item": features["item"][:20]}

    def batch():
        return tf.data.Dataset.from_tensors(({**users, **items}, labels)).repeat()

    def two_sides(features, labels, mode):
        scores = tf.matmul(features["user"], features["item"], transpose_b=True)
        assert scores.shape.as_list() == [32, 20] and labels.shape.as_list() == [32]
        return rec.EstimatorSpec(mode, loss=tf.reduce_sum(scores))

    estimator = rec.RecEstimator(two_sides, str(tmp_path), embedding_features=FEATURES)
    assert "loss" in estimator.evaluate(batch, steps=1)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"model_fn": 3}, ValueError, "model_fn must be a function, got 3"),
        ({"model_fn": lambda x: x}, ValueError, "model_fn must take features"),
        (
            {"model_fn": lambda features: None, "params": {}},
            ValueError,
            "model_fn must take params",
        ),
        ({"table_optimizer": "adam"}, TypeError, "table_optimizer must be one of rec_estimator"),
        (
            {
                "embedding_features": [
                    FEATURES[0],
                    rec.EmbeddingFeature("item", dim=4, table="user"),
                ]
            },
            ValueError,
            "user",
        ),
        ({"embedding_features": FEATURES * 2}, ValueError, "user"),
    ],
    ids=["no function", "no features", "params", "optimizer", "table settings", "names"],
)
def test_bad_construction_is_an_error_that_names_what_is_wrong(tmp_path, arguments, error, message):
    arguments = {"model_fn": our_model_fn, "model_dir": str(tmp_path), **arguments}
    with pytest.raises(error, match=message):
        rec.RecEstimator(**arguments)


def test_labels_are_an_error_if_model_fn_does_not_take_them(tmp_path):
    def model_fn(features, mode):
        return spec_of(features, None, mode, None)

    estimator = rec.RecEstimator(model_fn, str(tmp_path), embedding_features=FEATURES)
    with pytest.raises(ValueError, match="model_fn must take labels if input_fn returns them"):
        estimator.train(input_fn(), steps=1)


@pytest.mark.long
def test_params_reach_the_model_fn_as_a_copy(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params, config):
        seen.append((params["rate"], config.tf_random_seed))
        return spec_of(features, labels, mode, rec.optimizers.AdagradOptimizer(params["rate"]))

    rec.RecEstimator(
        model_fn,
        str(tmp_path),
        rec.RunConfig(tf_random_seed=5),
        params={"rate": 0.25},
        embedding_features=FEATURES,
    ).train(input_fn(), steps=1)
    assert seen == [(0.25, 5)]


@pytest.mark.long
def test_a_model_fn_that_always_builds_a_train_op_evaluates_and_predicts(tmp_path):
    data = lambda: tf.data.Dataset.from_tensors(({"user": [1]}, [1.0])).repeat(3)  # noqa: E731

    def model_fn(features, labels, mode):
        weight = tf.get_variable("weight", [4], initializer=tf.ones_initializer())
        scores = tf.reduce_sum(features["user"] * weight, axis=1)
        loss = tf.reduce_sum(scores)
        train_op = tf.train.GradientDescentOptimizer(0.5).minimize(
            loss, global_step=tf.train.get_or_create_global_step()
        )
        return rec.EstimatorSpec(mode, {"scores": scores}, loss=loss, train_op=train_op)

    estimator = rec.RecEstimator(
        model_fn,
        str(tmp_path),
        embedding_features=[rec.EmbeddingFeature("user", dim=4)],
        table_optimizer=rec.optimizers.GradientDescentOptimizer(0.5),
    )
    estimator.train(data, steps=2)
    metrics = estimator.evaluate(data)
    assert metrics["global_step"] == 2
    (first, *_) = estimator.predict(data)
    np.testing.assert_allclose(metrics["loss"], first["scores"], rtol=1e-6)  # The mean of floats.
