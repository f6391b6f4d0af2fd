# SPDX-License-Identifier: Apache-2.0
"""Training on a cluster: each task runs the same command, and TF_CONFIG selects the task.

The chief and the workers train, the ps tasks hold tables and variables, and the evaluator
validates: it keeps the best checkpoint, writes run.json and tests the model at the end.
"""

import contextlib
import time
from typing import Any, Dict, List, Optional, Union

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data import DataSet
from model_zoo.runner.build import build_estimator, training_rows
from model_zoo.runner.config import Config
from model_zoo.runner.evaluation import graph_hooks, is_better, metric_of
from model_zoo.runner.record import Record, Round, read
from model_zoo.runner.rounds import last_step, latest_step, progress_hooks
from model_zoo.runner.stop_signals import StopAtSignals

_POLL_SECONDS = 5  # between two looks into run.json or for a checkpoint


def is_in_cluster() -> bool:
    """Returns whether TF_CONFIG makes this process a task of a cluster."""
    run = rec.RunConfig()
    return bool(run.cluster_spec.jobs) or run.task_type == "evaluator"  # which has no cluster


def train_task(config: Config, data: DataSet) -> Optional[Record]:
    """Does the work of the task that TF_CONFIG names.

    Args:
      config: The configuration, with a model_dir that all tasks see.
      data: Its data.

    Returns:
      The record of the run in the evaluator, after the training; None in other tasks.

    Raises:
      ValueError: train.order is "time".
      Interrupted: A signal ended the chief or a worker; the chief has saved.
    """
    if config.train.order == "time":
        raise ValueError(
            "train.order must be shuffled on a cluster, whose workers train at the same time, got "
            "'time'; set train.order, or train in one process"
        )
    task = rec.RunConfig().task_type
    is_counted = config.train.steps is None and task != "ps"
    steps = last_step(config, data.count_training_rows() if is_counted else None)
    saving = config.replace(train__save_steps=_save_steps(config, data))
    estimator = build_estimator(saving, data, learning_rate_factor=_factor(config))
    if task == "evaluator":
        return _evaluate(config, data, estimator, steps)
    _train(config, data, estimator, steps)
    return None


def _train(
    config: Config, data: DataSet, estimator: rec.RecEstimator, steps: Optional[int]
) -> None:
    """Does the work of the chief, a worker or a ps."""
    run = estimator.config
    is_trainer = run.task_type in ("chief", "master", "worker")
    if run.is_chief and is_trainer and read(run.model_dir) is None:
        Record(run.model_dir, config).save("running")
    # Every training task shuffles in another order.
    seed = (config.train.seed * 1_000_003 + (run.global_id_in_cluster or 0)) % 2**31
    train_fn = training_rows(config, data, seed=seed, epochs=None)
    with StopAtSignals() if is_trainer else contextlib.nullcontext() as stop:
        hooks: List[tf.train.SessionRunHook] = [*graph_hooks(config), *([stop] if stop else [])]
        if run.is_chief:
            hooks += progress_hooks(config, steps)
        if is_trainer and config.validation.patience is not None and _is_validated(data):
            hooks.append(_early_stop(estimator, config.validation.patience))
        train_spec = rec.TrainSpec(train_fn, max_steps=steps, hooks=hooks)
        # The EvalSpec must be there, and is not used.
        rec.train_and_evaluate(estimator, train_spec, rec.EvalSpec(train_fn, steps=1))
        if stop:
            stop.check(latest_step(run.model_dir))


def _evaluate(
    config: Config, data: DataSet, estimator: rec.RecEstimator, steps: Optional[int]
) -> Record:
    """Does the work of the evaluator: validates checkpoints, or waits for the last one."""
    record = Record(str(config.model_dir), config)
    if _is_validated(data):
        input_fn = data.input_fn("validation", config.validation.batch_size)
        eval_spec = rec.EvalSpec(
            input_fn,
            steps=None,
            hooks=graph_hooks(config),
            exporters=[_BestCheckpoint(config, data, record)],
            start_delay_secs=0,
            throttle_secs=2,
        )
        with contextlib.suppress(_Stopped):
            rec.train_and_evaluate(estimator, rec.TrainSpec(input_fn, max_steps=steps), eval_spec)
        return record
    while latest_step(str(config.model_dir)) < (steps or 1):
        time.sleep(_POLL_SECONDS)
    step = latest_step(str(config.model_dir))
    record.rounds.append(Round(step, record.epoch, {}, is_best=True))
    return record


def _is_validated(data: DataSet) -> bool:
    return data.rows("validation") != 0


def _save_steps(config: Config, data: DataSet) -> Optional[int]:
    """Returns the steps between checkpoints, each of which is validated. None: 10 minutes.

    Without settings, it is an epoch, as in one process, if the rows were counted.
    """
    every, rows = config.train.save_steps or config.validation.every_steps, data.rows("train")
    return every or (rows or 0) // config.train.batch_size or None


class _Factor:
    """The factor of the learning rates, which falls with each validation without progress.

    Args:
      config: Its validation.learning_rate_factor is below 1.
    """

    def __init__(self, config: Config) -> None:
        self._model_dir = str(config.model_dir)
        self._factor = config.validation.learning_rate_factor
        self._now = np.float32(1)
        self._next_look = 0.0

    def __call__(self) -> tf.Tensor:
        """Returns the factor of a step, float32 []."""
        return tf.ensure_shape(tf.numpy_function(self._read, [], tf.float32), [])

    def _read(self) -> np.float32:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _POLL_SECONDS
            rounds = (read(self._model_dir) or {}).get("rounds", [])
            failures = sum(not each["is_best"] for each in rounds)
            self._now = np.float32(self._factor**failures)
        return self._now


def _factor(config: Config) -> Union[float, _Factor]:
    return 1.0 if config.validation.learning_rate_factor == 1 else _Factor(config)


class _Stopped(Exception):
    """The evaluator has seen enough."""


def _early_stop(estimator: rec.RecEstimator, patience: int) -> tf.train.SessionRunHook:
    """A hook that ends all training tasks after validations without progress."""

    def should_stop() -> bool:
        found = read(estimator.model_dir) or {}
        rounds = [each["is_best"] for each in found.get("rounds", [])]
        return len(rounds) >= patience and not any(rounds[-patience:])

    hook: tf.train.SessionRunHook = rec.experimental.make_early_stopping_hook(
        estimator, should_stop, run_every_secs=_POLL_SECONDS
    )
    return hook


class _BestCheckpoint(rec.Exporter):
    """Keeps the best checkpoint instead of exporting it; the evaluator calls it.

    Args:
      config: The configuration.
      data: Its data.
      record: Gets each validation.
    """

    name = "best"

    def __init__(self, config: Config, data: DataSet, record: Record) -> None:
        self._config = config
        self._data = data
        self._record = record

    def export(
        self,
        estimator: rec.RecEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Dict[str, Any],
        is_the_final_export: bool,
    ) -> None:
        """Records a validation, and copies its checkpoint if it is the best one.

        Raises:
          _Stopped: There were `validation.patience` validations without progress.
        """
        del estimator, export_path, is_the_final_export
        record = self._record
        metrics = {name: float(value) for name, value in eval_result.items()}
        step = int(metrics.pop(tf.GraphKeys.GLOBAL_STEP))
        name = metric_of(self._config, self._data, metrics)
        best = None if record.best is None else record.best.metrics[name]
        is_best = is_better(name, metrics[name], best)
        record.rounds.append(Round(step, record.epoch, metrics, is_best))
        if is_best:
            record.keep_best(checkpoint_path)
        record.save("running")
        patience = self._config.validation.patience
        if patience is not None and record.failures_since_best >= patience:
            raise _Stopped
