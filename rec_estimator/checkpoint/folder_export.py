# SPDX-License-Identifier: Apache-2.0
"""Exports the tables of the last save from its folder (sparse_folders.py) as NumPy files."""

import contextlib
import math
import os
from typing import List, Optional, Sequence, Union

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.sparse_folders import FolderTable, name_of, new_file

# Bytes of rows in memory at once.
_CHUNK = 1 << 20

# The folder of the last save of this process, which export() reads.
_last_folder: Optional[str] = None


def remember(folder: str) -> None:
    """Records the folder of the last save, for export()."""
    global _last_folder
    _last_folder = os.path.abspath(folder)


def export(table_list: Optional[Sequence[Union[str, FolderTable]]] = None) -> List[str]:
    """Writes the tables of the last save as NumPy files.

    The file ``sparse-<checkpoint>/<table>/key-emb.npy`` is an array [n] with the fields ``key``,
    int64, and ``embedding``, float32 [dim]. ``np.load(path)`` reads it; it contains no pickle.

    Args:
      table_list: Tables of ``create_table``, or their names. None: all tables of the last save.

    Returns:
      Paths of the files. Logs a warning and skips a table that the last save does not have. Logs a
      warning and returns [] if nothing was saved or if the folder was removed since.

    Raises:
      ValueError: table_list is neither None nor a list, or a file of the folder is damaged.

    Example:
      >>> # After saver.save(session, "model", global_step=100):
      >>> # rec.export_tables(["user_table"])
      >>> rec.export_tables([])
      []
    """
    if table_list is not None and not isinstance(table_list, (list, tuple)):
        raise ValueError(
            f"table_list must be a list of tables or names, got {table_list!r}; None exports all"
        )
    if _last_folder is None or not os.path.isdir(_last_folder):
        tf.logging.warning(
            "Nothing is exported: %s.",
            f"{_last_folder} was removed"
            if _last_folder
            else "no rec_estimator.Saver has saved tables of create_table in this process",
        )
        return []
    present = sorted(os.listdir(_last_folder))
    names = present if table_list is None else [name_of(table) for table in table_list]
    paths = []
    for name in names:
        if name not in present:
            tf.logging.warning("Table %r is not exported: it is not in %s.", name, _last_folder)
            continue
        paths.append(_export_table(os.path.join(_last_folder, name)))
    return paths


def _read_shape(folder: str, rank: int, size: int) -> List[int]:
    """Returns the shape of an array of numbers of ``size`` bytes, which the folder must hold."""
    path = os.path.join(folder, "slice.attribute")
    *shape, stored = np.fromfile(path, np.int64, rank + 2).tolist() or [0]
    if len(shape) != rank or min(shape) < 0 or stored != size:
        raise ValueError(
            f"{path} must hold {rank} numbers >= 0 and then {size}, got {[*shape, stored]}; save "
            "the checkpoint again"
        )
    path = os.path.join(folder, "slice.data")
    expected, found = math.prod(shape) * size, os.path.getsize(path)
    if found != expected:
        raise ValueError(
            f"{path} must have {expected} bytes for shape {shape}, got {found}; save the "
            "checkpoint again"
        )
    return shape


def _export_table(folder: str) -> str:
    (n,) = _read_shape(os.path.join(folder, "key"), 1, 8)
    found, dim = _read_shape(os.path.join(folder, "embedding"), 2, 4)
    if found != n or (n and not dim):
        raise ValueError(
            f"{folder} must hold {n} embeddings, one per key, got {found} of dimension {dim}; save "
            "the checkpoint again"
        )
    row = np.dtype([("key", "<i8"), ("embedding", "<f4", (dim,))])
    descr = np.lib.format.dtype_to_descr(row)
    path = os.path.join(folder, "key-emb.npy")
    unfinished = f"{path}.unfinished"
    with contextlib.ExitStack() as stack:
        keys, values = (
            stack.enter_context(open(os.path.join(folder, name, "slice.data"), "rb"))
            for name in ("key", "embedding")
        )
        with contextlib.suppress(FileNotFoundError):  # Left by a killed run.
            os.remove(unfinished)
        file = stack.enter_context(new_file(unfinished))
        np.lib.format.write_array_header_1_0(
            file, {"descr": descr, "fortran_order": False, "shape": (n,)}
        )
        left = n
        while left:
            rows = np.empty(min(left, 1 + _CHUNK // row.itemsize), row)
            rows["key"] = np.fromfile(keys, np.int64, len(rows))
            rows["embedding"] = np.fromfile(values, np.float32, len(rows) * dim).reshape(-1, dim)
            file.write(rows.tobytes())
            left -= len(rows)
    os.replace(unfinished, path)
    return path
