# SPDX-License-Identifier: Apache-2.0
"""Hooks that a user passes to training, and MonitoredTrainingSession."""

import os
from typing import Any, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.saver import Saver
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.training.progress import ProgressHook
from rec_estimator.training.sigterm import StopAtSigtermHook
from rec_estimator.training.table_summaries import TableSummaryHook

__all__ = [
    "IncrementalSaverHook",
    "MonitoredTrainingSession",
    "ProgressHook",
    "StopAtSigtermHook",
    "TableSummaryHook",
]

# tf.estimator had these classes of tf.compat.v1.train, too.
CheckpointSaverHook = tf.train.CheckpointSaverHook
CheckpointSaverListener = tf.train.CheckpointSaverListener
FeedFnHook = tf.train.FeedFnHook
FinalOpsHook = tf.train.FinalOpsHook
GlobalStepWaiterHook = tf.train.GlobalStepWaiterHook
LoggingTensorHook = tf.train.LoggingTensorHook
NanLossDuringTrainingError = tf.train.NanLossDuringTrainingError
NanTensorHook = tf.train.NanTensorHook
ProfilerHook = tf.train.ProfilerHook
SecondOrStepTimer = tf.train.SecondOrStepTimer
SessionRunArgs = tf.train.SessionRunArgs
SessionRunContext = tf.train.SessionRunContext
SessionRunHook = tf.train.SessionRunHook
SessionRunValues = tf.train.SessionRunValues
StepCounterHook = tf.train.StepCounterHook
StopAtStepHook = tf.train.StopAtStepHook
SummarySaverHook = tf.train.SummarySaverHook


class IncrementalSaverHook(tf.train.SessionRunHook):
    """Saves an incremental checkpoint every ``save_secs`` seconds or ``save_steps`` steps.

    RecEstimator adds this hook if its RunConfig has ``save_incremental_checkpoints_secs`` or
    ``save_incremental_checkpoints_steps``.

    Args:
      checkpoint_dir: Folder of the checkpoints.
      saver: A ``rec_estimator.Saver`` with ``incremental=True``, or with DeepRec's
        ``incremental_save_restore=True``.
      save_secs: Seconds between two saves, above 0. Give either save_secs or save_steps.
      save_steps: Steps between two saves, above 0.
      checkpoint_basename: First part of the checkpoints' names.

    Raises:
      ValueError: The saver is not incremental, an interval is not above 0, or not exactly one
        interval is given.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> hook = rec.IncrementalSaverHook(
      ...     "model", rec.Saver([table], incremental=True), save_steps=100)
    """

    def __init__(
        self,
        checkpoint_dir: str,
        saver: Saver,
        *,
        save_secs: Optional[float] = None,
        save_steps: Optional[int] = None,
        checkpoint_basename: str = "model.ckpt",
    ) -> None:
        if not getattr(saver, "is_incremental", False):
            raise ValueError(
                f"saver must be a rec_estimator.Saver(incremental=True), got {saver!r}; other "
                "Savers write full checkpoints only"
            )
        if (save_secs is None) == (save_steps is None):
            raise ValueError(
                f"exactly one of save_secs and save_steps must be given, got {save_secs} and "
                f"{save_steps}; give only one of them"
            )
        for name, value in (("save_secs", save_secs), ("save_steps", save_steps)):
            if value is not None and not value > 0:
                raise ValueError(
                    f"{name} must be above 0, got {value}; to save nothing, omit the hook"
                )
        self._path = os.path.join(checkpoint_dir, checkpoint_basename)
        self._saver = saver
        self._timer = tf.train.SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)

    def begin(self) -> None:
        """Finds the global step; called by TensorFlow when the graph is complete."""
        self._step = tf.train.get_global_step()
        if self._step is None:
            raise ValueError(
                "the graph has no global step, which IncrementalSaverHook needs; call "
                "tf.train.get_or_create_global_step()"
            )

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Starts to count; the state at this moment is in a full checkpoint of another hook."""
        del coord
        self._timer.update_last_triggered_step(session.run(self._step))

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Fetches the global step, as it is before or after this step increments it."""
        del run_context
        return tf.train.SessionRunArgs(self._step)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Saves if a save is due."""
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        session = run_context.session
        step = int(session.run(self._step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._saver.save(
                session, self._path, global_step=step, write_meta_graph=False, full=False
            )


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: Optional[str] = None,
    scaffold: Optional[tf.train.Scaffold] = None,
    hooks: Optional[Sequence[tf.train.SessionRunHook]] = None,
    *args: Any,
    save_incremental_checkpoint_secs: Optional[float] = None,
    **kwargs: Any,
) -> tf.train.MonitoredSession:
    """``tf.compat.v1.train.MonitoredTrainingSession`` that can save incremental checkpoints.

    DeepRec's function of this name. A rec_estimator.Saver writes the checkpoints, unless the
    scaffold or the graph has a Saver. TensorFlow's arguments set when full checkpoints are written.
    Between them, the chief writes incremental checkpoints, as IncrementalSaverHook does.

    Args:
      master: As in TensorFlow's function.
      is_chief: Whether this process saves, and EvictHook evicts.
      checkpoint_dir: Folder of the checkpoints.
      scaffold: Its Saver, if it has one, must be a
        ``rec_estimator.Saver(incremental_save_restore=True)`` to write incremental checkpoints.
      hooks: Hooks of the session.
      *args: Further arguments of TensorFlow's function.
      save_incremental_checkpoint_secs: Seconds between two incremental checkpoints. None or 0: none
        are written.
      **kwargs: Further arguments of TensorFlow's function.

    Returns:
      The session.

    Raises:
      ValueError: save_incremental_checkpoint_secs is given without checkpoint_dir, is below 0, or
        the Saver writes no incremental checkpoints. Also whatever TensorFlow's function raises.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
      >>> with rec.MonitoredTrainingSession(
      ...     checkpoint_dir="model", save_checkpoint_secs=3600,
      ...     save_incremental_checkpoint_secs=60) as session:
      ...     _ = session.run(train_op)
    """
    secs = save_incremental_checkpoint_secs or None
    if secs is not None and checkpoint_dir is None:
        raise ValueError(
            "checkpoint_dir must be given with save_incremental_checkpoint_secs, got None; name "
            "the folder of the checkpoints"
        )
    if not is_chief:
        state_of().is_chief = False
    savers = tf.get_collection(tf.GraphKeys.SAVERS)
    saver = (scaffold and scaffold.saver) or (savers[0] if savers else None)
    if saver is None:
        saver = Saver(
            incremental_save_restore=secs is not None,
            sharded=True,
            allow_empty=True,
            # The scaffold finds it in the collection, and builds it when the hooks have added their
            # variables to the graph.
            defer_build=True,
        )
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    if secs is not None and checkpoint_dir is not None and is_chief:
        # After TensorFlow's hook: where both are due, the full checkpoint is written first.
        hooks = [*(hooks or ()), IncrementalSaverHook(checkpoint_dir, saver, save_secs=secs)]
    return tf.train.MonitoredTrainingSession(
        master, is_chief, checkpoint_dir, scaffold, hooks, *args, **kwargs
    )
