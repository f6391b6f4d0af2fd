# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are whose: tables, their shards and slots, and the rest.

A table is what has ``<name>-keys`` int [N] and ``<name>-values`` float [N, dim]; a variable that
merely has such a word in its name is none. DeepRec's checkpoints have the same names.
"""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle, StoredTensor

# What a checkpoint may hold of a shard or of one of its slots, after its name.
SUFFIXES = (
    *("-keys", "-values", "-freqs", "-versions", "-partition_offset"),
    *("-keys_filtered", "-freqs_filtered", "-versions_filtered", "-partition_filter_offset"),
    *("-cbf_blocks", "-cbf_counters", "-cbf_layout"),
    *("-keys_erased", "-delta_of", "-delta_of_index"),
)
FILTERED = ("-keys_filtered", "-freqs_filtered", "-versions_filtered")
BLOOM = ("-cbf_blocks", "-cbf_counters", "-cbf_layout")


class StoredTable(NamedTuple):
    """A table as a checkpoint has it."""

    name: str
    dim: int
    key_dtype: tf.DType
    shards: List[str]  # Names under which the shards' tensors are.
    slots: Dict[str, List[str]]  # Names likewise, by the slot's name.


def find_tables(bundle: Bundle) -> Dict[str, StoredTable]:
    """The tables of a checkpoint by name, shards in order."""
    tensors = bundle.tensors
    named = [name[: -len("-keys")] for name in tensors if name.endswith("-keys")]
    tables: Dict[str, StoredTable] = {}
    shards: Dict[str, str] = {}  # Name of the table by the name of the shard.
    # A slot comes after the shard it belongs to: its name is longer.
    for name in sorted(filter(lambda name: _has_rows(tensors, name), named), key=_shard_order):
        base = re.sub(r"/part_\d+$", "", name)
        owner = next((shard for shard in _scopes(name) if shard in shards), None)
        # A table may be named as if it was a slot; only tables of ours have a bank.
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
    """Tensors of a shard or of one of its slots."""
    for suffix in SUFFIXES:
        if name + suffix in bundle.tensors:
            yield bundle.tensors[name + suffix]


def rows_of(bundle: Bundle, names: List[str], suffix: str) -> int:
    """Elements of a tensor over several shards."""
    found = [bundle.tensors[name + suffix] for name in names if name + suffix in bundle.tensors]
    return sum(tensor.shape[0] for tensor in found if len(tensor.shape) == 1)


def parent_of(bundle: Bundle, table: StoredTable) -> Optional[str]:
    """The checkpoint since which this one has the changes; None if it is a full one."""
    names = (f"{shard}-delta_of" for shard in table.shards)
    name = next((name for name in names if name in bundle.tensors), None)
    return None if name is None else bundle.read_string(name)


def _has_rows(tensors: Dict[str, StoredTensor], name: str) -> bool:
    keys, values = tensors[f"{name}-keys"], tensors.get(f"{name}-values")
    return (
        values is not None
        and keys.dtype in (tf.int32, tf.int64)
        and values.dtype.is_floating
        and len(keys.shape) == 1
        and len(values.shape) == 2
        and keys.shape[0] == values.shape[0]
    )


def _scopes(name: str) -> Iterator[str]:
    """a/b, a of a/b/c."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _shard_order(name: str) -> tuple:
    part = re.search(r"/part_(\d+)$", name)
    return (name.count("/"), name[: part.start()] if part else name, int(part[1]) if part else 0)
