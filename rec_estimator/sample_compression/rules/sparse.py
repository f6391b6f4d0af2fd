# SPDX-License-Identifier: Apache-2.0
"""Rules of what TensorFlow's lookups of sparse ids are made of.

tf.nn.embedding_lookup_sparse, safe_embedding_lookup_sparse and the feature columns drop ids that
are not valid, fill empty rows, look every distinct id up once and sum over the row numbers of ids.
A rule proves less than that any op is row-wise, but that these belong together: the row numbers
are those of the entries that the ids are, the positions are into the distinct ones of these ids.

One thing is other than in TensorFlow: its sums over row numbers end with the last row that has an
id, so that a model fails if the last row of a batch has none; compressed, that row gives zeros.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.entries import Chosen, Distinct, Entries
from rec_estimator.sample_compression.analysis.sizes import BATCH, ONE
from rec_estimator.sample_compression.analysis.values import Side, Value, rows_dims

_Made = Optional[List[Value]]


def sparse_made(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    """The outputs of an op on the entries of users; None where the rules do not hold."""
    rule = _RULES.get(op.type)
    if rule is None or all(value.side != Side.USER for value in inputs):
        return None
    return rule(expansion, op, inputs)


def indices_of(tensor: tf.Tensor, entries: Entries, rank: int) -> Value:
    """The indices of a user's sparse tensor."""
    dims = (BATCH, sizes_lib.number(rank))
    return Value(tensor, Side.USER, dims, None, entries, entries.repeat_indices)


def are_rows(value: Value) -> bool:
    """Whether a tensor has a row per user along axis 0."""
    return (
        value.side == Side.USER
        and value.entries is None
        and value.repeat is None
        and value.dims is not None
        and value.dims[:1] == (BATCH,)
    )


def are_keys(value: Value) -> bool:
    """Whether a tensor has one number or text per entry, or per user."""
    return value.side == Side.USER and value.repeat is None and value.dims == (BATCH,)


def are_indices(value: Value) -> bool:
    """Whether a tensor is the indices of a user's sparse tensor."""
    return (
        value.side == Side.USER
        and isinstance(value.entries, Entries)
        and value.repeat == value.entries.repeat_indices
        and value.dims is not None
        and sizes_lib.is_number(value.dims[1])
    )


def _have_entries(value: Value) -> bool:
    """Whether a tensor has a row per entry along axis 0."""
    return (
        value.side == Side.USER
        and isinstance(value.entries, Entries)
        and value.repeat is None
        and value.dims is not None
        and None not in value.dims
        and value.dims[:1] == (BATCH,)
    )


def _are_row_numbers(value: Value, entries: Entries) -> bool:
    return value.entries is entries and value.repeat == entries.repeat_rows


def _is_shape(value: Value) -> bool:
    """Whether a tensor says the shape of a sparse tensor, its rows and otherwise the same."""
    is_followed = value.elements is not None and value.elements[:1] == (BATCH,)
    if value.side != Side.USER:
        return is_followed
    return is_followed and value.repeat == value.entries.repeat_shape


def _identity(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    (value,) = inputs
    if value.repeat is None or not isinstance(value.entries, Entries):
        return None
    (out,) = op.outputs
    elements, entries = value.elements, value.entries
    return [Value(out, Side.USER, value.dims, elements, entries, value.repeat, meets=value.meets)]


def _cast(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    (value,) = inputs
    integers = value.tensor.dtype.is_integer and op.outputs[0].dtype in (tf.int32, tf.int64)
    if not integers or value.repeat is None or not isinstance(value.entries, Entries):
        return None
    if not _are_row_numbers(value, value.entries):
        return None
    return _identity(expansion, op, inputs)


def _column(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    """The row numbers: indices[:, 0]."""
    if not are_indices(inputs[0]):
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
    entries = inputs[0].entries
    return [Value(op.outputs[0], Side.USER, (BATCH,), None, entries, entries.repeat_rows)]


def _reshape_sparse(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    """SparseReshape from a matrix to one of as many rows: nothing changes."""
    indices, shape, target = inputs
    if not are_indices(indices) or indices.dims[1] != sizes_lib.number(2):
        return None
    if not _is_shape(shape) or not _is_shape(target) or len(target.elements) != 2:
        return None
    if shape.side == Side.USER and shape.entries is not indices.entries:
        return None
    entries = indices.entries
    dims, elements = (sizes_lib.number(2),), (BATCH, None)
    return [
        indices_of(op.outputs[0], entries, 2),
        Value(op.outputs[1], Side.USER, dims, elements, entries, entries.repeat_shape),
    ]


def _where(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    """Which entries a mask chooses."""
    (mask,) = inputs
    if not _have_entries(mask) or mask.dims != (BATCH,) or mask.tensor.dtype != tf.bool:
        return None
    (out,) = op.outputs
    # Ids and their weights are chosen by one mask, by a Where each.
    masks, name = mask.entries.chosen, mask.computed().name
    if name not in masks:
        masks[name] = Chosen(expansion, mask.entries, mask.tensor, out)
    chosen = masks[name]
    return [Value(out, Side.USER, (BATCH, ONE), None, chosen, chosen.repeat_positions)]


def _reshape(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    data, shape = inputs
    if isinstance(data.entries, Chosen) and data.repeat == data.entries.repeat_positions:
        target = tf.get_static_value(shape.tensor)
        if target is None or target.tolist() != [-1]:
            return None
        entries = data.entries
        (out,) = op.outputs
        return [Value(out, Side.USER, (BATCH,), None, entries, entries.repeat_positions)]
    if shape.entry_shape is None or not _have_entries(data):
        return None
    entries, sizes = shape.entry_shape
    if entries is not data.entries or data.dims != (BATCH,) or any(size != ONE for size in sizes):
        return None
    wide = [-1, *[1] * len(sizes)]
    value = Value(op.outputs[0], Side.USER, (BATCH, *sizes), None, entries)
    value.make = lambda: tf.reshape(data.computed(), wide)
    return [value]


def _shape_of(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    """The shape of a vector of entries, which a reshape may give more axes."""
    (value,) = inputs
    if not _have_entries(value) or value.dims != (BATCH,):
        return None
    return [_entry_shape(op.outputs[0], value.entries, ())]


def _entry_shape(tensor: tf.Tensor, entries: Entries, sizes: Sequence[sizes_lib.Size]) -> Value:
    def repeat(shape: tf.Tensor) -> tf.Tensor:
        count = tf.cast(tf.size(entries.places), shape.dtype)
        return tf.concat([count[tf.newaxis], shape[1:]], axis=0)

    dims = (sizes_lib.number(1 + len(sizes)),)
    value = Value(tensor, Side.USER, dims, None, entries, repeat)
    value.entry_shape = (entries, tuple(sizes))
    return value


def _concat(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    first, *others, _ = inputs
    if first.entry_shape is None:
        return None
    rest = [tf.get_static_value(value.tensor) for value in others]
    if any(value is None for value in rest):
        return None
    entries, sizes = first.entry_shape
    more = [sizes_lib.number(size) for value in rest for size in value.reshape(-1).tolist()]
    return [_entry_shape(op.outputs[0], entries, [*sizes, *more])]


def _fill(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    """The same for each entry, as tf.ones_like has it."""
    shape, filling = inputs
    if shape.entry_shape is None or shape.entry_shape[1] or filling.side != Side.FIXED:
        return None
    entries = shape.entry_shape[0]
    value = Value(op.outputs[0], Side.USER, (BATCH,), None, entries)
    value.make = lambda: tf.fill(entries.count[tf.newaxis], filling.computed())
    return [value]


def _fill_empty_rows(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    indices, values, shape, default = inputs
    if not are_indices(indices) or not are_keys(values) or values.entries is not indices.entries:
        return None
    if (shape.elements or (None,))[0] != BATCH or default.side != Side.FIXED:
        return None
    entries = indices.entries
    out_indices, out_values, are_empty, places = op.outputs
    if entries.filled is None:
        rows = out_indices[:, 0]
        entries.filled = Entries.of_rows(expansion, rows, is_sorted=True, has_all_rows=True)
    filled = entries.filled

    def repeat_places(_: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(expansion.items, tf.int64)
        return tf.raw_ops.SparseFillEmptyRows(
            indices=entries.repeat_indices(indices.computed()),
            values=tf.gather(values.computed(), entries.places),
            dense_shape=tf.concat([rows[tf.newaxis], shape.computed()[1:]], axis=0),
            default_value=default.computed(),
        ).reverse_index_map

    return [
        indices_of(out_indices, filled, indices.dims[1].factor),
        Value(out_values, Side.USER, (BATCH,), None, filled),
        Value(are_empty, Side.USER, (BATCH,)),
        Value(places, Side.USER, (BATCH,), None, entries, repeat_places),
    ]


def _unique(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    (values,) = inputs
    if not are_keys(values) or not isinstance(values.entries, Entries):
        return None
    distinct, positions = op.outputs
    found = Distinct(values.entries, distinct, positions)
    dims = (BATCH,)
    return [
        Value(distinct, Side.USER, dims, None, found),
        Value(positions, Side.USER, dims, None, found.entries, found.repeat_positions, meets=found),
    ]


def _gather(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    params, places = inputs[:2]
    if op.type == "GatherV2":
        axis = tf.get_static_value(inputs[2].tensor)
        if axis is None or int(axis) != 0 or op.get_attr("batch_dims"):
            return None
    (out,) = op.outputs
    if places.meets is not None and _points_into(places, params):
        return [Value(out, Side.USER, params.dims, None, places.entries)]
    chosen = places.entries
    if not isinstance(chosen, Chosen) or places.repeat != chosen.repeat_positions:
        return None
    if places.dims != (BATCH,) or params.entries is not chosen.source:
        return None
    if are_indices(params):
        return [indices_of(out, chosen, params.dims[1].factor)]
    return [Value(out, Side.USER, params.dims, None, chosen)] if _have_entries(params) else None


def _points_into(places: Value, params: Value) -> bool:
    """Whether positions are into rows of which each distinct value has one."""
    return (
        places.repeat == places.meets.repeat_positions
        and params.entries is places.meets
        and params.repeat is None
        and params.side == Side.USER
        and params.dims is not None
        and None not in params.dims
        and params.dims[:1] == (BATCH,)
    )


def _sparse_segment(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    data, places, rows = inputs
    if places.meets is not None:
        if not _points_into(places, data):
            return None
    elif not are_keys(places) or data.side != Side.FIXED or data.tensor.shape.rank is None:
        return None
    entries = places.entries
    if not isinstance(entries, Entries) or not _are_row_numbers(rows, entries):
        return None
    # The dims of data are (BATCH, ...) or those of what has no rows.
    value = Value(op.outputs[0], Side.USER, (BATCH, *data.dims[1:]))
    if not entries.has_all_rows:
        # TensorFlow's op leaves the last rows out if they are empty.
        make = _WITH_ROWS[op.type]
        value.make = lambda: make(
            data=data.computed(),
            indices=places.computed(),
            segment_ids=rows.computed(),
            num_segments=expansion.users,
        )
    return [value]


def _segment_sum(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    data, rows = inputs
    if not _have_entries(data) or not _are_row_numbers(rows, data.entries):
        return None
    value = Value(op.outputs[0], Side.USER, data.dims)
    if not data.entries.has_all_rows:
        value.make = lambda: tf.math.unsorted_segment_sum(
            data.computed(), rows.computed(), expansion.users
        )
    return [value]


def _to_dense(expansion: Any, op: tf.Operation, inputs: Sequence[Value]) -> _Made:
    indices, shape, values, default = inputs
    if not are_indices(indices) or not are_keys(values) or values.entries is not indices.entries:
        return None
    if not _is_shape(shape) or default.side != Side.FIXED:
        return None
    return [Value(op.outputs[0], Side.USER, rows_dims(op.outputs[0]))]


_WITH_ROWS = {
    "SparseSegmentMean": tf.raw_ops.SparseSegmentMeanWithNumSegments,
    "SparseSegmentSqrtN": tf.raw_ops.SparseSegmentSqrtNWithNumSegments,
    "SparseSegmentSum": tf.raw_ops.SparseSegmentSumWithNumSegments,
}

_RULES: Dict[str, Callable[[Any, tf.Operation, Sequence[Value]], _Made]] = {
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
