# SPDX-License-Identifier: Apache-2.0
"""The models of several labels, NeuMF and two towers: losses against NumPy, and errors."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, dbmtl, dssm, esmm, minimize, mmoe, neumf, ple, simple_multitask

RNG = np.random.default_rng(5)
ROWS, DIM = 6, 3
COLUMNS = (
    data.Column("user", "user"),
    data.Column("item", "item"),
    data.Column("price", "item", kind="number"),
    data.Column("history", "history", table="item", max_length=2),
)
TASK_MODELS = [simple_multitask, mmoe, ple, dbmtl, esmm]
SMALL = {
    "dim": DIM,
    "hidden_units": (5, 4),
    "expert_units": (4,),
    "task_units": (3,),
    "relation_units": (3,),
}
LIKE = np.array([0, 1, 1, 0, 1, 0], np.float32)
LOVE = np.array([0, 1, 0, 0, 1, 1], np.float32)  # the last one without a like


def name_of(module):
    return module.__name__.rpartition(".")[2]


def params_of(module, **settings):
    sizes = {name: SMALL[name] for name in module.DEFAULTS if name in SMALL}
    if module is ple:
        sizes["expert_units"] = ((4,), (4,))
    columns = COLUMNS
    if module in TASK_MODELS:  # Without users, there is no grouped AUC to build.
        columns = (data.Column("user", "context"), *COLUMNS[1:])
    return {
        **module.DEFAULTS,
        **sizes,
        **settings,
        "columns": columns,
        "labels": ("like", "love"),
        "training": minimize.Training(),
    }


def vectors(rows=ROWS, candidates=ROWS):
    """What RecEstimator gives a model_fn, at random; ids are 10, 11, ..."""
    features = {
        name: tf.constant(RNG.standard_normal([rows, DIM]), tf.float32)
        for name in ("user", "history", "user_factors")
    }
    for name in ("item", "item_factors"):
        features[name] = tf.constant(RNG.standard_normal([candidates, DIM]), tf.float32)
    features["price"] = tf.constant(RNG.standard_normal(candidates), tf.float32)
    features["user_ids"] = tf.range(10, 10 + rows, dtype=tf.int64)
    features["item_ids"] = tf.range(10, 10 + candidates, dtype=tf.int64)
    return features


def spec(module, features, labels, mode, params):
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        return module.model_fn(features, labels, mode, params)


def evaluate(tensors):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return session.run(tensors)


def log_loss(labels, probabilities):
    return -np.mean(labels * np.log(probabilities) + (1 - labels) * np.log(1 - probabilities))


def labels_of(module):
    return {"like": tf.constant(LIKE), "love": tf.constant(LOVE)}


@pytest.mark.long
@pytest.mark.parametrize("module", TASK_MODELS, ids=name_of)
def test_the_loss_is_the_sum_of_the_log_losses_of_the_labels(module):
    features, params = vectors(), params_of(module)
    predictions = spec(module, features, None, rec.ModeKeys.PREDICT, params).predictions
    evaluated = spec(module, features, labels_of(module), rec.ModeKeys.EVAL, params)
    loss, found = evaluate([evaluated.loss, predictions])
    love = LIKE * LOVE if module is esmm else LOVE
    expected = log_loss(LIKE, found["probabilities/like"])
    expected += log_loss(love, found["probabilities/love"])
    assert loss == pytest.approx(expected, rel=1e-5)
    assert {"like/auc", "love/auc", "love/log_loss"} <= set(evaluated.eval_metric_ops)


def test_the_second_probability_of_esmm_is_a_product():
    predictions = spec(esmm, vectors(), None, rec.ModeKeys.PREDICT, params_of(esmm)).predictions
    found = evaluate(predictions)
    np.testing.assert_allclose(
        found["probabilities/love"],
        found["probabilities/like"] * found["probabilities/love_after_like"],
        rtol=1e-5,
    )


@pytest.mark.long
def test_esmm_trains_the_conversion_on_rows_without_a_click_too():
    features, labels = vectors(), {"like": tf.zeros([ROWS]), "love": tf.zeros([ROWS])}
    loss = spec(esmm, features, labels, rec.ModeKeys.EVAL, params_of(esmm)).loss
    variables = tf.trainable_variables("model/tower_love_after_like")
    assert len(variables) == 6
    assert all(np.any(each) for each in evaluate(tf.gradients(loss, variables)[-2:]))


@pytest.mark.long
def test_a_label_of_dbmtl_depends_on_the_networks_of_the_labels_before_it():
    spec(dbmtl, vectors(), labels_of(dbmtl), rec.ModeKeys.EVAL, params_of(dbmtl))
    sizes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables("model/tower_")}
    assert sizes["model/tower_like/hidden_0/kernel"] == [3, 3]
    assert sizes["model/tower_love/hidden_0/kernel"] == [6, 3]


@pytest.mark.parametrize("module", TASK_MODELS, ids=name_of)
def test_models_of_several_labels_refuse_one(module):
    shop = types.SimpleNamespace(name="shop", columns=COLUMNS, labels=("buy",))
    with pytest.raises(ValueError, match=f"{name_of(module)} must have 2 labels, got buy of shop"):
        module.features(shop, params_of(module))


@pytest.mark.parametrize("role", ["user", "item"])
def test_neumf_says_which_id_is_missing(role):
    columns = [column for column in COLUMNS[:3] if column.role != role]
    shop = types.SimpleNamespace(name="shop", columns=columns, labels=("buy",))
    with pytest.raises(ValueError, match=f"neumf must have an id column of the {role}, got"):
        neumf.features(shop, params_of(neumf))


def test_neumf_joins_the_product_and_the_network_in_one_unit():
    features, params = vectors(), params_of(neumf)
    predictions = spec(neumf, features, None, rec.ModeKeys.PREDICT, params).predictions
    kernel = tf.trainable_variables("model/output/kernel")[0]
    assert kernel.shape.as_list() == [DIM + 4, 1]
    product = features["user_factors"] * features["item_factors"]
    found, factors, weights = evaluate([predictions["probabilities"], product, kernel])
    assert found.shape == (ROWS,) and factors.shape == (ROWS, DIM) and weights.shape == (7, 1)


# ------------------------------------------------------------------ two towers

CANDIDATES = 8
LOG_Q = np.log(RNG.random(CANDIDATES)).astype(np.float32)
RIGHT = np.array([0, 1, 2, 3, 4, 5])


def retrieval_features():
    """The items of the rows, one of them twice, and two more candidates."""
    features = vectors(candidates=CANDIDATES)
    features["item_ids"] = tf.constant([10, 11, 12, 10, 14, 15, 11, 17], tf.int64)
    features["item_log_q"] = tf.constant(LOG_Q)
    return features


@pytest.mark.parametrize(
    ("columns", "labels", "message"),
    [
        (COLUMNS, ("like",), "dssm must have the label item_row, got like of shop; give it"),
        (COLUMNS[:1], ("item_row",), "dssm must have an id column of the item, got user;"),
        (COLUMNS[1:3], ("item_row",), "dssm must have a column with another role .*, got item, "),
    ],
)
def test_two_towers_say_what_the_data_lack(columns, labels, message):
    shop = types.SimpleNamespace(name="shop", columns=columns, labels=labels)
    with pytest.raises(ValueError, match=message):
        dssm.features(shop, params_of(dssm))


@pytest.mark.parametrize("is_corrected", [True, False])
def test_the_loss_of_two_towers_is_the_corrected_softmax_over_the_candidates(is_corrected):
    features, params = retrieval_features(), params_of(dssm, log_q_correction=is_corrected)
    scores = spec(dssm, features, None, rec.ModeKeys.PREDICT, params).predictions["scores"]
    tf.train.get_or_create_global_step()
    loss = spec(dssm, features, tf.constant(RIGHT), rec.ModeKeys.TRAIN, params).loss
    loss, scores, ids = evaluate([loss, scores, features["item_ids"]])
    assert np.abs(scores).max() <= 1 / params["temperature"] + 1e-4
    losses = []
    for row, right in enumerate(RIGHT):
        kept = (ids != ids[right]) | (np.arange(CANDIDATES) == right)
        corrected = scores[row].astype(np.float64) - (LOG_Q if is_corrected else 0)
        losses.append(np.log(np.sum(np.exp(corrected[kept]))) - corrected[right])
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.long
def test_gradients_reach_both_towers_and_every_input():
    features, params = retrieval_features(), params_of(dssm)
    loss = spec(dssm, features, tf.constant(RIGHT), rec.ModeKeys.EVAL, params).loss
    inputs = [features[column.name] for column in COLUMNS]
    gradients = tf.gradients(loss, [*tf.trainable_variables(), *inputs])
    assert None not in gradients
    assert all(np.any(each) for each in evaluate(gradients[-len(inputs) :]))


@pytest.mark.long
def test_the_metrics_of_two_towers_are_those_of_the_whole_catalogue():
    features, params = vectors(rows=40, candidates=50), params_of(dssm)
    right = RNG.integers(50, size=40)
    scores = spec(dssm, features, None, rec.ModeKeys.PREDICT, params).predictions["scores"]
    evaluated = spec(dssm, features, tf.constant(right), rec.ModeKeys.EVAL, params)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run([update for _, update in evaluated.eval_metric_ops.values()])
        found = {name: session.run(m[0]) for name, m in evaluated.eval_metric_ops.items()}
        scores = session.run(scores)
    ranks = np.sum(scores >= scores[np.arange(40), right][:, None], axis=1)
    assert 0 < np.mean(ranks <= 10) < 1
    assert found["hit_rate_at_10"] == pytest.approx(np.mean(ranks <= 10))
    assert found["recall_at_10"] == pytest.approx(np.mean(ranks <= 10))
    gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
    assert found["ndcg_at_10"] == pytest.approx(np.mean(gains), rel=1e-6)
