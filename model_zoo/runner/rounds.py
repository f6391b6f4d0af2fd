# SPDX-License-Identifier: Apache-2.0
"""Training in one process: rounds, each of which ends with a validation.

A round is one call of Estimator.train: an epoch, a part of one, or, without validation rows, all
epochs. It begins with the latest checkpoint and with the batch that
follows it, so an interrupted run goes on with the bits of one that was not interrupted.
"""

import time
from typing import Any, Callable, Dict, List, Optional

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data import DataSet
from model_zoo.runner.build import build_estimator, training_rows
from model_zoo.runner.config import Config
from model_zoo.runner.evaluation import (
    evaluate_rows,
    graph_hooks,
    is_better,
    metric_names,
    metric_of,
    warning_of,
)
from model_zoo.runner.record import Record, Round
from model_zoo.runner.stop_signals import StopAtSignals

Say = Callable[[str], None]

_WINDOWS = 20  # of the order of time, if the configuration does not give their steps


class Rounds:
    """The training of a model.

    Args:
      config: The configuration, with a model_dir.
      data: Its data.
      record: The record of the run.
      stop: Handles the signals.
      say: Takes lines that say what happens.

    Raises:
      ValueError: Rows are to be trained in the order of time, and are not in it.
    """

    def __init__(
        self,
        config: Config,
        data: DataSet,
        record: Record,
        stop: StopAtSignals,
        say: Say,
    ) -> None:
        self._config = config
        self._data = data
        self._model_dir = str(config.model_dir)
        self._record = record
        self._stop = stop
        self._say = say
        self._in_order = config.train.order == "time"
        self._epochs = 1 if self._in_order else config.train.epochs
        self._is_validated = not self._in_order and data.rows("validation") != 0
        self._every = config.validation.every_steps
        if self._in_order:
            _check_order(data)
            self._every = self._every or _steps_of_a_window(config, data)
        elif not self._is_validated:
            self._every = None
        self._shown = progress_hooks(config, last_step(config, data.rows("train")))

    def run(self) -> None:
        """Trains to the end.

        Raises:
          Interrupted: A signal ended the run; the record is saved.
          ValueError: The model has no such metric as validation.metric.
        """
        if self._is_validated and self._config.validation.metric and not self._is_done():
            self._check_metric()
        while not self._is_done():
            self._run_round()

    def _check_metric(self) -> None:
        """Refuses a metric that the model lacks, before an epoch is trained."""
        input_fn = self._data.input_fn("validation", self._config.validation.batch_size)
        names = metric_names(build_estimator(self._config, self._data, self._model_dir), input_fn)
        metric_of(self._config, self._data, dict.fromkeys(names, 0.0))

    def _is_done(self) -> bool:
        patience, steps = self._config.validation.patience, self._config.train.steps
        is_stopped = patience is not None and self._record.failures_since_best >= patience
        is_last = steps is not None and latest_step(self._model_dir) >= steps
        return self._record.epoch >= self._epochs or is_stopped or is_last

    def _run_round(self) -> None:
        record = self._record
        step = latest_step(self._model_dir)
        factor = self._config.validation.learning_rate_factor**record.failures
        estimator = build_estimator(self._config, self._data, self._model_dir, factor)
        if self._in_order:
            self._predict_window(estimator, step)
        epochs = 1 if self._is_validated else self._epochs - record.epoch
        if self._train(estimator, step, epochs):
            record.epoch, record.epoch_begin = record.epoch + epochs, latest_step(self._model_dir)
        step = latest_step(self._model_dir)
        if not step:
            raise ValueError(
                "train.batch_size must be at most the number of training rows, got "
                f"{self._config.train.batch_size}, and no batch was full"
            )
        if not self._in_order and not (record.rounds and record.rounds[-1].step == step):
            self._validate(estimator, step)
        record.save("running")

    def _train(self, estimator: rec.RecEstimator, step: int, epochs: int) -> bool:
        """Trains one round; returns whether its epochs are at their end."""
        config, record = self._config, self._record
        # A new order each epoch, and other orders for other seeds.
        seed = (config.train.seed * 1_000_003 + record.epoch) % 2**31
        seed_or_none = None if self._in_order else seed
        skip = step - record.epoch_begin
        input_fn = training_rows(config, self._data, seed=seed_or_none, epochs=epochs, skip=skip)
        ends = [config.train.steps or 0]
        if self._every is not None:
            ends.append((step // self._every + 1) * self._every)
        end = min(filter(None, ends), default=None)
        clock = _Clock()
        hooks = [*self._shown, *graph_hooks(config), clock, self._stop]
        estimator.train(input_fn, max_steps=end, hooks=hooks)
        record.steps += clock.steps
        record.seconds += clock.seconds
        step = latest_step(self._model_dir)
        self._check_stop(step)
        return end is None or step < end

    def _predict_window(self, estimator: rec.RecEstimator, step: int) -> None:
        """Evaluates the model on the rows that it trains on next."""
        is_at_begin = step > 0 and step % (self._every or 1) == 0
        if not is_at_begin or step in [each.step for each in self._record.rounds]:
            return
        input_fn = self._data.input_fn("train", self._config.train.batch_size, skip=step)
        metrics = self._evaluate(estimator, "window", input_fn, steps=self._every)
        if metrics:
            self._record.rounds.append(Round(step, self._record.epoch, metrics, is_best=True))
            self._record.save("running")
            self._tell(step, "next window", metrics)

    def _validate(self, estimator: rec.RecEstimator, step: int) -> None:
        """Evaluates the validation rows, and keeps the checkpoint if it is the best one."""
        config, record = self._config, self._record
        metrics: Dict[str, float] = {}
        if self._is_validated:
            input_fn = self._data.input_fn("validation", config.validation.batch_size)
            metrics = self._evaluate(estimator, "validation", input_fn)
        if not metrics:  # The latest checkpoint is the best one.
            record.rounds.append(Round(step, record.epoch, {}, is_best=True))
            return
        name = metric_of(config, self._data, metrics)
        best = None if record.best is None else record.best.metrics[name]
        is_best = is_better(name, metrics[name], best)
        record.rounds.append(Round(step, record.epoch, metrics, is_best))
        if is_best:
            record.keep_best(tf.train.latest_checkpoint(self._model_dir))
        self._tell(step, "validation", metrics, " (best)" if is_best else "")
        warning = warning_of(metrics, self._data)
        if warning:
            self._say(warning)

    def _evaluate(
        self, estimator: rec.RecEstimator, name: str, input_fn: Any, steps: Optional[int] = None
    ) -> Dict[str, float]:
        hooks = [*graph_hooks(self._config), self._stop]
        metrics = evaluate_rows(estimator, input_fn, name=name, steps=steps, hooks=hooks)
        self._check_stop(latest_step(self._model_dir))
        return metrics

    def _check_stop(self, step: int) -> None:
        if self._stop.is_asked:
            self._record.save("stopped")
        self._stop.check(step)

    def _tell(self, step: int, what: str, metrics: Dict[str, float], note: str = "") -> None:
        name = metric_of(self._config, self._data, metrics)
        others = [each for each in ("log_loss", "grouped_auc") if each in metrics and each != name]
        shown = " | ".join(f"{each} {metrics[each]:.4f}" for each in (name, *others))
        speed = self._record.samples_per_second
        rate = "" if speed is None else f" | {speed:,.0f} samples/s"
        epoch = f"epoch {self._record.epoch} | " if not self._in_order else ""
        self._say(f"{epoch}step {step:,} | {what} {shown}{note}{rate}")


def latest_step(model_dir: str) -> int:
    """Returns the global step of the latest checkpoint of a folder; 0 if there is none."""
    latest = tf.train.latest_checkpoint(model_dir)
    return 0 if latest is None else int(tf.train.load_variable(latest, "global_step"))


def last_step(config: Config, rows: Optional[int]) -> Optional[int]:
    """Returns the step at which a training ends unless it is stopped early; None: not known.

    Args:
      config: The configuration.
      rows: The number of training rows. None: not known.
    """
    if config.train.steps is not None or rows is None:
        return config.train.steps
    epochs = 1 if config.train.order == "time" else config.train.epochs
    return max(1, epochs * (rows // config.train.batch_size))


def progress_hooks(config: Config, end: Optional[int]) -> List[tf.train.SessionRunHook]:
    """Returns the hook that shows the progress of a training up to a step, if it is wanted."""
    if not config.hooks.progress:
        return []
    return [rec.ProgressHook(end, config.train.batch_size, metrics=("auc", "log_loss"))]


def _check_order(data: DataSet) -> None:
    late = data.late_row()
    if late:
        raise ValueError(
            f"{late} must not decrease if train.order is time, got an earlier time than in the row "
            "before; sort the file by this column"
        )


def _steps_of_a_window(config: Config, data: DataSet) -> int:
    return max(1, -(-data.count_training_rows() // (config.train.batch_size * _WINDOWS)))


class _Clock(tf.train.SessionRunHook):
    """Measures the steps of a training, from the end of the first one on.

    Attributes:
      steps: The number of steps.
      seconds: Their time.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._begun: Optional[float] = None

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        del run_context, run_values
        if self._begun is None:  # The first run also places ops and fills buffers.
            self._begun = time.monotonic()
        else:
            self.steps += 1
            self.seconds = time.monotonic() - self._begun
