# SPDX-License-Identifier: Apache-2.0
"""The little demo in an Estimator: create_table and sparse_lookup in the model_fn.

    python -m model_zoo.little_demo_estimator --model_dir /tmp/little_demo_estimator

Data, network and optimizers are those of little_demo.py; the Estimator does the rest: it restores
the last checkpoint, trains, saves, evaluates and exports.
"""

import argparse
import os
import sys
from typing import Any, Dict, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import little_demo
from model_zoo.little_demo import EVAL_STEPS, LABELS, STEPS, STEPS_BETWEEN_SAVES, Batch


def model_fn(features: Batch, labels: None, mode: str, params: Dict[str, Any]) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of the demo.

    Args:
      features: user_ids int64 [B, 4], item_ids int64 [B, 2], and the labels float32 [B], which
        prediction does not read. The lookups of a FeatureSpec find their ids in this batch.
      labels: None.
      mode: One of rec.ModeKeys.
      params: "modify_graph".
    """
    del labels
    logits = little_demo.forward(features, mode == rec.ModeKeys.TRAIN, params["modify_graph"])
    predictions = {label: tf.sigmoid(logits[label]) for label in LABELS}
    if mode == rec.ModeKeys.PREDICT:
        outputs = {"serving_default": rec.PredictOutput(predictions)}
        return rec.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = little_demo.total_loss(features, logits)
    if mode == rec.ModeKeys.EVAL:
        aucs = {label: rec.metrics.auc(features[label], logits[label]) for label in LABELS}
        return rec.EstimatorSpec(mode, loss=loss, eval_metric_ops=aucs)
    return rec.EstimatorSpec(mode, loss=loss, train_op=little_demo.train_step(loss))


def serving_input_receiver_fn() -> rec.ServingInputReceiver:
    """Placeholders of the ids."""
    ids = {
        "user_ids": tf.placeholder(tf.int64, [None, 4], "user_ids"),
        "item_ids": tf.placeholder(tf.int64, [None, 2], "item_ids"),
    }
    return rec.ServingInputReceiver(ids, ids)


def run(model_dir: str, steps: int = STEPS, modify_graph: bool = True) -> Dict[str, float]:
    """Trains from the last checkpoint of model_dir up to step `steps`, and exports the model.

    Returns:
      The metrics of evaluation: "loss", "global_step", and the AUC of each label.
    """
    config = rec.RunConfig(tf_random_seed=1, save_checkpoints_steps=STEPS_BETWEEN_SAVES)
    estimator = rec.RecEstimator(model_fn, model_dir, config, {"modify_graph": modify_graph})
    start = estimator.get_variable_value("global_step") if estimator.latest_checkpoint() else 0
    hooks = [rec.GraphModifierHook(modify_graph=modify_graph)]
    estimator.train(
        lambda: little_demo.make_dataset(steps, True, modify_graph, skip=start),
        hooks=hooks,
        max_steps=steps,
    )
    result = estimator.evaluate(
        lambda: little_demo.make_dataset(EVAL_STEPS, False, modify_graph), hooks=hooks
    )
    estimator.export_saved_model(os.path.join(model_dir, "export"), serving_input_receiver_fn)
    return {name: value.item() for name, value in result.items()}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model_dir", required=True, help="folder of checkpoints and exports")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--modify_graph", type=int, choices=(0, 1), default=1)
    args = parser.parse_args(arguments)
    print("at the end |", run(args.model_dir, args.steps, bool(args.modify_graph)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
