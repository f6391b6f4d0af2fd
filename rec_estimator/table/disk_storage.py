# SPDX-License-Identifier: Apache-2.0
"""Which rows of a table are on disk, and what the disk has done: the tier below memory.

Step 2 of the data flow. A table says by DiskStorage where its rows may be; each shard opens files
of its own, on the task on which it is. docs/storage.md explains the tier.
"""

import dataclasses
from typing import Any, Dict, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.options import CacheStrategy, StorageOption, StorageType

_SPILLED_FIRST = {CacheStrategy.LFU: "least_counted", CacheStrategy.LRU: "oldest"}


class TierCounts(NamedTuple):
    """Where the rows of a table are, and what its disk has done since the table was made.

    Each is an int64 [], summed over the shards. ``EmbeddingTable.tier_counts()`` returns it.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> table.tier_counts()._fields[:4]
      ('memory_rows', 'disk_rows', 'hits', 'misses')
    """

    # In the order of the op's output.
    memory_rows: tf.Tensor  # Rows in memory.
    disk_rows: tf.Tensor  # Rows on disk only.
    hits: tf.Tensor  # Keys of training steps whose row was in memory.
    misses: tf.Tensor  # Keys of training steps whose row had to be read.
    spills: tf.Tensor  # Rows that left memory.
    bytes_read: tf.Tensor
    bytes_written: tf.Tensor  # Includes what compaction writes.
    read_nanoseconds: tf.Tensor  # How long reads have waited for the disk, over all threads.
    file_bytes: tf.Tensor  # Size of the files.
    buffer_bytes: tf.Tensor  # Memory for what is read and written next.


@dataclasses.dataclass(frozen=True)
class DiskStorage:
    """Where the rows of a table are that are not in memory.

    Attributes:
      paths: The folders, filled one after the other.
      memory_rows: The rows that stay in memory, over all shards; 0: memory_bytes says it.
      memory_bytes: The bytes of those rows, values and slots.
      strategy: Which rows leave memory first.
    """

    paths: Tuple[str, ...]
    memory_rows: int = 0
    memory_bytes: int = 0
    strategy: CacheStrategy = CacheStrategy.LFU

    def handle_attrs(self, num_shards: int) -> Dict[str, Any]:
        """Attributes of the op that makes the handle of a shard.

        Args:
          num_shards: The number of shards, which share the memory evenly.
        """
        return {
            "storage_paths": list(self.paths),
            "memory_rows": -(-self.memory_rows // num_shards),
            "memory_bytes": -(-self.memory_bytes // num_shards),
            "spilled_first": _SPILLED_FIRST[self.strategy],
        }


def disk_storage_of(option: StorageOption) -> Optional[DiskStorage]:
    """The storage of an option; None: all rows are in memory.

    Args:
      option: An option that get_embedding_variable accepts.
    """
    kind = option.storage_type
    if kind is None or not kind.is_on_disk or option.storage_path is None:
        return None
    memory = option.storage_size[0] if kind is StorageType.DRAM_SSDHASH else 0
    return DiskStorage((option.storage_path,), memory_bytes=memory, strategy=option.cache_strategy)
