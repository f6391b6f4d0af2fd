# SPDX-License-Identifier: Apache-2.0
"""Metrics of the package choose what is exported, and when a training stops."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

LABELS = np.float32([0, 0, 1, 1])
USERS = np.array([1, 2, 1, 2])
STEP = 2  # Steps between two evaluations.
# The logits of each evaluation: the second is the best one by all metrics but the loss.
LOGITS = np.float32([[0, 1, 0, -1], [-1, -1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 0, 0]])


def model_fn(features, labels, mode):
    table = rec.get_embedding_variable("user", 1)
    rows = rec.embedding_lookup(table, features["user"])
    step = tf.train.get_global_step()
    outputs = {"serving_default": rec.export.PredictOutput({"rows": rows})}
    loss = tf.cast(step, tf.float32) + 0.0 * tf.reduce_sum(rows)
    train_op = metrics = None
    if mode == rec.ModeKeys.TRAIN:
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    if mode == rec.ModeKeys.EVAL:
        logits = tf.gather(tf.constant(LOGITS), step // STEP - 1)
        probabilities = tf.sigmoid(logits)
        metrics = {
            "auc": rec.metrics.auc(labels, logits),
            "grouped_auc": rec.metrics.grouped_auc(labels, logits, features["user"]),
            "ndcg": rec.metrics.ndcg(labels, logits, k=1, groups=features["user"]),
            "log_loss": rec.metrics.log_loss(labels, probabilities),
            "normalized_entropy": rec.metrics.normalized_entropy(labels, probabilities),
        }
    return rec.EstimatorSpec(
        mode,
        predictions=rows,
        loss=loss,
        train_op=train_op,
        eval_metric_ops=metrics,
        export_outputs=outputs,
    )


def input_fn():
    return tf.data.Dataset.from_tensors(({"user": USERS}, LABELS))


def receiver_fn():
    users = tf.placeholder(tf.int64, [None], name="user")
    return rec.export.ServingInputReceiver({"user": users}, {"user": users})


@pytest.mark.long
@pytest.mark.parametrize("metric", ["auc", "grouped_auc", "ndcg", "log_loss", "normalized_entropy"])
def test_the_best_export_and_early_stopping_go_by_a_metric(metric, tmp_path):
    sign = -1 if metric in ("log_loss", "normalized_entropy") else 1

    def is_better(best_eval_result, current_eval_result):
        return sign * current_eval_result[metric] > sign * best_eval_result[metric]

    run = rec.RunConfig(save_checkpoints_steps=STEP)
    estimator = rec.RecEstimator(model_fn, str(tmp_path), config=run)
    stop = "stop_if_no_increase_hook" if sign > 0 else "stop_if_no_decrease_hook"
    hook = getattr(rec.experimental, stop)(
        estimator, metric, 2 * STEP, run_every_secs=None, run_every_steps=1
    )
    rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(lambda: input_fn().repeat(), max_steps=STEP * len(LOGITS), hooks=[hook]),
        rec.EvalSpec(
            input_fn,
            exporters=rec.BestExporter("best", receiver_fn, compare_fn=is_better),
            throttle_secs=0,
        ),
    )
    best = json.loads((tmp_path / "export" / "best" / "best_eval_result.json").read_text())
    assert best["global_step"] == 2 * STEP
    exports = [each for each in (tmp_path / "export" / "best").iterdir() if each.name.isdigit()]
    assert len(exports) == 2  # The first evaluation, and the best one.
    # Two evaluations without progress are in the events when the next step runs.
    last = tf.train.load_variable(str(tmp_path), "global_step")
    assert 4 * STEP <= last < len(LOGITS) * STEP
