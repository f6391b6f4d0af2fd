# SPDX-License-Identifier: Apache-2.0
"""Counts the floating-point operations of an op, for the report.

An op counts as one operation for each element it computes. A matrix product counts as one
multiplication and one addition for each pair of numbers. Ops that only move, select or compare
numbers count as 0; so do ops on integers and strings.
"""

import math
from typing import Callable, Dict, List, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.op_registry import LOOKUPS
from rec_estimator.sample_compression.analysis.sizes import BATCH, ListSizes, Shape, Size, number
from rec_estimator.sample_compression.rules import control_flow

_MOVES_TEXT = """
    BroadcastTo Case ConcatV2 ConjugateTranspose EnsureShape Enter Exit ExpandDims Fill Gather
    GatherNd GatherV2 Identity IdentityN If LoopCond MatrixBandPart Merge MirrorPad NextIteration
    OnesLike Pack Pad PadV2 PartitionedCall Placeholder PlaceholderWithDefault PreventGradient
    Reshape ResourceGather ResourceGatherNd ReverseV2 Select
    SelectV2 Slice SparseToDense Split SplitV Squeeze StatefulPartitionedCall StatelessCase
    StatelessIf StatelessWhile StopGradient StridedSlice Switch TensorArrayGatherV3
    TensorArrayReadV3 TensorArrayScatterV3 TensorArrayV3 TensorArrayWriteV3 TensorListGetItem
    TensorListStack Tile TopKV2 Transpose Unpack While ZerosLike
"""
_MOVES = LOOKUPS.union(_MOVES_TEXT.split())


def flops(op: tf.Operation, dims: Shape, rows: int) -> int:
    """The floating-point operations of an op.

    Args:
      op: The op.
      dims: The shape of its first output. None: the static shape is used.
      rows: The number of rows. Other unknown sizes count as 1.

    Returns:
      Their number. For a loop, the number of one round; for a branch, that of the largest one.
    """
    if op.type in control_flow.CALL_RULES:
        found = [_of_graph(graph, rows) for graph in control_flow.graphs_of(op)]
        return sum(found) if "While" in op.type else max(found)
    if op.type in _MOVES or not op.outputs or not op.outputs[0].dtype.is_floating:
        return 0
    if op.type == "Const" or (dims is None and op.outputs[0].shape.rank is None):
        return 0
    count = math.prod(_size(size, rows) for size in _with_rows(op, dims))
    return count * _PER_ELEMENT.get(op.type, _one)(op)


def has_rounds(op: tf.Operation) -> bool:
    """Whether an op is a loop or belongs to one, so that one round is counted."""
    return "While" in op.type or op.type == "NextIteration"


def _of_graph(graph: Optional[tf.Graph], rows: int) -> int:
    return 0 if graph is None else sum(flops(op, None, rows) for op in graph.get_operations())


def _with_rows(op: tf.Operation, dims: Shape) -> List[Size]:
    """The shape. If no axis has rows, the first unknown size is taken as the number of rows."""
    sizes: List[Optional[Size]]
    if isinstance(dims, ListSizes):
        sizes = list(dims.sizes)
    elif dims is not None:
        sizes = list(dims)
    else:
        sizes = [None if n is None else number(n) for n in op.outputs[0].shape.as_list()]
    if None in sizes and not any(size is not None and size.is_batch for size in sizes):
        sizes[sizes.index(None)] = BATCH
    return [size for size in sizes if size is not None]


def _size(size: Size, rows: int) -> int:
    return size.factor * (rows if size.is_batch else 1)


def _one(op: tf.Operation) -> int:
    return 1


def _known(tensor: tf.Tensor, axis: int) -> int:
    if tensor.shape.rank is None:
        return 1
    return tf.compat.dimension_value(tensor.shape[axis]) or 1


def _matmul(op: tf.Operation) -> int:
    flip = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return 2 * _known(op.inputs[0], -2 if flip else -1)


def _einsum(op: tf.Operation) -> int:
    left, right = op.get_attr("equation").decode().replace(" ", "").split("->")
    sizes: Dict[str, int] = {}
    for tensor, term in zip(op.inputs, left.split(",")):
        if "." not in term:
            for axis, label in enumerate(term):
                sizes[label] = max(sizes.get(label, 1), _known(tensor, axis))
    summed = math.prod(size for label, size in sizes.items() if label not in right)
    return (2 if "," in left else 1) * summed


def _reduction(op: tf.Operation) -> int:
    axes = tf.get_static_value(op.inputs[1])
    if axes is None or op.inputs[0].shape.rank is None:
        return 1
    return math.prod(_known(op.inputs[0], int(axis)) for axis in np.reshape(axes, [-1]))


def _convolution(op: tf.Operation) -> int:
    kernel = op.inputs[1]
    if kernel.shape.rank is None:
        return 2
    axes = range(kernel.shape.rank - (2 if op.type.startswith("Depthwise") else 1))
    return 2 * math.prod(_known(kernel, axis) for axis in axes)


_PER_ELEMENT: Dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"], _matmul),
    **dict.fromkeys(["Conv2D", "Conv3D", "DepthwiseConv2dNative"], _convolution),
    **dict.fromkeys(["EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"], _reduction),
    "Einsum": _einsum,
}
