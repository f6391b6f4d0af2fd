# SPDX-License-Identifier: Apache-2.0
"""What a table has and what training steps have done to it, as counts that its shards keep."""

from typing import NamedTuple, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.table.interfaces import LogicalTable


class TableActivity(NamedTuple):
    """Counts of a table. The first three are as they are now, the others since it was made."""

    # In the order of the op's output; disk_rows are as they are now, too.
    rows: int
    entries: int  # Rows, and keys that a filter counts one by one.
    memory_bytes: int
    looked_up: int  # Ids of training steps.
    found: int  # Those of them whose key had a row before the step.
    removed_rows: int  # Evicted or erased.
    disk_rows: int
    hits: int  # Keys of training steps whose row was in memory, of a table with a tier on disk.
    misses: int  # Keys of training steps whose row had to be read.

    @property
    def filtered_keys(self) -> int:
        """Keys without a row that a filter counts one by one. A Bloom filter does not know."""
        return self.entries - self.rows

    def admitted_since(self, before: "TableActivity") -> int:
        """Rows that were made since."""
        return max(self.rows - before.rows + self.removed_since(before), 0)

    def removed_since(self, before: "TableActivity") -> int:
        """Rows that were taken away since."""
        return max(self.removed_rows - before.removed_rows, 0)

    def minus(self, before: "TableActivity") -> "TableActivity":
        """The differences, at least 0: a task that starts anew counts from 0."""
        return TableActivity(*(max(now - then, 0) for now, then in zip(self, before)))


def sum_of(activities: Sequence[TableActivity]) -> TableActivity:
    """The sum of the counts of several tables."""
    return TableActivity(*map(sum, zip(*activities)))


def build_activity(table: LogicalTable) -> tf.Tensor:
    """Builds the read of a table's counts.

    Args:
      table: The table.

    Returns:
      int64 [9]. The fields of TableActivity, summed over all shards.
    """
    counts = []
    for shard in table.shards:
        with graphs.colocate_with(shard.handle):
            counts.append(_ops.gen.rec_estimator_table_activity(shard.handle))
    return tf.add_n(counts)
