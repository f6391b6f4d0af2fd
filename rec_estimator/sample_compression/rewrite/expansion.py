# SPDX-License-Identifier: Apache-2.0
"""Repeats rows of users for candidates, by our own ops.

The positions that follow from item_size are computed once per request. stock_expansion.py does the
same with TensorFlow's ops.
"""

from typing import List, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.analysis.components import AnyTensor, tensor_name
from rec_estimator.sample_compression.analysis.entries import Rows

# The types for which RepeatRows has a gradient and SegmentMatMul has a kernel.
_PRODUCT_TYPES = (tf.float32, tf.float64)


class KernelBlock(NamedTuple):
    """A sum of blocks of a kernel's rows, which have equal heights.

    Attributes:
      rows: The height of each block.
      terms: (1 or -1, first row) of each block.
    """

    rows: int
    terms: Sequence[Tuple[int, int]]


class RowExpansion(Rows, Protocol):
    """Repeats rows of users for candidates; Expansion or StockExpansion.

    Attributes:
      users: int32 [], B.
      items: int32 [], N.
      index: int32 [N], the user of each candidate.
    """

    def repeat(
        self,
        tensor: tf.Tensor,
        axis: int,
        per_row: Union[int, tf.Tensor] = 1,
        keep_one: bool = False,
    ) -> tf.Tensor:
        """Repeats rows of users for candidates.

        Args:
          tensor: [..., B * per_row, ...].
          axis: The axis of the rows.
          per_row: How many consecutive places of the axis belong to one row; 1, or int32 [].
          keep_one: Whether the row of a single user is kept as one row, which then broadcasts.

        Returns:
          [..., N * per_row, ...]
        """

    def multiplies(self, dtype: tf.DType) -> bool:
        """Whether ``multiply`` takes this type."""

    def multiply(self, rows: tf.Tensor, matrices: tf.Tensor, transpose: bool = False) -> tf.Tensor:
        """Multiplies each candidate's row by the matrix of its user.

        Args:
          rows: [N, K], float32 or float64.
          matrices: [B, K, M]; [B, M, K] if transpose.
          transpose: Whether the matrices are transposed.

        Returns:
          [N, M]
        """

    def layer(
        self,
        entries: tf.Tensor,
        rows: tf.Tensor,
        kernel: tf.Tensor,
        user_bias: Optional[tf.Tensor],
        row_bias: Optional[tf.Tensor],
    ) -> tf.Tensor:
        """A dense layer over the products of each candidate's row with all entries of its user.

        Args:
          entries: [B, T, D], float32 or float64.
          rows: [N, ..., D], D numbers for each candidate.
          kernel: [D, H].
          user_bias: [B, T, H], added to the result for each user; None: nothing.
          row_bias: [N, H], added to the result for each candidate; None: nothing.

        Returns:
          [N, T, H]
        """

    def kernel_rows(self, kernel: tf.Tensor, blocks: Sequence[KernelBlock]) -> tf.Tensor:
        """Blocks of a kernel's rows, one below the other.

        The blocks of a variable are copied once for all requests.

        Args:
          kernel: [K, H], float32 or float64.
          blocks: The blocks.

        Returns:
          [rows of all blocks, H]
        """


class Expansion:
    """A RowExpansion by our own ops.

    Args:
      users: Dense, sparse and ragged tensors of B rows.
      items: Dense, sparse and ragged tensors of N rows.
      item_size: int32 or int64 [B] or [1].
    """

    def __init__(
        self, users: Sequence[AnyTensor], items: Sequence[AnyTensor], item_size: tf.Tensor
    ) -> None:
        found = [_row_source(tensor) for tensor in (*users, *items)]
        with tf.name_scope("rows"):
            rows = _ops.gen.rec_estimator_sample_rows(
                item_size=item_size,
                tensors=[tensor for tensor, _ in found],
                kinds=[kind for _, kind in found],
                names=[tensor_name(tensor) for tensor in (*users, *items)],
                num_users=len(users),
                size_name=item_size.op.name,
            )
        self.users, self.items = rows.users, rows.items
        self.index = rows.index
        self._row_splits = rows.row_splits

    def repeat(
        self,
        tensor: tf.Tensor,
        axis: int,
        per_row: Union[int, tf.Tensor] = 1,
        keep_one: bool = False,
    ) -> tf.Tensor:
        """See RowExpansion."""
        if not (tensor.dtype in _PRODUCT_TYPES or tensor.dtype.is_integer or _is_plain(tensor)):
            return repeat_rows(tensor, axis, self.users, per_row, self.index)
        repeated = _ops.gen.rec_estimator_repeat_rows(
            tensor, self._row_splits, axis=axis, keep_one=keep_one
        )
        if tensor.shape.rank is not None:
            shape = tensor.shape.as_list()
            repeated.set_shape([*shape[:axis], None, *shape[axis + 1 :]])
        return repeated

    def multiplies(self, dtype: tf.DType) -> bool:
        """See RowExpansion."""
        return dtype in _PRODUCT_TYPES

    def multiply(self, rows: tf.Tensor, matrices: tf.Tensor, transpose: bool = False) -> tf.Tensor:
        """See RowExpansion. Does not copy the matrices."""
        return _ops.gen.rec_estimator_segment_mat_mul(
            rows, matrices, self._row_splits, transpose_matrices=transpose
        )

    def layer(
        self,
        entries: tf.Tensor,
        rows: tf.Tensor,
        kernel: tf.Tensor,
        user_bias: Optional[tf.Tensor],
        row_bias: Optional[tf.Tensor],
    ) -> tf.Tensor:
        """See RowExpansion."""
        count, inner, units = tf.shape(entries)[1], tf.shape(kernel)[0], tf.shape(kernel)[1]
        if user_bias is None:
            user_bias = tf.zeros(tf.stack([self.users, count, units]), kernel.dtype)
        if row_bias is None:
            row_bias = tf.zeros(tf.stack([self.items, units]), kernel.dtype)
        rows = tf.reshape(rows, [-1, inner])
        return _ops.gen.rec_estimator_segment_layer(
            entries, rows, kernel, self._row_splits, user_bias, row_bias
        )

    def kernel_rows(self, kernel: tf.Tensor, blocks: Sequence[KernelBlock]) -> tf.Tensor:
        """See RowExpansion."""
        terms = [term for block in blocks for term in block.terms]
        return _ops.gen.rec_estimator_kernel_rows(
            kernel,
            counts=[block.rows for block in blocks],
            terms=[len(block.terms) for block in blocks],
            starts=[start for _, start in terms],
            signs=[sign for sign, _ in terms],
            # A variable that is no resource is written in place while other ops hold its memory.
            keep=identities(kernel)[-1].type in ("Const", "ReadVariableOp"),
        )


@tf.RegisterGradient(op_registry.KERNEL_ROWS)
def _kernel_rows_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    """Puts the gradient of each block at its rows, and zeros elsewhere."""
    height, width = tf.unstack(tf.shape(op.inputs[0]))
    starts, signs = op.get_attr("starts"), op.get_attr("signs")
    parts: List[Tuple[int, int, tf.Tensor]] = []  # (first row, last row + 1, gradient)
    row = 0
    for count, terms in zip(op.get_attr("counts"), op.get_attr("terms")):
        for _ in range(terms):
            start, sign = starts[len(parts)], signs[len(parts)]
            block = grad[row : row + count]
            parts.append((start, start + count, block if sign > 0 else -block))
        row += count
    total = None
    parts.sort(key=lambda part: part[:2])
    while parts:  # Each round takes parts that do not overlap.
        blocks: List[tf.Tensor] = []
        later: List[Tuple[int, int, tf.Tensor]] = []
        end = 0
        for part in parts:
            start, behind, block = part
            if start < end:
                later.append(part)
                continue
            blocks += [tf.zeros(tf.stack([start - end, width]), grad.dtype), block]
            end = behind
        blocks.append(tf.zeros(tf.stack([height - end, width]), grad.dtype))
        whole = tf.concat(blocks, axis=0)
        total = whole if total is None else total + whole
        parts = later
    return total


@tf.RegisterGradient(op_registry.SEGMENT_LAYER)
def _segment_layer_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    entries, rows, kernel, row_splits, user_bias, _ = op.inputs
    found = _ops.gen.rec_estimator_segment_layer_grad(entries, rows, kernel, row_splits, grad)
    user_bias_grads = _ops.gen.rec_estimator_repeat_rows_grad(grad, row_splits, tf.shape(user_bias))
    return [
        found.entry_grads,
        found.row_grads,
        tf.reduce_sum(found.kernel_grads, axis=0),
        None,
        user_bias_grads,
        tf.reduce_sum(grad, axis=1),
    ]


@tf.RegisterGradient(op_registry.REPEAT_ROWS)
def _repeat_rows_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    values, row_splits = op.inputs
    if values.dtype not in _PRODUCT_TYPES:
        return [None, None]
    sums = _ops.gen.rec_estimator_repeat_rows_grad(
        grad, row_splits, tf.shape(values), axis=op.get_attr("axis")
    )
    return [sums, None]


@tf.RegisterGradient(op_registry.SEGMENT_MAT_MUL)
def _segment_mat_mul_grad(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    rows, matrices, row_splits = op.inputs
    flip = op.get_attr("transpose_matrices")
    row_grads = _ops.gen.rec_estimator_segment_mat_mul(
        grad, matrices, row_splits, transpose_matrices=not flip
    )
    left, right = (grad, rows) if flip else (rows, grad)
    return [row_grads, _ops.gen.rec_estimator_segment_mat_mul_grad(left, right, row_splits), None]


def _is_plain(tensor: tf.Tensor) -> bool:
    return tensor.dtype in (tf.bool, tf.string)


def _row_source(tensor: AnyTensor) -> Tuple[tf.Tensor, str]:
    """The tensor that gives the number of rows of a tensor, and the kind of tensor it is."""
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape, "sparse"
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.row_splits, "ragged"
    return tensor, "dense"


def identities(tensor: tf.Tensor) -> List[tf.Operation]:
    """The Identity ops a tensor went through, the last one first, and the op that made it."""
    ops = [tensor.op]
    while ops[-1].type == "Identity":
        ops.append(ops[-1].inputs[0].op)
    return ops


def repeat_rows(
    tensor: tf.Tensor,
    axis: int,
    rows: tf.Tensor,
    per_row: Union[int, tf.Tensor],
    index: tf.Tensor,
) -> tf.Tensor:
    """Gathers rows, each of which may take several places of the axis.

    Args:
      tensor: [..., rows * per_row, ...].
      axis: The axis of the rows.
      rows: int32 [], the number of rows.
      per_row: How many consecutive places of the axis belong to one row; 1, or int32 [].
      index: int32 [n], the rows to gather.

    Returns:
      [..., n * per_row, ...]
    """
    if isinstance(per_row, int) and per_row == 1:
        return tf.gather(tensor, index, axis=axis)
    shape = tf.shape(tensor)
    before, after = shape[:axis], shape[axis + 1 :]
    split = tf.reshape(tensor, tf.concat([before, [rows, per_row], after], axis=0))
    repeated = tf.gather(split, index, axis=axis)
    count = tf.size(index) * per_row
    return tf.reshape(repeated, tf.concat([before, [count], after], axis=0))
