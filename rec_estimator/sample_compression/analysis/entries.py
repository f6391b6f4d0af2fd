# SPDX-License-Identifier: Apache-2.0
"""Entries of sparse and ragged tensors: a variable number per user, and so per candidate.

The classes repeat tensors of entries: a candidate gets a copy of each entry of its user.
"""

from typing import Dict, Optional, Protocol

import tensorflow.compat.v1 as tf


class Rows(Protocol):
    """The rows of a request, as Expansion and StockExpansion have them.

    Attributes:
      users: int32 [], B.
      items: int32 [], N.
      index: int32 [N], the user of each candidate.
    """

    users: tf.Tensor
    items: tf.Tensor
    index: tf.Tensor


class Entries:
    """The entries of a sparse or ragged tensor of users.

    Args:
      expansion: The rows of the request.
      rows: int32 [n], the user of each entry.
      starts: int32 [B], the position of each user's first entry.
      lengths: int32 [B], how many consecutive entries each user has.
      order: int32 [n], the positions of the entries sorted by user; None: they are sorted already.
      has_all_rows: Whether every user is certain to have an entry.

    Attributes:
      rows: As given.
      has_all_rows: As given.
      is_sorted: Whether the entries are sorted by user.
      chosen: Subsets of the entries, by the name of the mask that selects them.
      filled: The entries after empty rows got one entry each; None: no op needs them yet.
      count: int32 [], n.
      places: int32 [m], the position of the user's entry that each entry of the candidates copies.
      splits: int32 [N + 1], the row_splits of the candidates' entries.
    """

    def __init__(
        self,
        expansion: Rows,
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
        cls, expansion: Rows, rows: tf.Tensor, is_sorted: bool, has_all_rows: bool = False
    ) -> "Entries":
        """The entries whose users are `rows`, [n]."""
        rows = tf.cast(rows, tf.int32)
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, expansion.users)
        # Stable, so that the entries of one user keep their order.
        order = None if is_sorted else tf.argsort(rows, stable=True)
        starts = tf.cumsum(lengths, exclusive=True)
        return Entries(expansion, rows, starts, lengths, order, has_all_rows)

    @classmethod
    def of_sparse(cls, expansion: Rows, indices: tf.Tensor, is_sorted: bool) -> "Entries":
        """The entries of a SparseTensor of B rows, by its indices int64 [n, r]."""
        return cls.of_rows(expansion, indices[:, 0], is_sorted)

    @classmethod
    def of_ragged(cls, expansion: Rows, row_splits: tf.Tensor) -> "Entries":
        """The entries of a RaggedTensor of B rows, by its outermost row_splits."""
        splits = tf.cast(row_splits, tf.int32)
        rows = tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int32)
        return Entries(expansion, rows, splits[:-1], splits[1:] - splits[:-1])

    def repeat_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """[m], the candidate of each entry."""
        count = tf.range(tf.size(self.places))
        found = tf.raw_ops.UpperBound(
            sorted_inputs=self.splits[tf.newaxis, 1:], values=count[tf.newaxis]
        )[0]
        return tf.cast(found, rows.dtype)

    def repeat_indices(self, indices: tf.Tensor) -> tf.Tensor:
        """int64 [m, r], the indices of a SparseTensor of N rows."""
        rows = self.repeat_rows(indices)[:, tf.newaxis]
        return tf.concat([rows, tf.gather(indices, self.places)[:, 1:]], axis=1)

    def repeat_splits(self, splits: tf.Tensor) -> tf.Tensor:
        """[N + 1], the row_splits of a RaggedTensor of N rows."""
        return tf.cast(self.splits, splits.dtype)

    def repeat_shape(self, shape: tf.Tensor) -> tf.Tensor:
        """int64 [r], the dense_shape of a SparseTensor of N rows."""
        rows = tf.cast(self._expansion.items, shape.dtype)
        return tf.concat([rows[tf.newaxis], shape[1:]], axis=0)

    def bounding_shape(self, shape: tf.Tensor) -> tf.Tensor:
        """int64 [2], the shape of a RaggedTensor of N rows as RaggedTensorToSparse gives it.

        The longest row of the users may have no candidates, so the width is computed anew.
        """
        lengths = self.splits[1:] - self.splits[:-1]
        longest = tf.maximum(
            tf.reduce_max(lengths), 0
        )  # The maximum of an empty vector is negative.
        return tf.cast(tf.stack([self._expansion.items, longest]), shape.dtype)


class Chosen(Entries):
    """The entries that a mask selects, as the Where op finds them.

    Args:
      expansion: The rows of the request.
      source: The entries before the selection.
      mask: bool [n].
      positions: int64 [k, 1], the positions of the selected entries.

    Attributes:
      source: As given.
    """

    def __init__(
        self, expansion: Rows, source: Entries, mask: tf.Tensor, positions: tf.Tensor
    ) -> None:
        rows = tf.gather(source.rows, positions[:, 0])
        chosen = Entries.of_rows(expansion, rows, source.is_sorted)
        vars(self).update(vars(chosen))
        self.source, self._mask = source, mask

    def repeat_positions(self, positions: tf.Tensor) -> tf.Tensor:
        """int64, the positions that the mask selects among the candidates' entries."""
        found = tf.where(tf.gather(self._mask, self.source.places))
        return found if positions.shape.rank == 2 else tf.reshape(found, [-1])


class Distinct:
    """The distinct values of entries, as the Unique op finds them.

    A distinct value belongs to no single user. The candidates have the values of their entries.

    Args:
      entries: The entries.
      distinct: [u], the values.
      positions: [n], the position of each entry's value in `distinct`.

    Attributes:
      entries: As given.
      count: int32 [], u.
      places: int32 [v], for each distinct value of the candidates, its position in `distinct`.
    """

    def __init__(self, entries: Entries, distinct: tf.Tensor, positions: tf.Tensor) -> None:
        self.entries = entries
        self.count = tf.size(distinct)
        found = tf.unique(tf.gather(positions, entries.places))
        self.places, self._positions = found.y, found.idx

    def repeat_positions(self, positions: tf.Tensor) -> tf.Tensor:
        """[m], the position of each candidate entry's value among the candidates' values."""
        return tf.cast(self._positions, positions.dtype)
