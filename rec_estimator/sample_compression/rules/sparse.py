# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that TensorFlow's lookups of sparse ids consist of.

tf.nn.embedding_lookup_sparse, safe_embedding_lookup_sparse and the feature columns drop invalid
ids, fill empty rows, look up every distinct id once, and sum over the row numbers of the ids. These
rules match known op patterns; they do not prove that an op is row-wise. They check that the inputs
belong together: that row numbers are those of the same entries as the ids, and that positions point
into the distinct values of these ids.

One result differs from TensorFlow's. Its sums over row numbers end with the last row that has an
id, so a model fails if the last row of a batch has none. Compressed, that row gives zeros.
"""

import dataclasses
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.entries import Chosen, Distinct, Entries, Rows
from rec_estimator.sample_compression.analysis.sizes import BATCH, ONE, ListSizes, Size
from rec_estimator.sample_compression.analysis.values import (
    ChosenPositions,
    Component,
    Deferred,
    DenseShape,
    DenseValue,
    DistinctPositions,
    EntryNumbers,
    EntryRows,
    EntryShape,
    Indices,
    RowNumbers,
    Side,
    Value,
    elements_in,
    is_known,
    rows_dims,
)

# One value for each output of an op. None: the rule does not apply.
EntryOutputs = Optional[List[Value]]
EntryRule = Callable[[Rows, tf.Operation, Sequence[Value]], EntryOutputs]


def indices_of(tensor: tf.Tensor, entries: Entries, rank: int) -> Indices:
    """The indices of a sparse tensor of users of a known rank."""
    return Indices(tensor, (BATCH, sizes_lib.number(rank)), entries)


def are_rows(value: Value) -> bool:
    """Whether a tensor has one row per user on axis 0."""
    return (
        isinstance(value, DenseValue)
        and value.side == Side.USER
        and is_known(value)
        and value.known_dims()[:1] == (BATCH,)
    )


def are_ids(value: Value) -> bool:
    """Whether a tensor has one number or string for each entry, or for each user."""
    is_user = isinstance(value, DenseValue) and value.side == Side.USER
    return (is_user or isinstance(value, EntryRows)) and value.dims == (BATCH,)


def columns_of(value: Value) -> Optional[int]:
    """The rank of the sparse tensor whose indices a tensor is. None: it is not indices."""
    if not isinstance(value, Indices) or value.dims is None:
        return None
    width = value.dims[1]
    return width.factor if width is not None and sizes_lib.is_number(width) else None


def _rows_of_entries(value: Value) -> Optional[Tuple[Size, ...]]:
    """The shape of a tensor with one row for each entry on axis 0. None: it is not one."""
    if not isinstance(value, EntryRows) or not isinstance(value.entries, Entries):
        return None
    return _shape_by_entry(value)


def _shape_by_entry(value: EntryRows) -> Optional[Tuple[Size, ...]]:
    if value.dims is None or None in value.dims or value.dims[:1] != (BATCH,):
        return None
    return value.known_dims()


def _are_row_numbers(value: Value, entries: Optional[Entries]) -> bool:
    return isinstance(value, RowNumbers) and value.entries is entries


def _is_shape(value: Value) -> bool:
    """Whether a tensor is the dense_shape of a sparse tensor with the users' rows."""
    if value.side == Side.USER and not (isinstance(value, DenseShape) and not value.is_bounding):
        return False
    return (elements_in(value) or ())[:1] == (BATCH,)


def _identity(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    (value,) = inputs
    if not isinstance(value, EntryNumbers):
        return None
    if not isinstance(value.entries, Entries):
        return None
    return [dataclasses.replace(value, tensor=op.outputs[0])]


def _cast(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    (value,) = inputs
    if not isinstance(value, RowNumbers) or op.outputs[0].dtype not in (tf.int32, tf.int64):
        return None
    return _identity(expansion, op, inputs)


def _column(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The row numbers: indices[:, 0]."""
    indices = inputs[0]
    if not isinstance(indices, Indices) or columns_of(indices) is None:
        return None
    limits = [tf.get_static_value(value.tensor) for value in inputs[1:]]
    masks = [
        op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "shrink_axis", "ellipsis", "new_axis")
    ]
    if any(limit is None or limit.size != 2 for limit in limits) or masks[2:] != [2, 0, 0]:
        return None
    begin, _, strides = limits
    if not (masks[0] & masks[1] & 1) or begin[1] != 0 or strides.tolist() != [1, 1]:
        return None
    return [RowNumbers(op.outputs[0], (BATCH,), indices.entries)]


def _reshape_sparse(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """SparseReshape between matrices with equal numbers of rows: an identity."""
    indices, shape, target = inputs
    if not isinstance(indices, Indices) or columns_of(indices) != 2:
        return None
    if not _is_shape(shape) or not _is_shape(target) or len(elements_in(target) or ()) != 2:
        return None
    if shape.side == Side.USER and shape.entries is not indices.entries:
        return None
    two, entries = (sizes_lib.number(2),), indices.entries
    return [
        indices_of(op.outputs[0], entries, 2),
        DenseShape(op.outputs[1], two, entries, elements=(BATCH, None)),
    ]


def _where(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The positions of the entries that a mask selects."""
    (mask,) = inputs
    if not isinstance(mask, EntryRows) or not isinstance(mask.entries, Entries):
        return None
    if mask.dims != (BATCH,) or op.inputs[0].dtype != tf.bool:
        return None
    (out,) = op.outputs
    # One mask selects ids and their weights, in two Where ops.
    masks, tensor = mask.entries.chosen, mask.computed()
    if tensor.name not in masks:
        masks[tensor.name] = Chosen(expansion, mask.entries, tensor, out)
    return [ChosenPositions(out, (BATCH, ONE), masks[tensor.name])]


def _reshape(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    data, shape = inputs
    (out,) = op.outputs
    if isinstance(data, ChosenPositions):
        target = tf.get_static_value(shape.tensor)
        if target is None or target.tolist() != [-1]:
            return None
        return [ChosenPositions(out, (BATCH,), data.entries)]
    if not isinstance(shape, EntryShape) or not isinstance(data, EntryRows):
        return None
    if data.entries is not shape.entries or data.dims != (BATCH,):
        return None
    if any(size != ONE for size in shape.sizes):
        return None
    wide = [-1, *[1] * len(shape.sizes)]
    make = Deferred(lambda: tf.reshape(data.computed(), wide))
    return [EntryRows(out, (BATCH, *shape.sizes), shape.entries, make)]


def _shape_of(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The shape of a vector of entries. A Reshape may add axes of size 1 by it."""
    (value,) = inputs
    if not isinstance(value, EntryRows) or not isinstance(value.entries, Entries):
        return None
    return [_entry_shape(op.outputs[0], value.entries, ())] if value.dims == (BATCH,) else None


def _entry_shape(tensor: tf.Tensor, entries: Entries, sizes: Sequence[Size]) -> EntryShape:
    return EntryShape(tensor, (sizes_lib.number(1 + len(sizes)),), entries, sizes=tuple(sizes))


def _concat(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    first, *others, _ = inputs
    if not isinstance(first, EntryShape):
        return None
    rest = [tf.get_static_value(value.tensor) for value in others]
    if any(value is None for value in rest):
        return None
    more = [sizes_lib.number(size) for value in rest for size in value.reshape(-1).tolist()]
    return [_entry_shape(op.outputs[0], first.entries, [*first.sizes, *more])]


def _fill(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The same number for each entry, which tf.ones_like makes."""
    shape, filling = inputs
    if not isinstance(shape, EntryShape) or shape.sizes or filling.side != Side.FIXED:
        return None
    count = shape.entries.count
    make = Deferred(lambda: tf.fill(count[tf.newaxis], filling.computed()))
    return [EntryRows(op.outputs[0], (BATCH,), shape.entries, make)]


def _fill_empty_rows(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    indices, values, shape, default = inputs
    rank = columns_of(indices)
    if not isinstance(indices, Indices) or rank is None or not are_ids(values):
        return None
    if values.entries is not indices.entries or default.side != Side.FIXED:
        return None
    if (elements_in(shape) or (None,))[0] != BATCH:
        return None
    entries = indices.entries
    out_indices, out_values, are_empty, places = op.outputs
    if entries.filled is None:
        rows = out_indices[:, 0]
        entries.filled = Entries.of_rows(expansion, rows, is_sorted=True, has_all_rows=True)
    filled = entries.filled

    def repeat_places() -> tf.Tensor:
        rows = tf.cast(expansion.items, tf.int64)
        return tf.raw_ops.SparseFillEmptyRows(
            indices=entries.repeat_indices(indices.computed()),
            values=tf.gather(values.computed(), entries.places),
            dense_shape=tf.concat([rows[tf.newaxis], shape.computed()[1:]], axis=0),
            default_value=default.computed(),
        ).reverse_index_map

    return [
        indices_of(out_indices, filled, rank),
        EntryRows(out_values, (BATCH,), filled),
        DenseValue(are_empty, Side.USER, (BATCH,)),
        Component(places, (BATCH,), entries, repeat=repeat_places),
    ]


def _unique(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    (values,) = inputs
    if not are_ids(values) or not isinstance(values.entries, Entries):
        return None
    distinct, positions = op.outputs
    found = Distinct(values.entries, distinct, positions)
    return [
        EntryRows(distinct, (BATCH,), found),
        DistinctPositions(positions, (BATCH,), values.entries, distinct=found),
    ]


def _gather(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    params, places = inputs[:2]
    if op.type == "GatherV2":
        axis = tf.get_static_value(inputs[2].tensor)
        if axis is None or int(axis) != 0 or op.get_attr("batch_dims"):
            return None
    (out,) = op.outputs
    if isinstance(places, DistinctPositions):
        dims = _rows_of_distinct(places, params)
        return None if dims is None else [EntryRows(out, dims, places.entries)]
    if not isinstance(places, ChosenPositions) or places.dims != (BATCH,):
        return None
    if params.entries is not places.entries.source:
        return None
    rank, dims = columns_of(params), _rows_of_entries(params)
    if rank is not None:
        return [indices_of(out, places.entries, rank)]
    return None if dims is None else [EntryRows(out, dims, places.entries)]


def _rows_of_distinct(places: DistinctPositions, params: Value) -> Optional[Tuple[Size, ...]]:
    """The shape of params with one row for each distinct value. None: they have others."""
    if not isinstance(params, EntryRows) or params.entries is not places.distinct:
        return None
    return _shape_by_entry(params)


def _sparse_segment(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    data, places, rows = inputs
    entries, dims = places.entries, data.dims
    if isinstance(places, DistinctPositions):
        dims = _rows_of_distinct(places, data)
    elif not are_ids(places) or data.side != Side.FIXED:
        return None
    if dims is None or isinstance(dims, ListSizes):
        return None
    if not isinstance(entries, Entries) or not _are_row_numbers(rows, entries):
        return None
    # Axis 0 of the data is replaced by the users.
    value = DenseValue(op.outputs[0], Side.USER, (BATCH, *dims[1:]))
    if not entries.has_all_rows:
        # TensorFlow's op leaves out the last rows if they are empty.
        make = _WITH_ROWS[op.type]
        value = value.made_by(
            lambda: make(
                data=data.computed(),
                indices=places.computed(),
                segment_ids=rows.computed(),
                num_segments=expansion.users,
            )
        )
    return [value]


def _segment_sum(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    data, rows = inputs
    dims = _rows_of_entries(data)
    if dims is None or not isinstance(rows, RowNumbers) or rows.entries is not data.entries:
        return None
    value = DenseValue(op.outputs[0], Side.USER, dims)
    if not rows.entries.has_all_rows:
        value = value.made_by(
            lambda: tf.math.unsorted_segment_sum(data.computed(), rows.computed(), expansion.users)
        )
    return [value]


def _to_dense(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    indices, shape, values, default = inputs
    if columns_of(indices) is None or not are_ids(values) or not _is_shape(shape):
        return None
    if values.entries is not indices.entries or default.side != Side.FIXED:
        return None
    return [DenseValue(op.outputs[0], Side.USER, rows_dims(op.outputs[0]))]


_WITH_ROWS = {
    "SparseSegmentMean": tf.raw_ops.SparseSegmentMeanWithNumSegments,
    "SparseSegmentSqrtN": tf.raw_ops.SparseSegmentSqrtNWithNumSegments,
    "SparseSegmentSum": tf.raw_ops.SparseSegmentSumWithNumSegments,
}

SPARSE_RULES: Dict[str, EntryRule] = {
    "Cast": _cast,
    "ConcatV2": _concat,
    "Fill": _fill,
    "GatherV2": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "SegmentSum": _segment_sum,
    "Shape": _shape_of,
    "SparseFillEmptyRows": _fill_empty_rows,
    "SparseReshape": _reshape_sparse,
    "SparseSegmentMean": _sparse_segment,
    "SparseSegmentSqrtN": _sparse_segment,
    "SparseSegmentSum": _sparse_segment,
    "SparseToDense": _to_dense,
    "StridedSlice": _column,
    "Unique": _unique,
    "Where": _where,
}
