# SPDX-License-Identifier: Apache-2.0
"""StopAtSigtermHook: saves and ends a training when a scheduler asks for it."""

import os
import signal
import threading
import types
import weakref
from typing import Any, Optional

import tensorflow.compat.v1 as tf

# What a shell reports for a process that SIGTERM ended. Orchestrators take it for a preemption.
_EXIT_CODE = 128 + signal.SIGTERM


class StopAtSigtermHook(tf.train.SessionRunHook):
    """Ends the training after the step during which SIGTERM arrives, as after the last step.

    So the last checkpoint is saved, and the hooks end. Then the training raises SystemExit(143):
    ``finally`` blocks run, and what follows in the script does not, as after Ctrl-C. A second
    SIGTERM acts as it would have without the hook. Give the hook last: the hooks after it do not
    end.

    It works in Estimators, in ``train_and_evaluate`` (in TrainSpec) and in
    MonitoredTrainingSession; in a cluster in the chief and in workers. Without it, SIGTERM ends the
    process at once, as always in Python.

    Raises:
      ValueError: When training begins: it is not in the main thread, where Python handles signals.

    Example:
      >>> hook = rec.StopAtSigtermHook()
      >>> # estimator.train(input_fn, hooks=[hook])
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._coord: Optional[tf.train.Coordinator] = None
        self._previous: Any = signal.SIG_DFL

    def begin(self) -> None:
        """Begins to listen; called by TensorFlow when the graph is complete."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "StopAtSigtermHook must be used in the main thread, got "
                f"{threading.current_thread()}; train there, or leave the hook out"
            )
        self._is_asked, self._coord = False, None
        # None: a handler that is not Python's, which signal.signal() cannot set again.
        self._previous = previous = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
        hook = weakref.ref(self)

        def stop(number: int, frame: Optional[types.FrameType]) -> None:
            del frame
            signal.signal(number, previous)
            found = hook()
            # A training that fails does not call end().
            if found is None or (found._coord and found._coord.should_stop()):
                os.kill(os.getpid(), number)
            else:
                found._is_asked = True

        signal.signal(signal.SIGTERM, stop)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Notes the coordinator, which stops when the training ends or fails."""
        del session
        self._coord = coord

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Ends the loop if SIGTERM arrived."""
        del run_values
        if self._is_asked:
            tf.logging.warning("SIGTERM: the training saves and ends.")
            run_context.request_stop()

    def end(self, session: tf.Session) -> None:
        """Ends the process if SIGTERM arrived; the other hooks have saved.

        Raises:
          SystemExit: SIGTERM arrived during the training.
        """
        del session
        signal.signal(signal.SIGTERM, self._previous)
        if self._is_asked:
            raise SystemExit(_EXIT_CODE)
