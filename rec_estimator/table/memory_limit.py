# SPDX-License-Identifier: Apache-2.0
"""One limit for the memory of all tables that have a tier on disk.

Step 2 of the data flow, after all tables and their slots are known. disk_storage.py has what each
table asks for by itself.
"""

from typing import List

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.table.table import EmbeddingTable

# Bytes that the index takes for a key, averaged over its growth (docs/core_measurements.md).
_ENTRY_BYTES = 35


def share_memory(tables: List[EmbeddingTable], limit: int) -> None:
    """Divides memory among tables, which overrides their own options.

    The share of a table is for its index, its rows and its buffers. Shares are in proportion to
    what a key takes in memory: its row, values and slots, and its entry in the index. So tables of
    as many keys keep the same part of their rows. Must be called after the optimizer has added its
    slots.

    Args:
      tables: The tables of a graph. Those without a tier on disk are left as they are.
      limit: Bytes of memory, over all tables and their shards.

    Raises:
      ValueError: No table has a tier on disk.
    """
    on_disk = [table for table in tables if table.disk_storage is not None]
    if not on_disk:
        raise ValueError(
            f"table_memory_bytes must be None if no table has a tier on disk, got {limit}; give "
            "the tables a StorageOption with DRAM_SSDHASH, or an ssd_vocabulary_size"
        )
    bytes_of_all = sum(_bytes_per_key(table) for table in on_disk)
    for table in on_disk:
        share = limit * _bytes_per_key(table) // bytes_of_all // len(table.shards)
        settings = {"memory_rows": 0, "memory_bytes": 0, "memory_limit": max(share, 1)}
        for shard in table.shards:
            for name, value in settings.items():
                graphs.set_attr(shard.op, name, tf.AttrValue(i=value))


def _bytes_per_key(table: EmbeddingTable) -> int:
    slots = sum(slot.width * slot.dtype_in(table).size for slot in table.shards[0].slots)
    return table.dim * table.row_dtype.size + slots + _ENTRY_BYTES
