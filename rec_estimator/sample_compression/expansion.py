"""From one row per user to one per candidate: what item_size says, computed once per request."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf


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


def _row_counts(tensors: Sequence[Any]) -> tf.Tensor:
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
            # All dense, as mostly: back into the order of the tensors.
            return tf.gather(tf.concat(shapes, axis=0), first[np.argsort(order)])
        counts.update(zip(order, rows))
    return tf.stack([counts[place] for place in range(len(tensors))])


class Expansion:
    """The rows of users for candidates.

    Args:
      users: Dense, sparse and ragged tensors of B rows.
      items: Such of N rows.
      item_size: int32 or int64 [B] or [1].

    Attributes:
      users: int32 [], B.
      items: int32 [], N.
      index: int32 [N]: which user's row each candidate has.
      broadcast_index: `index`, or its first element where there is one user: what is enough for an
        op that broadcasts.
      is_uniform: bool [], whether every user has as many candidates as the others.
      groups: int32 [], G: B where every user has as many candidates as the others, otherwise N;
        0 where N is 0.
      group_index: int32 [G]: which user's row each group of N / G candidates has.
    """

    def __init__(self, users: Sequence[Any], items: Sequence[Any], item_size: tf.Tensor) -> None:
        with tf.name_scope("rows"):
            rows = _row_counts([*users, *items])
            length = tf.size(item_size)
            # One element stands for all users.
            is_one = tf.equal(length, 1)
            expected = tf.where(is_one, rows[0], length)
            # Wide: sizes whose sum overflows must not pass for right ones.
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
                item_size = tf.broadcast_to(item_size, self.users[tf.newaxis])
            # How many users end at or before a candidate: those without candidates are passed over.
            self.index = tf.raw_ops.UpperBound(
                sorted_inputs=tf.cumsum(item_size)[tf.newaxis],
                values=tf.range(self.items)[tf.newaxis],
            )[0]
            is_one = tf.equal(self.users, 1)
            self.broadcast_index = self.index[: tf.where(is_one, 1, self.items)]
            each = self.items // tf.maximum(self.users, 1)
            self.is_uniform = is_uniform = tf.reduce_all(tf.equal(item_size, each))
            # Of a uniform request the first candidate of each user.
            self.group_index = self.index[:: tf.where(is_uniform, tf.maximum(each, 1), 1)]
            self.groups = tf.size(self.group_index)


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


class Entries:
    """Entries of which each user has a number: those of a sparse or ragged tensor.

    Args:
      expansion: Of the rows.
      starts: int32 [B], the place of a row's first entry.
      lengths: int32 [B], how many entries a row has, one behind the other.
      order: int32 [n], where the entries are, in the order of rows; None: they are in that order.

    Attributes:
      count: int32 [], n.
      places: int32 [m]: which entry each one of the candidates' is.
      splits: int32 [N + 1], the row_splits of the candidates'.
    """

    def __init__(
        self,
        expansion: Expansion,
        starts: tf.Tensor,
        lengths: tf.Tensor,
        order: Optional[tf.Tensor] = None,
    ) -> None:
        self._expansion = expansion
        self.count = tf.reduce_sum(lengths)
        starts, lengths = (tf.gather(x, expansion.index) for x in (starts, lengths))
        self.splits, places = tf.raw_ops.RaggedRange(
            starts=starts, limits=starts + lengths, deltas=tf.constant(1), Tsplits=tf.int32
        )
        self.places = places if order is None else tf.gather(order, places)

    @classmethod
    def of_sparse(cls, expansion: Expansion, indices: tf.Tensor, is_sorted: bool) -> "Entries":
        """The entries of a SparseTensor of B rows, by its indices int64 [n, r]."""
        row = tf.cast(indices[:, 0], tf.int32)
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(row), row, expansion.users)
        # Stable: within a row the order stays.
        order = None if is_sorted else tf.argsort(row, stable=True)
        return cls(expansion, tf.cumsum(lengths, exclusive=True), lengths, order)

    @classmethod
    def of_ragged(cls, expansion: Expansion, row_splits: tf.Tensor) -> "Entries":
        """The entries of a RaggedTensor of B rows, by its outermost row_splits."""
        splits = tf.cast(row_splits, tf.int32)
        return cls(expansion, splits[:-1], splits[1:] - splits[:-1])

    def repeat_indices(self, indices: tf.Tensor) -> tf.Tensor:
        """int64 [n, r], indices of a SparseTensor, with rows repeated and numbered."""
        count = tf.range(tf.size(self.places))
        rows = tf.raw_ops.UpperBound(
            sorted_inputs=self.splits[tf.newaxis, 1:], values=count[tf.newaxis]
        )[0]
        rows = tf.cast(rows, indices.dtype)[:, tf.newaxis]
        return tf.concat([rows, tf.gather(indices, self.places)[:, 1:]], axis=1)

    def repeat_splits(self, splits: tf.Tensor) -> tf.Tensor:
        """[N + 1], the row_splits of a RaggedTensor."""
        return tf.cast(self.splits, splits.dtype)

    def bounding_shape(self, shape: tf.Tensor) -> tf.Tensor:
        """int64 [2], the shape of a RaggedTensor made sparse: its longest row may be left out."""
        lengths = self.splits[1:] - self.splits[:-1]
        longest = tf.maximum(tf.reduce_max(lengths), 0)  # The maximum of nothing is negative.
        return tf.cast(tf.stack([self._expansion.items, longest]), shape.dtype)

    def repeat_shape(self, shape: tf.Tensor) -> tf.Tensor:
        """int64 [r], the dense_shape of a SparseTensor."""
        rows = tf.cast(self._expansion.items, shape.dtype)
        return tf.concat([rows[tf.newaxis], shape[1:]], axis=0)


def _check(
    users: Sequence[str],
    items: Sequence[str],
    item_size: tf.Tensor,
    found: tf.Tensor,
    wanted: tf.Tensor,
) -> tf.Operation:
    """Fails with the first of the tensors that has not the rows it must have, or on a size < 0.

    Args:
      users: What to say of the users' tensors.
      items: What to say of the items' tensors.
      item_size: [B] or [1].
      found: int32, the rows of all tensors.
      wanted: int64 [2], the rows that users' and items' tensors must have.
    """
    least = f"item_size {item_size.op.name} must not be below"
    rules = tf.constant([*users, *items, least])
    # One check for all: a tf.debugging.Assert each would cost more than many a small model.
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
