# SPDX-License-Identifier: Apache-2.0
"""Entries of sparse and ragged tensors, of which each user and so each candidate has a number."""

from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf


class Entries:
    """Entries of which each user has a number: those of a sparse or ragged tensor.

    Args:
      expansion: Of the rows.
      rows: int32 [n], the user of each entry.
      starts: int32 [B], the place of a row's first entry.
      lengths: int32 [B], how many entries a row has, one behind the other.
      order: int32 [n], where the entries are, in the order of rows; None: they are in that order.
      has_all_rows: Whether each user is certain to have an entry.

    Attributes:
      rows: As given.
      has_all_rows: As given.
      is_sorted: Whether the entries are in the order of rows.
      chosen: Those of the entries that a mask chooses, by the mask's name.
      filled: The entries when empty rows got one each; None: nobody has asked.
      count: int32 [], n.
      places: int32 [m]: which entry each one of the candidates' is.
      splits: int32 [N + 1], the row_splits of the candidates'.
    """

    def __init__(
        self,
        expansion: Any,
        rows: tf.Tensor,
        starts: tf.Tensor,
        lengths: tf.Tensor,
        order: Optional[tf.Tensor] = None,
        has_all_rows: bool = False,
    ) -> None:
        self._expansion = expansion
        self.rows, self.has_all_rows, self.is_sorted = rows, has_all_rows, order is None
        self.chosen: Dict[str, Chosen] = {}
        self.filled: Optional[Entries] = None
        self.count = tf.reduce_sum(lengths)
        starts, lengths = (tf.gather(x, expansion.index) for x in (starts, lengths))
        self.splits, places = tf.raw_ops.RaggedRange(
            starts=starts, limits=starts + lengths, deltas=tf.constant(1), Tsplits=tf.int32
        )
        self.places = places if order is None else tf.gather(order, places)

    @classmethod
    def of_rows(
        cls, expansion: Any, rows: tf.Tensor, is_sorted: bool, has_all_rows: bool = False
    ) -> "Entries":
        """Entries by the user of each, [n]."""
        rows = tf.cast(rows, tf.int32)
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, expansion.users)
        # Stable: within a row the order stays.
        order = None if is_sorted else tf.argsort(rows, stable=True)
        starts = tf.cumsum(lengths, exclusive=True)
        return cls(expansion, rows, starts, lengths, order, has_all_rows)

    @classmethod
    def of_sparse(cls, expansion: Any, indices: tf.Tensor, is_sorted: bool) -> "Entries":
        """The entries of a SparseTensor of B rows, by its indices int64 [n, r]."""
        return cls.of_rows(expansion, indices[:, 0], is_sorted)

    @classmethod
    def of_ragged(cls, expansion: Any, row_splits: tf.Tensor) -> "Entries":
        """The entries of a RaggedTensor of B rows, by its outermost row_splits."""
        splits = tf.cast(row_splits, tf.int32)
        rows = tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int32)
        return cls(expansion, rows, splits[:-1], splits[1:] - splits[:-1])

    def repeat_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """[m], the candidate of each entry."""
        count = tf.range(tf.size(self.places))
        found = tf.raw_ops.UpperBound(
            sorted_inputs=self.splits[tf.newaxis, 1:], values=count[tf.newaxis]
        )[0]
        return tf.cast(found, rows.dtype)

    def repeat_indices(self, indices: tf.Tensor) -> tf.Tensor:
        """int64 [m, r], indices of a SparseTensor, with rows repeated and numbered."""
        rows = self.repeat_rows(indices)[:, tf.newaxis]
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


class Chosen(Entries):
    """Those of some entries that a mask chooses, as Where has it.

    Args:
      expansion: Of the rows.
      source: The entries.
      mask: bool [n].
      positions: int64 [k, 1], of those chosen.

    Attributes:
      source: As given.
    """

    def __init__(
        self, expansion: Any, source: Entries, mask: tf.Tensor, positions: tf.Tensor
    ) -> None:
        rows = tf.gather(source.rows, positions[:, 0])
        chosen = Entries.of_rows(expansion, rows, source.is_sorted)
        vars(self).update(vars(chosen))
        self.source, self._mask = source, mask

    def repeat_positions(self, positions: tf.Tensor) -> tf.Tensor:
        """int64, of those that the mask chooses of the candidates' entries."""
        found = tf.where(tf.gather(self._mask, self.source.places))
        return found if positions.shape.rank == 2 else tf.reshape(found, [-1])


class Distinct:
    """The distinct ones of some entries' values, as Unique has it.

    Not each user has a number of them; but the candidates' are those that one of their entries has.

    Args:
      entries: The entries.
      distinct: [u], the values.
      positions: [n], which of the values each entry has.

    Attributes:
      entries: As given.
      count: int32 [], u.
      places: int32 [v]: which of the users' values each one of the candidates' is.
    """

    def __init__(self, entries: Entries, distinct: tf.Tensor, positions: tf.Tensor) -> None:
        self.entries = entries
        self.count = tf.size(distinct)
        found = tf.unique(tf.gather(positions, entries.places))
        self.places, self._positions = found.y, found.idx

    def repeat_positions(self, positions: tf.Tensor) -> tf.Tensor:
        """[m], which of the candidates' values each of their entries has."""
        return tf.cast(self._positions, positions.dtype)
