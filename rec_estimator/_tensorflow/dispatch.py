# SPDX-License-Identifier: Apache-2.0
"""Private base class of what handles the failed calls of TensorFlow's functions.

Checked on TensorFlow 2.15 and 2.21.
"""

from typing import Any, Callable, Tuple

from tensorflow.python.util import dispatch as _dispatch


class _Refusal(_dispatch.GlobalOpDispatcher):
    """Raises an error for a call that failed and has an argument of a type."""

    def __init__(self, kind: Tuple[type, ...], error: Callable[[Any], Exception]) -> None:
        self._kind = kind
        self._error = error

    def handle(self, op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """TensorFlow calls this where ``op(*args, **kwargs)`` raised a TypeError or ValueError."""
        del op
        for argument in (*args, *kwargs.values()):
            for part in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(part, self._kind):
                    raise self._error(part)
        return self.NOT_SUPPORTED


def explain_failed_calls(kind: Tuple[type, ...], error: Callable[[Any], Exception]) -> None:
    """Makes TensorFlow's functions raise an error where an argument of theirs made them fail.

    A function that takes a list, such as tf.concat, does not tell why it cannot convert a member.

    Args:
      kind: Types of arguments, or of members of arguments.
      error: Makes the error from the first such argument.
    """
    # The public way, tf.experimental.dispatch_for_api, needs each function by name.
    _Refusal(kind, error).register()
