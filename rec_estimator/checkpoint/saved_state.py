# SPDX-License-Identifier: Apache-2.0
"""Knows which checkpoint already holds the state of a session, so that it is not written again."""

import weakref
from typing import NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import deltas
from rec_estimator.checkpoint.delta_chain import SavedCheckpoint
from rec_estimator.checkpoint.files import is_same_path
from rec_estimator.graph_passes.walk import find_global_step


def step_of(session: tf.Session) -> Optional[int]:
    """Returns the session's global step, None if there is none or it is not initialized."""
    step = find_global_step(session.graph)
    if step is None:
        return None
    try:
        return tf.train.global_step(session, step)
    except tf.errors.FailedPreconditionError:
        return None


class _State(NamedTuple):
    session: "weakref.ref[tf.Session]"
    step: int
    checkpoint: SavedCheckpoint


class SavedState:
    """The last checkpoint that a Saver wrote or restored, with its session and step."""

    def __init__(self) -> None:
        self._state: Optional[_State] = None

    def forget(self) -> None:
        """Records that no checkpoint is known to hold the state of a session."""
        self._state = None

    def record(self, session: tf.Session, step: Optional[int], checkpoint: SavedCheckpoint) -> None:
        """Records that a checkpoint holds the state of a session at a step.

        Args:
          session: The session.
          step: Its global step. None: it has none, so that its state cannot be recognized again.
          checkpoint: The checkpoint.
        """
        self._state = None if step is None else _State(weakref.ref(session), step, checkpoint)

    def is_at(self, prefix: str, session: tf.Session, step: int) -> bool:
        """Returns whether the checkpoint at ``prefix`` holds the session's state at ``step``."""
        state = self._state
        return (
            state is not None
            # Otherwise different states have the same step.
            and _counts_steps(session.graph)
            and state.session() is session
            and state.step == step
            and is_same_path(state.checkpoint.prefix, prefix)
            and state.checkpoint.is_unchanged()
            and _can_be_restored(prefix)
        )


def _counts_steps(graph: tf.Graph) -> bool:
    """Returns whether an op of the graph increments the global step."""
    step = find_global_step(graph)
    if step is None:
        return False
    handle = step.op.outputs[0]
    return any(op.type.startswith("AssignAdd") for op in handle.consumers())


def _can_be_restored(prefix: str) -> bool:
    try:
        deltas.check_lengths(prefix)
    except (tf.errors.OpError, OSError, ValueError) as error:
        tf.logging.warning("%s is written again: %s", prefix, error)
        return False
    return True
