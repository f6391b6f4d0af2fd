# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that put numbers into another shape, and of lookups. See rules.py."""

from typing import List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import ONE, Size, Sizes
from rec_estimator.sample_compression.analysis.values import Stop, Value, known_dims
from rec_estimator.sample_compression.rules.checks import (
    constant,
    not_the_rows,
    out_dims,
    rank_of,
    refuse_rows,
    same_rows,
)


def reshape(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """The rows stay the outermost axis, or merge with the axes inside of them."""
    data, shape = inputs
    known_dims(data)
    if data.axis is None:
        raise Stop("reshapes something without rows")
    target = shape.elements
    if target is None or None in target:
        raise Stop("takes a shape that is not followed")
    if any(size != ONE for size in data.dims[: data.axis]):
        raise Stop("reshapes with an axis outside of the rows")
    total = sizes_lib.product(data.dims)
    rest = [size for size in target if size != sizes_lib.REST]
    if len(rest) < len(target):
        missing = sizes_lib.quotient(total, sizes_lib.product(rest))
        if missing is None:
            raise Stop("reshapes to a size that may cut through rows")
        target = tuple(missing if size == sizes_lib.REST else size for size in target)
    outer = [size for size in target if size != ONE][:1]
    if not outer or not outer[0].is_batch or sum(size.is_batch for size in target) != 1:
        raise Stop("reshapes the rows into another axis")
    return [target]


def expand(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """ExpandDims: one more axis."""
    dims = list(known_dims(inputs[0]))
    axis = int(constant(inputs[1], "axis").reshape(-1)[0])
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, ONE)
    return [tuple(dims)]


def squeeze(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Squeeze of named axes."""
    axes = op.get_attr("squeeze_dims")
    if not axes:
        raise Stop("drops every axis of size 1, and with one row that of the rows")
    axes = not_the_rows(inputs[0], axes, "drops")
    return [tuple(size for axis, size in enumerate(inputs[0].dims) if axis not in axes)]


def transpose(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Transpose by a constant permutation."""
    dims = known_dims(inputs[0])
    return [tuple(dims[axis] for axis in constant(inputs[1], "permutation"))]


def concat(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """ConcatV2 along another axis than that of the rows."""
    parts = inputs[:-1]
    (axis,) = not_the_rows(parts[0], [int(constant(inputs[-1], "axis"))], "concatenates along")
    if any(rank_of(value) and value.axis is None for value in parts):
        raise Stop("concatenates rows and something without rows")
    same_rows(parts, [value.axis for value in parts])
    dims: List[Optional[Size]] = list(parts[0].dims)
    sizes = [value.dims[axis] for value in parts]
    dims[axis] = None
    if all(sizes_lib.is_number(size) for size in sizes):
        dims[axis] = sizes_lib.number(sum(size.factor for size in sizes))
    return [out_dims(op, 0, dims)]


def pack(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Pack: a new axis of several tensors with rows."""
    if any(rank_of(value) and value.axis is None for value in inputs):
        raise Stop("stacks rows and something without rows")
    if inputs[0].axis is None:
        raise Stop("stacks scalars")
    same_rows(inputs, [value.axis for value in inputs])
    axis = op.get_attr("axis")
    dims = list(inputs[0].dims)
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, sizes_lib.number(len(inputs)))
    return [tuple(dims)]


def unpack(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Unpack along another axis than that of the rows."""
    (axis,) = not_the_rows(inputs[0], [op.get_attr("axis")], "takes apart")
    dims = tuple(size for i, size in enumerate(inputs[0].dims) if i != axis)
    return [dims] * len(op.outputs)


def split(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Split and SplitV along another axis than that of the rows."""
    data, axis = (inputs[1], inputs[0]) if op.type == "Split" else (inputs[0], inputs[2])
    if op.type == "SplitV":
        refuse_rows(inputs[1], "sizes")
    (axis,) = not_the_rows(data, [int(constant(axis, "axis").reshape(-1)[0])], "splits")
    dims = list(data.dims)
    dims[axis] = None
    return [out_dims(op, output, dims) for output in range(len(op.outputs))]


def strided_slice(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """StridedSlice: all of the rows, anything of other axes."""
    dims = known_dims(inputs[0])
    length = tf.compat.dimension_value(inputs[1].tensor.shape[0])
    if length is None:
        raise Stop("takes a begin that only a request tells")
    strides = tf.get_static_value(inputs[3].tensor)
    masks = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    axis, out = 0, []
    for i in range(length):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            later = sum(1 for j in range(i + 1, length) if not masks["new_axis"] & 1 << j)
            kept = len(dims) - axis - later
            out += dims[axis : axis + kept]
            axis += kept
            continue
        if masks["new_axis"] & bit:
            out.append(ONE)
            continue
        whole = masks["begin"] & bit and masks["end"] & bit
        whole = whole and strides is not None and strides[i] == 1
        if masks["shrink_axis"] & bit:
            whole = False
        if axis == inputs[0].axis and not whole:
            raise Stop("takes some of the rows")
        if not masks["shrink_axis"] & bit:
            out.append(dims[axis] if whole else None)
        axis += 1
    for value in inputs[1:]:
        refuse_rows(value, "begin")
    return [out_dims(op, 0, [*out, *dims[axis:]])]


def slice(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Slice: all of the rows, a constant part of other axes."""
    dims = known_dims(inputs[0])
    begin = constant(inputs[1], "begin").tolist()
    size = constant(inputs[2], "size").tolist()
    out = []
    for axis, whole in enumerate(b == 0 and s == -1 for b, s in zip(begin, size)):
        if axis == inputs[0].axis and not whole:
            raise Stop("takes some of the rows")
        out.append(dims[axis] if whole else None)
    return [out_dims(op, 0, out)]


def gather(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """GatherV2: from something without rows, along another axis, or row by row."""
    params, indices = inputs[:2]
    batch_dims = op.get_attr("batch_dims") if op.type == "GatherV2" else 0
    axis = int(constant(inputs[2], "axis")) if op.type == "GatherV2" else 0
    axis = axis % max(rank_of(params), 1)
    batch_dims = batch_dims % max(rank_of(indices), 1) if batch_dims < 0 else batch_dims
    if params.axis is not None:
        not_the_rows(params, [axis], "gathers along")
    if batch_dims:
        if not params.axis == indices.axis or params.axis is None or params.axis >= batch_dims:
            raise Stop("gathers with a batch axis that is not the rows")
        same_rows([params, indices], [0])
    elif params.axis is not None and indices.axis is not None:
        raise Stop("gathers from rows by rows")
    known_dims(indices)
    return [(*params.dims[:axis], *indices.dims[batch_dims:], *params.dims[axis + 1 :])]


def gather_nd(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """GatherNd from something without rows."""
    params, indices = inputs
    refuse_rows(params, "params")
    not_the_rows(indices, [-1], "takes coordinates along")
    depth = indices.dims[-1]
    if not sizes_lib.is_number(depth):
        raise Stop("takes coordinates of unknown length")
    return [(*indices.dims[:-1], *params.dims[depth.factor :])]


def resource_gather(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Reads rows of a variable or table by key."""
    keys = known_dims(inputs[1])
    rank = op.outputs[0].shape.rank
    if rank is None or (op.type == "ResourceGather" and op.get_attr("batch_dims")):
        raise Stop("gathers with a batch axis that is not the rows")
    return [out_dims(op, 0, [*keys, *[None] * (rank - len(keys))])]


def admits(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Whether a table admits each key, which is judged by all of them: see occurrences.py."""
    refuse_rows(inputs[2], "counted keys")
    return resource_gather(op, inputs)


def find(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """LookupTableFindV2: a value for each key."""
    refuse_rows(inputs[2], "default")
    if op.outputs[0].shape.rank not in (None, rank_of(inputs[1])):
        raise Stop("looks up vectors")
    if inputs[2].dims:
        raise Stop("looks up vectors")
    return [known_dims(inputs[1])]


def tile(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Tile along other axes, or of something without rows to equal rows."""
    dims = known_dims(inputs[0])
    multiples = inputs[1].elements
    if multiples is None or None in multiples:
        raise Stop("takes multiples that only a request tells")
    for axis, (size, multiple) in enumerate(zip(dims, multiples)):
        if axis == inputs[0].axis and multiple != ONE:
            raise Stop("repeats the rows")
        if multiple.is_batch and size != ONE:
            raise Stop("makes rows of something that is no row")
    if sum(size.is_batch for size in (*dims, *multiples)) != 1:
        raise Stop("makes rows on two axes")
    return [out_dims(op, 0, [sizes_lib.product(pair) for pair in zip(dims, multiples)])]


def broadcast_to(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """BroadcastTo: to a shape that has the rows where they are already, or makes equal rows."""
    data, target = inputs[0], inputs[1].elements
    dims = known_dims(data)
    if target is None or None in target:
        raise Stop("takes a shape that is not followed")
    if sum(size.is_batch for size in target) != 1:
        raise Stop("broadcasts to a shape without rows")
    if len(target) < len(dims):
        raise Stop("broadcasts to fewer axes")
    for place in range(-len(dims), 0):
        is_rows = target[place].is_batch or dims[place].is_batch
        if is_rows and dims[place] not in (ONE, target[place]):
            raise Stop("meets the rows with something of another length")
        if dims[place].is_batch and not target[place].is_batch:
            raise Stop("broadcasts the rows to something else")
    return [target]


def fill(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Fill: equal rows."""
    target = inputs[0].elements
    if target is None or None in target or sum(size.is_batch for size in target) != 1:
        raise Stop("takes a shape that is not followed")
    refuse_rows(inputs[1], "value")
    return [target]


def pad(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Pad by constants along other axes."""
    dims = known_dims(inputs[0])
    paddings = constant(inputs[1], "padding")
    for value in inputs[2:]:
        refuse_rows(value, "value")
    out = [size if not pads.any() else None for size, pads in zip(dims, paddings)]
    if inputs[0].axis is not None and out[inputs[0].axis] is None:
        raise Stop("pads the rows")
    return [out_dims(op, 0, out)]


def one_hot(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """OneHot: one more axis."""
    for value in inputs[1:]:
        refuse_rows(value, "depth or value")
    dims: List[Optional[Size]] = list(known_dims(inputs[0]))
    axis = op.get_attr("axis")
    dims.insert(axis if axis >= 0 else len(dims), None)
    return [out_dims(op, 0, dims)]


def decode_raw(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """DecodeRaw: one more axis."""
    return [out_dims(op, 0, [*known_dims(inputs[0]), None])]
