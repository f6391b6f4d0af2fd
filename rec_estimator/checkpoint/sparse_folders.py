# SPDX-License-Identifier: Apache-2.0
"""The folder ``sparse-<checkpoint>/`` beside a checkpoint: tables as plain arrays, as in Rec SDK.

    model-100.index, model-100.data-…   the checkpoint: all that restore reads
    sparse-model-100/<table>/
        key/slice.data                  int64 [n]: keys that own a row, in the checkpoint's order
        embedding/slice.data            float32 [n, dim]: their vectors
        <optimizer>_<slot>/slice.data   float32 [n, width]: LazyAdam_momentum, LazyAdam_velocity, …
        table_2_threshold/slice.data    int32 [3]: access and eviction threshold, whether it counts
        history_record/slice.data       int64: the table's time, then (key, count, time) of each key

Beside each ``slice.data`` a ``slice.attribute``: its shape, then bytes per number, int64. The last
two are of tables that keep keys out. Scripts test whether the folder exists, other programs read
it; this package reads it nowhere but in export().

The rows are copied from the checkpoint's files by the kernel, so a folder costs no memory and holds
what the checkpoint holds. Where it is put when: checkpoint_files.py.
"""

import contextlib
import os
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import files as checkpoint_files
from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.checkpoint.format.stored_tables import StoredTable, find_tables
from rec_estimator.rec_sdk.constants import TIMESTAMP_VARIABLE

# Bytes that are in memory at once where they are not copied as they are.
_CHUNK = 1 << 20

# What the slots of a rule hold, in its order; rules of one prefix have the same.
_SLOTS = {
    "AdagradDecay": ("accumulator", "power"),
    "Adagrad": ("accumulator",),
    "Adam": ("momentum", "velocity"),
    "Ftrl": ("accum", "linear"),
    "Momentum": ("momentum",),
    "RowwiseAdagrad": ("accumulator",),
}

# The folder that the last save of this process left: what export() exports.
_last_folder: Optional[str] = None


def tables_with_folders(shards: Iterable[Any]) -> List[Any]:
    """The tables of ``create_table`` among those that a Saver saves.

    Args:
      shards: TableShards.

    Returns:
      Tables, in the order of their first shard.
    """
    tables = dict.fromkeys(shard.table for shard in shards)
    return [t for t in tables if getattr(t, "is_sparse_table", False) and t.is_save]


def write(prefix: str, folder: str, tables: Sequence[Any]) -> None:
    """Writes a checkpoint's tables as a folder.

    Args:
      prefix: Of the full checkpoint, on a local disk, that holds the tables.
      folder: Path of the folder; it is made.
      tables: What tables_with_folders() gives.
    """
    bundle = Bundle(prefix)
    stored = find_tables(bundle)
    _make_folder(folder)
    for table in tables:
        _write_table(bundle, os.path.join(folder, _name_of(table)), table, stored[table.name])
    checkpoint_files.sync(folder)


def remember(folder: str) -> None:
    """Makes a folder, which is in its place, the one of the last save."""
    global _last_folder
    _last_folder = os.path.abspath(folder)


def export(table_list: Optional[Sequence[Any]] = None) -> List[str]:
    """Writes the tables of the last save as NumPy files, as Rec SDK's ``export`` does.

    ``<folder of the last save>/<table>/key-emb.npy`` is an array [n] with the fields ``key``,
    int64, and ``embedding``, float32 [dim]. ``np.load(path)`` reads it; no pickle is in it.

    Args:
      table_list: Tables of ``create_table`` or their names; of one that the folder does not have a
        warning is logged. None: all.

    Returns:
      Paths of the files. With no folder, because nothing was saved or it was removed since, none,
      and a warning is logged.

    Raises:
      ValueError: table_list is neither None nor a list.

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
            tf.logging.warning("Table %r is not exported: %s has none.", name, _last_folder)
            continue
        paths.append(_export_table(os.path.join(_last_folder, name)))
    return paths


def _name_of(table: Any) -> str:
    return table if isinstance(table, str) else table.table_name


def _write_table(bundle: Bundle, folder: str, table: Any, stored: StoredTable) -> None:
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
    thresholds = getattr(table, "thresholds", None)
    if thresholds is not None and thresholds.access_threshold is not None:
        access, eviction = thresholds.access_threshold, thresholds.eviction_threshold
        numbers = np.array([access, -1 if eviction is None else eviction, access > 0], np.int32)
        _write_slice(os.path.join(folder, "table_2_threshold"), [numbers], (3,), 4)
        _write_history(bundle, os.path.join(folder, "history_record"), stored)


def _write_history(bundle: Bundle, folder: str, stored: StoredTable) -> None:
    """Writes the table's time and the counts of its keys, those without a row at the end."""
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


def _slot_folders(table: Any) -> Dict[str, str]:
    """Names of folders by those of the slots in the checkpoint, where the rule is known."""
    shard = table.shards[0]
    names = [slot.name for slot in shard.slots]
    for op in shard.handle.consumers():
        if op.type == "RecEstimator>TableApply":
            rule = op.get_attr("rule").decode()
            words = next((slots for name, slots in _SLOTS.items() if rule.startswith(name)), ())
            return {name: f"{shard.updated_by}_{word}" for name, word in zip(names, words)}
    return {}


def _rows_of(bundle: Bundle, names: Sequence[str]) -> int:
    return sum(bundle.tensors[name].shape[0] for name in names)


def _copy(bundle: Bundle, names: Sequence[str], folder: str) -> None:
    """Writes tensors of one width, one after the other, byte by byte."""
    first = bundle.tensors[names[0]]
    _make_folder(folder)
    with _new_file(os.path.join(folder, "slice.data")) as file:
        for entry in (piece.entry for name in names for piece in bundle.tensors[name].pieces):
            _append_range(bundle.files[1 + entry.shard_id], entry.offset, entry.size, file)
    _write_attribute(folder, (_rows_of(bundle, names), *first.shape[1:]), first.dtype.size)


def _append_range(path: str, offset: int, size: int, file: IO[bytes]) -> None:
    with open(path, "rb") as source:
        end = offset + size
        while offset < end:
            # Within the kernel: no byte of it comes into this process.
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
    checkpoint_files.sync(folder)


def _make_folder(path: str) -> None:
    os.mkdir(path, 0o750)


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """A file that is on the disk when the context ends."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o640)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _export_table(folder: str) -> str:
    n, dim, _ = np.fromfile(os.path.join(folder, "embedding", "slice.attribute"), np.int64)
    row = np.dtype([("key", "<i8"), ("embedding", "<f4", (int(dim),))])
    descr = np.lib.format.dtype_to_descr(row)
    path = os.path.join(folder, "key-emb.npy")
    unfinished = f"{path}.unfinished"
    with contextlib.ExitStack() as stack:
        keys, values = (
            stack.enter_context(open(os.path.join(folder, name, "slice.data"), "rb"))
            for name in ("key", "embedding")
        )
        with contextlib.suppress(FileNotFoundError):  # of a run that was killed
            os.remove(unfinished)
        file = stack.enter_context(_new_file(unfinished))
        np.lib.format.write_array_header_1_0(
            file, {"descr": descr, "fortran_order": False, "shape": (int(n),)}
        )
        left = int(n)
        while left:
            rows = np.empty(min(left, 1 + _CHUNK // row.itemsize), row)
            rows["key"] = np.fromfile(keys, np.int64, len(rows))
            rows["embedding"] = np.fromfile(values, np.float32, len(rows) * dim).reshape(-1, dim)
            file.write(rows.tobytes())
            left -= len(rows)
    os.replace(unfinished, path)
    return path
