# SPDX-License-Identifier: Apache-2.0
"""Makes a SavedModel in several steps, of which nobody sees the ones before the last."""

import os
import tempfile
from typing import Any, Callable

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.files import is_local


def staged(export_dir_base: Any, make: Callable[[str], str]) -> bytes:
    """Makes a SavedModel in a scratch folder, and moves it into place.

    Args:
      export_dir_base: Folder, local or remote, in which the SavedModel's folder is made.
      make: Makes the SavedModel in the folder that it is given, and returns its folder, whose name
        is a time stamp.

    Returns:
      The SavedModel's folder. It appears complete or not at all.
    """
    parent = tf.compat.as_str(os.fspath(export_dir_base))
    tf.io.gfile.makedirs(parent)
    # Servers ignore folders whose name is not a number. Not all remote file systems can rename
    # folders, as TensorFlow's Estimator does.
    place = parent if is_local(parent) else None
    with tempfile.TemporaryDirectory(prefix="temp-export-", dir=place) as scratch:
        made = make(scratch)
        stamp = int(os.path.basename(made))
        while tf.io.gfile.exists(os.path.join(parent, str(stamp))):
            stamp += 1
        destination = os.path.join(parent, str(stamp))
        if is_local(parent):
            os.rename(made, destination)
        else:
            _copy(made, destination)
    return tf.compat.as_bytes(destination)


def _copy(source: str, destination: str) -> None:
    """Copies a SavedModel; its graph, by which a loader knows that it is one, comes last."""
    paths = [
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, names in os.walk(source)
        for name in names
    ]
    for path in sorted(paths, key=lambda path: path.startswith("saved_model.")):
        target = os.path.join(destination, path)
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(os.path.join(source, path), target)
