# SPDX-License-Identifier: Apache-2.0
r"""Makes a checkpoint of a table from a file of keys and vectors.

    rec-estimator import words.vec --table word --output words/model.ckpt

prints

    word: 400,000 rows of 300 numbers
    words/model.ckpt: 483.3 MB

A model takes the table over with ``rec.init_from_checkpoint(prefix, {"word": "word"})`` or
``warm_start_from=``. With ``--checkpoint``, the rows go into a copy of a checkpoint that has the
table: rows of the same keys are replaced and lose their slots, all else is kept bit for bit. Their
version is the one that ``table.assign`` would give them after a restore: the global step or, if the
table's versions are times, the time. ``inputs/vector_files.py`` reads the files. The rows must fit
into memory.
"""

import argparse
import os
import sys
from typing import Dict, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework.versions_pb2 import VersionDef

from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle, format_bytes
from rec_estimator.checkpoint.format.stored_tables import (
    FILTERED,
    SUFFIXES,
    TIMESTAMP_VARIABLE,
    StoredTable,
    find_tables,
    parent_of,
)
from rec_estimator.checkpoint.restore_warnings import stored_unit
from rec_estimator.embedding_variable import NAME_PATTERN
from rec_estimator.inputs.vector_files import Vectors, read_vectors
from rec_estimator.table.interfaces import NO_GLOBAL_STEP, SECONDS, STEPS
from rec_estimator.table.shard import KEY_CLASSES
from rec_estimator.table.table_time import TIME_SCOPE
from rec_estimator.tools.shrink_ckpt_with_filtered_features import check_output

DESCRIPTION = "Makes a checkpoint of a table from .npy, Parquet or word2vec text."

# What a shard or slot has for each key that owns a row; FILTERED has it for each key without one.
_PER_ROW = ("-keys", "-values", "-freqs", "-versions")

# The version of TensorFlow's checkpoint format.
_FORMAT = 1


def import_rows(
    vectors: Vectors, table: str, output: str, checkpoint: Optional[str] = None
) -> None:
    """Makes a checkpoint with the rows of a table.

    Args:
      vectors: The keys and rows.
      table: The name of the table.
      output: Prefix of the checkpoint to write. Its folder is made if it is missing.
      checkpoint: Prefix of a full checkpoint with the table, which is copied. None: the new
        checkpoint has only the table, in one shard.

    Raises:
      FileExistsError: The output exists.
      ValueError: The name is none of a table, or there are no rows. The checkpoint has no such
        table, or one of another dimension or type of keys or values, or is a delta.
      OSError, tf.errors.OpError: The checkpoint cannot be read.

    Example:
      >>> import_rows(Vectors(np.array([7]), np.float32([[0.5, 1]])), "user", "./model.ckpt")
      >>> tf.train.load_checkpoint("./model.ckpt").get_tensor("user-values").tolist()
      [[0.5, 1.0]]
    """
    check_output("output", output)
    if not len(vectors.keys):
        raise ValueError("vectors must have at least one key, got none; there is nothing to import")
    source = None if checkpoint is None else Bundle(checkpoint)
    if source is None:
        _check_name(table)
        tensors = _in_order(table, {"-keys": vectors.keys, "-values": vectors.rows})
    else:
        source.check_files()
        tensors = _replaced_tensors(source, _find_table(source, table, vectors), vectors)
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    version = VersionDef(producer=_FORMAT) if source is None else source.header.version
    with NewBundle(output, version) as bundle:
        for name, array in tensors.items():
            bundle.add_array(name, array)
        if source is not None:
            bundle.copy(source, [name for name in source.tensors if name not in tensors])


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit code, 2 if a file or an argument is invalid."""
    parser = argparse.ArgumentParser(prog="rec-estimator import", description=DESCRIPTION)
    parser.add_argument("file", help="a .npy, .parquet, .txt or .vec file")
    parser.add_argument("--table", required=True, metavar="NAME", help="name of the table")
    parser.add_argument(
        "--output", required=True, metavar="PREFIX", help="path of the checkpoint without .index"
    )
    parser.add_argument(
        "--checkpoint", metavar="PREFIX", help="a checkpoint with the table, to be copied"
    )
    parser.add_argument(
        "--integer_keys", action="store_true", help="strings are decimal numbers, not to be hashed"
    )
    options = parser.parse_args(arguments)
    try:
        vectors = read_vectors(options.file, options.integer_keys)
        import_rows(vectors, options.table, options.output, options.checkpoint)
    except (OSError, ValueError, ImportError, tf.errors.OpError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    n, dim = vectors.rows.shape
    print(f"{options.table}: {n:,} rows of {dim} numbers")
    print(f"{options.output}: {format_bytes(Bundle(options.output).nbytes)}")
    return 0


def _check_name(table: str) -> None:
    if not NAME_PATTERN.fullmatch(table):
        raise ValueError(
            f"table must be a name that TensorFlow accepts for an op, {NAME_PATTERN.pattern}, got "
            f"{table!r}; replace its other characters"
        )


def _find_table(source: Bundle, name: str, vectors: Vectors) -> StoredTable:
    tables = find_tables(source)
    if name not in tables:
        raise ValueError(f"table must be one of {list(tables)} of {source.prefix}, got {name!r}")
    table = tables[name]
    if parent_of(source, table) is not None:
        raise ValueError(
            f"checkpoint must be a full one, got the delta {source.prefix}; resume its training, "
            "which begins and ends with a full one"
        )
    _, dim = vectors.rows.shape
    if source.tensors[f"{table.shards[0]}-values"].dtype == tf.uint8:
        raise ValueError(
            f"table {name!r} has rows of 8 bits in {source.prefix}, as an export has them; import "
            "into the training checkpoint, and export again"
        )
    if table.dim != dim:
        raise ValueError(
            f"vectors must be of length {table.dim}, the dimension of table {name!r}, got {dim}"
        )
    limits = np.iinfo(table.key_dtype.as_numpy_dtype)
    if not limits.min <= vectors.keys.min() <= vectors.keys.max() <= limits.max:
        raise ValueError(f"keys must be {table.key_dtype.name}, as those of table {name!r} are")
    return table


def _replaced_tensors(
    source: Bundle, table: StoredTable, vectors: Vectors
) -> Dict[str, np.ndarray]:
    """The tensors of a table with the rows in them, by name."""
    reader = tf.train.load_checkpoint(source.prefix)
    version = _version_of_import(source, table, reader)
    tensors: Dict[str, np.ndarray] = {}
    for part, shard in enumerate(table.shards):
        is_here = _class_of(vectors.keys) % len(table.shards) == part
        rows = Vectors(vectors.keys[is_here], vectors.rows[is_here])
        slots = [names[part] for names in table.slots.values() if part < len(names)]
        for name in (shard, *slots):
            _check_known(source, name)
            found = {
                suffix: reader.get_tensor(name + suffix)
                for suffix in (*_PER_ROW, *FILTERED)
                if _has_elements(source, name, suffix)
            }
            kept = _without(found, _PER_ROW, rows.keys)
            kept.update(_without(found, FILTERED, rows.keys))
            if name == shard:
                _check_range(table.name, rows, found["-values"].dtype)
                _add(kept, rows, found, version)
            tensors.update(_in_order(name, kept))
    return tensors


def _version_of_import(
    source: Bundle, table: StoredTable, reader: tf.train.NewCheckpointReader
) -> int:
    """The version of imported rows; -1: unknown, so that their age counts from the first eviction.

    If the versions are times, it is the latest time in the checkpoint, which may be that of another
    rule. An eviction takes a time that is ahead of its own for its own.
    """
    unit = stored_unit(source, table.shards[0])
    if unit == STEPS:
        step = source.read_integer("global_step")
        return NO_GLOBAL_STEP if step is None else step
    if unit != SECONDS:
        return NO_GLOBAL_STEP
    scopes = TIME_SCOPE, TIMESTAMP_VARIABLE
    times = [source.read_integer(name) or 0 for name in source.names if name.startswith(scopes)]
    versions = [
        reader.get_tensor(f"{shard}-versions").max(initial=0)
        for shard in table.shards
        if f"{shard}-versions" in source.tensors
    ]
    return int(max([*times, *versions])) or NO_GLOBAL_STEP


def _check_known(source: Bundle, name: str) -> None:
    """Refuses a tensor of a shard or slot that has an unknown element for each row."""
    rows = source.tensors[f"{name}-keys"].shape
    for tensor in source.tensors.values():
        prefix, _, suffix = tensor.name.rpartition("-")
        if prefix == name and f"-{suffix}" not in SUFFIXES and rows == tensor.shape[:1] != (0,):
            raise ValueError(
                f"tensor {tensor.name!r} of {source.prefix} is unknown, and may belong to the rows "
                f"of {name!r}; import with the release that wrote the checkpoint"
            )


def _has_elements(source: Bundle, name: str, suffix: str) -> bool:
    """Whether a shard or slot has a tensor with an element for each key.

    DeepRec leaves frequencies and versions that it did not record empty.
    """
    keys = source.tensors.get(f"{name}-keys_filtered" if suffix in FILTERED else f"{name}-keys")
    tensor = source.tensors.get(name + suffix)
    return tensor is not None and keys is not None and tensor.shape[:1] == keys.shape


def _check_range(table: str, rows: Vectors, dtype: np.dtype) -> None:
    """Refuses rows with a number that the type of a table cannot hold."""
    with np.errstate(over="ignore"):
        is_lost = ~np.isfinite(rows.rows.astype(dtype).astype(np.float32))
    if is_lost.any():
        row, place = np.argwhere(is_lost)[0]
        raise ValueError(
            f"vectors must be finite in {dtype}, as table {table!r} stores them, got "
            f"{rows.rows[row, place]:g} of key {rows.keys[row]}; choose float32, or bfloat16 in "
            "place of float16, for larger numbers"
        )


def _without(
    found: Dict[str, np.ndarray], suffixes: Sequence[str], keys: np.ndarray
) -> Dict[str, np.ndarray]:
    """Those of the tensors that have these suffixes, without some keys."""
    if suffixes[0] not in found:
        return {}
    is_kept = ~np.isin(found[suffixes[0]], keys)
    return {suffix: found[suffix][is_kept] for suffix in suffixes if suffix in found}


def _add(
    kept: Dict[str, np.ndarray], rows: Vectors, found: Dict[str, np.ndarray], version: int
) -> None:
    """Adds rows to the tensors of a shard. A key keeps its count."""
    counts = dict.fromkeys(rows.keys.tolist(), 0)
    for keys, freqs in (("-keys", "-freqs"), ("-keys_filtered", "-freqs_filtered")):
        if freqs in found:
            known = np.isin(found[keys], rows.keys)
            counts.update(zip(found[keys][known].tolist(), found[freqs][known].tolist()))
    added = {
        "-keys": rows.keys,
        "-values": rows.rows,
        "-freqs": np.array(list(counts.values()), np.int64),
        "-versions": np.full(len(rows.keys), version, np.int64),
    }
    for suffix in set(added) & set(kept):
        kept[suffix] = np.concatenate([kept[suffix], added[suffix].astype(kept[suffix].dtype)])


def _in_order(name: str, tensors: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """The tensors by their full names, ordered by key class and key, with bounds of the classes."""
    ordered = {}
    for suffixes, bounds in (
        (_PER_ROW, "-partition_offset"),
        (FILTERED, "-partition_filter_offset"),
    ):
        if suffixes[0] not in tensors:
            continue
        keys = tensors[suffixes[0]]
        classes = _class_of(keys)
        order = np.lexsort((keys, classes))
        for suffix in suffixes:
            if suffix in tensors:
                ordered[name + suffix] = tensors[suffix][order]
        sizes = np.bincount(classes, minlength=KEY_CLASSES)
        ordered[name + bounds] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return ordered


def _class_of(keys: np.ndarray) -> np.ndarray:
    return np.mod(keys, KEY_CLASSES)


if __name__ == "__main__":
    sys.exit(main())
