# SPDX-License-Identifier: Apache-2.0
"""Writes of rows outside of training: rows that are assigned, erased, or there from the beginning.

table.py documents what users call. The ops check all arguments before a row changes.
"""

from typing import Any, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.table.interfaces import LogicalTable
from rec_estimator.table.shard import TableShard


class ShardRows(NamedTuple):
    """The rows of a shard.

    Attributes:
      shard: The shard.
      keys: int64 [n].
      rows: float32 [n, dim].
      counts: int64 [n], or [0] if they are not given.
    """

    shard: TableShard
    keys: tf.Tensor
    rows: tf.Tensor
    counts: tf.Tensor


def assign_rows(
    table: LogicalTable, keys: tf.Tensor, rows: Any, counts: Any, version: tf.Tensor
) -> tf.Operation:
    """Builds ``table.assign(keys, rows, counts)``.

    Args:
      table: The table.
      keys: int64 [n].
      rows: float32 [n, dim], or what TensorFlow converts to it.
      counts: int64 [n], or what TensorFlow converts to it; None: not given.
      version: int64 []. The version of the rows.

    Raises:
      ValueError: A static shape does not fit.
    """
    assigned = []
    for shard, *columns in shard_rows(table, keys, rows, counts):
        with graphs.colocate_with(shard.handle):
            assigned.append(
                _ops.gen.rec_estimator_table_assign(shard.handle, *columns, version=version)
            )
    return tf.group(assigned)


def erase_rows(table: LogicalTable, keys: tf.Tensor, version: tf.Tensor) -> tf.Tensor:
    """Builds ``table.erase(keys)``.

    Args:
      table: The table.
      keys: int64 [n].
      version: int64 []. The version of keys that a filter still counts.

    Returns:
      int64 []. The number of keys that had a row.
    """
    shards = list(table.shards)
    keys = tf.reshape(keys, [-1])
    parts = [keys]
    if len(shards) > 1:
        parts = _ops.gen.rec_estimator_shard_keys_split(keys, N=len(shards)).parts
    erased = []
    for shard, part in zip(shards, parts):
        with graphs.colocate_with(shard.handle):
            erased.append(_ops.gen.rec_estimator_table_erase(shard.handle, part, version))
    return tf.add_n(erased)


def initialize_with_rows(table: LogicalTable, keys: tf.Tensor, rows: tf.Tensor) -> None:
    """Replaces a table's initializer by one that also gives it rows.

    Args:
      table: The table.
      keys: int64 [n]. Computed when the initializer runs.
      rows: float32 [n, dim].
    """
    for shard, keys_of, rows_of, _ in shard_rows(table, keys, rows):
        with graphs.colocate_with(shard.handle):
            shard.initializer = _ops.gen.rec_estimator_table_initialize_rows(
                shard.handle, table.initial_value, keys_of, rows_of
            )
    table.set_initializer()


def shard_rows(
    table: LogicalTable, keys: tf.Tensor, rows: Any, counts: Any = None
) -> List[ShardRows]:
    """Divides rows among the shards, once all of them have been checked.

    Args:
      table: The table.
      keys: int64 [n].
      rows: As of assign_rows.
      counts: As of assign_rows.

    Returns:
      The rows of each shard. A table with one shard leaves the check to the op that writes.

    Raises:
      ValueError: A static shape does not fit.
    """
    rows = tf.convert_to_tensor(rows, tf.float32, name="rows")
    given = tf.convert_to_tensor([] if counts is None else counts, tf.int64, name="counts")
    _check_shape("keys", keys, [None], table)
    n = tf.dimension_value(keys.shape[0]) if keys.shape.rank else None
    _check_shape("rows", rows, [n, table.dim], table)
    _check_shape("counts", given, [None], table)
    shards: Any = list(table.shards)
    if len(shards) == 1:
        return [ShardRows(shards[0], keys, rows, given)]
    check = _ops.gen.rec_estimator_check_table_rows(
        keys,
        rows,
        given,
        table_name=table.name,
        dim=table.dim,
        has_padding_key=bool(table.handle_attrs(len(shards)).get("has_padding_key")),
    )
    with tf.control_dependencies([check]):
        split = _ops.gen.rec_estimator_shard_keys_split(keys, N=len(shards))
        rows_of = _ops.gen.rec_estimator_shard_rows_split(split.shards, rows, N=len(shards))
        counts_of: List[tf.Tensor] = [given] * len(shards)
        if counts is not None:
            counts_of = tf.dynamic_partition(given, split.shards, len(shards))
    return [ShardRows(*columns) for columns in zip(shards, split.parts, rows_of, counts_of)]


def _check_shape(
    argument: str, tensor: tf.Tensor, shape: List[Optional[int]], table: LogicalTable
) -> None:
    if not tensor.shape.is_compatible_with(shape):
        raise ValueError(
            f"{argument} of table {table.name!r} must be of shape {shape}, got {tensor.shape}; "
            "give each key one row"
        )
