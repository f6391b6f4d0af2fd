# SPDX-License-Identifier: Apache-2.0
"""Finds the tables in a checkpoint, with their shards and slots, by the names of tensors.

A table has the tensors ``<name>-keys``, int [N], and ``<name>-values``, float [N, dim]. A variable
may have such a name without being a table's. DeepRec's checkpoints use the same names. An export
may have values of 8 bits, uint8 [N, dim], and the scale and offset of each row beside them.
"""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, get_args

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.checkpoint.format.entries import StoredTensor
from rec_estimator.checkpoint.format.quantized_rows import dequantize
from rec_estimator.options import Filter

# The tensors of a shard or of a slot have its name and one of these suffixes.
FILTERED = ("-keys_filtered", "-freqs_filtered", "-versions_filtered")
# Only for values of 8 bits: float [N, 2], the scale and the offset of each row.
SCALE_OFFSET = "-scale_offset"
# The tensors in which a filter saves its own counts.
SKETCH = tuple(f"-{name}" for kind in get_args(Filter) for name in kind().sketch_tensors())
SUFFIXES = (
    *("-keys", "-values", SCALE_OFFSET, "-freqs", "-versions", "-partition_offset"),
    *(*FILTERED, "-partition_filter_offset"),
    *SKETCH,
    *("-version_unit", "-keys_erased", "-delta_of", "-delta_of_index"),
)

# The variable with the greatest timestamp of any batch that trained a table of create_table.
TIMESTAMP_VARIABLE = "rec_estimator_timestamp"


class StoredTable(NamedTuple):
    """A table in a checkpoint."""

    name: str
    dim: int
    key_dtype: tf.DType
    shards: List[str]  # Names of the shards, to which SUFFIXES are added.
    slots: Dict[str, List[str]]  # By slot, the name of the slot in each shard.


def find_tables(bundle: Bundle) -> Dict[str, StoredTable]:
    """Returns the tables of a checkpoint by name, each with its shards in order."""
    tensors = bundle.tensors
    named = [name[: -len("-keys")] for name in tensors if name.endswith("-keys")]
    tables: Dict[str, StoredTable] = {}
    shards: Dict[str, str] = {}  # Shard to table.
    # Visits a shard before its slots, whose names are longer.
    for name in sorted(filter(lambda name: _has_rows(tensors, name), named), key=_shard_order):
        base = re.sub(r"/part_\d+$", "", name)
        owner = next((shard for shard in _scopes(name) if shard in shards), None)
        # A table may have a name like a slot's, but only a table has a bank.
        if owner is not None and f"{base}/default_values" not in tensors:
            slots = tables[shards[owner]].slots
            slots.setdefault(name[len(owner) + 1 :], []).append(name)
            continue
        keys, values = tensors[f"{name}-keys"], tensors[f"{name}-values"]
        table = StoredTable(base, values.shape[1], keys.dtype, [], {})
        tables.setdefault(base, table).shards.append(name)
        shards[name] = base
    return dict(sorted(tables.items()))


def tensors_of(bundle: Bundle, name: str) -> Iterator[StoredTensor]:
    """Yields the tensors of a shard or of a slot."""
    for suffix in SUFFIXES:
        if name + suffix in bundle.tensors:
            yield bundle.tensors[name + suffix]


def values_of(bundle: Bundle, name: str, rows: int) -> Iterator[np.ndarray]:
    """Yields the values of a shard or of a slot, in parts of some rows.

    Args:
      bundle: The checkpoint.
      name: Name of the shard or of the slot.
      rows: Rows of a part; the last one is shorter.

    Yields:
      float32 [rows, dim].
    """
    values = bundle.tensors[f"{name}-values"]
    width = values.shape[1]
    parts = bundle.read_rows(values.name, rows * width)
    if values.dtype != tf.uint8:
        for part in parts:
            yield part.astype(np.float32).reshape(-1, width)
        return
    scales = bundle.read_rows(f"{name}{SCALE_OFFSET}", rows * 2)
    for part, scale_offset in zip(parts, scales):
        yield dequantize(part.reshape(-1, width), scale_offset.reshape(-1, 2))


def rows_of(bundle: Bundle, names: List[str], suffix: str) -> int:
    """Returns the number of elements of a tensor of rank 1, summed over shards."""
    found = [bundle.tensors[name + suffix] for name in names if name + suffix in bundle.tensors]
    return sum(tensor.shape[0] for tensor in found if len(tensor.shape) == 1)


def parent_of(bundle: Bundle, table: StoredTable) -> Optional[str]:
    """Returns the name of the checkpoint that a delta builds on, None for a full checkpoint."""
    names = (f"{shard}-delta_of" for shard in table.shards)
    name = next((name for name in names if name in bundle.tensors), None)
    return None if name is None else bundle.read_string(name)


def _has_rows(tensors: Dict[str, StoredTensor], name: str) -> bool:
    keys, values = tensors[f"{name}-keys"], tensors.get(f"{name}-values")
    return (
        values is not None
        and keys.dtype in (tf.int32, tf.int64)
        and (values.dtype.is_floating or f"{name}{SCALE_OFFSET}" in tensors)
        and len(keys.shape) == 1
        and len(values.shape) == 2
        and keys.shape[0] == values.shape[0]
    )


def _scopes(name: str) -> Iterator[str]:
    """Yields the scopes of a name: a/b and a for a/b/c."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _shard_order(name: str) -> Tuple[int, str, int]:
    """Returns a sort key: by depth, then table, then number of the shard."""
    part = re.search(r"/part_(\d+)$", name)
    return (name.count("/"), name[: part.start()] if part else name, int(part[1]) if part else 0)
