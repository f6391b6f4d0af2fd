# SPDX-License-Identifier: Apache-2.0
"""Writes of rows outside of training: rows that are assigned, erased, or there from the beginning.

The ops check all arguments before a row changes.
"""

from typing import Any, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.walk import find_global_step
from rec_estimator.table.eviction_rules import time_rule
from rec_estimator.table.interfaces import NO_GLOBAL_STEP, LogicalTable
from rec_estimator.table.shard import TableShard, as_keys
from rec_estimator.table.table_time import present_time
from rec_estimator.table.variable_like import VariableLike


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


class WritableTable(VariableLike):
    """What a table has to write its rows outside of training. EmbeddingTable is the table."""

    initializer: tf.Operation

    def version_of_write(self: LogicalTable) -> tf.Tensor:
        """int64 []. The version of rows that are written outside of training."""
        rule = time_rule(self)
        if rule is not None:
            return present_time(rule)
        step = find_global_step()
        return tf.constant(NO_GLOBAL_STEP, tf.int64) if step is None else tf.cast(step, tf.int64)

    def set_initializer(self: LogicalTable) -> None:
        """Makes the initializer that of the shards, after they got others."""
        with tf.name_scope(None):
            initializers = [shard.initializer for shard in self.shards]
            self.initializer = initializers[0] if len(initializers) == 1 else tf.group(initializers)

    def assign(
        self: LogicalTable,
        keys: Any,
        rows: Any = None,
        counts: Any = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Writes rows, such as vectors that another program has trained.

        A key owns a row afterwards, whatever the filter. The slots of these rows start fresh. Their
        version is the global step or, with a TimeEvict, the time; -1 if the graph has none yet. The
        next delta has them. A lookup reads a shard before all of it or after all of it; control
        dependencies say which.

        Args:
          keys: int64 or int32 [n], distinct.
          rows: float32 [n, dim], finite in the type in which the table stores vectors.
          counts: int64 [n], from 0: how often each key has occurred. None: a key keeps its count,
            or gets the filter's threshold if that is greater.
          name: Op name.

        Returns:
          The op that writes.

        Raises:
          ValueError: A static shape does not fit.
          TypeError: keys have another type, or rows are missing, as in tf.assign(table, value).
          tf.errors.InvalidArgumentError: When the op runs: a shape does not fit, a key is given
            twice or is padding, a value is not finite, or a count is negative. Nothing has changed.
          tf.errors.ResourceExhaustedError: When the op runs: a shard would exceed its row limit or
            has no memory. That shard has not changed.

        Example:
          >>> table = rec.get_embedding_variable("user", embedding_dim=2)
          >>> assign = table.assign(tf.constant([7], tf.int64), [[0.5, -1.0]])
          >>> with tf.Session() as session:
          ...     session.run(tf.global_variables_initializer())
          ...     session.run(assign)
          ...     session.run(table.export().values).tolist()
          [[0.5, -1.0]]
        """
        if rows is None:
            raise TypeError(
                f"rows of table {self.name!r} must be given; call table.assign(keys, rows)"
            )
        with tf.name_scope(name, f"{self.name}/assign"):
            version, assigned = self.version_of_write(), []
            for shard, *columns in _shard_rows(self, as_keys(self, keys, "keys"), rows, counts):
                with graphs.colocate_with(shard.handle):
                    assign = _ops.gen.rec_estimator_table_assign
                    assigned.append(assign(shard.handle, *columns, version=version))
            return tf.group(assigned)

    def erase(self: LogicalTable, keys: Any, name: Optional[str] = None) -> tf.Tensor:
        """Takes away the rows, slots and counts of keys, as an eviction does.

        A key that is trained again starts from count 0, its initial vector and fresh slots. A
        Bloom filter keeps what it has counted of a key that never owned a row.

        Args:
          keys: int64 or int32, any shape. Repeats and keys without a row are allowed.
          name: Op name.

        Returns:
          int64 []. The number of keys that had a row.

        Raises:
          TypeError: keys have another type.

        Example:
          >>> table = rec.get_embedding_variable("user", embedding_dim=2)
          >>> table.erase(tf.constant([7, 8], tf.int64)).dtype
          tf.int64
        """
        with tf.name_scope(name, f"{self.name}/erase"):
            version, erased = self.version_of_write(), []
            parts = [tf.reshape(as_keys(self, keys, "keys"), [-1])]
            n = len(self.shards)
            if n > 1:
                parts = _ops.gen.rec_estimator_shard_keys_split(parts[0], N=n).parts
            for shard, part in zip(self.shards, parts):
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
    for shard, keys_of, rows_of, _ in _shard_rows(table, keys, rows):
        with graphs.colocate_with(shard.handle):
            shard.initializer = _ops.gen.rec_estimator_table_initialize_rows(
                shard.handle, table.initial_value, keys_of, rows_of
            )
    table.set_initializer()


def _shard_rows(
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
        value_dtype=table.row_dtype,
        has_padding_key=bool(table.handle_attrs(0, len(shards)).get("has_padding_key")),
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
