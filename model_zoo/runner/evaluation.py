# SPDX-License-Identifier: Apache-2.0
"""Evaluates a checkpoint, and compares metrics."""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data import DataSet
from model_zoo.names import check_names
from model_zoo.runner.config import Config

# What chooses the best checkpoint if the configuration does not say: of clicks, and of two towers.
_METRICS = ("auc", "hit_rate_at_10")
_BEST_LOW = ("loss", "normalized_entropy")


def evaluate_rows(
    estimator: rec.RecEstimator,
    input_fn: Callable[[], Any],
    *,
    name: str,
    checkpoint: Optional[str] = None,
    steps: Optional[int] = None,
    hooks: Sequence[tf.train.SessionRunHook] = (),
) -> Dict[str, float]:
    """Evaluates a checkpoint.

    Args:
      estimator: The estimator.
      input_fn: Gives the rows.
      name: Of the evaluation, for its events in the model's folder.
      checkpoint: Its prefix. None: the latest one.
      steps: Batches. None: all.
      hooks: Further hooks.

    Returns:
      The metrics by name, without the global step; {} if there are no rows.
    """
    count = _Count()
    found = estimator.evaluate(
        input_fn, steps=steps, checkpoint_path=checkpoint, name=name, hooks=[*hooks, count]
    )
    if not count.batches:
        return {}
    return {key: float(value) for key, value in found.items() if key != "global_step"}


def graph_hooks(config: Config) -> List[tf.train.SessionRunHook]:
    """Returns the hooks of every Estimator call of a configuration."""
    return [rec.GraphModifierHook()] if config.hooks.graph_modification else []


def metric_names(estimator: rec.RecEstimator, input_fn: Callable[[], Any]) -> List[str]:
    """Returns the names of the metrics of a model, of which only the graph is built.

    Args:
      estimator: The estimator.
      input_fn: Gives rows like those to be evaluated.
    """
    with tf.Graph().as_default():
        features, labels = tf.data.make_initializable_iterator(input_fn()).get_next()
        tf.train.create_global_step()
        spec = estimator.model_fn(features, labels, rec.ModeKeys.EVAL, estimator.config)
        return ["loss", *spec.eval_metric_ops]


def metric_of(config: Config, data: DataSet, metrics: Mapping[str, float]) -> str:
    """Returns the name of the metric that chooses the best checkpoint.

    Args:
      config: Its validation.metric is None, a metric, or a metric of the first label.
      data: Names the labels.
      metrics: Of an evaluation.

    Raises:
      ValueError: The model has no such metric.
    """
    wanted = config.validation.metric
    names = _METRICS if wanted is None else (wanted,)
    candidates = [each for name in names for each in (name, f"{data.labels[0]}/{name}")]
    found = [each for each in candidates if each in metrics]
    if not found:
        check_names("validation.metric", names[:1], metrics)
    return found[0]


def warning_of(metrics: Mapping[str, float], data: DataSet) -> Optional[str]:
    """Returns a sentence that warns of equal labels; None: the AUC is not that of equal labels.

    Args:
      metrics: Of an evaluation.
      data: Names the labels.
    """
    label = data.labels[0]
    name = next((each for each in ("auc", f"{label}/auc") if metrics.get(each) == 0.5), None)
    if name is None:
        return None
    return (
        f"{name} is 0.5, as if all labels were equal; check labels of the data: the first one is "
        f"{label!r}"
    )


def is_better(name: str, value: float, best: Optional[float]) -> bool:
    """Returns whether a metric is better than the best one so far, if there is one.

    Example:
      >>> is_better("auc", 0.8, 0.79), is_better("log_loss", 0.5, 0.4)
      (True, False)
      >>> is_better("calibration", 0.98, 1.1)
      True
    """
    if best is None:
        return True
    if name.endswith("calibration"):
        return abs(value - 1) < abs(best - 1)
    return value < best if name.endswith(_BEST_LOW) else value > best


class _Count(tf.train.SessionRunHook):
    """Counts the batches of an evaluation."""

    batches = 0

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        del run_context, run_values
        self.batches += 1
