# SPDX-License-Identifier: Apache-2.0
"""From one row per user to one per candidate: what item_size says, computed once per request."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.graph_passes import op_registry

# What RepeatRows has a gradient for, and SegmentMatMul multiplies.
_PRODUCT_TYPES = (tf.float32, tf.float64)


def components(tensor: Any) -> Tuple[tf.Tensor, ...]:
    """The dense tensors that a dense, sparse or ragged tensor consists of."""
    if isinstance(tensor, tf.SparseTensor):
        return tensor.indices, tensor.values, tensor.dense_shape
    if isinstance(tensor, tf.RaggedTensor):
        return (tensor.flat_values, *tensor.nested_row_splits)
    return (tensor,)


def tensor_name(tensor: Any) -> str:
    """What an error message calls a dense, sparse or ragged tensor."""
    if isinstance(tensor, tf.SparseTensor):
        return tensor.values.op.name
    return components(tensor)[0].op.name


class KernelBlock(NamedTuple):
    """Rows made of a kernel's.

    Attributes:
      rows: How many.
      terms: (1 or -1, first row) of each of the kernel's blocks that are added up.
    """

    rows: int
    terms: Sequence[Tuple[int, int]]


class Expansion:
    """The rows of users for candidates, by our own ops.

    StockExpansion has the same attributes and methods, made of TensorFlow's ops alone.

    Args:
      users: Dense, sparse and ragged tensors of B rows.
      items: Such of N rows.
      item_size: int32 or int64 [B] or [1].

    Attributes:
      users: int32 [], B.
      items: int32 [], N.
      index: int32 [N]: which user's row each candidate has.
    """

    def __init__(self, users: Sequence[Any], items: Sequence[Any], item_size: tf.Tensor) -> None:
        found = [_rows_of(tensor) for tensor in (*users, *items)]
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
        self, tensor: tf.Tensor, axis: int, per_row: Any = 1, keep_one: bool = False
    ) -> tf.Tensor:
        """Repeats users' rows for candidates.

        Args:
          tensor: [..., B * per_row, ...].
          axis: Where the rows are.
          per_row: How many consecutive places of the axis are of one row; 1, or int32 [].
          keep_one: Whether the row of the only user stays one: enough for what broadcasts.

        Returns:
          [..., N * per_row, ...]
        """
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
        """Whether ``multiply`` takes numbers of this type."""
        return dtype in _PRODUCT_TYPES

    def multiply(self, rows: tf.Tensor, matrices: tf.Tensor, transpose: bool = False) -> tf.Tensor:
        """Multiplies each candidate's row with her user's matrix, which is not copied.

        Args:
          rows: [N, K], float32 or float64.
          matrices: [B, K, M]; [B, M, K] if transpose.
          transpose: Whether the matrices are to be transposed.

        Returns:
          [N, M]
        """
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
        """A layer over the product of each candidate's row with each entry of her user.

        Args:
          entries: [B, T, D], float32 or float64.
          rows: [N, ..., D], D numbers for each candidate.
          kernel: [D, H].
          user_bias: [B, T, H], added to what is the user's; None: nothing.
          row_bias: [N, H], added to what is the candidate's; None: nothing.

        Returns:
          [N, T, H]
        """
        count, inner, units = tf.shape(entries)[1], tf.shape(kernel)[0], tf.shape(kernel)[1]
        if user_bias is None:
            user_bias = tf.zeros(tf.stack([self.users, count, units]), kernel.dtype)
        if row_bias is None:
            row_bias = tf.zeros(tf.stack([self.items, units]), kernel.dtype)
        rows = tf.reshape(rows, [-1, inner])
        return _ops.gen.rec_estimator_user_layer(
            entries, rows, kernel, self._row_splits, user_bias, row_bias
        )

    def kernel_rows(self, kernel: tf.Tensor, blocks: Sequence[KernelBlock]) -> tf.Tensor:
        """Blocks of a kernel's rows, one below the other.

        Those of a variable are taken out of it once, not in every request.

        Args:
          kernel: [K, H], float32 or float64.
          blocks: Which.

        Returns:
          [rows of all blocks, H]
        """
        terms = [term for block in blocks for term in block.terms]
        return _ops.gen.rec_estimator_kernel_rows(
            kernel,
            counts=[block.rows for block in blocks],
            terms=[len(block.terms) for block in blocks],
            starts=[start for _, start in terms],
            signs=[sign for sign, _ in terms],
            # The memory of a variable that is no resource is written to while others hold it.
            keep=handed_on(kernel)[-1].type in ("Const", "ReadVariableOp"),
        )


@tf.RegisterGradient(op_registry.KERNEL_ROWS)
def _kernel_rows_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    """Each block's gradient in its place, between zeros."""
    height, width = tf.unstack(tf.shape(op.inputs[0]))
    starts, signs = op.get_attr("starts"), op.get_attr("signs")
    pieces: List[Tuple[int, int, tf.Tensor]] = []  # First row, behind the last one, gradient.
    row = 0
    for count, terms in zip(op.get_attr("counts"), op.get_attr("terms")):
        for _ in range(terms):
            start, sign = starts[len(pieces)], signs[len(pieces)]
            block = grad[row : row + count]
            pieces.append((start, start + count, block if sign > 0 else -block))
        row += count
    total = None
    pieces.sort(key=lambda piece: piece[:2])
    while pieces:  # As many as do not overlap at a time.
        parts, later, end = [], [], 0
        for piece in pieces:
            start, behind, block = piece
            if start < end:
                later.append(piece)
                continue
            parts += [tf.zeros(tf.stack([start - end, width]), grad.dtype), block]
            end = behind
        parts.append(tf.zeros(tf.stack([height - end, width]), grad.dtype))
        layer = tf.concat(parts, axis=0)
        total = layer if total is None else total + layer
        pieces = later
    return total


@tf.RegisterGradient(op_registry.USER_LAYER)
def _user_layer_grad(op: tf.Operation, grad: tf.Tensor) -> List[Any]:
    entries, rows, kernel, row_splits, user_bias, _ = op.inputs
    found = _ops.gen.rec_estimator_user_layer_grad(entries, rows, kernel, row_splits, grad)
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
def _repeat_rows_grad(op: tf.Operation, grad: tf.Tensor) -> List[Any]:
    values, row_splits = op.inputs
    if values.dtype not in _PRODUCT_TYPES:
        return [None, None]
    sums = _ops.gen.rec_estimator_repeat_rows_grad(
        grad, row_splits, tf.shape(values), axis=op.get_attr("axis")
    )
    return [sums, None]


@tf.RegisterGradient(op_registry.SEGMENT_MAT_MUL)
def _segment_mat_mul_grad(op: tf.Operation, grad: tf.Tensor) -> List[Any]:
    rows, matrices, row_splits = op.inputs
    flip = op.get_attr("transpose_matrices")
    row_grads = _ops.gen.rec_estimator_segment_mat_mul(
        grad, matrices, row_splits, transpose_matrices=not flip
    )
    left, right = (grad, rows) if flip else (rows, grad)
    return [row_grads, _ops.gen.rec_estimator_segment_mat_mul_grad(left, right, row_splits), None]


def _is_plain(tensor: tf.Tensor) -> bool:
    return tensor.dtype in (tf.bool, tf.string)


def _rows_of(tensor: Any) -> Tuple[tf.Tensor, str]:
    """What tells the number of rows of a tensor, and which kind of tensor it is."""
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape, "sparse"
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.row_splits, "ragged"
    return tensor, "dense"


def handed_on(tensor: tf.Tensor) -> List[tf.Operation]:
    """The Identity ops that hand a tensor on, the last first, and the op that it is of."""
    ops = [tensor.op]
    while ops[-1].type == "Identity":
        ops.append(ops[-1].inputs[0].op)
    return ops


def repeat_rows(
    tensor: tf.Tensor, axis: int, rows: tf.Tensor, per_row: Any, index: tf.Tensor
) -> tf.Tensor:
    """Gathers rows that may take several places of their axis each.

    Args:
      tensor: [..., rows * per_row, ...].
      axis: Where the rows are.
      rows: int32 [], how many there are.
      per_row: How many consecutive places of the axis are of one row; 1, or int32 [].
      index: int32 [n].

    Returns:
      [..., n * per_row, ...]
    """
    if isinstance(per_row, int) and per_row == 1:
        return tf.gather(tensor, index, axis=axis)
    shape = tf.shape(tensor)
    before, after = shape[:axis], shape[axis + 1 :]
    apart = tf.reshape(tensor, tf.concat([before, [rows, per_row], after], axis=0))
    repeated = tf.gather(apart, index, axis=axis)
    count = tf.size(index) * per_row
    return tf.reshape(repeated, tf.concat([before, [count], after], axis=0))
