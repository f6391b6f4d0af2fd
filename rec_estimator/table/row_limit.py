# SPDX-License-Identifier: Apache-2.0
"""Checks before a step that no table gets more rows than it may have.

The limit is one of the whole table. The op that reserves a step checks each shard by itself. The
shards of a partitioned table may be on several tasks, where none knows the others: each says how
many rows it would have after the step, and one op compares the sum. With one training task the
limit is exact. With several, each checks before it applies, so the table may exceed the limit by
the new keys of the steps that the other tasks run at that moment.
"""

from typing import Dict, List, Mapping

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.table.interfaces import LogicalTable, SavedShard


def checks(rows: Mapping[SavedShard, tf.Tensor]) -> List[tf.Operation]:
    """Builds the checks of a step.

    Args:
      rows: For each shard that the step trains, of partitioned tables with a limit, the rows that
        it would have after the step, int64 [].

    Returns:
      Ops that fail with ResourceExhausted if a table would get too many rows.
    """
    tables: Dict[LogicalTable, None] = dict.fromkeys(shard.table for shard in rows)
    return [
        _ops.gen.rec_estimator_check_row_limit(
            [rows[shard] if shard in rows else _rows_now(shard) for shard in table.shards],
            table_name=table.name,
            max_rows=table.max_rows,
        )
        for table in tables
    ]


def _rows_now(shard: SavedShard) -> tf.Tensor:
    with graphs.colocate_with(shard.handle, ignore_existing=True):
        return _ops.gen.rec_estimator_table_stats(shard.handle).size
