# SPDX-License-Identifier: Apache-2.0
"""Lookups: keys to values, and the gradient on the way back.

Step 3 of the data flow. A lookup never changes a table: a key without a row reads its initial
vector, or the default vector of a table with a filter. In training the gradient of a lookup is
``tf.IndexedSlices`` of one slice per occurrence of a key, which an optimizer's apply sums, counts
and inserts.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._argument_checks import refuse_unsupported
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.sample_compression import training
from rec_estimator.table.shard import LookupRecord, TableShard
from rec_estimator.table.table import BUCKETS, EmbeddingTable, as_keys, graph_tables

_COMBINERS = ("sum", "mean", "sqrtn")

# Functional control flow, as it takes a table's handle.
_CONTROL_FLOW_OPS = ("Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While")

Params = Union[EmbeddingTable, TableShard, Sequence[Any]]


def embedding_lookup(
    params: Params,
    ids: Any,
    partition_strategy: str = "mod",
    name: Optional[str] = None,
    validate_indices: bool = True,
    max_norm: Optional[float] = None,
) -> Any:
    """Reads one row per id, like ``tf.nn.embedding_lookup``.

    Args:
      params: The table.
      ids: int64 or int32 of any shape, or a RaggedTensor. Every value is a legal key.
      partition_strategy: Not used: a table knows its shards.
      name: Op name.
      validate_indices: Not used: there is no wrong key.
      max_norm: If given, values longer than this in the L2 norm are scaled down to it.

    Returns:
      float32 [ids.shape, dim]; ragged for ragged ids.

    Raises:
      TypeError: ids are not integers, or sparse.
      ValueError: params is not a table.

    Example:
      >>> table = rec.get_embedding_variable("item", embedding_dim=2)
      >>> rec.embedding_lookup(table, tf.constant([[3, 3], [5, 0]], tf.int64)).shape
      TensorShape([2, 2, 2])
    """
    del partition_strategy, validate_indices
    table = _as_table(params)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(
            embedding_lookup(table, ids.flat_values, name=name, max_norm=max_norm)
        )
    if isinstance(ids, tf.SparseTensor):
        raise TypeError(
            "ids must be dense or ragged, got a SparseTensor; use embedding_lookup_sparse"
        )
    keys = as_keys(table, ids, "ids")
    with tf.name_scope(name, "embedding_lookup", [keys]):
        return _clip(_lookup(table, keys), max_norm)


def embedding_lookup_sparse(
    params: Params,
    sp_ids: Any,
    sp_weights: Any = None,
    partition_strategy: str = "mod",
    name: Optional[str] = None,
    combiner: Optional[str] = None,
    max_norm: Optional[float] = None,
) -> tf.Tensor:
    """Reads and combines the rows of each example, like ``tf.nn.embedding_lookup_sparse``.

    Args:
      params: The table.
      sp_ids: int64 or int32 SparseTensor [batch, …] or RaggedTensor [batch, None].
      sp_weights: Weights of the ids, float, of the same structure; None: all 1.
      partition_strategy: Not used.
      name: Op name.
      combiner: "sum", "mean" (weighted, the default) or "sqrtn" (the weighted sum over the square
        root of the sum of the squared weights).
      max_norm: If given, each row is scaled down to this L2 norm before it is combined.

    Returns:
      float32 [batch, dim]. Zeros for an example without ids (TensorFlow leaves out trailing ones).

    Raises:
      TypeError: sp_ids is neither sparse nor ragged, or not of integers.
      ValueError: A bad combiner, or weights that do not match.

    Example:
      >>> table = rec.get_embedding_variable("tag", embedding_dim=2)
      >>> tags = tf.sparse.from_dense(tf.constant([[3, 5], [7, 0], [0, 0]], tf.int64))
      >>> rec.embedding_lookup_sparse(table, tags, combiner="sum").shape
      TensorShape([3, 2])
    """
    del partition_strategy
    with tf.name_scope(name, "embedding_lookup_sparse"):
        return _combine(_as_lookup(params, sp_ids, sp_weights, combiner or "mean"), max_norm)


def safe_embedding_lookup_sparse(
    embedding_weights: Params,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: Optional[int] = None,
    name: Optional[str] = None,
    partition_strategy: str = "div",
    max_norm: Optional[float] = None,
    prune: bool = True,
) -> tf.Tensor:
    """``embedding_lookup_sparse`` for ids that may be missing, as TensorFlow has it.

    Args:
      embedding_weights: The table.
      sparse_ids: int64 or int32 SparseTensor [d0, …, dn] or RaggedTensor.
      sparse_weights: Weights of the ids, float, of the same structure; None: all 1.
      combiner: "sum", "mean" or "sqrtn".
      default_id: Id looked up for an example without ids. None: such an example gives zeros and
        counts nothing.
      name: Op name.
      partition_strategy: Not used.
      max_norm: If given, each row is scaled down to this L2 norm before it is combined.
      prune: Whether ids below 0, and unless combiner is "sum" those of weight <= 0, are left out,
        as TensorFlow does. Set False where negative keys are real ones.

    Returns:
      float32 [d0, …, dn-1, dim].

    Raises:
      TypeError: sparse_ids is neither sparse nor ragged, or not of integers.
      ValueError: A bad combiner, or weights that do not match.
    """
    del partition_strategy
    with tf.name_scope(name, "safe_embedding_lookup_sparse"):
        ids, weights = _as_sparse_pair(sparse_ids, sparse_weights)
        leading_shape = ids.dense_shape[:-1]
        static_leading = ids.shape[:-1]
        table = _as_table(embedding_weights)
        keys = as_keys(table, ids.values, "sparse_ids")
        ids = tf.sparse.reshape(
            tf.SparseTensor(ids.indices, keys, ids.dense_shape),
            tf.stack([tf.reduce_prod(leading_shape), ids.dense_shape[-1]]),
        )
        if weights is not None:
            weights = tf.SparseTensor(ids.indices, weights.values, ids.dense_shape)
        if prune:
            ids, weights = _prune(ids, weights, combiner)
        if default_id is not None:
            ids, is_empty = tf.sparse.fill_empty_rows(ids, tf.constant(default_id, tf.int64))
            del is_empty
            if weights is not None:
                weights, _ = tf.sparse.fill_empty_rows(weights, tf.ones([], weights.dtype))
        values = _combine(_combined(table, ids, weights, combiner or "mean"), max_norm)
        if static_leading.rank == 1:
            values.set_shape(static_leading.concatenate(values.shape[1:]))
            return values
        values_shape = tf.concat([tf.cast(leading_shape, tf.int32), tf.shape(values)[1:]], axis=0)
        reshaped = tf.reshape(values, values_shape)
        reshaped.set_shape(static_leading.concatenate(values.shape[1:]))
        return reshaped


def group_embedding_lookup_sparse(
    params: Sequence[Params],
    sp_ids: Sequence[Any],
    combiners: Sequence[Optional[str]],
    partition_strategy: str = "mod",
    sp_weights: Optional[Sequence[Any]] = None,
    name: Optional[str] = None,
) -> List[tf.Tensor]:
    """Several lookups in one op, so that 26 features do not cost 26 ops.

    Args:
      params: One table per lookup; a table may come several times.
      sp_ids: One SparseTensor or RaggedTensor of ids per lookup; for the combiner None a dense
        tensor of any shape.
      combiners: "sum", "mean", "sqrtn", or None to read without combining.
      partition_strategy: Not used.
      sp_weights: One per lookup, or None where all weights are 1; None: no weights at all.
      name: Op name.

    Returns:
      One tensor per lookup, as embedding_lookup_sparse gives it; as embedding_lookup for the
      combiner None.

    Raises:
      TypeError: Ids of the wrong kind or type.
      ValueError: Lists of different lengths, or a bad combiner.

    Example:
      >>> tables = [rec.get_embedding_variable(n, embedding_dim=2) for n in ("user", "tag")]
      >>> tags = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
      >>> user, tag = rec.group_embedding_lookup_sparse(
      ...     tables, [tf.constant([4, 5], tf.int64), tags], combiners=[None, "mean"])
      >>> user.shape, tag.shape
      (TensorShape([2, 2]), TensorShape([2, 2]))
    """
    del partition_strategy
    weights = list(sp_weights) if sp_weights is not None else [None] * len(params)
    if not len(params) == len(sp_ids) == len(combiners) == len(weights):
        raise ValueError(
            "params, sp_ids, combiners and sp_weights must be of one length, got "
            f"{len(params)}, {len(sp_ids)}, {len(combiners)} and {len(weights)}"
        )
    if not params:
        return []
    with tf.name_scope(name, "group_embedding_lookup"):
        return _run_lookups(
            [_as_lookup(*lookup) for lookup in zip(params, sp_ids, weights, combiners)]
        )


class _Lookup(NamedTuple):
    """One lookup, checked: `keys` [n] with the `indices` and `dense_shape` of a SparseTensor.

    Not combined: `keys` of any shape, `indices` [0, 1], `dense_shape` [1].
    """

    table: EmbeddingTable
    keys: tf.Tensor
    indices: tf.Tensor
    dense_shape: tf.Tensor
    weights: Optional[tf.Tensor]
    combiner: Optional[str]


def _as_lookup(params: Params, ids: Any, weights: Any, combiner: Optional[str]) -> _Lookup:
    table = _as_table(params)
    if combiner is None:
        if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(
                f"sp_ids must be dense where the combiner is None, got {type(ids).__name__}; "
                "name a combiner, or use embedding_lookup on a RaggedTensor"
            )
        if weights is not None:
            raise ValueError("sp_weights must be None where the combiner is None, got weights")
        keys = as_keys(table, ids, "sp_ids")
        nothing = tf.zeros([0, 1], tf.int64), tf.zeros([1], tf.int64)
        return _Lookup(table, keys, *nothing, None, None)
    sparse, sparse_weights = _as_sparse_pair(ids, weights)
    keys = as_keys(table, sparse.values, "sp_ids")
    keys = tf.SparseTensor(sparse.indices, keys, sparse.dense_shape)
    return _combined(table, keys, sparse_weights, combiner)


def _combined(
    table: EmbeddingTable, keys: tf.SparseTensor, weights: Optional[tf.SparseTensor], combiner: str
) -> _Lookup:
    if combiner not in _COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(_COMBINERS)}, got {combiner!r}")
    weights = None if weights is None else tf.cast(weights.values, tf.float32)
    return _Lookup(table, keys.values, keys.indices, keys.dense_shape, weights, combiner)


def _combine(lookup: _Lookup, max_norm: Optional[float]) -> tf.Tensor:
    """Runs one lookup: fused if TensorFlow's ops have nothing to do between reading and summing."""
    if max_norm is not None:
        return _combine_unfused(lookup, max_norm)
    return _run_lookups([lookup])[0]


def _run_lookups(lookups: Sequence[_Lookup]) -> List[tf.Tensor]:
    """Runs lookups in as few ops as there are devices, the weighted and partitioned ones apart."""
    results: List[Optional[tf.Tensor]] = [None] * len(lookups)
    fused = {}
    for i, lookup in enumerate(lookups):
        if lookup.weights is None and len(lookup.table.shards) == 1:
            fused.setdefault(lookup.table.device, []).append(i)
        elif lookup.combiner is None:
            results[i] = _lookup(lookup.table, lookup.keys)
        else:
            results[i] = _combine_unfused(lookup, max_norm=None)
    for members in fused.values():
        values = _run_fused([lookups[i] for i in members])
        for i, value in zip(members, values):
            results[i] = value
    return results


def _run_fused(lookups: Sequence[_Lookup]) -> List[tf.Tensor]:
    with graphs.colocate_with(lookups[0].table.handle):
        values = _ops.gen.rec_estimator_table_group_lookup(
            tables=[lookup.table.handle for lookup in lookups],
            keys=[lookup.keys for lookup in lookups],
            indices=[lookup.indices for lookup in lookups],
            dense_shapes=[lookup.dense_shape for lookup in lookups],
            dims=[lookup.table.dim for lookup in lookups],
            combiners=[lookup.combiner or "none" for lookup in lookups],
            unknowns=[_unknown(lookup.table) for lookup in lookups],
        )
    for lookup, value in zip(lookups, values):
        lookup.table.shards[0].record_lookup(LookupRecord(lookup.keys, value.op))
    return values


def _combine_unfused(lookup: _Lookup, max_norm: Optional[float]) -> tf.Tensor:
    """Looks up, clips, weighs and sums with TensorFlow's ops, which have all the gradients."""
    values = _clip(_lookup(lookup.table, lookup.keys), max_norm)
    rows = lookup.indices[:, 0]
    num_rows = lookup.dense_shape[0]
    weights = lookup.weights
    if weights is None:
        weights = tf.ones(tf.shape(lookup.keys), tf.float32)
    else:
        one_each = tf.debugging.assert_equal(
            tf.shape(weights),
            tf.shape(lookup.keys),
            message="sp_weights must have one weight per id",
        )
        # unsorted_segment_sum leaves negative rows out without a word.
        rows_exist = tf.debugging.assert_non_negative(rows, message="sp_ids must have indices >= 0")
        with tf.control_dependencies([one_each, rows_exist]):
            weights = tf.identity(weights)
        values *= weights[:, tf.newaxis]
    total = tf.math.unsorted_segment_sum(values, rows, num_rows)
    if lookup.combiner == "sum":
        return total
    if lookup.combiner == "mean":
        divisor = tf.math.unsorted_segment_sum(weights, rows, num_rows)
    else:
        divisor = tf.sqrt(tf.math.unsorted_segment_sum(tf.square(weights), rows, num_rows))
    return tf.math.divide_no_nan(total, divisor[:, tf.newaxis])


def _lookup(table: EmbeddingTable, keys: tf.Tensor) -> tf.Tensor:
    """keys of any shape to [keys.shape, dim]."""
    return read_shards(table, keys, _lookup_shard)


def read_shards(
    table: EmbeddingTable,
    keys: tf.Tensor,
    read: Callable[[TableShard, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """What each shard of a table gives for its keys, put together.

    Args:
      table: The table.
      keys: int64, any shape.
      read: Of a shard and keys of any shape, their float32 [keys.shape, dim].

    Returns:
      float32 [keys.shape, dim].
    """
    if len(table.shards) == 1:
        return read(table.shards[0], keys)
    flat = tf.reshape(keys, [-1])
    shard_of_key = tf.cast(
        tf.math.floormod(tf.math.floormod(flat, BUCKETS), len(table.shards)), tf.int32
    )
    parts = tf.dynamic_partition(flat, shard_of_key, len(table.shards))
    positions = tf.dynamic_partition(tf.range(tf.size(flat)), shard_of_key, len(table.shards))
    rows = [read(shard, part) for shard, part in zip(table.shards, parts)]
    values = tf.dynamic_stitch(positions, rows)
    values = tf.reshape(values, tf.concat([tf.shape(keys), [table.dim]], axis=0))
    values.set_shape(keys.shape.concatenate([table.dim]))
    return values


def _lookup_shard(shard: TableShard, keys: tf.Tensor) -> tf.Tensor:
    with graphs.colocate_with(shard.handle):
        values = _ops.gen.rec_estimator_table_lookup(
            shard.handle, keys, dim=shard.dim, unknown=_unknown(shard.table)
        )
    shard.record_lookup(LookupRecord(keys, values.op))
    return values


def _unknown(table: EmbeddingTable) -> str:
    """What a key without a row reads."""
    return "initial" if table.filter is None else "default"


def _clip(values: tf.Tensor, max_norm: Optional[float]) -> tf.Tensor:
    return values if max_norm is None else tf.clip_by_norm(values, max_norm, axes=[-1])


def _prune(ids: tf.SparseTensor, weights: Optional[tf.SparseTensor], combiner: str) -> Any:
    """Leaves out ids that TensorFlow calls invalid: below 0, or of weight <= 0 unless summed."""
    valid = tf.greater_equal(ids.values, 0)
    if weights is not None and combiner != "sum":
        valid = tf.logical_and(valid, tf.greater(weights.values, 0))
    ids = tf.sparse.retain(ids, valid)
    return ids, None if weights is None else tf.sparse.retain(weights, valid)


def _as_table(params: Params) -> EmbeddingTable:
    if isinstance(params, EmbeddingTable):
        return params
    shards = [params] if isinstance(params, TableShard) else params
    if isinstance(shards, (list, tuple)) and shards:
        if len(shards) == 1 and isinstance(shards[0], EmbeddingTable):
            return shards[0]
        if all(isinstance(shard, TableShard) for shard in shards):
            table = shards[0].table
            if list(shards) == table.shards:
                return table
    refuse_unsupported("params", params, "tables come from rec_estimator.get_embedding_variable")
    raise ValueError(
        f"params must be a table, or all shards of one in order, got {params!r}; tables come from "
        "rec_estimator.get_embedding_variable, variables go to tf.nn.embedding_lookup"
    )


def _as_sparse(value: Any, argument: str) -> tf.SparseTensor:
    if isinstance(value, tf.RaggedTensor):
        return value.to_sparse()
    if isinstance(value, tf.SparseTensor):
        return value
    raise TypeError(
        f"{argument} must be a SparseTensor or RaggedTensor, got {value!r}; dense ids go to "
        "embedding_lookup"
    )


def _as_sparse_pair(ids: Any, weights: Any) -> Tuple[tf.SparseTensor, Optional[tf.SparseTensor]]:
    """Ids and weights as SparseTensors that fit each other."""
    sparse_ids = _as_sparse(ids, "sp_ids")
    if weights is None:
        return sparse_ids, None
    sparse_weights = _as_sparse(weights, "sp_weights")
    if not sparse_weights.dtype.is_floating:
        raise TypeError(f"sp_weights must be float, got {sparse_weights.dtype.name}")
    if not sparse_ids.values.shape.is_compatible_with(sparse_weights.values.shape):
        raise ValueError(
            f"sp_weights must have one weight per id, got {sparse_weights.values.shape} for "
            f"{sparse_ids.values.shape}"
        )
    return sparse_ids, sparse_weights


@tf.RegisterGradient("RecEstimator>TableLookup")
def _table_lookup_grad(op: tf.Operation, grad: tf.Tensor) -> List[Any]:
    _refuse_control_flow(op)
    slices = _slices(op.inputs[1], grad, op.get_attr("dim"))
    for table in graph_tables(op.graph):
        for shard in table:
            if shard.handle is op.inputs[0]:
                shard.record_gradient(op, slices.indices)
    return [slices, None]


@tf.RegisterGradient("RecEstimator>TableGroupLookup")
def _table_group_lookup_grad(op: tf.Operation, *grads: tf.Tensor) -> List[Any]:
    _refuse_control_flow(op)
    count, dims = op.get_attr("N"), op.get_attr("dims")
    combiners = [combiner.decode() for combiner in op.get_attr("combiners")]
    keys, indices = op.inputs[count : 2 * count], op.inputs[2 * count : 3 * count]
    reached = [i for i in range(count) if not _is_filled_in(op, i, grads[i])]
    combined = [i for i in reached if combiners[i] != "none"]
    key_grads = dict(enumerate(grads))
    if combined:
        spread = _ops.gen.rec_estimator_table_group_lookup_grad(
            indices=[indices[i] for i in combined],
            grads=[tf.convert_to_tensor(grads[i]) for i in combined],
            combiners=[combiners[i] for i in combined],
        )
        key_grads.update(zip(combined, spread))
    slices = [
        _slices(keys[i], key_grads[i], dims[i]) if i in reached else None for i in range(count)
    ]
    return slices + [None] * (3 * count)


def _slices(keys: tf.Tensor, grad: Any, dim: int) -> tf.IndexedSlices:
    slices = tf.IndexedSlices(tf.reshape(grad, [-1, dim]), tf.reshape(keys, [-1]))
    training.note_gradient(keys, slices)
    return slices


def _is_filled_in(op: tf.Operation, output: int, grad: Any) -> bool:
    """Whether tf.gradients made up zeros for an output that the loss does not depend on.

    Such keys are no training lookups: they must not be counted, nor moved by a slot's momentum.
    """
    return (
        isinstance(grad, tf.Tensor)
        and grad.op.type == "ZerosLike"
        and grad.op.inputs[0] is op.outputs[output]
    )


def _refuse_control_flow(op: tf.Operation) -> None:
    if graphs.in_control_flow(op):
        raise control_flow_error(op)


def control_flow_error(op: tf.Operation) -> ValueError:
    """What is raised for a training lookup that is not a plain op of its graph.

    Args:
      op: The lookup, or what it is in.
    """
    return ValueError(
        f"a training lookup must be outside tf.cond, tf.while_loop and tf.function, got "
        f"{op.name!r}; look the keys up before, and use the values inside"
    )


def check_no_lookup_in_control_flow(loss: tf.Tensor, tables: Sequence[Params]) -> None:
    """Refuses a loss that reads tables inside functional control flow.

    tf.gradients leaves out, without a word, what a tf.while_loop (v2) does with a resource.

    Args:
      loss: What is minimized.
      tables: Tables and shards that are to be trained.

    Raises:
      ValueError: The loss depends on a tf.cond or tf.while_loop that one of the tables goes into.
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
