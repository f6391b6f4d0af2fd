# SPDX-License-Identifier: Apache-2.0
"""Checks before a step that no table gets more rows than it may have.

The limit is one of the whole table. A table with one shard checks it in its own op. The shards of a
partitioned table may be on several tasks, where none knows the others: each says how many rows it
would have after the step, and one op compares the sum. With one training task the limit is exact.
With several, each checks before it applies, so the table may exceed the limit by the new keys of
the steps that the other tasks run at that moment.
"""

from typing import Dict, Iterable, List, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.table.interfaces import LogicalTable, SavedShard

# A shard, its keys int64 [n] of a step, and those that the step only counts, int64 [m].
_Batch = Tuple[SavedShard, tf.Tensor, tf.Tensor]


def checks(batches: Iterable[_Batch]) -> List[tf.Operation]:
    """Builds the checks of a step.

    Args:
      batches: The keys of the step for each shard that it trains, of tables with a limit.

    Returns:
      Ops that fail with ResourceExhausted if a table would get too many rows.
    """
    by_table: Dict[LogicalTable, List[_Batch]] = {}
    for batch in batches:
        by_table.setdefault(batch[0].table, []).append(batch)
    built = []
    for table, of_table in by_table.items():
        if len(table.shards) == 1:
            ((shard, keys, counted),) = of_table
            with graphs.colocate_with(shard.handle):
                built.append(_ops.gen.rec_estimator_table_check_room(shard.handle, keys, counted))
        else:
            built.append(_check_sum(table, of_table))
    return built


def _check_sum(table: LogicalTable, batches: List[_Batch]) -> tf.Operation:
    nothing = tf.zeros([0], tf.int64)
    batch_of = {shard: (keys, counted) for shard, keys, counted in batches}
    rows = []
    for shard in table.shards:
        keys, counted = batch_of.get(shard, (nothing, nothing))
        with graphs.colocate_with(shard.handle):
            rows.append(_ops.gen.rec_estimator_table_rows_after(shard.handle, keys, counted))
    return _ops.gen.rec_estimator_check_row_limit(
        rows, table_name=table.name, max_rows=table.max_rows
    )
