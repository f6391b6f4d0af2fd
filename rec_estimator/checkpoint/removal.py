# SPDX-License-Identifier: Apache-2.0
"""Removes checkpoints, so that the next save finishes a removal whose process was killed.

A removal on a local disk has a folder ``.rec_estimator-save-*``, as a save has. The file
``removed.json`` in it says which files it removes:

    {"names": ["m-1.index", "m-1.data-00000-of-00001", "m-1.meta"],
     "signature": [length, time of change, inode],    # of the index
     "state_file": "checkpoint"}                      # or null

A killed removal with a state file is finished if that file does not name the checkpoint any more.
A removal without one is finished only if it has removed the index. Nothing is removed if the
checkpoint was saved anew since.
"""

import contextlib
import json
import os
import shutil
import stat
from types import TracebackType
from typing import Any, List, NamedTuple, Optional, Type

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import files

_LIST = "removed.json"
_MOST_BYTES = 1 << 24  # The longest list that is read.

# Start of the name that the folder of a removal gets if its list cannot be understood.
_ASIDE = ".rec_estimator-not-understood-"


class _List(NamedTuple):
    """What ``removed.json`` says."""

    names: List[str]  # The index first.
    signature: files.Signature
    state_file: Optional[str]


class Removal:
    """The removal of one checkpoint.

    Use it in a ``with`` statement; ``run()`` removes the files, the index first, so that what a
    crash leaves is not taken for a checkpoint.

    Args:
      prefix: Prefix of the checkpoint.
      meta_graph_suffix: Suffix of the MetaGraph's file.
      state_file: Name of the state file from which the checkpoint's name is removed between the
        construction and run(). None: the checkpoint is to be removed whether or not one names it.

    Raises:
      OSError: The folder of the removal cannot be made.
    """

    def __init__(
        self, prefix: str, meta_graph_suffix: str = "meta", state_file: Optional[str] = None
    ) -> None:
        self._prefix = prefix
        meta_graph = f"{prefix}.{meta_graph_suffix}"
        self._paths = [f"{prefix}.index", *files.data_paths(prefix), meta_graph]
        self._own_folder: Optional[str] = None
        self._lock: Optional[int] = None
        signature = files.signature_of(prefix)
        if not files.is_local(prefix) or signature is None:
            return
        self._own_folder, self._lock = files.make_work_folder(os.path.dirname(prefix) or ".")
        names = [os.path.basename(path) for path in self._paths]
        path = os.path.join(self._own_folder, _LIST)
        try:
            with open(f"{path}.unfinished", "w") as file:
                json.dump({"names": names, "signature": signature, "state_file": state_file}, file)
            os.replace(f"{path}.unfinished", path)
        except OSError:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> "Removal":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def run(self, removes_sparse_folder: bool = True) -> None:
        """Removes the files.

        Args:
          removes_sparse_folder: Whether to remove the folder with the tables as plain arrays, too.

        Raises:
          OSError, tf.errors.OpError: A file cannot be removed.
        """
        if not files.is_local(self._prefix):
            for path in self._paths:
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(path)
            return
        if removes_sparse_folder:
            files.remove_folder(files.sparse_folder_of(self._prefix))
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def remove(prefix: str, meta_graph_suffix: str = "meta") -> None:
    """Removes a checkpoint.

    Raises:
      OSError, tf.errors.OpError: A file cannot be removed.
    """
    with Removal(prefix, meta_graph_suffix) as removal:
        removal.run()


def finish(own_folder: str, folder: str) -> bool:
    """Finishes a killed removal, or does nothing if the folder is of a save.

    Args:
      own_folder: The folder of the removal.
      folder: The folder of the checkpoint.

    Returns:
      Whether own_folder is still there. False: its list could not be understood, so it was moved
      aside with a warning, and nothing was removed.
    """
    path = os.path.join(own_folder, _LIST)
    try:
        listed = _parse(_read(path))
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError) as error:
        return _move_aside(own_folder, folder, str(error))
    prefix = os.path.join(folder, listed.names[0][: -len(".index")])
    signature = files.signature_of(prefix)
    if signature is not None:
        if signature != listed.signature or not _is_given_up(prefix, listed.state_file):
            return True
        files.remove_folder(files.sparse_folder_of(prefix))
    for name in listed.names:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(folder, name))
    return True


def _read(path: str) -> str:
    # Without O_NONBLOCK, to open a FIFO waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, errors="replace") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} must be a regular file")
        return file.read(_MOST_BYTES)


def _parse(text: str) -> _List:
    """Reads a list; a ValueError says which part is not what Removal writes."""
    content = json.loads(text)
    if not isinstance(content, dict) or set(content) != {"names", "signature", "state_file"}:
        raise ValueError("it must have the keys names, signature and state_file")
    names, state_file = content["names"], content["state_file"]
    if not isinstance(names, list) or not all(map(_is_file_name, names)) or not names:
        raise ValueError("names must be names of files")
    base, dot, suffix = names[0].rpartition(".")
    if (dot, suffix) != (".", "index") or not base:
        raise ValueError(f"names must begin with an index, got {names[0]!r}")
    for name in names[1:]:
        is_data = files.parse_data_file(name) is not None and name.rpartition(".data-")[0] == base
        is_meta_graph = name.rpartition(".")[0] == base and not name.endswith(".index")
        if not is_data and not is_meta_graph:
            raise ValueError(f"names must be files of {base!r}, got {name!r}")
    if state_file is not None and not _is_file_name(state_file):
        raise ValueError(f"state_file must be the name of a file, got {state_file!r}")
    signature = content["signature"]
    if not isinstance(signature, list) or [type(n) for n in signature] != [int, int, int]:
        raise ValueError(f"signature must be three integers, got {signature!r}")
    return _List(names, files.Signature(*signature), state_file)


def _is_file_name(name: Any) -> bool:
    return (
        isinstance(name, str) and os.path.basename(name) == name and "\0" not in name and name != ""
    )


def _is_given_up(prefix: str, state_file: Optional[str]) -> bool:
    """Whether the state file, which was to be written, does not name the checkpoint any more."""
    if state_file is None:
        return False
    folder = os.path.dirname(prefix)
    state = tf.train.get_checkpoint_state(folder, state_file)
    if state is None:
        return False
    named = [*state.all_model_checkpoint_paths, state.model_checkpoint_path]
    return not any(files.is_same_path(path, prefix) for path in named)


def _move_aside(own_folder: str, folder: str, why: str) -> bool:
    name = _ASIDE + os.path.basename(own_folder)[len(files.WORK_FOLDER) :]
    aside = os.path.join(folder, name)
    tf.logging.warning(
        "%s does not say which files a removal was to remove: %s. It is moved to %s, and nothing "
        "is removed.",
        os.path.join(own_folder, _LIST),
        why,
        aside,
    )
    os.rename(own_folder, aside)
    return False
