# SPDX-License-Identifier: Apache-2.0
"""InMemoryEvaluatorHook: evaluates while training goes on, without waiting for a checkpoint."""

import os
import tempfile
from typing import Any, Callable, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow.estimator import Estimator
from rec_estimator.checkpoint.saver import Saver


class InMemoryEvaluatorHook(tf.train.SessionRunHook):
    """Evaluates when training begins, every ``every_n_iter`` runs of the step, and at the end.

    ``tf.estimator.experimental.InMemoryEvaluatorHook`` refuses all that is not a variable. This
    hook also evaluates tables and custom Savers. It writes the state of the session into a
    temporary folder, which it deletes after the evaluation (set TMPDIR to a folder in memory to
    spare the disk), and calls ``estimator.evaluate``. Training is not affected: nothing is evicted,
    and no checkpoint of the model's folder and no delta changes. While it evaluates, the process
    holds all rows twice.

    Args:
      estimator: The estimator that trains.
      input_fn: As in ``estimator.evaluate``.
      steps: As in ``estimator.evaluate``.
      hooks: As in ``estimator.evaluate``.
      name: As in ``estimator.evaluate``.
      every_n_iter: Runs of the train step between two evaluations, at least 1.

    Raises:
      ValueError: every_n_iter is below 1, or the estimator has workers or parameter servers.

    Example:
      >>> estimator = rec.RecEstimator(lambda features: None, "model")
      >>> hook = rec.experimental.InMemoryEvaluatorHook(estimator, lambda: None, every_n_iter=500)
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        steps: Optional[int] = None,
        hooks: Optional[Sequence[tf.train.SessionRunHook]] = None,
        name: Optional[str] = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or every_n_iter < 1:
            raise ValueError(
                f"every_n_iter must be >= 1, got {every_n_iter}; omit it for 100, or omit the hook"
            )
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
            raise ValueError(
                "estimator must train in one process, got a cluster; give the cluster an evaluator "
                "task and call train_and_evaluate"
            )
        self._estimator = estimator
        self._arguments = {"steps": steps, "hooks": hooks, "name": name}
        self._input_fn = input_fn
        self._every_n_iter = every_n_iter
        self._runs = 0
        self._last: Optional[int] = None

    def begin(self) -> None:
        """Adds a Saver to the graph of the training; called when its model is complete."""
        self._runs, self._last = 0, None
        # A Saver of its own: the model's counts its checkpoints, and may write deltas.
        self._saver_def = Saver(sharded=True).saver_def

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Evaluates the model as training finds it."""
        del coord
        self._evaluate(session)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Evaluates if an evaluation is due."""
        del run_values
        self._runs += 1
        if self._runs % self._every_n_iter == 0:
            self._evaluate(run_context.session)

    def end(self, session: tf.Session) -> None:
        """Evaluates the model as training leaves it."""
        if self._last != self._runs:
            self._evaluate(session)

    def _evaluate(self, session: tf.Session) -> None:
        self._last = self._runs
        with tempfile.TemporaryDirectory(prefix="rec_estimator-evaluator-") as folder:
            prefix = os.path.join(folder, "model.ckpt")
            # The op of the Saver and not its save(), which evicts.
            session.run(
                self._saver_def.save_tensor_name,
                {self._saver_def.filename_tensor_name: prefix},
            )
            self._estimator.evaluate(self._input_fn, checkpoint_path=prefix, **self._arguments)
