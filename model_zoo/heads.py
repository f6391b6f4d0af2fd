# SPDX-License-Identifier: Apache-2.0
"""The heads of the models: predictions, losses, metrics and the training step."""

from typing import Any, Dict, Mapping, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import minimize
from model_zoo.data import Column

Features = Dict[str, tf.Tensor]
Labels = Union[tf.Tensor, Mapping[str, tf.Tensor], None]
Params = Mapping[str, Any]


def click_spec(
    logits: tf.Tensor, features: Features, labels: Labels, mode: str, params: Params
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of a model of one label.

    Args:
      logits: float32 [B].
      features: What model_fn got. The ids of the user are the groups of grouped_auc.
      labels: float32 [B], 0 or 1, or several of them by name; None in prediction.
      mode: One of rec.ModeKeys.
      params: "labels", of which the first one is used, "columns" and "training".

    Returns:
      An EstimatorSpec with the predictions {"probabilities": [B]}, the mean log loss, and the
      metrics auc, log_loss, normalized_entropy, calibration and, if there is a user column,
      grouped_auc.
    """
    if isinstance(labels, Mapping):
        labels = labels[params["labels"][0]]
    return _spec({"": logits}, features, {"": labels}, mode, params)


def tasks_spec(
    logits: Mapping[str, tf.Tensor],
    features: Features,
    labels: Labels,
    mode: str,
    params: Params,
    other_predictions: Optional[Mapping[str, tf.Tensor]] = None,
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of a model of several labels.

    Args:
      logits: float32 [B] by label.
      features: As in `click_spec`.
      labels: float32 [B], 0 or 1, by label; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns" and "training".
      other_predictions: Further predictions [B] by name.

    Returns:
      An EstimatorSpec with the predictions {"probabilities/<label>": [B]}, the sum of the mean log
      losses, and the metrics of `click_spec` under "<label>/auc" and so on.
    """
    if labels is not None and not isinstance(labels, Mapping):
        (label,) = logits  # A data set of one label has it without a name.
        labels = {label: labels}
    return _spec(logits, features, labels or {}, mode, params, other_predictions)


def _spec(
    logits: Mapping[str, tf.Tensor],
    features: Features,
    labels: Mapping[str, Optional[tf.Tensor]],
    mode: str,
    params: Params,
    other_predictions: Optional[Mapping[str, tf.Tensor]] = None,
) -> rec.EstimatorSpec:
    """The spec of one label without a name, or of several."""
    probabilities = {label: tf.sigmoid(each) for label, each in logits.items()}
    if mode == rec.ModeKeys.PREDICT:
        predictions = {
            f"probabilities/{label}".rstrip("/"): each for label, each in probabilities.items()
        }
        predictions.update(other_predictions or {})
        outputs = {"serving_default": rec.PredictOutput(predictions)}
        return rec.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)

    loss = tf.add_n(
        [
            tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels[label], logits=each)
            )
            for label, each in logits.items()
        ]
    )
    if mode == rec.ModeKeys.EVAL:
        users = user_ids(features, params["columns"])
        metrics = {
            f"{label}/{name}".lstrip("/"): metric
            for label, each in logits.items()
            for name, metric in _metrics(labels[label], each, probabilities[label], users).items()
        }
        return rec.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    return rec.EstimatorSpec(mode, loss=loss, train_op=minimize.train_op(loss, params))


def _metrics(
    labels: Optional[tf.Tensor],
    logits: tf.Tensor,
    probabilities: tf.Tensor,
    users: Optional[tf.Tensor],
) -> Dict[str, Any]:
    # Logits have fewer ties than probabilities.
    metrics = {
        "auc": rec.metrics.auc(labels, logits),
        "log_loss": rec.metrics.log_loss(labels, probabilities),
        "normalized_entropy": rec.metrics.normalized_entropy(labels, probabilities),
        "calibration": rec.metrics.calibration(labels, probabilities),
    }
    if users is not None:
        metrics["grouped_auc"] = rec.metrics.grouped_auc(labels, logits, users)
    return metrics


def user_ids(features: Features, columns: Sequence[Column]) -> Optional[tf.Tensor]:
    """The ids [B] of the first column of single ids with the role user; None: there is none."""
    for column in columns:
        if column.role == "user" and column.kind == "id" and not column.is_padded:
            return features[f"{column.name}_ids"]
    return None
