# SPDX-License-Identifier: Apache-2.0
"""Writes the folder ``sparse-<checkpoint>/``: tables as plain arrays, in Rec SDK's layout.

    model-100.index, model-100.data-…   the checkpoint; restores read nothing else
    sparse-model-100/<table>/
        key/slice.data                  int64 [n]: keys that own a row, in the checkpoint's order
        embedding/slice.data            float32 [n, dim]: their vectors
        <optimizer>_<slot>/slice.data   float32 [n, width]: LazyAdam_momentum, LazyAdam_velocity, …
        table_2_threshold/slice.data    int32 [3]: access and eviction threshold, whether it counts
        history_record/slice.data       int64: the table's time, then (key, count, time) of each key

Each ``slice.data`` comes with a ``slice.attribute``: the shape and the bytes per number, int64.
Only tables with an access threshold have the last two folders. Rec SDK's scripts test whether the
folder exists, and other programs read it. This package reads it only in export().

The kernel copies the rows from the checkpoint's files. So a folder needs no memory, and its content
is the checkpoint's. atomic_checkpoint.py places the folder.
"""

import contextlib
import math
import os
from typing import (
    IO,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
    runtime_checkable,
)

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle, sync
from rec_estimator.checkpoint.format.stored_tables import (
    TIMESTAMP_VARIABLE,
    StoredTable,
    find_tables,
)
from rec_estimator.graph_passes import op_registry
from rec_estimator.table.interfaces import SavedShard

# Bytes in memory at once, for arrays that must be converted.
_CHUNK = 1 << 20

# Names of the slots of a rule, in the rule's order. Rules are found by the start of their name.
_SLOTS: Dict[str, Tuple[str, ...]] = {
    "AdagradDecay": ("accumulator", "power"),
    "Adagrad": ("accumulator",),
    "Adam": ("momentum", "velocity"),
    "Ftrl": ("accum", "linear"),
    "Momentum": ("momentum",),
    "RowwiseAdagrad": ("accumulator",),
}

# The folder of the last save of this process, which export() reads.
_last_folder: Optional[str] = None


class Thresholds(Protocol):
    """The thresholds of a table, as ``table_2_threshold`` stores them."""

    @property
    def access_threshold(self) -> Optional[int]:
        """Occurrences that admit a key; 0 admits every key, None is not set."""

    @property
    def eviction_threshold(self) -> Optional[int]:
        """Seconds without training after which a key is evicted; None is not set."""


@runtime_checkable
class FolderTable(Protocol):
    """A table of ``create_table``, which has a folder."""

    is_sparse_table: bool
    is_save: bool
    name: str  # In the checkpoint.
    table_name: str  # Of the folder.
    shards: List[SavedShard]
    thresholds: Optional[Thresholds]


def tables_with_folders(shards: Iterable[SavedShard]) -> List[FolderTable]:
    """Returns the tables that have a folder, in the order of their first shard.

    Args:
      shards: The shards that a Saver saves.
    """
    tables = dict.fromkeys(shard.table for shard in shards)
    return [table for table in tables if isinstance(table, FolderTable) and table.is_save]


def write(prefix: str, folder: str, tables: Sequence[FolderTable]) -> None:
    """Writes the folder of a checkpoint.

    Args:
      prefix: Prefix of a full checkpoint on a local disk that holds the tables.
      folder: Path of the new folder.
      tables: The tables to write, from tables_with_folders().
    """
    bundle = Bundle(prefix)
    stored = find_tables(bundle)
    _make_folder(folder)
    for table in tables:
        _write_table(bundle, os.path.join(folder, _name_of(table)), table, stored[table.name])
    sync(folder)


def remember(folder: str) -> None:
    """Records the folder of the last save, for export()."""
    global _last_folder
    _last_folder = os.path.abspath(folder)


def export(table_list: Optional[Sequence[Union[str, FolderTable]]] = None) -> List[str]:
    """Writes the tables of the last save as NumPy files, like Rec SDK's ``export``.

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
    names = present if table_list is None else [_name_of(table) for table in table_list]
    paths = []
    for name in names:
        if name not in present:
            tf.logging.warning("Table %r is not exported: it is not in %s.", name, _last_folder)
            continue
        paths.append(_export_table(os.path.join(_last_folder, name)))
    return paths


def _name_of(table: Union[str, FolderTable]) -> str:
    return table if isinstance(table, str) else table.table_name


def _write_table(bundle: Bundle, folder: str, table: FolderTable, stored: StoredTable) -> None:
    _make_folder(folder)
    keys = [f"{shard}-keys" for shard in stored.shards]
    if stored.key_dtype == tf.int64:
        _copy(bundle, keys, os.path.join(folder, "key"))
    else:
        wide = (
            array.astype(np.int64) for name in keys for array in bundle.read_rows(name, _CHUNK // 8)
        )
        _write_slice(os.path.join(folder, "key"), wide, (_rows_of(bundle, keys),), 8)
    _copy(bundle, [f"{shard}-values" for shard in stored.shards], os.path.join(folder, "embedding"))
    names = _slot_folders(table)
    for slot, shards in stored.slots.items():
        name = names.get(slot, slot.replace("/", "_"))
        _copy(bundle, [f"{shard}-values" for shard in shards], os.path.join(folder, name))
    thresholds = table.thresholds
    if thresholds is not None and thresholds.access_threshold is not None:
        access, eviction = thresholds.access_threshold, thresholds.eviction_threshold
        numbers = np.array([access, -1 if eviction is None else eviction, access > 0], np.int32)
        _write_slice(os.path.join(folder, "table_2_threshold"), [numbers], (3,), 4)
        _write_history(bundle, os.path.join(folder, "history_record"), stored)


def _write_history(bundle: Bundle, folder: str, stored: StoredTable) -> None:
    """Writes the table's time and the counts of its keys; keys without a row come last."""
    columns = [
        [f"{shard}-{what}{kind}" for what in ("keys", "freqs", "versions")]
        for kind in ("", "_filtered")
        for shard in stored.shards
    ]

    def numbers() -> Iterator[np.ndarray]:
        is_timed = TIMESTAMP_VARIABLE in bundle.tensors
        yield from bundle.read_rows(TIMESTAMP_VARIABLE, 1) if is_timed else [np.zeros(1, np.int64)]
        for names in columns:
            for rows in zip(*(bundle.read_rows(name, _CHUNK // 24) for name in names)):
                yield np.stack(rows, axis=1).astype(np.int64)

    records = sum(min(_rows_of(bundle, [name]) for name in names) for names in columns)
    _write_slice(folder, numbers(), (1 + 3 * records,), 8)


def _slot_folders(table: FolderTable) -> Dict[str, str]:
    """Returns folder names by slot name; {} if the graph does not update the table."""
    shard = table.shards[0]
    names = [slot.name for slot in shard.slots]
    for op in shard.handle.consumers():
        if op.type == op_registry.TABLES_RESERVE:
            rule = op.get_attr("rule").decode()
            words = next((_SLOTS[name] for name in _SLOTS if rule.startswith(name)), ())
            return {name: f"{shard.updated_by}_{word}" for name, word in zip(names, words)}
    return {}


def _rows_of(bundle: Bundle, names: Sequence[str]) -> int:
    return sum(bundle.tensors[name].shape[0] for name in names)


def _copy(bundle: Bundle, names: Sequence[str], folder: str) -> None:
    """Writes the bytes of tensors of equal width, one tensor after the other."""
    first = bundle.tensors[names[0]]
    _make_folder(folder)
    with _new_file(os.path.join(folder, "slice.data")) as file:
        for entry in (part.entry for name in names for part in bundle.tensors[name].ranges):
            _append_range(bundle.files[1 + entry.shard_id], entry.offset, entry.size, file)
    _write_attribute(folder, (_rows_of(bundle, names), *first.shape[1:]), first.dtype.size)


def _append_range(path: str, offset: int, size: int, file: IO[bytes]) -> None:
    with open(path, "rb") as source:
        end = offset + size
        while offset < end:
            # The kernel copies the bytes; they do not pass through this process.
            sent = os.sendfile(file.fileno(), source.fileno(), offset, end - offset)
            if not sent:
                raise OSError(f"{path} ends before byte {end}")
            offset += sent


def _write_slice(
    folder: str, arrays: Iterable[np.ndarray], shape: Sequence[int], size: int
) -> None:
    _make_folder(folder)
    with _new_file(os.path.join(folder, "slice.data")) as file:
        for array in arrays:
            file.write(array.tobytes())
    _write_attribute(folder, shape, size)


def _write_attribute(folder: str, shape: Sequence[int], size: int) -> None:
    with _new_file(os.path.join(folder, "slice.attribute")) as file:
        file.write(np.array([*shape, size], np.int64).tobytes())
    sync(folder)


def _make_folder(path: str) -> None:
    os.mkdir(path, 0o750)


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """Opens a new file, which is on the disk when the ``with`` block ends."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o640)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


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
        file = stack.enter_context(_new_file(unfinished))
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
