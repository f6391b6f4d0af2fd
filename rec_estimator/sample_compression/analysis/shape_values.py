# SPDX-License-Identifier: Apache-2.0
"""What integer tensors say about sizes: Shape and the arithmetic on what it gives.

A model asks for the number of rows to reshape, fill or broadcast. Followed element by element, its
answer can be given for users and for candidates.
"""

from typing import Callable, Dict, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import Sizes
from rec_estimator.sample_compression.analysis.values import Value

_Evaluate = Callable[[tf.Operation, Sequence[Value]], Sizes]


def elements_of(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    """The elements of the only output, a scalar or vector of integers; None where not followed."""
    if op.type not in _EVALUATE or op.outputs[0].shape.rank not in (0, 1):
        return None
    if not op.outputs[0].dtype.is_integer:
        return None
    elements = _EVALUATE[op.type](op, inputs)
    # Not a shape of rows but any vector, whose length happens to be known.
    if elements is None or all(element is None for element in elements):
        return None
    return elements


def _same(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    return inputs[0].elements


def _size(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    dims = _shape(op, inputs)
    return None if dims is None or None in dims else (sizes_lib.product(dims),)


def _shape(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    # How many entries there are, no number of rows says.
    is_component = inputs[0].entries is not None or inputs[0].repeat is not None
    return None if is_component else inputs[0].dims


def _strided_slice(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    data, *limits = inputs
    masks = [op.get_attr(f"{name}_mask") for name in ("ellipsis", "new_axis")]
    if data.elements is None or data.tensor.shape.rank != 1 or any(masks):
        return None
    constants = [tf.get_static_value(value.tensor) for value in limits]
    if any(constant is None or constant.size != 1 for constant in constants):
        return None
    begin, end, stride = (int(constant[0]) for constant in constants)
    if op.get_attr("shrink_axis_mask"):
        if not -len(data.elements) <= begin < len(data.elements):
            return None
        return (data.elements[begin],)
    begin = None if op.get_attr("begin_mask") else begin
    end = None if op.get_attr("end_mask") else end
    return data.elements[begin:end:stride]


def _slice(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    data, *limits = inputs
    constants = [tf.get_static_value(value.tensor) for value in limits]
    if data.elements is None or any(constant is None for constant in constants):
        return None
    begin, length = (int(constant[0]) for constant in constants)
    return data.elements[begin : None if length == -1 else begin + length]


def _gather(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    data = inputs[0].elements
    places = tf.get_static_value(inputs[1].tensor)
    if data is None or places is None or inputs[0].tensor.shape.rank != 1:
        return None
    places = places.reshape(-1).tolist()
    if not all(0 <= place < len(data) for place in places):
        return None
    return tuple(data[place] for place in places)


def _pack(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    return tuple(
        value.elements[0] if value.elements and len(value.elements) == 1 else None
        for value in inputs
    )


def _concat(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    parts = [value.elements for value in inputs[:-1]]
    return None if None in parts else sum(parts, ())


def _prod(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    data = inputs[0]
    axes = tf.get_static_value(inputs[1].tensor)
    if data.elements is None or axes is None or axes.size != 1 or data.tensor.shape.rank != 1:
        return None
    return (sizes_lib.product(data.elements),)


def _mul(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    a, b = (value.elements for value in inputs)
    if a is None or b is None or not (len(a) == len(b) or 1 in (len(a), len(b))):
        return None
    length = max(len(a), len(b))
    pairs = zip(a * (length if len(a) == 1 else 1), b * (length if len(b) == 1 else 1))
    return tuple(sizes_lib.product(pair) for pair in pairs)


def _floor_div(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    a, b = (value.elements for value in inputs)
    if a is None or b is None or len(a) != 1 or len(b) != 1:
        return None
    return (sizes_lib.quotient(a[0], b[0]),)


def _fill(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    length, value = inputs[0].elements, inputs[1].elements
    if not length or value is None or not sizes_lib.is_number(length[0]):
        return None
    return value * length[0].factor


_EVALUATE: Dict[str, _Evaluate] = {
    "Cast": _same,
    "ConcatV2": _concat,
    "ExpandDims": _same,
    "Fill": _fill,
    "FloorDiv": _floor_div,
    "GatherV2": _gather,
    "Identity": _same,
    "Mul": _mul,
    "Pack": _pack,
    "Prod": _prod,
    "Reshape": _same,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _same,
    "StopGradient": _same,
    "StridedSlice": _strided_slice,
}
