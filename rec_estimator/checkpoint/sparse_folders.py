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
folder exists, and other programs read it. This package reads it only in folder_export.py.

The kernel copies the rows from the checkpoint's files. So a folder needs no memory, and its content
is the checkpoint's. atomic_checkpoint.py places the folder.
"""

import contextlib
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
    "AMSGrad": ("momentum", "velocity", "max_velocity"),
    "Adadelta": ("accum", "accum_update"),
    "AdagradDA": ("gradient_accumulator", "gradient_squared_accumulator"),
    "AdagradDecay": ("accumulator", "power"),
    "Adagrad": ("accumulator",),
    "Adam": ("momentum", "velocity"),
    "CenteredRMSProp": ("rms", "mg", "momentum"),
    "Ftrl": ("accum", "linear"),
    "GroupAdam": ("momentum", "velocity", "accum", "linear"),
    "GroupFtrl": ("accum", "linear"),
    "Momentum": ("momentum",),
    "ProximalAdagrad": ("accumulator",),
    "RMSProp": ("rms", "momentum"),
    "RowwiseAdagrad": ("accumulator",),
}


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
    table_name: str  # The table that the folder holds.
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
        _write_table(bundle, os.path.join(folder, name_of(table)), table, stored[table.name])
    sync(folder)


def name_of(table: Union[str, FolderTable]) -> str:
    """Returns the name of a table's folder; a name as it is."""
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
    _write_values(
        bundle, [f"{shard}-values" for shard in stored.shards], os.path.join(folder, "embedding")
    )
    names = _slot_folders(table)
    for slot, shards in stored.slots.items():
        name = names.get(slot, slot.replace("/", "_"))
        _write_values(bundle, [f"{shard}-values" for shard in shards], os.path.join(folder, name))
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
    with new_file(os.path.join(folder, "slice.data")) as file:
        for entry in (part.entry for name in names for part in bundle.tensors[name].ranges):
            _append_range(bundle.files[1 + entry.shard_id], entry.offset, entry.size, file)
    _write_attribute(folder, (_rows_of(bundle, names), *first.shape[1:]), first.dtype.size)


def _write_values(bundle: Bundle, names: Sequence[str], folder: str) -> None:
    """Writes values or slots as float32, which they are in all folders of Rec SDK."""
    first = bundle.tensors[names[0]]
    if first.dtype == tf.float32:
        return _copy(bundle, names, folder)
    parts = (part for name in names for part in bundle.read_rows(name, _CHUNK // 4))
    wide = (part.astype(np.float32) for part in parts)
    _write_slice(folder, wide, (_rows_of(bundle, names), *first.shape[1:]), 4)


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
    with new_file(os.path.join(folder, "slice.data")) as file:
        for array in arrays:
            file.write(array.tobytes())
    _write_attribute(folder, shape, size)


def _write_attribute(folder: str, shape: Sequence[int], size: int) -> None:
    with new_file(os.path.join(folder, "slice.attribute")) as file:
        file.write(np.array([*shape, size], np.int64).tobytes())
    sync(folder)


def _make_folder(path: str) -> None:
    os.mkdir(path, 0o750)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """Opens a new file, which is on the disk when the ``with`` block ends."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o640)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
