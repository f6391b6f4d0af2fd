# SPDX-License-Identifier: Apache-2.0
"""Tells errors that a user can cause from mistakes of the program, which keep their traceback."""

import re
import traceback
from typing import Optional

import tensorflow.compat.v1 as tf

from model_zoo.data import DataUnavailableError

_NOT_A_NUMBER = (
    "losses must be finite, got one that is not; choose a smaller learning_rate, or limit the "
    "gradients with train.clip_norm"
)
# A ValueError in one of these comes from a graph that cannot be built.
_LIBRARIES = re.compile(r"[/\\](tensorflow|tensorflow_estimator|keras|tf_keras|numpy)[/\\]")
# Of the data, of a batch, and of a kernel of rec_estimator.
_SAID = (
    r"^ValueError: (.*)",
    r"assertion failed: \[(.* must .*?)\]",
    r"^(.* must be .*, got .*)",
)
# Errors about files and memory, whatever the graph is.
_OF_THE_MACHINE = (
    tf.errors.DataLossError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
)


def sentence_of(error: BaseException) -> Optional[str]:
    """Returns what a user should read about an error; None: its traceback.

    Example:
      >>> sentence_of(OSError("No space left on device"))
      'No space left on device'
    """
    if isinstance(error, tf.train.NanLossDuringTrainingError):
        return _NOT_A_NUMBER
    if isinstance(error, tf.errors.OpError):
        return _sentence_of_op(error)
    if isinstance(error, ValueError):
        frames = traceback.extract_tb(error.__traceback__)
        is_of_library = frames and _LIBRARIES.search(frames[-1].filename)
        return None if is_of_library else str(error)
    if isinstance(error, (DataUnavailableError, ImportError, OSError)):
        return str(error)
    return None


def _sentence_of_op(error: tf.errors.OpError) -> Optional[str]:
    """An op's error has the graph in it; the sentence is what a check of ours says."""
    if "Tensor had NaN" in error.message or "Tensor had Inf" in error.message:
        return _NOT_A_NUMBER
    for said in _SAID:
        found = re.search(said, error.message, re.MULTILINE)
        if found:
            return found[1]
    is_of_machine = isinstance(error, _OF_THE_MACHINE) or "No such file" in error.message
    lines = [line for line in error.message.splitlines() if line.strip()]
    if not is_of_machine or not lines:
        return None
    return lines[1] if lines[0].startswith("Graph execution error") and lines[1:] else lines[0]
