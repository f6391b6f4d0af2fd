# SPDX-License-Identifier: Apache-2.0
"""Applies the deltas that a training writes to a model that serves, as they arrive."""

import os
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.deltas import Deltas
from rec_estimator.checkpoint.files import Signature, signature_of
from rec_estimator.serving.model_session import Refreshed
from rec_estimator.serving.predictor import SavedModelPredictor


class Lag(NamedTuple):
    """How far a model is behind the deltas in its folder.

    Attributes:
      step: The global step of the model; -1 until the first look.
      checkpoint: The name of the checkpoint that the model has.
      waiting: The number of deltas that build on it and are not applied.
      secs: Seconds since the oldest of them arrived; 0.0 if there is none.
      error: Why the last look did not apply them all; None if it did.
    """

    step: int
    checkpoint: str
    waiting: int
    secs: float
    error: Optional[str]


class Follower:
    """Looks for deltas in a background thread and applies them in order.

    A delta names the checkpoint that it holds the changes to, so the next one is the one that names
    the checkpoint of the model. If a training has removed it already, load a newer export.

    Args:
      refresh: Applies a delta by its name; for "" it says what the model has.
      folder: The folder of the deltas.
      poll_secs: Seconds between two looks.
    """

    def __init__(self, refresh: Callable[[str], Refreshed], folder: str, poll_secs: float) -> None:
        self._refresh = refresh
        self._folder = folder
        self._poll_secs = poll_secs
        self._known: Dict[Tuple[str, Signature], str] = {}  # What _children found.
        self._lag = Lag(-1, "", 0, 0.0, None)
        self._oldest: Optional[float] = None  # When the oldest waiting delta arrived.
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="follower", daemon=True)
        self._thread.start()

    @property
    def lag(self) -> Lag:
        """How far the model is behind."""
        oldest = self._oldest
        secs = 0.0 if oldest is None else max(0.0, time.time() - oldest)
        return self._lag._replace(secs=secs)

    def close(self) -> None:
        """Stops to follow. The model stays as it is."""
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def _watch(self) -> None:
        while True:
            error = self._catch_up()
            if error is not None and error != self._lag.error:
                tf.logging.warning("deltas of %s: %s", self._folder, error)
            self._lag = self._lag._replace(error=error)
            if self._stopped.wait(self._poll_secs):
                return

    def _catch_up(self) -> Optional[str]:
        """Applies all deltas that are there; returns why it could not."""
        try:
            now = self._refresh("")
            while not self._stopped.is_set():
                waiting = self._waiting(now.checkpoint)
                self._oldest = _arrival(waiting[0]) if waiting else None
                self._lag = self._lag._replace(
                    step=now.step, checkpoint=now.checkpoint, waiting=len(waiting)
                )
                if not waiting:
                    break
                now = self._refresh(os.path.basename(waiting[0]))
        # RuntimeError: the predictor is closed. ValueError: the model has no such signature.
        except (OSError, tf.errors.OpError, RuntimeError, ValueError) as error:
            return str(error)
        return None

    def _waiting(self, checkpoint: str) -> List[str]:
        """The prefixes of the deltas that lead on from a checkpoint, in their order."""
        children = self._children()
        found: List[str] = []
        while checkpoint in children and len(found) < len(children):
            checkpoint = children[checkpoint]
            found.append(os.path.join(self._folder, checkpoint))
        return found

    def _children(self) -> Dict[str, str]:
        """{name of a checkpoint: name of the delta in the folder that holds the changes to it}.

        Of several deltas the newest: a training that was killed may have left another one.
        """
        known = {}
        for file in tf.io.gfile.listdir(self._folder):
            name, suffix = os.path.splitext(file)
            prefix = os.path.join(self._folder, name)
            signature = signature_of(prefix) if suffix == ".index" else None
            if signature is None:
                continue
            # Not one Deltas for all looks: it would remember what it could not read yet.
            parent = self._known.get((name, signature)) or Deltas().parent_of(prefix)
            if parent is not None:
                known[name, signature] = parent
        self._known = known
        by_age = sorted(known.items(), key=lambda item: item[0][1].mtime_nsec)
        return {os.path.basename(parent): name for (name, _), parent in by_age}


def follow(model: SavedModelPredictor, folder: str, poll_secs: float = 1.0) -> Follower:
    """Keeps a model up to date with the deltas that arrive in a folder.

    Args:
      model: A predictor of a SavedModel that was exported with ``refreshable=True``.
      folder: The folder of the deltas: the one that the export names.
      poll_secs: Seconds between two looks.

    Returns:
      A follower, whose ``lag`` tells how far the model is behind. Close it before the model, or use
      both as context managers.

    Raises:
      ValueError: The model is not refreshable.

    Example:
      >>> # with rec.serving.load_predictor("export/1732702030") as predict:
      >>> #     with rec.serving.follow(predict, "model") as follower:
      >>> #         predict({"user": [7]}), follower.lag.secs
    """
    model.refresh("")
    return Follower(model.refresh, folder, poll_secs)


def _arrival(prefix: str) -> float:
    return tf.io.gfile.stat(f"{prefix}.index").mtime_nsec / 1e9
