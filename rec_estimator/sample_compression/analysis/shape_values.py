# SPDX-License-Identifier: Apache-2.0
"""Follows the numbers in shapes: what Shape returns, and arithmetic on it.

A model asks for the number of rows to reshape, fill or broadcast. The pass follows such vectors
element by element, so that it can compute them for users and for candidates.
"""

from typing import Callable, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import Size, Sizes
from rec_estimator.sample_compression.analysis.values import DenseValue, Value, elements_in

_Evaluate = Callable[[tf.Operation, Sequence[Value]], Sizes]


def elements_of(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    """The elements of an op's only output.

    Args:
      op: With one output.
      inputs: The values of its inputs.

    Returns:
      The elements. None: the output is not an integer scalar or vector, or it is not followed.
    """
    if op.type not in _EVALUATE or op.outputs[0].shape.rank not in (0, 1):
        return None
    if not op.outputs[0].dtype.is_integer:
        return None
    elements = _EVALUATE[op.type](op, inputs)
    # Only the length of the vector is known.
    if elements is None or all(element is None for element in elements):
        return None
    return elements


def _same(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    return elements_in(inputs[0])


def _size(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    dims = _shape(op, inputs)
    return None if dims is None or None in dims else (sizes_lib.product(dims),)


def _shape(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    # The number of entries of a sparse tensor does not follow from the number of rows.
    return inputs[0].dims if isinstance(inputs[0], DenseValue) else None


def _strided_slice(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    data, *limits = inputs
    elements = elements_in(data)
    masks = [op.get_attr(f"{name}_mask") for name in ("ellipsis", "new_axis")]
    if elements is None or op.inputs[0].shape.rank != 1 or any(masks):
        return None
    constants = [tf.get_static_value(value.tensor) for value in limits]
    if any(constant is None or constant.size != 1 for constant in constants):
        return None
    begin, end, stride = (int(constant[0]) for constant in constants)
    if op.get_attr("shrink_axis_mask"):
        if not -len(elements) <= begin < len(elements):
            return None
        return (elements[begin],)
    first = None if op.get_attr("begin_mask") else begin
    last = None if op.get_attr("end_mask") else end
    return elements[first:last:stride]


def _slice(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    data, *limits = inputs
    elements = elements_in(data)
    constants = [tf.get_static_value(value.tensor) for value in limits]
    if elements is None or any(constant is None for constant in constants):
        return None
    begin, length = (int(constant[0]) for constant in constants)
    return elements[begin : None if length == -1 else begin + length]


def _gather(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    elements = elements_in(inputs[0])
    places = tf.get_static_value(inputs[1].tensor)
    if elements is None or places is None or op.inputs[0].shape.rank != 1:
        return None
    chosen = places.reshape(-1).tolist()
    if not all(0 <= place < len(elements) for place in chosen):
        return None
    return tuple(elements[place] for place in chosen)


def _pack(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    parts = [elements_in(value) for value in inputs]
    return tuple(part[0] if part and len(part) == 1 else None for part in parts)


def _concat(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    found: List[Optional[Size]] = []
    for value in inputs[:-1]:
        elements = elements_in(value)
        if elements is None:
            return None
        found.extend(elements)
    return tuple(found)


def _prod(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    elements = elements_in(inputs[0])
    axes = tf.get_static_value(inputs[1].tensor)
    if elements is None or axes is None or axes.size != 1 or op.inputs[0].shape.rank != 1:
        return None
    return (sizes_lib.product(elements),)


def _mul(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    a, b = (elements_in(value) for value in inputs)
    if a is None or b is None or not (len(a) == len(b) or 1 in (len(a), len(b))):
        return None
    length = max(len(a), len(b))
    pairs = zip(a * (length if len(a) == 1 else 1), b * (length if len(b) == 1 else 1))
    return tuple(sizes_lib.product(pair) for pair in pairs)


def _floor_div(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    a, b = (elements_in(value) for value in inputs)
    if a is None or b is None or len(a) != 1 or len(b) != 1:
        return None
    return (sizes_lib.quotient(a[0], b[0]),)


def _fill(op: tf.Operation, inputs: Sequence[Value]) -> Sizes:
    length, value = elements_in(inputs[0]), elements_in(inputs[1])
    if not length or value is None or length[0] is None or not sizes_lib.is_number(length[0]):
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
