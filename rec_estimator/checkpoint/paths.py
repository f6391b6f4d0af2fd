# SPDX-License-Identifier: Apache-2.0
"""Checks the path arguments of ``Saver.save`` and ``Saver.restore`` and explains their errors.

For a path without a file name, a stock Saver writes hidden files, such as ``.index``, or files that
are named like a folder. ``rec_estimator.Saver`` refuses such paths before it writes anything.
"""

import contextlib
import errno
import os
from typing import Iterator, Type, Union

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import check_prefix

_RULE = "save_path must be the prefix of the checkpoint's files, as dir/model of dir/model.index"

# Remedies for errors of the file system.
_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free space there or save elsewhere"
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change its mode or save elsewhere"),
    errno.ENAMETOOLONG: "the checkpoint's file names are longer: choose a shorter one",
    errno.EEXIST: "another job may be writing it: give each job its own folder",
    errno.ENOTDIR: "save elsewhere",
    errno.ENOENT: (
        "save elsewhere; in a cluster, give an absolute path on a file system that all tasks share"
    ),
}


def check_save_path(save_path: str) -> None:
    """Checks that a ``save_path`` has a file name."""
    if not os.path.basename(save_path):
        raise ValueError(
            f"{_RULE}, got {save_path!r}; add a file name, as in "
            f"{os.path.join(save_path, 'model')!r}"
        )


def check_save_prefix(prefix: str) -> None:
    """Checks that a ``save_path``, with the step appended, is not a folder."""
    if tf.io.gfile.isdir(prefix):
        raise ValueError(
            f"{_RULE}, got {prefix!r}, a folder; pass {os.path.join(prefix, 'model')!r}"
        )


def prefix_of_step(
    session: tf.Session,
    save_path: str,
    global_step: Union[int, str, tf.Tensor, None],
    digits: int = 1,
) -> str:
    """Returns a ``save_path`` with the step appended.

    Args:
      session: The session that holds the step.
      save_path: The argument of the user.
      global_step: An integer, a tensor or a tensor's name. None: no step is appended.
      digits: The least number of digits of the step.

    Raises:
      ValueError: The step is an array.
    """
    if global_step is None:
        return save_path
    if isinstance(global_step, np.ndarray) and global_step.shape:
        # A hook passes what the variable holds: a restore may have given it this shape.
        raise ValueError(
            f"global_step must be an integer of shape [], got an array of shape "
            f"{list(global_step.shape)}; restore a checkpoint that is whole"
        )
    if not isinstance(global_step, (int, np.integer)):
        global_step = tf.train.global_step(session, global_step)
    return f"{save_path}-{int(global_step):0{digits}d}"


def check_restore_path(path: str) -> None:
    """Checks that the ``save_path`` of a restore is the prefix of a checkpoint."""
    try:
        check_prefix("save_path", path, allows_v1=True)
    except OSError as error:  # A stock Saver raises ValueError.
        raise ValueError(str(error)) from None


def check_latest_filename(latest_filename: str, prefix: str) -> None:
    """Checks the name of the checkpoint state file of a save to ``prefix``."""
    if os.path.basename(latest_filename) != latest_filename:
        raise ValueError(
            f"latest_filename must be a name without a folder, got {latest_filename!r}; the file "
            "is written next to the checkpoint"
        )
    path = os.path.join(os.path.dirname(prefix), latest_filename)
    if tf.io.gfile.isdir(path):
        raise ValueError(
            f"latest_filename must not be a folder, got {path!r}; remove it or choose another name"
        )
    if os.path.basename(prefix) == latest_filename:
        raise ValueError(
            f"latest_filename must differ from the checkpoint's name, got {latest_filename!r} for "
            f"{prefix!r}; save to another name"
        )


@contextlib.contextmanager
def failing_for_good(
    prefix: str, session: tf.Session, out_of_range: Type[tf.errors.OpError]
) -> Iterator[None]:
    """Changes the class of errors that training loops of TensorFlow do not take for errors.

    They end without an error at OutOfRangeError, as at the end of the data, and start again for
    ever after AbortedError and UnavailableError, as when a server has died. File systems raise
    these classes, too: OutOfRangeError for a file that is larger than a limit or that was cut.

    Args:
      prefix: Prefix of the checkpoint.
      session: The session that saves or restores. The errors that it raises if a server of its
        cluster has died are left alone.
      out_of_range: What replaces OutOfRangeError.
    """
    try:
        yield
    except (tf.errors.OutOfRangeError, tf.errors.AbortedError, tf.errors.UnavailableError) as error:
        is_end = isinstance(error, tf.errors.OutOfRangeError)
        if session.sess_str and not is_end:  # Its server; empty in this process.
            raise
        kind = out_of_range if is_end else tf.errors.UnknownError
        message = error.message if prefix in error.message else f"{prefix}: {error.message}"
        raise kind(error.node_def, error.op, message) from error


@contextlib.contextmanager
def explaining(prefix: str) -> Iterator[None]:
    """Adds the path and a remedy to the file system's errors in a ``with`` block."""

    def explain(error: object, code: int) -> str:
        return (
            "save_path must be in a writable folder with free space, got "
            f"{prefix!r}: {error}; {_REMEDIES[code]}"
        )

    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        raise type(error)(error.errno, explain(error, error.errno)) from error
    except tf.errors.OpError as error:
        # TensorFlow keeps of errno only the system's text for it.
        for code in _REMEDIES:
            if f"; {os.strerror(code)}" in error.message:
                message = explain(os.strerror(code), code)
                raise type(error)(error.node_def, error.op, message) from error
        raise
