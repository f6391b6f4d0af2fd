# SPDX-License-Identifier: Apache-2.0
"""Lookups: from keys to values, and the gradient on the way back.

Step 3 of the data flow. A lookup never changes a table. A key without a row reads its initial
vector; in a table with a filter, it reads the filter's default value. The gradient of a lookup is
``tf.IndexedSlices`` with one slice per occurrence of a key. The apply of an optimizer sums these
slices, counts the keys and inserts new ones. A lookup that combines rows has one slice per distinct
key (lookup_gradient.py).

combined_lookup.py has the lookups that combine the rows of an example.
"""

from typing import Any, Callable, List, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._argument_checks import refuse_keras
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.table.interfaces import LogicalTable
from rec_estimator.table.lookup_gradient import gradient_slices, repeat_keys, sum_occurrences
from rec_estimator.table.shard import LookupRecord, TableShard, as_keys
from rec_estimator.table.table import EmbeddingTable
from rec_estimator.table.variable_like import VariableLike

# Functional control flow ops, which take the handle of a table as an input.
_CONTROL_FLOW_OPS = ("Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While")

# Marks the op of a lookup that combines. The copies that graph passes make have it, too.
_COMBINES = "_rec_estimator_combines"

# A table, a list with one table, or all shards of a table in order.
TableParams = Union[EmbeddingTable, TableShard, Sequence[Union[EmbeddingTable, TableShard]]]

# What tf.nn.embedding_lookup takes: a variable, a partitioned one, a tensor, or a list of them.
DenseParams = Union[tf.Variable, tf.Tensor, Sequence[Union[tf.Variable, tf.Tensor]]]

Params = Union[TableParams, DenseParams]


def embedding_lookup(
    params: Params,
    ids: Any,
    partition_strategy: str = "mod",
    name: Optional[str] = None,
    validate_indices: bool = True,
    max_norm: Optional[float] = None,
    ev_init_value: None = None,
    blocknums: None = None,
    counts: Optional[Union[tf.Tensor, tf.RaggedTensor]] = None,
) -> Union[tf.Tensor, tf.RaggedTensor]:
    """Reads one row per id, like ``tf.nn.embedding_lookup``.

    Args:
      params: The table. Also what ``tf.nn.embedding_lookup`` takes, such as a dense or partitioned
        variable or a list of variables, with its results.
      ids: int64 or int32 of any shape, or a RaggedTensor. Every integer is a valid key of a table.
      partition_strategy: For dense variables, "mod" or "div". A table determines the shard of a key
        itself.
      name: Op name.
      validate_indices: Ignored. Every key is valid.
      max_norm: If given, values with a greater L2 norm are scaled down to it.
      ev_init_value: Must be None; in DeepRec, the initial vectors of these ids. The initial vector
        of a key comes from the initializer of its table.
      blocknums: Must be None; in DeepRec, for variables of dynamic dimension.
      counts: Integers from 1, of the shape of ids: how often each id occurs in the batch, for
        scripts that look up distinct ids. A training step counts each key that many times. None:
        once for each time that it is among the ids. Dense variables have no counts.

    Returns:
      float32 [ids.shape, dim]. A RaggedTensor for ragged ids.

    Raises:
      TypeError: ids or counts are not integers, or are a SparseTensor.
      ValueError: params is neither a table nor dense variables, counts have another shape than ids,
        or ev_init_value or blocknums is given.

    Example:
      >>> table = rec.get_embedding_variable("item", embedding_dim=2)
      >>> rec.embedding_lookup(table, tf.constant([[3, 3], [5, 0]], tf.int64)).shape.as_list()
      [2, 2, 2]
    """
    if ev_init_value is not None:
        raise ValueError(
            f"ev_init_value must be None, got {ev_init_value!r}; give the table its initial "
            "vectors, with InitializerOption(initializer=, default_value_dim=)"
        )
    refuse_blocknums(blocknums)
    if is_dense(params):
        return tf.nn.embedding_lookup(
            params, ids, partition_strategy, name, validate_indices, max_norm
        )
    table = as_table(params)
    if isinstance(ids, tf.RaggedTensor):
        flat_counts = getattr(counts, "flat_values", counts)
        return ids.with_flat_values(
            embedding_lookup(
                table, ids.flat_values, name=name, max_norm=max_norm, counts=flat_counts
            )
        )
    if isinstance(ids, tf.SparseTensor):
        raise TypeError(
            "ids must be dense or ragged, got a SparseTensor; use embedding_lookup_sparse"
        )
    keys = as_keys(table, ids, "ids")
    with tf.name_scope(name, "embedding_lookup", [keys]):
        further = None if counts is None else _further_occurrences(keys, counts)
        return clip(read_table(table, keys, further), max_norm)


def refuse_blocknums(blocknums: Any) -> None:
    """Refuses DeepRec's argument for variables of dynamic dimension.

    Raises:
      ValueError: It is not None.
    """
    if blocknums is not None:
        raise ValueError(
            f"blocknums must be None, got {blocknums!r}; all vectors of a table have the same "
            "dimension, make a table for each dimension"
        )


def _further_occurrences(keys: tf.Tensor, counts: Any) -> tf.Tensor:
    """int64 [sum of counts - 1]. Each key as often as it occurs besides the one that is looked up.

    Args:
      keys: int64, any shape.
      counts: Integers from 1, of the same shape.
    """
    counts = tf.convert_to_tensor(counts, name="counts")
    if not counts.dtype.is_integer:
        raise TypeError(
            f"counts must be integers, got {counts.dtype.name}; tf.unique_with_counts gives them"
        )
    if not counts.shape.is_compatible_with(keys.shape):
        raise ValueError(
            f"counts must have the shape of ids, got {counts.shape} for {keys.shape}; "
            "tf.unique_with_counts gives both"
        )
    checks = [
        tf.debugging.assert_equal(
            tf.shape(counts), tf.shape(keys), message="counts must have the shape of ids"
        ),
        tf.debugging.assert_positive(counts, message="counts must be 1 or more"),
    ]
    with tf.control_dependencies(checks):
        return repeat_keys(keys, tf.cast(tf.reshape(counts, [-1]), tf.int64) - 1)


def is_dense(params: Any) -> bool:
    """Whether params are dense variables or tensors, which TensorFlow's own lookups read."""
    parts = params if isinstance(params, (list, tuple)) else [params]
    return bool(parts) and all(
        # A partitioned variable has `as_tensor` instead of `ref`. Tables have `ref`, too.
        (hasattr(part, "ref") or hasattr(part, "as_tensor")) and not isinstance(part, VariableLike)
        for part in parts
    )


def as_table(params: Any) -> EmbeddingTable:
    """Returns the table that `params` stand for.

    Raises:
      ValueError: params is not a table or all shards of a table in order.
    """
    if isinstance(params, EmbeddingTable):
        return params
    shards = [params] if isinstance(params, TableShard) else params
    if isinstance(shards, (list, tuple)) and shards:
        if len(shards) == 1 and isinstance(shards[0], EmbeddingTable):
            return shards[0]
        if all(isinstance(shard, TableShard) for shard in shards):
            table = shards[0].table
            if isinstance(table, EmbeddingTable) and list(shards) == table.shards:
                return table
    refuse_keras("params", params, "tables come from rec_estimator.get_embedding_variable")
    raise ValueError(
        "params must be a table, all shards of one in order, or dense variables, got "
        f"{params!r}; tables come from rec_estimator.get_embedding_variable"
    )


def read_table(
    table: EmbeddingTable,
    keys: tf.Tensor,
    further: Optional[tf.Tensor] = None,
    combines: bool = False,
) -> tf.Tensor:
    """Reads every key, and records the lookup.

    Args:
      table: The table.
      keys: int64, any shape.
      further: int64 [n]. Keys that a step that trains this lookup counts besides `keys`.
      combines: Whether the values of several keys are combined, so that the gradient has one slice
        per distinct key.

    Returns:
      float32 [keys.shape, dim].
    """
    parts = None if further is None else dict(zip(table.shards, _of_shards(table, further)))
    return read_shards(
        table,
        keys,
        lambda shard, part: _lookup_shard(shard, part, parts and parts[shard], combines),
    )


def _of_shards(table: EmbeddingTable, keys: tf.Tensor) -> List[tf.Tensor]:
    """Divides int64 [n] keys among the shards."""
    if len(table.shards) == 1:
        return [keys]
    return _ops.gen.rec_estimator_shard_keys_split(keys, N=len(table.shards)).parts


def read_shards(
    table: EmbeddingTable,
    keys: tf.Tensor,
    read: Callable[[TableShard, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Reads every key from its shard.

    Args:
      table: The table.
      keys: int64, any shape.
      read: Reads keys from a shard: from int64 of any shape to float32 [keys.shape, dim].

    Returns:
      float32 [keys.shape, dim].
    """
    if len(table.shards) == 1:
        return read(table.shards[0], keys)
    flat = tf.reshape(keys, [-1])
    split = _ops.gen.rec_estimator_shard_keys_split(flat, N=len(table.shards))
    rows = [read(shard, part) for shard, part in zip(table.shards, split.parts)]
    values = _ops.gen.rec_estimator_shard_rows_merge(split.shards, rows)
    values = tf.reshape(values, tf.concat([tf.shape(keys), [table.dim]], axis=0))
    values.set_shape(keys.shape.concatenate([table.dim]))
    return values


def _lookup_shard(
    shard: TableShard, keys: tf.Tensor, further: Optional[tf.Tensor], combines: bool
) -> tf.Tensor:
    with graphs.colocate_with(shard.handle):
        values = _ops.gen.rec_estimator_table_lookup(
            shard.handle, keys, dim=shard.dim, unknown=read_of_unknown_keys(shard.table)
        )
    if combines:
        graphs.set_attr(values.op, _COMBINES, tf.AttrValue(b=True))
    shard.record_lookup(LookupRecord(keys, values.op, further=further))
    return values


def read_of_unknown_keys(table: LogicalTable) -> str:
    """What a key without a row reads, as the lookup ops name it."""
    return "initial" if table.filter is None else "default"


def clip(values: tf.Tensor, max_norm: Optional[float]) -> tf.Tensor:
    """Scales values [..., dim] down to an L2 norm; None: returns them unchanged."""
    return values if max_norm is None else tf.clip_by_norm(values, max_norm, axes=[-1])


@tf.RegisterGradient(op_registry.TABLE_LOOKUP)
def _table_lookup_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.IndexedSlices]]:
    refuse_control_flow(op)
    slices = gradient_slices(op.inputs[1], grad, op.get_attr("dim"))
    shard: Optional[TableShard] = state_of(op.graph).shards.get(op.inputs[0].op.name)
    if shard is not None:
        shard.record_gradient(op, slices.indices)
    return [sum_occurrences(slices) if _COMBINES in op.node_def.attr else slices, None]


tf.no_gradient(op_registry.SHARD_KEYS_SPLIT)


@tf.RegisterGradient(op_registry.SHARD_ROWS_MERGE)
def _shard_rows_merge_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    shards, *rows = op.inputs
    values = tf.convert_to_tensor(grad)
    return [None, *_ops.gen.rec_estimator_shard_rows_split(shards, values, N=len(rows))]


@tf.RegisterGradient(op_registry.SHARD_ROWS_SPLIT)
def _shard_rows_split_grad(op: tf.Operation, *grads: tf.Tensor) -> List[Optional[tf.Tensor]]:
    rows = [tf.convert_to_tensor(grad) for grad in grads]
    return [None, _ops.gen.rec_estimator_shard_rows_merge(op.inputs[0], rows)]


def refuse_control_flow(op: tf.Operation) -> None:
    """Refuses to differentiate a lookup inside control flow.

    Raises:
      ValueError: See control_flow_error.
    """
    if graphs.in_control_flow(op):
        raise control_flow_error(op)


def control_flow_error(op: tf.Operation) -> ValueError:
    """The error for a training lookup that is inside control flow.

    Args:
      op: The lookup, or the control flow op around it.
    """
    return ValueError(
        f"a training lookup must be outside tf.cond, tf.while_loop and tf.function, got "
        f"{op.name!r}; look the keys up before, and use the values inside"
    )


def check_no_lookup_in_control_flow(loss: tf.Tensor, tables: Sequence[TableParams]) -> None:
    """Refuses a loss that reads tables inside functional control flow.

    Without this check such tables would silently not be trained: tf.gradients gives no gradient of
    a resource that a tf.while_loop (v2) reads.

    Args:
      loss: The tensor to minimize.
      tables: The tables and shards to train.

    Raises:
      ValueError: The loss depends on a tf.cond or tf.while_loop that reads one of the tables.
    """
    suspects = {
        op
        for table in tables
        for shard in getattr(table, "shards", [table])
        for op in shard.handle.consumers()
        if op.type in _CONTROL_FLOW_OPS
    }
    if suspects:
        reached = suspects & ancestors([loss.op])
        if reached:
            raise control_flow_error(min(reached, key=lambda op: op.name))
