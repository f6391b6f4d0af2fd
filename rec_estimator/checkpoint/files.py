# SPDX-License-Identifier: Apache-2.0
"""Where the files of a checkpoint are: put into place whole, told apart, and taken away.

A checkpoint ``model`` is ``model.index``, which names everything in it, and the data files
``model.data-<i>-of-<n>``, whose names follow from the n in the index. So a checkpoint is replaced
by one with another n: its data files come beside the old ones, and the moment the new index is
renamed over the old one decides which of the two it is. Until then all is in a folder
``.rec_estimator-save-*`` beside it, locked by the process that writes it; the next save removes
what a killed process left there.

A folder ``sparse-model`` beside it, if there is one, holds the same tables as plain arrays:
sparse_folders.py. It is put into place, whole, right after the index and is taken away before it:
where the folder is, there is the checkpoint.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format import index_file

_FOLDER = ".rec_estimator-save-"

# In that folder: the files that are linked into place, under the names they have there.
_PLACED = "placed"

# The index of a bundle without tensors: a table file with the header alone. Merged with a
# checkpoint it makes the n of the data files' names one higher, and adds no data file.
_EMPTY_INDEX = bytes.fromhex(
    "000006 08011a020801 00000000 01000000 00 629457f9"  # the header
    "00000000 01000000 00 c0f2a1b0"  # no meta blocks
    "000002 0011 00000000 01000000 00 ccbf8b5d"  # the block above
    "1608 230d" + "00" * 36 + "57fb808b247547db"  # the footer
)

# What helps against an error of the file system.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room there or save elsewhere"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change its mode or save elsewhere"),
    errno.ENAMETOOLONG: "files have longer names than it: choose a shorter one",
    errno.EEXIST: "another job may be writing it: give each a folder of its own",
    errno.ENOTDIR: "save elsewhere",
    errno.ENOENT: "save elsewhere",
}

_DATA_FILE = re.compile(r"\.data-(\d{5})-of-(\d{5})")


class Signature(NamedTuple):
    """What tells an index file from another one of its name."""

    length: int  # bytes
    mtime_nsec: int
    inode: int  # 0 where files have none


def signature_of(prefix: str) -> Optional[Signature]:
    """The signature of a checkpoint's index, None if there is no such checkpoint."""
    index = f"{prefix}.index"
    try:
        if is_local(index):
            status = os.stat(index)
            return Signature(status.st_size, status.st_mtime_ns, status.st_ino)
        stat = tf.io.gfile.stat(index)
    except (OSError, tf.errors.OpError):
        return None
    return Signature(stat.length, stat.mtime_nsec, 0)


@contextlib.contextmanager
def explaining(prefix: str) -> Iterator[None]:
    """Makes an error of the file system say which path it is about and what helps."""

    def explained(error: Any, code: int) -> str:
        return (
            "save_path must be a prefix in a folder that can be written and has room, got "
            f"{prefix!r}: {error}; {_REMEDIES[code]}"
        )

    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        raise type(error)(error.errno, explained(error, error.errno)) from error
    except tf.errors.OpError as error:
        # What C++ was told by the system it has in words only.
        for code in _REMEDIES:
            if f"; {os.strerror(code)}" in error.message:
                message = explained(os.strerror(code), code)
                raise type(error)(error.node_def, error.op, message) from error
        raise


def identity_of(prefix: str) -> Optional[str]:
    """What a checkpoint is known by to its deltas, None if there is no such checkpoint."""
    try:
        with tf.io.gfile.GFile(f"{prefix}.index", "rb") as file:
            return index_file.identity_of(file.read())
    except tf.errors.NotFoundError:
        return None


def is_one_path(path: str, other: str) -> bool:
    """Whether two prefixes are the same place."""
    return path == other or os.path.abspath(path) == os.path.abspath(other)


def is_local(prefix: str) -> bool:
    """Whether the operating system, and not a file system of TensorFlow's, has the path."""
    return "://" not in prefix


def size_of(prefix: str) -> int:
    """Bytes of a checkpoint's files."""
    paths = [f"{prefix}.index", *_data_files(prefix)]
    return sum(tf.io.gfile.stat(path).length for path in paths)


def remove(prefix: str, meta_graph_suffix: str = "meta") -> None:
    """Removes a checkpoint: first its index, so that what is left of it is none."""
    if is_local(prefix):
        remove_folder(sparse_folder_of(prefix))
    for path in (f"{prefix}.index", *_data_files(prefix), f"{prefix}.{meta_graph_suffix}"):
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(path)


def sparse_folder_of(prefix: str) -> str:
    """Path of the folder with a checkpoint's tables as plain arrays."""
    folder, base = os.path.split(prefix)
    return os.path.join(folder, f"sparse-{base}")


def place_folder(source: str, target: str) -> None:
    """Makes a folder that is written be `target`, instead of what is there."""
    remove_folder(target)
    os.rename(source, target)
    sync(os.path.dirname(target) or ".")


def remove_folder(path: str) -> None:
    """Removes a folder, if it is there, from one moment to the next."""
    if not os.path.lexists(path):
        return
    away, lock = _make_locked_folder(os.path.dirname(path) or ".")
    try:
        os.rename(path, os.path.join(away, "removed"))
        shutil.rmtree(away, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _data_files(prefix: str) -> List[str]:
    folder, base = os.path.split(prefix)
    return [os.path.join(folder, name) for name, _ in _named_data_files(folder, base)]


def _named_data_files(folder: str, base: str) -> Iterator[Tuple[str, int]]:
    """(file name, n) of every file `base`.data-?????-of-<n> in a folder."""
    try:
        names = tf.io.gfile.listdir(folder or ".")
    except tf.errors.OpError:
        return
    for name in names:
        match = _DATA_FILE.fullmatch(name[len(base) :]) if name.startswith(base) else None
        if match:
            yield name, int(match.group(2))


class Parent(NamedTuple):
    """The checkpoint that a delta holds the changes to."""

    prefix: str
    identity: Optional[str]  # Of its index; None: written by an older release.


def check_parents(prefix: str) -> None:
    """Refuses a delta if one of the checkpoints that it builds on is not what it was.

    The op that restores a table checks this as well; here is how to know it before anything is
    changed.

    Args:
      prefix: Of a checkpoint; one that is whole passes.

    Raises:
      tf.errors.NotFoundError: One is gone.
      tf.errors.DataLossError: One was written again, or is another one of that name.
    """
    seen: Set[str] = set()
    parent = _read_parent(prefix)
    while parent is not None and prefix not in seen:
        seen.add(prefix)
        identity = identity_of(parent.prefix)
        if identity is None:
            message = (
                f"checkpoint {parent.prefix} must be there, as {prefix} holds the changes to it, "
                "got none; copy its files beside or restore another checkpoint"
            )
            raise tf.errors.NotFoundError(None, None, message)
        if parent.identity is None:
            tf.logging.log_first_n(
                tf.logging.WARN,
                "%s does not say which %s it holds the changes to, as older releases' checkpoints "
                "do not: another one of that name would not be noticed. Save in full.",
                1,
                prefix,
                parent.prefix,
            )
        elif parent.identity != identity:
            message = (
                f"checkpoint {parent.prefix} must be the one that {prefix} holds the changes to, "
                f"with an index of identity {parent.identity}, got {identity}; it was written "
                "again or exchanged: bring back its files, or restore a checkpoint that does not "
                "build on it"
            )
            raise tf.errors.DataLossError(None, None, message)
        prefix, parent = parent.prefix, _read_parent(parent.prefix)


class Deltas:
    """Which checkpoints of a folder are deltas, and of which parent.

    Reads an index once for each time it was written.
    """

    def __init__(self) -> None:
        self._parents: Dict[str, Tuple[Signature, Optional[Parent]]] = {}

    def parent_of(self, prefix: str) -> Optional[str]:
        """Prefix of the checkpoint that this one is a delta of, None if it is whole or gone."""
        signature = signature_of(prefix)
        if signature is None:
            return None
        known = self._parents.get(prefix)
        if known is None or known[0] != signature:
            known = (signature, _read_parent(prefix))
            self._parents[prefix] = known
        return known[1] and known[1].prefix

    def family_of(self, prefix: str) -> "Family":
        """The checkpoints in the folder of `prefix`, as they are now."""
        folder = os.path.dirname(prefix)
        try:
            files = tf.io.gfile.listdir(folder or ".")
        except tf.errors.OpError:
            files = []
        names = [name[: -len(".index")] for name in sorted(files) if name.endswith(".index")]
        parents = {name: self.parent_of(os.path.join(folder, name)) for name in names}
        return Family(folder, {n: p and os.path.basename(p) for n, p in parents.items()})


class Family(NamedTuple):
    """The checkpoints of a folder, by name, and of which other each is a delta."""

    folder: str
    parents: Dict[str, Optional[str]]

    def dependents_of(self, prefix: str) -> List[str]:
        """Prefixes of those that need this one to be restored."""
        name = os.path.basename(prefix)
        return [os.path.join(self.folder, n) for n in self.parents if self._needs(n, name)]

    def without(self, prefix: str) -> "Family":
        """The others."""
        name = os.path.basename(prefix)
        return Family(self.folder, {n: p for n, p in self.parents.items() if n != name})

    def _needs(self, name: str, other: str) -> bool:
        seen = {name}
        parent = self.parents.get(name)
        while parent is not None and parent not in seen:
            if parent == other:
                return True
            seen.add(parent)
            parent = self.parents.get(parent)
        return False


def _read_parent(prefix: str) -> Optional[Parent]:
    try:
        reader = tf.train.NewCheckpointReader(prefix)
        for name in reader.get_variable_to_shape_map():
            if name.endswith("-delta_of"):
                parent = os.path.join(os.path.dirname(prefix), reader.get_tensor(name).decode())
                has_identity = reader.has_tensor(f"{name}_index")
                identity = reader.get_tensor(f"{name}_index").decode() if has_identity else None
                return Parent(parent, identity)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError):
        # Damaged, or removed meanwhile: restoring it will say so. TensorFlow's reader has no class
        # of its own for errors of the data files.
        return None
    return None


class PendingCheckpoint:
    """A checkpoint while it is written, out of the way of the one that it will replace.

    For local files. Use as a context: what is not placed when it ends is removed.

    Args:
      prefix: Where the checkpoint will be.

    Attributes:
      prefix: Where to write it meanwhile.
      sparse_folder: Where to write, if at all, the folder with its tables as plain arrays.
    """

    def __init__(self, prefix: str) -> None:
        self._folder, self._base = os.path.split(prefix)
        self._folder = self._folder or "."
        os.makedirs(self._folder, exist_ok=True)
        _remove_what_killed_saves_left(self._folder)
        self._own_folder, self._lock = _make_locked_folder(self._folder)
        self.prefix = os.path.join(self._own_folder, self._base)
        self.sparse_folder = os.path.join(self._own_folder, "sparse")

    def __enter__(self) -> "PendingCheckpoint":
        return self

    def __exit__(self, *exception: Any) -> None:
        _finish(self._own_folder, self._folder)
        if self._lock is not None:
            os.close(self._lock)

    def place(self, merge: Callable[[List[str], str], Any]) -> str:
        """Makes it the checkpoint `prefix`, from one moment to the next.

        Args:
          merge: Of prefixes and a new prefix: MergeV2Checkpoints.

        Returns:
          The identity of its index, as it was written here: another process may have written that
          prefix since.
        """
        names, num_files = self._rename_to_final(merge)
        placed = os.path.join(self._own_folder, _PLACED)
        identity = identity_of(os.path.join(placed, self._base))
        for name in names:
            sync(os.path.join(placed, name))
        *data, index = names
        for name in data:
            source, target = os.path.join(placed, name), os.path.join(self._folder, name)
            try:
                # A link, so that after a kill the folder still tells which of the files are ours.
                os.link(source, target)
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                os.rename(source, target)
        sync(self._folder)
        sparse_folder = os.path.join(self._folder, f"sparse-{self._base}")
        has_folder = os.path.isdir(self.sparse_folder)
        if not has_folder:
            remove_folder(sparse_folder)
        os.replace(os.path.join(placed, index), os.path.join(self._folder, index))
        sync(self._folder)
        if has_folder:
            place_folder(self.sparse_folder, sparse_folder)
        _remove_data_files_but(self._folder, self._base, num_files)
        return identity

    def _rename_to_final(self, merge: Callable[[List[str], str], Any]) -> Tuple[List[str], int]:
        """Gives the files names that are free in their place; the index comes last."""
        taken = {n for _, n in _named_data_files(self._folder, self._base)}
        num_files = num_written = len(list(_named_data_files(self._own_folder, self._base)))
        while num_files in taken:
            num_files += 1
        base, fillers = self._base, []
        for i in range(num_files - num_written):
            fillers.append(os.path.join(self._own_folder, f"filler-{i}"))
            with open(f"{fillers[-1]}.index", "wb") as file:
                file.write(_EMPTY_INDEX)
        if fillers:
            base = f"{self._base}-renumbered"
            merge([self.prefix, *fillers], os.path.join(self._own_folder, base))
        placed = os.path.join(self._own_folder, _PLACED)
        os.mkdir(placed)
        names = []
        for name, _ in _named_data_files(self._own_folder, base):
            number = _DATA_FILE.fullmatch(name[len(base) :]).group(1)
            names.append(f"{self._base}.data-{number}-of-{num_files:05d}")
            os.rename(os.path.join(self._own_folder, name), os.path.join(placed, names[-1]))
        names.append(f"{self._base}.index")
        os.rename(f"{os.path.join(self._own_folder, base)}.index", os.path.join(placed, names[-1]))
        return names, num_files


def _finish(own_folder: str, folder: str) -> None:
    """Removes a save's folder, and what of it is in the place of a checkpoint but of no use."""
    placed = os.path.join(own_folder, _PLACED)
    linked: Set[Tuple[str, int]] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(placed):
            base, _, rest = name.rpartition(".data-")
            match = _DATA_FILE.fullmatch(f".data-{rest}")
            if not base or not match or not _are_one_file(placed, folder, name):
                continue
            if os.path.exists(os.path.join(placed, f"{base}.index")):
                # No index in place names the file yet.
                os.remove(os.path.join(folder, name))
            else:
                linked.add((base, int(match.group(2))))
    for base, num_files in linked:
        _remove_data_files_but(folder, base, num_files)
    shutil.rmtree(own_folder, ignore_errors=True)


def _are_one_file(folder: str, other: str, name: str) -> bool:
    try:
        return os.path.samefile(os.path.join(folder, name), os.path.join(other, name))
    except OSError:
        return False


def _remove_data_files_but(folder: str, base: str, num_files: int) -> None:
    for name, n in _named_data_files(folder, base):
        if n != num_files:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, name))


def _make_locked_folder(folder: str) -> Tuple[str, Optional[int]]:
    """A new folder in `folder` and the descriptor that holds its lock, if there are locks."""
    while True:
        path = tempfile.mkdtemp(prefix=_FOLDER, dir=folder)
        lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # no locks here: nobody will take the folder for abandoned
            os.close(lock)
            return path, None
        # Before the lock was ours, another process may have found the folder abandoned.
        if os.path.exists(path):
            return path, lock
        os.close(lock)


def _remove_what_killed_saves_left(folder: str) -> None:
    for name in os.listdir(folder):
        if not name.startswith(_FOLDER):
            continue
        path = os.path.join(folder, name)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            # The kernel lets go of a dead process's lock.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _finish(path, folder)
        except OSError:
            pass
        finally:
            os.close(lock)


def sync(path: str) -> None:
    """Waits until the disk has it: else a power cut could leave an index of missing data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not for folders on some systems
            raise
    finally:
        os.close(descriptor)
