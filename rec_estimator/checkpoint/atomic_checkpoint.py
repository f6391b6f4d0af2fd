# SPDX-License-Identifier: Apache-2.0
"""Places the files of a checkpoint atomically.

TensorFlow derives the names of the data files, ``model.data-<i>-of-<n>``, from the number n in
``model.index``. A save replaces a checkpoint in four steps:

1. Write all files, with another n, into a folder ``.rec_estimator-save-*`` next to the checkpoint.
2. Link the data files into the folder of the old ones.
3. Rename the new index over the old one. This decides which of the two checkpoints ``model`` is.
4. Remove the data files of the old n.

The process that saves holds a lock on its folder. The next save removes folders without a lock,
which belong to killed processes. A removal of a checkpoint has such a folder, too, with the names
of the files that it removes.

The folder ``sparse-model`` is placed right after the index and removed before it, so that it never
exists without its checkpoint.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
from types import TracebackType
from typing import Callable, List, NamedTuple, Optional, Set, Tuple, Type

from rec_estimator.checkpoint import removal
from rec_estimator.checkpoint.files import (
    WORK_FOLDER,
    data_files,
    make_work_folder,
    parse_data_file,
    remove_folder,
    replace_folder,
    sparse_folder_of,
    sync,
)
from rec_estimator.checkpoint.format.index_file import identity_of

# In the save's folder: the files under their final names, from where they are placed.
_PLACED = "placed"

# The index of a bundle without tensors: a table file that holds only the header. To merge it with a
# checkpoint increases the n of the data files' names by one, and adds no data file.
_EMPTY_INDEX = bytes.fromhex(
    "000006 08011a020801 00000000 01000000 00 629457f9"  # the header
    "00000000 01000000 00 c0f2a1b0"  # no meta blocks
    "000002 0011 00000000 01000000 00 ccbf8b5d"  # where the first block is
    "1608 230d" + "00" * 36 + "57fb808b247547db"  # the footer
)


class _Names(NamedTuple):
    """The final names of a checkpoint's files."""

    data: List[str]
    index_name: str
    num_files: int  # The n of the data files' names.


class AtomicCheckpoint:
    """A checkpoint that is being written, in a folder next to the one that it will replace.

    For local files. Use it in a ``with`` statement, which removes what was not placed.

    Args:
      prefix: The final prefix of the checkpoint.

    Attributes:
      prefix: Where to write the checkpoint.
      sparse_folder: Where to write the folder with its tables as plain arrays, if it shall have
        one.
    """

    def __init__(self, prefix: str) -> None:
        self._folder, self._base = os.path.split(prefix)
        self._folder = self._folder or "."
        os.makedirs(self._folder, exist_ok=True)
        _remove_abandoned_folders(self._folder)
        self._own_folder, self._lock = make_work_folder(self._folder)
        self.prefix = os.path.join(self._own_folder, self._base)
        self.sparse_folder = os.path.join(self._own_folder, "sparse")

    def __enter__(self) -> "AtomicCheckpoint":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        _remove_work_folder(self._own_folder, self._folder)
        if self._lock is not None:
            os.close(self._lock)

    def place(self, merge: Callable[[List[str], str], object]) -> str:
        """Atomically replaces the checkpoint at the final prefix by this one.

        Args:
          merge: Runs MergeV2Checkpoints on a list of prefixes and a new prefix.

        Returns:
          The identity of this checkpoint's index. The file itself may have been overwritten by
          another process already.
        """
        names = self._rename_to_final(merge)
        placed = os.path.join(self._own_folder, _PLACED)
        identity = identity_of(pathlib.Path(placed, names.index_name).read_bytes())
        for name in (*names.data, names.index_name):
            sync(os.path.join(placed, name))
        for name in names.data:
            source, target = os.path.join(placed, name), os.path.join(self._folder, name)
            try:
                # The link in our folder tells the next save, after a kill, which files are ours.
                os.link(source, target)
            except FileExistsError:
                raise
            except OSError:  # The file system has no links.
                os.rename(source, target)
        sync(self._folder)
        sparse_folder = sparse_folder_of(os.path.join(self._folder, self._base))
        has_folder = os.path.isdir(self.sparse_folder)
        if not has_folder:
            remove_folder(sparse_folder)
        os.replace(
            os.path.join(placed, names.index_name), os.path.join(self._folder, names.index_name)
        )
        sync(self._folder)
        if has_folder:
            replace_folder(self.sparse_folder, sparse_folder)
        _remove_other_data_files(self._folder, self._base, names.num_files)
        return identity

    def _rename_to_final(self, merge: Callable[[List[str], str], object]) -> _Names:
        """Moves the files into the folder _PLACED, under names that are free in the target."""
        taken = {file.n for file in data_files(self._folder, self._base)}
        num_files = num_written = len(list(data_files(self._own_folder, self._base)))
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
        names = _Names([], f"{self._base}.index", num_files)
        for written in data_files(self._own_folder, base):
            names.data.append(f"{self._base}.data-{written.i:05d}-of-{num_files:05d}")
            source = os.path.join(self._own_folder, written.name)
            os.rename(source, os.path.join(placed, names.data[-1]))
        source = f"{os.path.join(self._own_folder, base)}.index"
        os.rename(source, os.path.join(placed, names.index_name))
        return names


def _remove_work_folder(own_folder: str, folder: str) -> None:
    """Removes a save's folder, and the data files in `folder` that its end has made useless."""
    placed = os.path.join(own_folder, _PLACED)
    complete: Set[Tuple[str, int]] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(placed):
            file = parse_data_file(name)
            if file is None or not _are_one_file(placed, folder, name):
                continue
            base = name.rpartition(".data-")[0]
            if os.path.exists(os.path.join(placed, f"{base}.index")):
                # The index was not placed: no index names this file.
                os.remove(os.path.join(folder, name))
            else:
                complete.add((base, file.n))
    for base, num_files in complete:
        _remove_other_data_files(folder, base, num_files)
    if removal.finish(own_folder, folder):
        shutil.rmtree(own_folder, ignore_errors=True)


def _are_one_file(folder: str, other: str, name: str) -> bool:
    try:
        return os.path.samefile(os.path.join(folder, name), os.path.join(other, name))
    except OSError:
        return False


def _remove_other_data_files(folder: str, base: str, num_files: int) -> None:
    """Removes the data files of a checkpoint whose n is not `num_files`."""
    for file in data_files(folder, base):
        if file.n != num_files:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, file.name))


def _remove_abandoned_folders(folder: str) -> None:
    """Removes the folders of saves and removals whose process was killed, and what they left."""
    for name in os.listdir(folder):
        if not name.startswith(WORK_FOLDER):
            continue
        path = os.path.join(folder, name)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            # Fails while the process lives: the kernel releases the locks of a dead process.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_work_folder(path, folder)
        except OSError:
            pass
        finally:
            os.close(lock)
