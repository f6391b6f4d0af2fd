# SPDX-License-Identifier: Apache-2.0
"""Finds and identifies the files of a checkpoint, and makes the folders that change them.

    model.index             names every tensor; a checkpoint exists if its index exists
    model.data-<i>-of-<n>   the bytes of the tensors; n is stored in the index
    sparse-model/           optional: the tables as plain arrays (sparse_folders.py)

``model`` with its folder is the checkpoint's prefix. atomic_checkpoint.py places these files,
removal.py removes them.
"""

import fcntl
import os
import re
import shutil
import tempfile
from typing import Iterator, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format import index_file
from rec_estimator.checkpoint.format.bundle import check_regular, sync

# Start of the names of the folders in which saves and removals work.
WORK_FOLDER = ".rec_estimator-save-"

_DATA_FILE = re.compile(r"\.data-(\d{5})-of-(\d{5})")


class Signature(NamedTuple):
    """Tells whether an index file was replaced, without reading it."""

    length: int  # bytes
    mtime_nsec: int
    inode: int  # 0 where the file system has none


class DataFile(NamedTuple):
    """The file ``<base>.data-<i>-of-<n>``."""

    name: str
    i: int
    n: int


def signature_of(prefix: str) -> Optional[Signature]:
    """Returns the signature of a checkpoint's index, None if there is no such checkpoint."""
    index = f"{prefix}.index"
    try:
        if is_local(index):
            status = os.stat(index)
            return Signature(status.st_size, status.st_mtime_ns, status.st_ino)
        stat = tf.io.gfile.stat(index)
    except (OSError, tf.errors.OpError):
        return None
    return Signature(stat.length, stat.mtime_nsec, 0)


def identity_of(prefix: str) -> Optional[str]:
    """Returns the identity that deltas store of their parent, None if it does not exist."""
    check_regular(f"{prefix}.index")
    try:
        with tf.io.gfile.GFile(f"{prefix}.index", "rb") as file:
            return index_file.identity_of(file.read())
    except tf.errors.NotFoundError:
        return None


def is_same_path(path: str, other: str) -> bool:
    """Returns whether two prefixes name the same files."""
    return path == other or os.path.abspath(path) == os.path.abspath(other)


def is_local(path: str) -> bool:
    """Returns whether the path is the operating system's, not that of a TensorFlow file system."""
    return "://" not in path


def data_files(folder: str, base: str) -> Iterator[DataFile]:
    """Yields the data files of checkpoint ``base`` in ``folder``, whatever their n."""
    try:
        names = tf.io.gfile.listdir(folder or ".")
    except tf.errors.OpError:
        return
    for name in names:
        file = parse_data_file(name)
        if file is not None and _base_of(name) == base:
            yield file


def data_paths(prefix: str) -> List[str]:
    """Returns the paths of a checkpoint's data files, whatever their n."""
    folder, base = os.path.split(prefix)
    return [os.path.join(folder, file.name) for file in data_files(folder, base)]


def parse_data_file(name: str) -> Optional[DataFile]:
    """Returns the DataFile of a file name, None if it is not a data file's."""
    match = _DATA_FILE.fullmatch(name[len(_base_of(name)) :])
    return DataFile(name, int(match.group(1)), int(match.group(2))) if match else None


def size_of(prefix: str) -> int:
    """Returns the size of a checkpoint's index and data files in bytes."""
    paths = [f"{prefix}.index", *data_paths(prefix)]
    return sum(tf.io.gfile.stat(path).length for path in paths)


def sparse_folder_of(prefix: str) -> str:
    """Returns the path of the folder with a checkpoint's tables as plain arrays."""
    folder, base = os.path.split(prefix)
    return os.path.join(folder, f"sparse-{base}")


def replace_folder(source: str, target: str) -> None:
    """Atomically moves folder ``source`` to ``target``, after removing what was there."""
    remove_folder(target)
    os.rename(source, target)
    sync(os.path.dirname(target) or ".")


def remove_folder(path: str) -> None:
    """Atomically removes a folder if it exists."""
    if not os.path.lexists(path):
        return
    away, lock = make_work_folder(os.path.dirname(path) or ".")
    try:
        os.rename(path, os.path.join(away, "removed"))
        shutil.rmtree(away, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def make_work_folder(folder: str) -> Tuple[str, Optional[int]]:
    """Makes a new folder that this process has locked.

    Args:
      folder: Where to make it.

    Returns:
      Its path, absolute, so that tasks of a cluster that work in other folders find it, and the
      file descriptor that holds the lock: None if the file system has no locks.
    """
    while True:
        path = tempfile.mkdtemp(prefix=WORK_FOLDER, dir=os.path.abspath(folder))
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # As below, but even earlier.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # Without locks, no other save removes the folder either.
            os.close(lock)
            return path, None
        # Another save may have found the folder unlocked, and removed it as abandoned.
        if os.path.exists(path):
            return path, lock
        os.close(lock)


def _base_of(name: str) -> str:
    return name.rpartition(".data-")[0]
