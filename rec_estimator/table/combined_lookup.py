# SPDX-License-Identifier: Apache-2.0
"""Lookups that combine the rows of each example, and groups of lookups.

Step 3 of the data flow, as in lookup.py. A lookup that combines without weights is one op. One with
weights, with max_norm, of a partitioned table or of a table on a parameter server reads the rows
and combines them with another op. A graph pass (ops/passes/fuse_lookups_pass.cc) fuses the ops that
combine and are ready at the same time.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.table.lookup import (
    Params,
    as_table,
    clip,
    is_dense,
    read_of_unknown_keys,
    read_table,
    refuse_blocknums,
    refuse_control_flow,
)
from rec_estimator.table.lookup_gradient import gradient_slices, sum_occurrences
from rec_estimator.table.shard import LookupRecord, as_keys
from rec_estimator.table.table import EmbeddingTable

_COMBINERS = ("sum", "mean", "sqrtn")

# Ids of examples, or their weights.
SparseIds = Union[tf.SparseTensor, tf.RaggedTensor]


def embedding_lookup_sparse(
    params: Params,
    sp_ids: SparseIds,
    sp_weights: Optional[SparseIds] = None,
    partition_strategy: str = "mod",
    name: Optional[str] = None,
    combiner: Optional[str] = None,
    max_norm: Optional[float] = None,
    blocknums: None = None,
) -> tf.Tensor:
    """Reads and combines the rows of each example, like ``tf.nn.embedding_lookup_sparse``.

    Args:
      params: The table. Also what ``tf.nn.embedding_lookup_sparse`` takes, such as a dense or
        partitioned variable or a list of variables, with its results.
      sp_ids: int64 or int32 SparseTensor [batch, …] or RaggedTensor [batch, None].
      sp_weights: float weights of the ids, of the same structure; None: all weights are 1.
      partition_strategy: For dense variables, "mod" or "div". Tables ignore it.
      name: Op name.
      combiner: "sum", "mean" (weighted, the default) or "sqrtn" (the weighted sum divided by the
        square root of the sum of the squared weights).
      max_norm: If given, a row with a greater L2 norm is scaled down to it before it is combined.
      blocknums: Must be None; in DeepRec, for variables of dynamic dimension.

    Returns:
      float32 [batch, dim]. Zeros for an example without ids. TensorFlow's function returns no rows
      for such examples at the end of the batch.

    Raises:
      TypeError: sp_ids is neither sparse nor ragged, or not of integers.
      ValueError: The combiner is unknown, the weights do not match the ids, or blocknums is given.

    Example:
      >>> table = rec.get_embedding_variable("tag", embedding_dim=2)
      >>> tags = tf.sparse.from_dense(tf.constant([[3, 5], [7, 0], [0, 0]], tf.int64))
      >>> rec.embedding_lookup_sparse(table, tags, combiner="sum").shape.as_list()
      [3, 2]
    """
    refuse_blocknums(blocknums)
    combiner = combiner or "mean"
    if is_dense(params):
        return tf.nn.embedding_lookup_sparse(
            params, sp_ids, sp_weights, partition_strategy, name, combiner, max_norm
        )
    table = as_table(params)
    with tf.name_scope(name, "embedding_lookup_sparse"):
        return _combine(_as_combination(table, sp_ids, sp_weights, combiner), max_norm)


def safe_embedding_lookup_sparse(
    embedding_weights: Params,
    sparse_ids: SparseIds,
    sparse_weights: Optional[SparseIds] = None,
    combiner: str = "mean",
    default_id: Optional[int] = None,
    name: Optional[str] = None,
    partition_strategy: str = "div",
    max_norm: Optional[float] = None,
    prune: bool = True,
) -> tf.Tensor:
    """Like ``embedding_lookup_sparse``, for examples without ids and for invalid ids.

    The counterpart of ``tf.nn.safe_embedding_lookup_sparse``.

    Args:
      embedding_weights: The table. Also what TensorFlow's function takes, such as a dense or
        partitioned variable or a list of variables, with its results.
      sparse_ids: int64 or int32 SparseTensor [d0, …, dn] or RaggedTensor.
      sparse_weights: float weights of the ids, of the same structure; None: all weights are 1.
      combiner: "sum", "mean" or "sqrtn".
      default_id: The id to look up for an example without ids. None: such an example gives zeros
        and counts nothing.
      name: Op name.
      partition_strategy: For dense variables, "mod" or "div". Tables ignore it.
      max_norm: If given, a row with a greater L2 norm is scaled down to it before it is combined.
      prune: Whether to drop ids below 0 and, unless combiner is "sum", ids with a weight <= 0, as
        TensorFlow does. Pass False if negative ids are keys of a table.

    Returns:
      float32 [d0, …, dn-1, dim].

    Raises:
      TypeError: sparse_ids is neither sparse nor ragged, or not of integers.
      ValueError: The combiner is unknown, the weights do not match the ids, or prune is False for a
        dense variable.
    """
    if is_dense(embedding_weights):
        if not prune:
            raise ValueError(
                f"prune must be True for a dense variable, got {prune!r}; it has no negative ids"
            )
        return tf.nn.safe_embedding_lookup_sparse(
            embedding_weights,
            sparse_ids,
            sparse_weights,
            combiner,
            default_id,
            name,
            partition_strategy,
            max_norm,
        )
    with tf.name_scope(name, "safe_embedding_lookup_sparse"):
        ids, weights = _as_sparse_pair(sparse_ids, sparse_weights)
        leading_shape = ids.dense_shape[:-1]
        static_leading = ids.shape[:-1]
        table = as_table(embedding_weights)
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
        values = _combine(_combination(table, ids, weights, combiner or "mean"), max_norm)
        if static_leading.rank == 1:
            values.set_shape(static_leading.concatenate(values.shape[1:]))
            return values
        values_shape = tf.concat([tf.cast(leading_shape, tf.int32), tf.shape(values)[1:]], axis=0)
        reshaped = tf.reshape(values, values_shape)
        reshaped.set_shape(static_leading.concatenate(values.shape[1:]))
        return reshaped


def group_embedding_lookup_sparse(
    params: Sequence[Params],
    sp_ids: Sequence[Union[SparseIds, tf.Tensor]],
    combiners: Optional[Sequence[Optional[str]]],
    sp_weights: Optional[Sequence[Optional[SparseIds]]] = None,
    partition_strategy: str = "mod",
    is_sequence: bool = False,
    params_num_per_group: Optional[int] = None,
    name: Optional[str] = None,
) -> List[tf.Tensor]:
    """Runs several lookups.

    A step fuses lookups that combine and are ready at the same time, whether they come from a group
    or not, into as many ops as it has threads. Of weighted ones it fuses the sums.

    Args:
      params: One table per lookup. A table may occur several times. Dense variables may be among
        them; TensorFlow's ops look them up.
      sp_ids: One SparseTensor or RaggedTensor of ids per lookup; a dense tensor of any shape if the
        combiner is None.
      combiners: One per lookup: "sum", "mean", "sqrtn", or None to read without combining. None:
        "mean" for all.
      sp_weights: The weights of each lookup, or None if all are 1; None: no lookup has weights.
      partition_strategy: For partitioned dense variables, "mod" or "div". Tables ignore it.
      is_sequence: Must be False. To get all vectors of an example, give padded dense ids and a
        combiner of None.
      params_num_per_group: Ignored; in DeepRec, how many lookups an op has.
      name: Op name.

    Returns:
      One tensor per lookup: the result of embedding_lookup_sparse, or of embedding_lookup if the
      combiner is None.

    Raises:
      TypeError: Ids have the wrong kind or type, or sp_weights is a string: in older releases of
        DeepRec, partition_strategy came before it.
      ValueError: The lists differ in length, a combiner is unknown, or is_sequence is True.

    Example:
      >>> tables = [rec.get_embedding_variable(n, embedding_dim=2) for n in ("user", "tag")]
      >>> tags = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
      >>> user, tag = rec.group_embedding_lookup_sparse(
      ...     tables, [tf.constant([4, 5], tf.int64), tags], combiners=[None, "mean"])
      >>> user.shape.as_list(), tag.shape.as_list()
      ([2, 2], [2, 2])
    """
    del params_num_per_group
    if is_sequence:
        raise ValueError(
            "is_sequence must be False, got True; look up padded dense ids with a combiner of None"
        )
    if isinstance(sp_weights, str):
        raise TypeError(
            f"sp_weights must be a list or None, got {sp_weights!r}; pass partition_strategy by "
            "name"
        )
    combiners = ["mean"] * len(params) if combiners is None else combiners
    weights = list(sp_weights) if sp_weights is not None else [None] * len(params)
    if not len(params) == len(sp_ids) == len(combiners) == len(weights):
        raise ValueError(
            "params, sp_ids, combiners and sp_weights must be of one length, got "
            f"{len(params)}, {len(sp_ids)}, {len(combiners)} and {len(weights)}"
        )
    if not params:
        return []
    with tf.name_scope(name, "group_embedding_lookup"):
        requests = [
            _as_request(_as_source(given, partition_strategy), *request)
            for given, *request in zip(params, sp_ids, weights, combiners)
        ]
        return [
            _read(request) if isinstance(request, _Read) else _combine(request, max_norm=None)
            for request in requests
        ]


def group_embedding_lookup(
    params: Sequence[Params],
    ids: Sequence[tf.Tensor],
    partition_strategy: str = "mod",
    name: Optional[str] = None,
) -> List[tf.Tensor]:
    """Runs several lookups of dense ids, like DeepRec's function of this name.

    Args:
      params: One table or dense variable per lookup.
      ids: One tensor of ids of any shape per lookup.
      partition_strategy: For partitioned dense variables, "mod" or "div". Tables ignore it.
      name: Op name.

    Returns:
      One tensor [ids.shape, dim] per lookup.

    Raises:
      TypeError: Ids are not dense integers.
      ValueError: The lists differ in length.

    Example:
      >>> tables = [rec.get_embedding_variable(n, embedding_dim=2) for n in ("user", "item")]
      >>> user, item = rec.group_embedding_lookup(tables, [tf.constant([4, 5]), tf.constant([6])])
      >>> user.shape.as_list(), item.shape.as_list()
      ([2, 2], [1, 2])
    """
    return group_embedding_lookup_sparse(
        params, ids, [None] * len(ids), partition_strategy=partition_strategy, name=name
    )


class _DenseVariable(NamedTuple):
    """A variable, a partitioned variable, a tensor, or a list of them, [rows, dim]."""

    variable: Any
    partition_strategy: str


_Source = Union[EmbeddingTable, _DenseVariable]


class _Read(NamedTuple):
    """A checked lookup of keys of any shape."""

    source: _Source
    keys: tf.Tensor


class _Combination(NamedTuple):
    """A checked lookup that combines: `keys` [n] with the other parts of a SparseTensor."""

    source: _Source
    keys: tf.Tensor
    indices: tf.Tensor
    dense_shape: tf.Tensor
    weights: Optional[tf.Tensor]
    combiner: str


def _as_source(params: Params, partition_strategy: str) -> _Source:
    if is_dense(params):
        return _DenseVariable(params, partition_strategy)
    return as_table(params)


def _as_keys(source: _Source, ids: Any, argument: str) -> tf.Tensor:
    if isinstance(source, EmbeddingTable):
        return as_keys(source, ids, argument)
    keys = tf.convert_to_tensor(ids, name="ids")
    if not keys.dtype.is_integer:
        raise TypeError(f"{argument} must be int64 or int32, got {keys.dtype.name}; cast them")
    return keys


def _as_request(
    source: _Source,
    ids: Union[SparseIds, tf.Tensor],
    weights: Optional[SparseIds],
    combiner: Optional[str],
) -> Union[_Read, _Combination]:
    if combiner is not None:
        return _as_combination(source, ids, weights, combiner)
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"sp_ids must be dense where the combiner is None, got {type(ids).__name__}; "
            "pass a combiner, or use embedding_lookup on a RaggedTensor"
        )
    if weights is not None:
        raise ValueError("sp_weights must be None where the combiner is None, got weights")
    return _Read(source, _as_keys(source, ids, "sp_ids"))


def _as_combination(
    source: _Source, ids: SparseIds, weights: Optional[SparseIds], combiner: str
) -> _Combination:
    sparse, sparse_weights = _as_sparse_pair(ids, weights)
    keys = tf.SparseTensor(
        sparse.indices, _as_keys(source, sparse.values, "sp_ids"), sparse.dense_shape
    )
    return _combination(source, keys, sparse_weights, combiner)


def _combination(
    source: _Source, keys: tf.SparseTensor, weights: Optional[tf.SparseTensor], combiner: str
) -> _Combination:
    if combiner not in _COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(_COMBINERS)}, got {combiner!r}")
    weights = None if weights is None else tf.cast(weights.values, tf.float32)
    return _Combination(source, keys.values, keys.indices, keys.dense_shape, weights, combiner)


def _read(request: Union[_Read, _Combination]) -> tf.Tensor:
    """[keys.shape, dim]. The values of the keys."""
    source, keys = request.source, request.keys
    combines = isinstance(request, _Combination)
    if isinstance(source, EmbeddingTable):
        return read_table(source, keys, combines=combines)
    variable, strategy = source
    if not combines:
        return tf.nn.embedding_lookup(variable, keys, partition_strategy=strategy)
    # As TensorFlow's lookups that combine: the gradient has one slice per distinct id.
    distinct, places = tf.unique(keys)
    return tf.gather(tf.nn.embedding_lookup(variable, distinct, strategy), places)


def _combine(request: _Combination, max_norm: Optional[float]) -> tf.Tensor:
    """[dense_shape[0], dim]. One combined vector for each example."""
    source = request.source
    if (
        isinstance(source, EmbeddingTable)
        and len(source.shards) == 1
        # On a parameter server, each such lookup would send its ids and get its values apart. Of
        # the lookups that _combine_values makes, a step sends all distinct keys in one tensor, and
        # gets their rows in another one.
        and not source.is_on_ps
        and request.weights is None
        and max_norm is None
    ):
        return _look_up_combined(source, request)
    return _combine_values(request, max_norm)


def _look_up_combined(table: EmbeddingTable, request: _Combination) -> tf.Tensor:
    """Looks up and combines with one op."""
    with graphs.colocate_with(table.handle):
        (values,) = _ops.gen.rec_estimator_table_group_lookup(
            tables=[table.handle],
            keys=[request.keys],
            indices=[request.indices],
            dense_shapes=[request.dense_shape],
            dims=[table.dim],
            combiners=[request.combiner],
            unknowns=[read_of_unknown_keys(table)],
        )
    table.shards[0].record_lookup(LookupRecord(request.keys, values.op))
    return values


def _combine_values(request: _Combination, max_norm: Optional[float]) -> tf.Tensor:
    """Looks up, clips, and combines with a second op."""
    values = clip(_read(request), max_norm)
    dtype = values.dtype
    number = tf.float64 if dtype == tf.float64 else tf.float32  # What the op computes with.
    weights = request.weights
    if weights is None:
        weights = tf.ones(tf.shape(request.keys), number)
    (combined,) = _ops.gen.rec_estimator_combine_weighted(
        values=[tf.cast(values, number)],
        weights=[tf.cast(weights, number)],
        indices=[request.indices],
        dense_shapes=[request.dense_shape],
        combiners=[request.combiner],
    )
    return tf.cast(combined, dtype)


def _prune(
    ids: tf.SparseTensor, weights: Optional[tf.SparseTensor], combiner: str
) -> Tuple[tf.SparseTensor, Optional[tf.SparseTensor]]:
    """Drops ids below 0 and, unless combiner is "sum", ids with a weight <= 0."""
    valid = tf.greater_equal(ids.values, 0)
    if weights is not None and combiner != "sum":
        valid = tf.logical_and(valid, tf.greater(weights.values, 0))
    ids = tf.sparse.retain(ids, valid)
    return ids, None if weights is None else tf.sparse.retain(weights, valid)


def _as_sparse(value: Any, argument: str) -> tf.SparseTensor:
    if isinstance(value, tf.RaggedTensor):
        return value.to_sparse()
    if isinstance(value, tf.SparseTensor):
        return value
    raise TypeError(
        f"{argument} must be a SparseTensor or RaggedTensor, got {value!r}; dense ids go to "
        "embedding_lookup"
    )


def _as_sparse_pair(
    ids: SparseIds, weights: Optional[SparseIds]
) -> Tuple[tf.SparseTensor, Optional[tf.SparseTensor]]:
    """Converts ids and weights to SparseTensors and checks that they match."""
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


@tf.RegisterGradient(op_registry.TABLE_GROUP_LOOKUP)
def _table_group_lookup_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.IndexedSlices]]:
    refuse_control_flow(op)
    _, keys, indices, _ = op.inputs
    (dim,), combiners = op.get_attr("dims"), op.get_attr("combiners")
    (key_grads,) = _ops.gen.rec_estimator_table_group_lookup_grad(
        indices=[indices], grads=[tf.convert_to_tensor(grad)], combiners=combiners
    )
    return [sum_occurrences(gradient_slices(keys, key_grads, dim)), None, None, None]


@tf.RegisterGradient(op_registry.TABLE_GROUP_LOOKUP_GRAD)
def _table_group_lookup_grad_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    indices, grads = op.inputs
    weights = tf.ones(tf.shape(indices)[:1], grad.dtype)
    combined = _combined_like(grads, grad, weights, indices, op.get_attr("combiners"))
    return [None, combined]


@tf.RegisterGradient(op_registry.COMBINE_WEIGHTED)
def _combine_weighted_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    values, weights, indices, _ = op.inputs
    combiners = op.get_attr("combiners")
    (value_grads,) = _ops.gen.rec_estimator_combine_weighted_grad(
        weights=[weights], indices=[indices], grads=[grad], combiners=combiners
    )
    weight_grads = _weight_grads(values, weights, indices, op.outputs[0], grad, combiners[0])
    return [value_grads, weight_grads, None, None]


@tf.RegisterGradient(op_registry.COMBINE_WEIGHTED_GRAD)
def _combine_weighted_grad_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    # The product of `grad` and the op's result is that of the op's `grads` and `grad` combined.
    weights, indices, grads = op.inputs
    combiners = op.get_attr("combiners")
    combined = _combined_like(grads, grad, weights, indices, combiners)
    weight_grads = _weight_grads(grad, weights, indices, combined, grads, combiners[0])
    return [weight_grads, None, combined]


def _combined_like(
    grads: tf.Tensor,
    values: tf.Tensor,
    weights: tf.Tensor,
    indices: tf.Tensor,
    combiners: Sequence[bytes],
) -> tf.Tensor:
    """[rows, dim]. `values` [n, dim], combined as the values whose gradient is `grads`."""
    rows = tf.shape(grads, out_type=tf.int64)[:1]
    other_axes = tf.shape(indices, out_type=tf.int64)[1:] - 1
    (combined,) = _ops.gen.rec_estimator_combine_weighted(
        values=[values],
        weights=[weights],
        indices=[indices],
        dense_shapes=[tf.concat([rows, tf.zeros(other_axes, tf.int64)], axis=0)],
        combiners=combiners,
    )
    return combined


def _weight_grads(
    values: tf.Tensor,
    weights: tf.Tensor,
    indices: tf.Tensor,
    combined: tf.Tensor,
    grad: tf.Tensor,
    combiner: Union[str, bytes],
) -> tf.Tensor:
    """[n]. The gradient of the weights of CombineWeighted, of which `combined` is the result.

    combined = sum(w * v) / D. D is sum(w) for "mean" and sqrt(sum(w ** 2)) for "sqrtn", so that a
    weight also changes D, by 1 or w / D.
    """
    rows = indices[:, 0]
    products = tf.reduce_sum(values * tf.gather(grad, rows), axis=1)
    combiner = tf.compat.as_str(combiner)
    if combiner == "sum":
        return products
    powers = weights if combiner == "mean" else tf.square(weights)
    sums = tf.math.unsorted_segment_sum(powers, rows, tf.shape(grad)[0])
    divisor = tf.gather(sums if combiner == "mean" else tf.sqrt(sums), rows)
    by_divisor = tf.gather(tf.reduce_sum(combined * grad, axis=1), rows)
    if combiner == "sqrtn":
        by_divisor *= tf.math.divide_no_nan(weights, divisor)
    return tf.math.divide_no_nan(products - by_divisor, divisor)
