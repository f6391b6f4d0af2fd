# SPDX-License-Identifier: Apache-2.0
"""The head of every click model: probabilities, loss, metrics and the training step."""

from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.metrics import auc_of_logits


def click_spec(
    logits: tf.Tensor, labels: Optional[tf.Tensor], mode: str, params: Dict[str, Any]
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of a click model.

    Args:
      logits: float32 [B].
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "learning_rate" of LazyAdam, which trains dense variables and tables.

    Returns:
      An EstimatorSpec with the predictions {"probabilities": [B]}, the mean log loss, and the
      metrics auc, auc_error (the bound that auc_of_logits states) and log_loss.
    """
    probabilities = tf.sigmoid(logits)
    predictions = {"probabilities": probabilities}
    if mode == rec.ModeKeys.PREDICT:
        outputs = {"serving_default": rec.PredictOutput(predictions)}
        return rec.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)

    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    if mode == rec.ModeKeys.EVAL:
        metrics = {
            **auc_of_logits(labels, logits),
            "log_loss": tf.metrics.mean(losses, name="log_loss"),
        }
        return rec.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    optimizer = rec.optimizers.LazyAdamOptimizer(params["learning_rate"])
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)
