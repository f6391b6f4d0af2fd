# SPDX-License-Identifier: Apache-2.0
"""One limit for the memory of all tables that have a tier on disk or a capacity.

Step 2 of the data flow, after all tables and their slots are known. disk_storage.py has what each
table asks for by itself.
"""

from typing import List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.table.table import EmbeddingTable

# Bytes that the index takes for a key, averaged over its growth (docs/core_measurements.md).
_ENTRY_BYTES = 35


def share_memory(tables: List[EmbeddingTable], limit: int) -> None:
    """Divides memory among tables, which overrides the sizes in their storage options.

    The share of a table is for its index, its rows and its buffers. Shares are in proportion to
    what a key takes in memory: its row, values and slots, and its entry in the index. So tables of
    as many keys keep the same part of their rows. Tables that evict rows instead of moving them to
    the disk share their memory: each task has an equal part, of which a table takes what it needs
    (ops/core/evict/memory_budget.h). Must be called after the optimizer has added its slots.

    Args:
      tables: The tables of a graph. Those with neither a tier on disk nor a capacity are left as
        they are.
      limit: Bytes of memory, over all tables and their shards.

    Raises:
      ValueError: No table has a tier on disk or a capacity.
    """
    on_disk = [table for table in tables if table.disk_storage is not None]
    evicting = [
        table
        for table in tables
        if table.disk_storage is None and table.ev_option.capacity is not None
    ]
    bytes_of_all = _bytes_per_key([*on_disk, *evicting])
    if not bytes_of_all:
        raise ValueError(
            "table_memory_bytes must be None if no table has a tier on disk or a capacity, got "
            f"{limit}; give the tables a Capacity, a StorageOption with DRAM_SSDHASH, or an "
            "ssd_vocabulary_size"
        )
    for table in on_disk:
        share = limit * _bytes_of_key(table) // bytes_of_all // len(table.shards)
        _set_sizes(table, memory_rows=0, memory_bytes=0, memory_limit=max(share, 1))
    budget = limit * _bytes_per_key(evicting) // bytes_of_all // max(_num_tasks(evicting), 1)
    for table in evicting:
        _set_sizes(table, memory_budget=max(budget, 1))


def _set_sizes(table: EmbeddingTable, **sizes: int) -> None:
    """Sets attributes of the handles of a table."""
    for shard in table.shards:
        for name, value in sizes.items():
            graphs.set_attr(shard.op, name, tf.AttrValue(i=value))


def _num_tasks(tables: Sequence[EmbeddingTable]) -> int:
    """The number of tasks that have shards of the tables."""
    devices = {shard.device for table in tables for shard in table.shards}
    specs = map(tf.DeviceSpec.from_string, devices)
    return len({(spec.job, spec.task) for spec in specs})


def _bytes_per_key(tables: Sequence[EmbeddingTable]) -> int:
    """Bytes of a key, over all tables."""
    return sum(_bytes_of_key(table) for table in tables)


def _bytes_of_key(table: EmbeddingTable) -> int:
    slots = sum(slot.width * slot.dtype_in(table).size for slot in table.shards[0].slots)
    return table.dim * table.row_dtype.size + slots + _ENTRY_BYTES
