# SPDX-License-Identifier: Apache-2.0
"""Rules of lists of tensors: TensorList, and TensorArray, which control flow v1 uses.

A rule returns ListSizes for a list: the shape of its elements. op_rules.py says what a rule
promises.
"""

from typing import Callable, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.sizes import ListSizes, Shape, Size, Sizes
from rec_estimator.sample_compression.analysis.values import CannotMove, ListValue, Value
from rec_estimator.sample_compression.rules.checks import constant, out_dims, refuse_rows


class NotYetKnown(CannotMove):
    """Too little is known yet. In a loop, a later round may know it."""


def join(tensor: tf.Tensor, a: Shape, b: Shape) -> Shape:
    """The shape of a tensor that has one of two shapes, as after a branch.

    Args:
      tensor: The tensor.
      a: One shape.
      b: The other shape.

    Returns:
      The common shape. A size that differs becomes a symbol.

    Raises:
      CannotMove: The rows may be on different axes.
    """
    if a is None or b is None:
        raise CannotMove("takes a tensor of unknown rank")
    if isinstance(a, ListSizes) and isinstance(b, ListSizes):
        if not (a.is_set and b.is_set):
            return a if a.is_set else b
        if a != b:
            raise CannotMove("takes a list of changing shapes")
        return a
    if isinstance(a, ListSizes) or isinstance(b, ListSizes):
        raise CannotMove("takes a value that is a list on one branch only")
    return _joined(tensor, a, b)


def _joined(tensor: tf.Tensor, a: Sizes, b: Sizes) -> Sizes:
    if a is None or b is None or len(a) != len(b):
        raise CannotMove("takes a tensor of changing rank")
    found: List[Size] = []
    for axis, (one, other) in enumerate(zip(a, b)):
        if one is None or other is None or (one != other and (one.is_batch or other.is_batch)):
            raise CannotMove("takes rows on changing axes")
        found.append(one if one == other else sizes_lib.unknown(tensor, axis))
    return tuple(found)


def _elements(value: Value) -> ListSizes:
    if not isinstance(value, ListValue):
        raise CannotMove("takes a list whose elements are not known")
    return value.dims


def _set_elements(value: Value) -> ListSizes:
    elements = _elements(value)
    if not elements.is_set:
        raise NotYetKnown("reads a list that nothing was written to")
    return elements


def _reserve(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    dtype = op.get_attr("element_dtype")
    shape = constant(inputs[0], "shape of its elements")
    if shape.ndim and (shape >= 0).all():
        # An element that is not written reads as zeros of this shape.
        return [ListSizes(tuple(sizes_lib.number(size) for size in shape), dtype)]
    return [ListSizes((), dtype, is_set=False)]


def _from_tensor(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    return [_unstacked(inputs[0], op.get_attr("element_dtype"))]


def _unstacked(value: Value, dtype: tf.DType) -> ListSizes:
    """The elements of a list that holds a tensor's parts along axis 0."""
    dims = value.known_dims()
    if value.axis == 0 or not dims:
        raise CannotMove("makes a list of the rows")
    return ListSizes(dims[1:], dtype)


def _set_item(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    before, index, item = inputs
    refuse_rows(index, "position in a list")
    written = ListSizes(item.known_dims(), _elements(before).dtype)
    return [join(op.outputs[0], before.dims, written)]


def _get_item(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    refuse_rows(inputs[1], "position in a list")
    return [_set_elements(inputs[0]).sizes]


def _stack(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    return [out_dims(op, 0, [None, *_set_elements(inputs[0]).sizes])]


def _array(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    shape, dtype = tf.TensorShape(op.get_attr("element_shape")), op.get_attr("dtype")
    flow = ListSizes((), dtype, is_set=False)
    if shape.is_fully_defined():
        flow = ListSizes(tuple(sizes_lib.number(size) for size in shape.as_list()), dtype)
    return [values_lib.static_dims(op.outputs[0], symbols=True), flow]


def _array_scatter(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _, places, value, flow = inputs
    refuse_rows(places, "positions in a list")
    written = _unstacked(value, _elements(flow).dtype)
    return [join(op.outputs[0], flow.dims, written)]


def _array_write(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _, place, item, flow = inputs
    return _set_item(op, [flow, place, item])


def _array_read(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _, place, flow = inputs
    return _get_item(op, [flow, place])


def _array_gather(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _, places, flow = inputs
    refuse_rows(places, "positions in a list")
    return [out_dims(op, 0, [None, *_set_elements(flow).sizes])]


def _length(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    return [()]


LIST_RULES: Dict[str, Callable[[tf.Operation, Sequence[Value]], List[Shape]]] = {
    "TensorListFromTensor": _from_tensor,
    "TensorListGetItem": _get_item,
    "TensorListLength": _length,
    "TensorListReserve": _reserve,
    "TensorListSetItem": _set_item,
    "TensorListStack": _stack,
}

# A TensorArray's handle is a resource. The rules therefore follow its flow, and hold only inside a
# subgraph that contains every op that uses the array: see control_flow_v1.py.
ARRAY_RULES: Dict[str, Callable[[tf.Operation, Sequence[Value]], List[Shape]]] = {
    "TensorArrayGatherV3": _array_gather,
    "TensorArrayReadV3": _array_read,
    "TensorArrayScatterV3": _array_scatter,
    "TensorArraySizeV3": _length,
    "TensorArrayV3": _array,
    "TensorArrayWriteV3": _array_write,
}
