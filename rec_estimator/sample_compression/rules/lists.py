# SPDX-License-Identifier: Apache-2.0
"""Rules of lists of tensors: TensorList, and the TensorArray of older graphs, by its flow.

A rule gives ListSizes for a list, the shape of its elements; see rules.py for what it promises.
"""

from typing import Callable, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.sizes import ListSizes, Size, Sizes
from rec_estimator.sample_compression.analysis.values import Stop, Value, known_dims
from rec_estimator.sample_compression.rules.checks import constant, out_dims, refuse_rows


class NotYet(Stop):
    """In a loop, a later round may know."""


def join(tensor: tf.Tensor, a: Sizes, b: Sizes) -> Sizes:
    """What is certain of a tensor that is one or the other.

    Args:
      tensor: It.
      a: Its shape in one case.
      b: In the other.

    Raises:
      Stop: Its rows are on no certain axis.
    """
    if a is None or b is None:
        raise Stop("takes a tensor of unknown rank")
    if isinstance(a, ListSizes) != isinstance(b, ListSizes):
        raise Stop("takes a list that is none in another case")
    if isinstance(a, ListSizes):
        if not (a.is_set and b.is_set):
            return a if a.is_set else b
        if a != b:
            raise Stop("takes a list of changing shapes")
        return a
    return tuple(_joined(tensor, a, b))


def _joined(tensor: tf.Tensor, a: Sizes, b: Sizes) -> List[Size]:
    if len(a) != len(b):
        raise Stop("takes a tensor of changing rank")
    found = []
    for axis, (one, other) in enumerate(zip(a, b)):
        if one != other and (None in (one, other) or one.is_batch or other.is_batch):
            raise Stop("takes rows on changing axes")
        found.append(one if one == other else sizes_lib.unknown(tensor, axis))
    return found


def _elements(value: Value) -> ListSizes:
    if not isinstance(value.dims, ListSizes):
        raise Stop("takes a list that is not followed")
    return value.dims


def _set_elements(value: Value) -> ListSizes:
    if not _elements(value).is_set:
        raise NotYet("reads a list that nothing was written to")
    return value.dims


def _reserve(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    dtype = op.get_attr("element_dtype")
    shape = constant(inputs[0], "shape of its elements")
    if shape.ndim and (shape >= 0).all():
        # What is not written reads as zeros of this shape.
        return [ListSizes([sizes_lib.number(size) for size in shape], dtype)]
    return [ListSizes((), dtype, is_set=False)]


def _from_tensor(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    return [_rows_apart(inputs[0], op.get_attr("element_dtype"))]


def _rows_apart(value: Value, dtype: tf.DType) -> ListSizes:
    dims = known_dims(value)
    if value.axis == 0 or not dims:
        raise Stop("makes a list of the rows")
    return ListSizes(dims[1:], dtype)


def _set_item(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    before, index, item = inputs
    refuse_rows(index, "place in a list")
    written = ListSizes(known_dims(item), _elements(before).dtype)
    return [join(op.outputs[0], before.dims, written)]


def _get_item(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    refuse_rows(inputs[1], "place in a list")
    return [tuple(_set_elements(inputs[0]))]


def _stack(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    return [out_dims(op, 0, [None, *_set_elements(inputs[0])])]


def _array(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    shape, dtype = tf.TensorShape(op.get_attr("element_shape")), op.get_attr("dtype")
    flow = ListSizes((), dtype, is_set=False)
    if shape.is_fully_defined():
        flow = ListSizes([sizes_lib.number(size) for size in shape], dtype)
    return [values_lib.static_dims(op.outputs[0], symbols=True), flow]


def _array_scatter(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _, places, value, flow = inputs
    refuse_rows(places, "places in a list")
    written = _rows_apart(value, _elements(flow).dtype)
    return [join(op.outputs[0], flow.dims, written)]


def _array_write(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _, place, item, flow = inputs
    return _set_item(op, [flow, place, item])


def _array_read(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _, place, flow = inputs
    return _get_item(op, [flow, place])


def _array_gather(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _, places, flow = inputs
    refuse_rows(places, "places in a list")
    return [out_dims(op, 0, [None, *_set_elements(flow)])]


def _length(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    return [()]


LIST_RULES: Dict[str, Callable[[tf.Operation, Sequence[Value]], List[Sizes]]] = {
    "TensorListFromTensor": _from_tensor,
    "TensorListGetItem": _get_item,
    "TensorListLength": _length,
    "TensorListReserve": _reserve,
    "TensorListSetItem": _set_item,
    "TensorListStack": _stack,
}

# Of TensorArray, whose contents a handle holds: only where all that touches it is one piece.
ARRAY_RULES: Dict[str, Callable[[tf.Operation, Sequence[Value]], List[Sizes]]] = {
    "TensorArrayGatherV3": _array_gather,
    "TensorArrayReadV3": _array_read,
    "TensorArrayScatterV3": _array_scatter,
    "TensorArraySizeV3": _length,
    "TensorArrayV3": _array,
    "TensorArrayWriteV3": _array_write,
}
