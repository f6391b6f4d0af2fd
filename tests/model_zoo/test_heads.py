# SPDX-License-Identifier: Apache-2.0
"""The heads of the models: predictions, losses and metrics of one label and of several."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, heads
from model_zoo.minimize import Training

COLUMNS = (data.Column("price", "user", kind="number"), data.Column("who", "user"))
USERS = np.array([1, 1, 2, 2, 2])
LOGITS = {"like": np.float32([1, 2, -1, 0, 3]), "love": np.float32([0, -1, 2, 1, -3])}
LABELS = {"like": np.float32([0, 1, 1, 0, 1]), "love": np.float32([0, 0, 1, 0, 1])}
PARAMS = {"columns": COLUMNS, "labels": ("like", "love"), "training": Training()}


def tensors(arrays):
    return {name: tf.constant(array) for name, array in arrays.items()}


def losses(label):
    probabilities = 1 / (1 + np.exp(-LOGITS[label]))
    return -np.log(np.where(LABELS[label] > 0, probabilities, 1 - probabilities))


def grouped_auc(label):
    """The mean over users with both classes, weighted by their samples."""
    areas = {
        user: data.exact_auc(LABELS[label][user == USERS], LOGITS[label][user == USERS])
        for user in set(USERS)
        if len(set(LABELS[label][user == USERS])) == 2
    }
    return np.average(list(areas.values()), weights=[(user == USERS).sum() for user in areas])


def evaluated(spec):
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        session.run([update for _, update in spec.eval_metric_ops.values()])
        return session.run(
            {
                "loss": spec.loss,
                **{name: value for name, (value, _) in spec.eval_metric_ops.items()},
            }
        )


def expected_metrics(label, prefix=""):
    rate = LABELS[label].mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    return {
        f"{prefix}auc": data.exact_auc(LABELS[label], LOGITS[label]),
        f"{prefix}log_loss": losses(label).mean(),
        f"{prefix}normalized_entropy": losses(label).mean() / entropy,
        f"{prefix}calibration": (1 / (1 + np.exp(-LOGITS[label]))).mean() / rate,
        f"{prefix}grouped_auc": grouped_auc(label),
    }


FEATURES = {"who_ids": USERS}


@pytest.mark.long
@pytest.mark.parametrize("has_names", [False, True], ids=["one label", "the first of two"])
def test_a_click_model_is_measured_by_one_label(has_names):
    labels = tensors(LABELS) if has_names else tf.constant(LABELS["like"])
    spec = heads.click_spec(
        tf.constant(LOGITS["like"]), tensors(FEATURES), labels, rec.ModeKeys.EVAL, PARAMS
    )
    found = evaluated(spec)
    expected = {"loss": losses("like").mean(), **expected_metrics("like")}
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.long
def test_a_model_of_several_labels_is_measured_by_each():
    spec = heads.tasks_spec(
        tensors(LOGITS), tensors(FEATURES), tensors(LABELS), rec.ModeKeys.EVAL, PARAMS
    )
    expected = {"loss": losses("like").mean() + losses("love").mean()}
    for label in LABELS:
        expected.update(expected_metrics(label, f"{label}/"))
    assert evaluated(spec) == pytest.approx(expected, rel=1e-6)


def test_data_without_a_user_have_no_grouped_auc():
    params = {**PARAMS, "columns": COLUMNS[:1]}
    spec = heads.click_spec(
        tf.constant(LOGITS["like"]), {}, tensors(LABELS), rec.ModeKeys.EVAL, params
    )
    assert set(spec.eval_metric_ops) == {"auc", "log_loss", "normalized_entropy", "calibration"}


def test_predictions_are_probabilities_and_are_exported():
    one = heads.click_spec(tf.constant(LOGITS["like"]), {}, None, rec.ModeKeys.PREDICT, PARAMS)
    all_labels = heads.tasks_spec(tensors(LOGITS), {}, None, rec.ModeKeys.PREDICT, PARAMS)
    with tf.Session() as session:
        found = session.run({**one.predictions, **all_labels.predictions})
    assert set(found) == {"probabilities", "probabilities/like", "probabilities/love"}
    np.testing.assert_array_equal(found["probabilities"], found["probabilities/like"])
    np.testing.assert_allclose(
        found["probabilities/love"], 1 / (1 + np.exp(-LOGITS["love"])), rtol=1e-6
    )
    for spec in (one, all_labels):
        assert spec.export_outputs["serving_default"].outputs == spec.predictions
