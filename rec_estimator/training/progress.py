# SPDX-License-Identifier: Apache-2.0
"""ProgressHook: the progress and speed of training, evaluation and prediction as lines of text."""

import os
import sys
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, TextIO, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_state import state_of

_TERMINAL_SECONDS = 0.5  # between two updates of a terminal's line
_FILE_SECONDS = 10.0  # between two lines of a log
_DEFAULT_WIDTH = 80  # characters, for a terminal of unknown width
_SEPARATOR = " | "


class ProgressHook(tf.train.SessionRunHook):
    """Shows the progress and the speed of training, evaluation and prediction.

    In a terminal it updates one line, cut to the terminal's width. In a file or a pipe it writes a
    new line at intervals:

        train 1,250/3,000 (42 %) | 183,000 samples/s | loss 0.5523 | auc 0.7912 | 0:12 left
        evaluated at step 3,000 | auc 0.7950 | 59 batches in 0.4 s

    A step that shows no line costs two Python calls: the loss is fetched only for steps that are
    shown. You can pass one hook to several calls. If train() and evaluate() share it, it prints the
    metrics of each evaluation and repeats them in the lines of the training that follows.

    Args:
      max_steps: Global step at which training ends, as in ``train(max_steps=...)``. None: unknown;
        the remaining time is not shown.
      batch_size: Examples per step and worker. None: the rate is shown in steps/s.
      metrics: Names of the evaluation metrics to show, as given to
        ``tf.compat.v1.metrics.auc(name=)``. Metrics that the model does not have are not shown.
      every_seconds: Seconds between two lines. None: 0.5 in a terminal, 10 in a log.
      stream: File to write to. None: ``sys.stderr``, read when a loop begins.

    Raises:
      ValueError: max_steps, batch_size or every_seconds is not above 0.

    Example:
      >>> hook = rec.ProgressHook(max_steps=3000, batch_size=512)
      >>> # estimator.train(input_fn, max_steps=3000, hooks=[hook])
      >>> # estimator.evaluate(test_input_fn, hooks=[hook])
    """

    def __init__(
        self,
        max_steps: Optional[int] = None,
        batch_size: Optional[int] = None,
        *,
        metrics: Sequence[str] = ("auc",),
        every_seconds: Optional[float] = None,
        stream: Optional[TextIO] = None,
    ) -> None:
        for name, value in (
            ("max_steps", max_steps),
            ("batch_size", batch_size),
            ("every_seconds", every_seconds),
        ):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}; omit it if unknown")
        self._settings = _Settings(max_steps, batch_size, every_seconds)
        self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self._stream = stream
        # By graph: train_and_evaluate evaluates during its training loop, in the same process.
        self._loops: Dict[tf.Graph, _Loop] = {}
        self._last_metrics: Dict[str, float] = {}  # The last evaluation's with this hook.

    def begin(self) -> None:
        """Finds the tensors to show; called by TensorFlow when the graph is complete."""
        graph = tf.get_default_graph()
        if not self._loops:
            self._line = _ProgressLine(self._stream or sys.stderr, self._settings.every_seconds)
        self._loops[graph] = _Loop(graph, self._settings, self._metrics)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Starts to count; called again after a lost session was replaced."""
        del coord
        self._loops[session.graph].start(session, self._line.every_seconds)

    def before_run(
        self, run_context: tf.train.SessionRunContext
    ) -> Optional[tf.train.SessionRunArgs]:
        """Fetches the loss if a line is due or if this is the last step of the training."""
        return self._loops[run_context.session.graph].fetches()

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Counts the step and writes a line if one is due."""
        loop = self._loops[run_context.session.graph]
        if loop.count_step(run_values.results):
            self._line.write(loop.parts(run_context.session, self._last_metrics))
            loop.wait(self._line.every_seconds)

    def end(self, session: tf.Session) -> None:
        """Writes the last line, which is not updated any more."""
        loop = self._loops.pop(session.graph)
        parts, metrics = loop.last_parts(session, self._last_metrics)
        self._last_metrics = metrics
        self._line.finish(parts)


class _Settings(NamedTuple):
    """The numbers a ProgressHook was constructed with."""

    max_steps: Optional[int]
    batch_size: Optional[int]
    every_seconds: Optional[float]


class _Loop:
    """The progress of one training, evaluation or prediction, and the texts that show it."""

    def __init__(self, graph: tf.Graph, settings: _Settings, metrics: Sequence[str]) -> None:
        self._settings = settings
        self._global_step = tf.train.get_global_step(graph)
        self._steps_per_run = state_of(graph).steps_per_run
        self._loss: Optional[tf.Tensor] = None
        self._metric_values: Dict[str, tf.Tensor] = {}
        if graph.get_collection(tf.GraphKeys.EVAL_STEP):  # Estimator adds it only in evaluate().
            self._name = "evaluate"
            self._metric_values = _metric_values(graph, metrics)
        else:
            # Estimator adds the loss of the spec last, after those that tf.losses has collected.
            losses = graph.get_collection(tf.GraphKeys.LOSSES)
            self._loss = losses[-1] if losses else None
            self._name = "train" if losses else "predict"

    def start(self, session: tf.Session, every_seconds: float) -> None:
        # Number of steps before the last one, whose loss the last line shows. With several workers
        # it is an upper bound.
        self._last_count = (
            (self._settings.max_steps or 0) - self._step(session) - self._steps_per_run
        )
        self._begun = time.monotonic()
        self._count = 0  # steps of this loop and this worker
        self._rate_from = self._shown = _Point(self._begun, 0)
        self._last_loss: Optional[float] = None
        self._due = self._begun + every_seconds
        self._is_due = False

    def fetches(self) -> Optional[tf.train.SessionRunArgs]:
        self._is_due = time.monotonic() >= self._due
        if self._loss is not None and (self._is_due or self._count == self._last_count):
            return tf.train.SessionRunArgs(self._loss)
        return None

    def count_step(self, loss: Optional[float]) -> bool:
        """Records a step, and its loss if it was fetched; returns whether a line is due."""
        is_first = not self._count
        self._count += self._steps_per_run
        if loss is not None:
            self._last_loss = float(loss)
        if is_first:
            # The first run also places ops, allocates and fills input buffers: no rate includes it.
            self._rate_from = self._shown = _Point(time.monotonic(), self._count)
        return self._is_due

    def wait(self, every_seconds: float) -> None:
        """Schedules the next line."""
        self._shown = _Point(time.monotonic(), self._count)
        self._due = self._shown.seconds + every_seconds

    def parts(self, session: tf.Session, metrics: Mapping[str, float]) -> List[str]:
        """The parts of a line, most important first.

        Args:
          session: Holds the global step.
          metrics: Of the last evaluation.
        """
        now = _Point(time.monotonic(), self._count)
        if self._name != "train":
            return [f"{self._name} {self._count:,} batches", *self._rate(now)]
        step, max_steps = self._step(session), self._settings.max_steps
        parts = [f"train {step:,}"]
        if max_steps is not None:
            parts = [f"train {step:,}/{max_steps:,} ({min(1.0, step / max_steps):.0%})"]
        parts += self._rate(now)
        if self._last_loss is not None:
            parts += _format_numbers({"loss": self._last_loss})
        parts += _format_numbers(metrics)
        steps = self._count - self._rate_from.steps
        if max_steps is not None and step < max_steps and steps > 0:
            # The mean over the loop: one checkpoint can double the time of the last interval.
            per_step = (now.seconds - self._rate_from.seconds) / steps
            parts.append(f"{_format_duration((max_steps - step) * per_step)} left")
        return parts

    def last_parts(
        self, session: tf.Session, metrics: Mapping[str, float]
    ) -> Tuple[List[str], Dict[str, float]]:
        """The parts of the last line, and the metrics of the last evaluation."""
        if self._name != "evaluate":
            self._shown = self._rate_from  # The last line shows the rate of the whole loop.
            return self.parts(session, metrics), dict(metrics)
        values = session.run(self._metric_values)
        parts = [f"evaluated at step {self._step(session):,}", *_format_numbers(values)]
        seconds = time.monotonic() - self._begun
        parts.append(f"{self._count:,} batches in {seconds:.1f} s")
        return parts, values

    def _step(self, session: tf.Session) -> int:
        return 0 if self._global_step is None else int(session.run(self._global_step))

    def _rate(self, now: "_Point") -> List[str]:
        """The rate since the last line; [] if it is not known."""
        seconds, steps = now.seconds - self._shown.seconds, now.steps - self._shown.steps
        if not seconds > 0.0 or not steps:
            return []
        batch_size = self._settings.batch_size
        if batch_size is None:
            return [f"{_round_to_3_digits(steps / seconds):,} steps/s"]
        return [f"{_round_to_3_digits(steps * batch_size / seconds):,} samples/s"]


class _Point(NamedTuple):
    """A point of a loop."""

    seconds: float  # time.monotonic()
    steps: int  # done before it


class _ProgressLine:
    """Writes lines to a stream; in a terminal each line replaces the one before."""

    def __init__(self, stream: TextIO, every_seconds: Optional[float]) -> None:
        self._stream = stream
        try:
            self._is_terminal = bool(stream.isatty())
        except (AttributeError, ValueError):  # A stream without isatty, or a closed one.
            self._is_terminal = False
        self.every_seconds = every_seconds or (
            _TERMINAL_SECONDS if self._is_terminal else _FILE_SECONDS
        )
        self._shown_length = 0  # characters of the line in the terminal

    def write(self, parts: Sequence[str]) -> None:
        """Shows a line that a later one replaces."""
        self._put(parts, is_last=False)

    def finish(self, parts: Sequence[str]) -> None:
        """Shows the last line and moves to a new one."""
        self._put(parts, is_last=True)

    def _put(self, parts: Sequence[str], *, is_last: bool) -> None:
        text = _SEPARATOR.join(parts) + "\n"
        if self._is_terminal:
            # Some terminals wrap as soon as the last column is written, so it stays empty.
            line = _fit(parts, _width(self._stream) - 1)
            text = "\r" + line.ljust(self._shown_length) + ("\n" if is_last else "")
            self._shown_length = 0 if is_last else len(line)
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The reader of a pipe has exited. That must not end a training.
            self.every_seconds = float("inf")


def _fit(parts: Sequence[str], width: int) -> str:
    """Joins as many parts as fit, from the first on; cuts the first if it is too long."""
    kept = list(parts)
    while len(kept) > 1 and len(_SEPARATOR.join(kept)) > width:
        kept.pop()
    return _SEPARATOR.join(kept)[: max(width, 0)]


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except (AttributeError, OSError, ValueError):
        return _DEFAULT_WIDTH


def _metric_values(graph: tf.Graph, names: Sequence[str]) -> Dict[str, tf.Tensor]:
    """The value tensors of the named tf.metrics that the graph has."""
    # A tf.metrics function names its value "value", in a name scope with the metric's name.
    ops = {op.name: op for op in graph.get_operations()}
    return {name: ops[f"{name}/value"].outputs[0] for name in names if f"{name}/value" in ops}


def _format_numbers(numbers: Mapping[str, float]) -> List[str]:
    return [f"{name} {float(value):.4f}" for name, value in numbers.items()]


def _round_to_3_digits(rate: float) -> float:
    """Rounds a rate, whose further digits are noise: 183,412 -> 183,000; 7.1239 -> 7.12."""
    rounded = float(f"{rate:.3g}")
    return int(rounded) if rounded >= 100 else rounded


def _format_duration(seconds: float) -> str:
    """Formats a duration, as in `0:07`, `12:40` or `3:02:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
