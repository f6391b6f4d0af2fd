# SPDX-License-Identifier: Apache-2.0
"""Repeats rows of users for candidates by TensorFlow's ops alone, for portable exports."""

from typing import Dict, List, Optional, Sequence, Union

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_state import KERNEL_ROWS
from rec_estimator.sample_compression.analysis.components import AnyTensor, tensor_name
from rec_estimator.sample_compression.rewrite.expansion import KernelBlock, identities, repeat_rows


class StockExpansion:
    """A RowExpansion of TensorFlow's ops alone.

    Args:
      users: Dense, sparse and ragged tensors of B rows.
      items: Dense, sparse and ragged tensors of N rows.
      item_size: int32 or int64 [B] or [1].
    """

    def __init__(
        self, users: Sequence[AnyTensor], items: Sequence[AnyTensor], item_size: tf.Tensor
    ) -> None:
        with tf.name_scope("rows"):
            rows = _row_counts([*users, *items])
            length = tf.size(item_size)
            # One element stands for all users.
            is_one = tf.equal(length, 1)
            expected = tf.where(is_one, rows[0], length)
            # int64, so that a sum that overflows int32 is not taken for a correct one.
            sizes = tf.cast(item_size, tf.int64)
            total = tf.reduce_sum(sizes) * tf.cast(tf.where(is_one, expected, 1), tf.int64)
            check = _check(
                [
                    f"user tensor {tensor_name(t)} must have a row for each of item_size,"
                    for t in users
                ],
                [
                    f"item tensor {tensor_name(t)} must have the sum of item_size as rows,"
                    for t in items
                ],
                item_size,
                found=rows,
                wanted=tf.stack([tf.cast(expected, tf.int64), total]),
            )
            with tf.control_dependencies([check]):
                self.users = tf.identity(expected, name="users")
                self.items = tf.cast(total, tf.int32, name="items")
                item_size = tf.cast(item_size, tf.int32)
                sizes = tf.broadcast_to(item_size, self.users[tf.newaxis])
            self._ends = tf.cumsum(sizes)
            # The number of users that end at or before a candidate, which skips users without any.
            self.index = tf.raw_ops.UpperBound(
                sorted_inputs=self._ends[tf.newaxis],
                values=tf.range(self.items)[tf.newaxis],
            )[0]
            is_one = tf.equal(self.users, 1)
            self._one_or_all = self.index[: tf.where(is_one, 1, self.items)]
            # The place of each candidate if every user has room for the largest number.
            self._most = tf.maximum(tf.reduce_max(sizes), 0)
            begins = tf.gather(self._ends - sizes, self.index)
            self._places = self.index * self._most + tf.range(self.items) - begins

    def repeat(
        self,
        tensor: tf.Tensor,
        axis: int,
        per_row: Union[int, tf.Tensor] = 1,
        keep_one: bool = False,
    ) -> tf.Tensor:
        """See RowExpansion."""
        index = self._one_or_all if keep_one else self.index
        return repeat_rows(tensor, axis, self.users, per_row, index)

    def multiplies(self, dtype: tf.DType) -> bool:
        """See RowExpansion."""
        return dtype.is_floating

    def multiply(self, rows: tf.Tensor, matrices: tf.Tensor, transpose: bool = False) -> tf.Tensor:
        """See RowExpansion. One product per user, padded to the largest number of candidates."""
        width = tf.shape(rows)[1]
        shape = tf.stack([self.users * self._most, width])
        padded = tf.scatter_nd(self._places[:, tf.newaxis], rows, shape)
        grouped = tf.reshape(padded, tf.stack([self.users, self._most, width]))
        products = tf.matmul(grouped, matrices, transpose_b=transpose)
        outer = tf.shape(products)[2]
        flat = tf.reshape(products, tf.stack([self.users * self._most, outer]))
        return tf.gather(flat, self._places)

    def layer(
        self,
        entries: tf.Tensor,
        rows: tf.Tensor,
        kernel: tf.Tensor,
        user_bias: Optional[tf.Tensor],
        row_bias: Optional[tf.Tensor],
    ) -> tf.Tensor:
        """See RowExpansion. The entries of a user make one matrix for all candidates."""
        (_, count, width), units = tf.unstack(tf.shape(entries), 3), tf.shape(kernel)[1]
        matrices = tf.transpose(entries, [0, 2, 1])[..., tf.newaxis] * kernel[:, tf.newaxis]
        rows = tf.reshape(rows, tf.stack([self.items, width]))
        if user_bias is not None:
            # One more row of the matrix, multiplied by 1, adds the bias in the same product.
            matrices = tf.concat([matrices, user_bias[:, tf.newaxis]], axis=1)
            rows = tf.pad(rows, [[0, 0], [0, 1]], constant_values=1)
            width += 1
        flat = tf.reshape(matrices, tf.stack([self.users, width, count * units]))
        outputs = tf.reshape(self.multiply(rows, flat), tf.stack([self.items, count, units]))
        return outputs if row_bias is None else outputs + row_bias[:, tf.newaxis]

    def kernel_rows(self, kernel: tf.Tensor, blocks: Sequence[KernelBlock]) -> tf.Tensor:
        """See RowExpansion. The rows of a variable get a variable, filled after a restore."""
        rows = _slice_kernel(kernel, blocks)
        ops = identities(kernel)
        if ops[-1].type not in ("ReadVariableOp", "VariableV2"):
            return rows  # TensorFlow slices a constant once, when it loads the graph.
        if any(op.control_inputs for op in ops):
            return rows  # It waits for an op of the request, such as an assertion.
        variable = tf.Variable(
            rows,
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
            name="kernel_rows",
            use_resource=True,
        )
        tf.add_to_collection(KERNEL_ROWS, variable.initializer.name)
        return variable.read_value()


def _slice_kernel(kernel: tf.Tensor, blocks: Sequence[KernelBlock]) -> tf.Tensor:
    """``kernel_rows`` by slices, in every request."""
    sums = [
        tf.add_n([sign * kernel[start : start + block.rows] for sign, start in block.terms])
        for block in blocks
    ]
    return sums[0] if len(sums) == 1 else tf.concat(sums, axis=0)


def _row_counts(tensors: Sequence[AnyTensor]) -> tf.Tensor:
    """int32 [len(tensors)], the number of rows of each, in as few ops as there are dtypes."""
    counts: Dict[int, tf.Tensor] = {}
    alike: Dict[tf.DType, List[int]] = {}
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, tf.SparseTensor):
            counts[place] = tf.cast(tensor.dense_shape[0], tf.int32)
        elif isinstance(tensor, tf.RaggedTensor):
            counts[place] = tf.cast(tensor.nrows(), tf.int32)
        elif tensor.shape.rank is None:
            counts[place] = tf.shape(tensor)[0]
        else:
            alike.setdefault(tensor.dtype, []).append(place)
    order = [place for places in alike.values() for place in places]
    if order:
        shapes = [
            shape
            for places in alike.values()
            for shape in tf.raw_ops.ShapeN(input=[tensors[place] for place in places])
        ]
        first = np.cumsum([0] + [tensors[place].shape.rank for place in order])[:-1]
        rows = tf.unstack(tf.gather(tf.concat(shapes, axis=0), first)) if counts else None
        if rows is None:
            # All are dense, as in most requests: one gather restores the order.
            return tf.gather(tf.concat(shapes, axis=0), first[np.argsort(order)])
        counts.update(zip(order, rows))
    return tf.stack([counts[place] for place in range(len(tensors))])


def _check(
    users: Sequence[str],
    items: Sequence[str],
    item_size: tf.Tensor,
    found: tf.Tensor,
    wanted: tf.Tensor,
) -> tf.Operation:
    """Fails on the first tensor with a wrong number of rows, or on a negative size.

    Args:
      users: The error text of each user tensor.
      items: The error text of each item tensor.
      item_size: [B] or [1].
      found: int32, the rows of all tensors.
      wanted: int64 [2], the rows that user and item tensors must have.
    """
    least = f"item_size {item_size.op.name} must not be below"
    rules = tf.constant([*users, *items, least])
    # One check for all: an Assert for each tensor would cost more than a small model.
    kinds = tf.constant([0] * len(users) + [1] * len(items) + [2])
    lowest = tf.cast(tf.minimum(tf.reduce_min(item_size), 0), tf.int64)
    found = tf.concat([tf.cast(found, tf.int64), lowest[tf.newaxis]], axis=0)
    wanted = tf.gather(tf.pad(wanted, [[0, 1]]), kinds)
    wrong = tf.not_equal(found, wanted)
    first = tf.argmax(tf.cast(wrong, tf.int32))
    return tf.raw_ops.Assert(
        condition=tf.logical_not(tf.reduce_any(wrong)),
        data=[tf.gather(rules, first), tf.gather(wanted, first), "got", tf.gather(found, first)],
    )
