# SPDX-License-Identifier: Apache-2.0
"""The promises of the models of the zoo, for two towers: trained on rows and candidates."""

import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, dssm, minimize, models, runner
from model_zoo.runner import config

CLICKS = data.generate_clicks(rows=6000, users=60, items=40, seed=3)
SETTINGS = {"dim": 8, "hidden_units": (16, 8), "temperature": 0.3, "negatives": 32}
VIEW = models.view_of("dssm", CLICKS, SETTINGS)
BATCH, STEPS = 128, 80


def build(folder, **settings):
    training = minimize.Training(optimizer={"name": "adam", "learning_rate": 0.01})
    params = models.params_of("dssm", VIEW, {**SETTINGS, **settings}, training)
    return rec.RecEstimator(
        dssm.model_fn,
        str(folder),
        rec.RunConfig(tf_random_seed=1),
        params,
        embedding_features=dssm.features(VIEW, params),
    )


def train(estimator, steps, hooks=()):
    """Trains up to a step."""
    latest = estimator.latest_checkpoint()
    start = int(estimator.get_variable_value("global_step")) if latest else 0
    input_fn = VIEW.input_fn("train", BATCH, seed=1, epochs=None, skip=start)
    estimator.train(input_fn, max_steps=steps, hooks=list(hooks))


def evaluate(estimator, hooks=()):
    return estimator.evaluate(VIEW.input_fn("test", 512), hooks=list(hooks))


def variables(estimator):
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained model, its metrics, and its variables after the first step."""
    estimator = build(tmp_path_factory.mktemp("dssm"))
    train(estimator, 1)
    first = variables(estimator)
    train(estimator, STEPS)
    return estimator, evaluate(estimator), first


def liked_items(part):
    rows = CLICKS.in_memory(part)
    return rows.features["item"][rows.labels["like"] > 0]


@pytest.mark.long
def test_two_towers_find_more_liked_items_than_the_most_popular_ones(trained):
    items, counts = np.unique(liked_items("train"), return_counts=True)
    most_popular = items[np.argsort(-counts)][:10]
    popularity = np.mean(np.isin(liked_items("test"), most_popular))
    assert 0.3 < popularity < 0.4
    assert trained[1]["hit_rate_at_10"] > popularity + 0.05


@pytest.mark.long
def test_every_variable_and_table_of_two_towers_is_trained(trained):
    estimator, _, first = trained
    last = variables(estimator)
    kernels = [name for name in first if name.endswith(("kernel", "bias", "numbers/discount"))]
    assert len(kernels) == 9
    for name in kernels:
        assert not np.array_equal(first[name], last[name]), name
    rows = {name: len(last[f"{name}-keys"]) for name in ("user", "hour", "item")}
    train_rows = CLICKS.in_memory("train").features
    assert rows["user"] == len(np.unique(train_rows["user"]))
    assert rows["item"] == len(VIEW.catalogue)  # all are drawn as candidates


@pytest.mark.long
def test_a_training_of_two_towers_that_goes_on_ends_with_the_same_metrics(trained, tmp_path):
    train(build(tmp_path), STEPS // 2)
    estimator = build(tmp_path)
    train(estimator, STEPS)
    assert evaluate(estimator) == trained[1]


@pytest.mark.long
def test_two_towers_train_the_same_with_graph_modification(trained, tmp_path):
    estimator = build(tmp_path)
    train(estimator, STEPS, [rec.GraphModifierHook()])
    assert evaluate(estimator, [rec.GraphModifierHook()]) == trained[1]


def served(export_dir, signature, columns):
    """The outputs of a signature of an export, fed with all its inputs and no others."""
    with tf.Session(graph=tf.Graph()) as session:
        meta_graph = tf.saved_model.load(session, ["serve"], export_dir)
        found = meta_graph.signature_def[signature]
        assert sorted(found.inputs) == sorted(columns)
        feed = {found.inputs[name].name: values for name, values in columns.items()}
        return session.run({name: each.name for name, each in found.outputs.items()}, feed)


@pytest.mark.long
@pytest.mark.parametrize(
    "portable", [False, pytest.param(True, marks=pytest.mark.long)], ids=["native", "portable"]
)
def test_an_export_gives_vectors_of_users_and_of_items_apart(trained, tmp_path, portable):
    estimator = trained[0]
    export_dir = estimator.export_saved_model(str(tmp_path), VIEW.receiver_fn(), portable=portable)
    export_dir = tf.compat.as_str(export_dir)
    rows = CLICKS.in_memory("test").features
    items = {name: values[:30] for name, values in VIEW.catalogue.columns.items()}
    users = {name: values[:20] for name, values in rows.items() if name not in items}
    user_vectors = served(export_dir, "user", users)["user_vectors"]
    item_vectors = served(export_dir, "item", items)["item_vectors"]
    np.testing.assert_allclose(np.linalg.norm(item_vectors, axis=1), 1, rtol=1e-5)
    scores = served(export_dir, "serving_default", {**users, **items})["scores"]
    # Float32 sums in another order.
    expected = user_vectors @ item_vectors.T / SETTINGS["temperature"]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    batch = tf.data.Dataset.from_tensors
    predictions = estimator.predict(lambda: batch({**users, **items}))
    predicted = [each["scores"] for each in predictions]
    np.testing.assert_allclose(predicted, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_the_correction_ranks_popular_items_higher(trained, tmp_path):
    uncorrected = build(tmp_path, log_q_correction=False)
    train(uncorrected, STEPS)
    assert trained[1]["hit_rate_at_10"] > evaluate(uncorrected)["hit_rate_at_10"]


@pytest.mark.long
def test_the_runner_gives_two_towers_their_candidates(tmp_path):
    run = config.Config().replace(
        model="dssm",
        params=SETTINGS,
        model_dir=str(tmp_path),
        train__batch_size=BATCH,
        train__steps=6,
        validation__every_steps=3,
        hooks__progress=False,
    )
    lines = []
    metrics = runner.train(run, CLICKS, lines.append)
    assert 0 < metrics["test"]["ndcg_at_10"] <= metrics["test"]["hit_rate_at_10"] <= 1
    assert metrics["steps"] == 6 and sum("hit_rate_at_10" in line for line in lines) == 2
    exported = runner.export(run, str(tmp_path / "export"), CLICKS)
    assert pathlib.Path(exported, "saved_model.pb").is_file()
    with pytest.raises(ValueError, match="export.kind must be native or portable with dssm"):
        runner.export(run.replace(export__kind="compressed"), str(tmp_path / "export"), CLICKS)
