# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that change the shape, and of lookups. See op_rules.py."""

from typing import List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import ONE, Shape, Size
from rec_estimator.sample_compression.analysis.values import CannotMove, Value, elements_in
from rec_estimator.sample_compression.rules.checks import (
    constant,
    not_the_rows,
    out_dims,
    rank_of,
    refuse_rows,
    same_rows,
)


def _known_elements(shape: Value) -> Optional[Tuple[Size, ...]]:
    """The elements of a shape, if all are known."""
    elements = elements_in(shape)
    known = tuple(size for size in elements or () if size is not None)
    return known if elements is not None and len(known) == len(elements) else None


def reshape(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Reshape: the rows stay outermost, or merge with axes inside of them."""
    data, shape = inputs
    dims = data.known_dims()
    if data.axis is None:
        raise CannotMove("reshapes something without rows")
    target = _known_elements(shape)
    if target is None:
        raise CannotMove("takes a shape that is not known")
    if any(size != ONE for size in dims[: data.axis]):
        raise CannotMove("reshapes with an axis outside of the rows")
    total = sizes_lib.product(dims)
    rest = [size for size in target if size != sizes_lib.REST]
    if len(rest) < len(target):
        missing = sizes_lib.quotient(total, sizes_lib.product(rest))
        if missing is None:
            raise CannotMove("reshapes to a size that may cut through rows")
        target = tuple(missing if size == sizes_lib.REST else size for size in target)
    outer = [size for size in target if size != ONE][:1]
    if not outer or not outer[0].is_batch or sum(size.is_batch for size in target) != 1:
        raise CannotMove("reshapes the rows into another axis")
    return [target]


def expand(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """ExpandDims: adds an axis."""
    dims = list(inputs[0].known_dims())
    axis = int(constant(inputs[1], "axis").reshape(-1)[0])
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, ONE)
    return [tuple(dims)]


def squeeze(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Squeeze of named axes."""
    axes = op.get_attr("squeeze_dims")
    if not axes:
        raise CannotMove("drops all axes of size 1, which may be that of the rows")
    axes = not_the_rows(inputs[0], axes, "drops")
    return [tuple(size for axis, size in enumerate(inputs[0].known_dims()) if axis not in axes)]


def transpose(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Transpose by a constant permutation."""
    dims = inputs[0].known_dims()
    return [tuple(dims[axis] for axis in constant(inputs[1], "permutation"))]


def concat(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """ConcatV2 along an axis that is not that of the rows."""
    parts = inputs[:-1]
    (axis,) = not_the_rows(parts[0], [int(constant(inputs[-1], "axis"))], "concatenates along")
    if any(rank_of(value) and value.axis is None for value in parts):
        raise CannotMove("concatenates rows and something without rows")
    same_rows(parts, [value.axis for value in parts])
    dims: List[Optional[Size]] = list(parts[0].known_dims())
    sizes = [value.known_dims()[axis] for value in parts]
    dims[axis] = None
    if all(sizes_lib.is_number(size) for size in sizes):
        dims[axis] = sizes_lib.number(sum(size.factor for size in sizes))
    return [out_dims(op, 0, dims)]


def pack(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Pack: stacks tensors with rows along a new axis."""
    if any(rank_of(value) and value.axis is None for value in inputs):
        raise CannotMove("stacks rows and something without rows")
    if inputs[0].axis is None:
        raise CannotMove("stacks scalars")
    same_rows(inputs, [value.axis for value in inputs])
    axis = op.get_attr("axis")
    dims = list(inputs[0].known_dims())
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, sizes_lib.number(len(inputs)))
    return [tuple(dims)]


def unpack(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Unpack along an axis that is not that of the rows."""
    (axis,) = not_the_rows(inputs[0], [op.get_attr("axis")], "unstacks")
    dims = tuple(size for i, size in enumerate(inputs[0].known_dims()) if i != axis)
    return [dims] * len(op.outputs)


def split(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Split and SplitV along an axis that is not that of the rows."""
    data, along = (inputs[1], inputs[0]) if op.type == "Split" else (inputs[0], inputs[2])
    if op.type == "SplitV":
        refuse_rows(inputs[1], "sizes")
    (axis,) = not_the_rows(data, [int(constant(along, "axis").reshape(-1)[0])], "splits")
    dims: List[Optional[Size]] = list(data.known_dims())
    dims[axis] = None
    return [out_dims(op, output, dims) for output in range(len(op.outputs))]


def strided_slice(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """StridedSlice: takes all rows, and any part of other axes."""
    dims = inputs[0].known_dims()
    length = tf.compat.dimension_value(inputs[1].tensor.shape[0])
    if length is None:
        raise CannotMove("takes a begin of unknown length")
    strides = tf.get_static_value(inputs[3].tensor)
    masks = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    axis = 0
    out: List[Optional[Size]] = []
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
            raise CannotMove("takes some of the rows")
        if not masks["shrink_axis"] & bit:
            out.append(dims[axis] if whole else None)
        axis += 1
    for value in inputs[1:]:
        refuse_rows(value, "begin")
    return [out_dims(op, 0, [*out, *dims[axis:]])]


def slice(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Slice: takes all rows, and a constant part of other axes."""
    dims = inputs[0].known_dims()
    begin = constant(inputs[1], "begin").tolist()
    size = constant(inputs[2], "size").tolist()
    out: List[Optional[Size]] = []
    for axis, whole in enumerate(b == 0 and s == -1 for b, s in zip(begin, size)):
        if axis == inputs[0].axis and not whole:
            raise CannotMove("takes some of the rows")
        out.append(dims[axis] if whole else None)
    return [out_dims(op, 0, out)]


def gather(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Gather, GatherV2: from params without rows, along another axis, or row by row."""
    params, indices = inputs[:2]
    batch_dims = op.get_attr("batch_dims") if op.type == "GatherV2" else 0
    axis = int(constant(inputs[2], "axis")) if op.type == "GatherV2" else 0
    axis = axis % max(rank_of(params), 1)
    batch_dims = batch_dims % max(rank_of(indices), 1) if batch_dims < 0 else batch_dims
    if params.axis is not None:
        not_the_rows(params, [axis], "gathers along")
    if batch_dims:
        if not params.axis == indices.axis or params.axis is None or params.axis >= batch_dims:
            raise CannotMove("gathers with a batch axis that is not the rows")
        same_rows([params, indices], [0])
    elif params.axis is not None and indices.axis is not None:
        raise CannotMove("gathers from rows by rows")
    dims = params.known_dims()
    return [(*dims[:axis], *indices.known_dims()[batch_dims:], *dims[axis + 1 :])]


def gather_nd(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """GatherNd from params without rows."""
    params, indices = inputs
    refuse_rows(params, "params")
    not_the_rows(indices, [-1], "takes coordinates along")
    depth = indices.known_dims()[-1]
    if not sizes_lib.is_number(depth):
        raise CannotMove("takes coordinates of unknown length")
    return [(*indices.known_dims()[:-1], *params.known_dims()[depth.factor :])]


def resource_gather(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Reads rows of a variable or table by key."""
    keys = inputs[1].known_dims()
    rank = op.outputs[0].shape.rank
    if rank is None or (op.type == "ResourceGather" and op.get_attr("batch_dims")):
        raise CannotMove("gathers with a batch axis that is not the rows")
    return [out_dims(op, 0, [*keys, *[None] * (rank - len(keys))])]


def resource_gather_nd(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Reads slices of a variable by coordinates."""
    not_the_rows(inputs[1], [-1], "takes coordinates along")
    leading = inputs[1].known_dims()[:-1]
    rank = op.outputs[0].shape.rank
    if rank is None:
        raise CannotMove("takes coordinates of unknown length")
    return [out_dims(op, 0, [*leading, *[None] * (rank - len(leading))])]


def admits(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Whether a table admits each key. It counts all keys of the step: see occurrences.py."""
    refuse_rows(inputs[2], "counted keys")
    return resource_gather(op, inputs)


def find(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """LookupTableFindV2: finds one value for each key."""
    refuse_rows(inputs[2], "default")
    if op.outputs[0].shape.rank not in (None, rank_of(inputs[1])):
        raise CannotMove("looks up vectors")
    if inputs[2].known_dims():
        raise CannotMove("looks up vectors")
    return [inputs[1].known_dims()]


def tile(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Tile along other axes, or from no rows to equal rows."""
    dims = inputs[0].known_dims()
    multiples = _known_elements(inputs[1])
    if multiples is None:
        raise CannotMove("takes multiples that are known at run time only")
    for axis, (size, multiple) in enumerate(zip(dims, multiples)):
        if axis == inputs[0].axis and multiple != ONE:
            raise CannotMove("repeats the rows")
        if multiple.is_batch and size != ONE:
            raise CannotMove("repeats an axis that is longer than 1 by the number of rows")
    if sum(size.is_batch for size in (*dims, *multiples)) != 1:
        raise CannotMove("has rows on two axes or none")
    return [out_dims(op, 0, [sizes_lib.product(pair) for pair in zip(dims, multiples)])]


def broadcast_to(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """BroadcastTo: keeps the axis of the rows, or makes equal rows."""
    dims, target = inputs[0].known_dims(), _known_elements(inputs[1])
    if target is None:
        raise CannotMove("takes a shape that is not known")
    if sum(size.is_batch for size in target) != 1:
        raise CannotMove("broadcasts to a shape without rows")
    if len(target) < len(dims):
        raise CannotMove("broadcasts to fewer axes")
    for place in range(-len(dims), 0):
        is_rows = target[place].is_batch or dims[place].is_batch
        if is_rows and dims[place] not in (ONE, target[place]):
            raise CannotMove("meets the rows with something of another length")
        if dims[place].is_batch and not target[place].is_batch:
            raise CannotMove("broadcasts the rows to something else")
    return [target]


def fill(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Fill: makes equal rows."""
    target = _known_elements(inputs[0])
    if target is None or sum(size.is_batch for size in target) != 1:
        raise CannotMove("takes a shape that is not known")
    refuse_rows(inputs[1], "value")
    return [target]


def pad(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Pads along axes that are not that of the rows."""
    dims = inputs[0].known_dims()
    paddings = constant(inputs[1], "padding")
    for value in inputs[2:]:
        refuse_rows(value, "value")
    out: List[Optional[Size]] = [
        size if not pads.any() else None for size, pads in zip(dims, paddings)
    ]
    if inputs[0].axis is not None and out[inputs[0].axis] is None:
        raise CannotMove("pads the rows")
    return [out_dims(op, 0, out)]


def one_hot(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """OneHot: adds an axis."""
    for value in inputs[1:]:
        refuse_rows(value, "depth or value")
    dims: List[Optional[Size]] = list(inputs[0].known_dims())
    axis = op.get_attr("axis")
    dims.insert(axis if axis >= 0 else len(dims), None)
    return [out_dims(op, 0, dims)]


def decode_raw(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """DecodeRaw: adds an axis."""
    return [out_dims(op, 0, [*inputs[0].known_dims(), None])]
