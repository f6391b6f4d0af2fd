# SPDX-License-Identifier: Apache-2.0
"""Ends a run after the running step when Ctrl-C or SIGTERM asks for it."""

import signal
import threading
import types
from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run.

    Attributes:
      exit_code: What a shell reports for a process that the signal ended.
      step: The step of the last checkpoint.
    """

    def __init__(self, number: int, step: int = 0) -> None:
        super().__init__(f"{signal.Signals(number).name} at step {step:,}")
        self.number = number
        self.exit_code = 128 + number
        self.step = step


class StopAtSignals(tf.train.SessionRunHook):
    """Ends training and evaluation after the step during which SIGINT or SIGTERM arrives.

    So the hooks that save a checkpoint at the end do so. It is a context, which handles the
    signals, and a hook of each Estimator call in it. A second signal acts as it would have without
    it. Outside of the main thread, where Python handles no signals, it does nothing.

    Example:
      >>> with StopAtSignals() as stop:
      ...     # estimator.train(input_fn, hooks=[stop])
      ...     stop.check()
    """

    def __init__(self) -> None:
        self._number: Optional[int] = None
        self._previous: Dict[int, Any] = {}

    def __enter__(self) -> "StopAtSignals":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # None: a handler that is not Python's, which signal.signal() cannot set again.
                self._previous[number] = signal.getsignal(number) or signal.SIG_DFL
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _stop(self, number: int, frame: Optional[types.FrameType]) -> None:
        del frame
        self._number = number
        self.__exit__()

    @property
    def is_asked(self) -> bool:
        """Whether a signal arrived."""
        return self._number is not None

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Ends the loop if a signal arrived."""
        del run_values
        if self.is_asked:
            run_context.request_stop()

    def check(self, step: int = 0) -> None:
        """Raises Interrupted if a signal arrived.

        Args:
          step: Of the last checkpoint.
        """
        if self._number is not None:
            raise Interrupted(self._number, step)
