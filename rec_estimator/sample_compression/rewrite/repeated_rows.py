# SPDX-License-Identifier: Apache-2.0
"""Tensors of users with a row per candidate, for the ops on the candidates' side."""

import dataclasses
from typing import Dict, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import ONE
from rec_estimator.sample_compression.analysis.values import (
    DenseValue,
    EntryNumbers,
    EntryRows,
    ListValue,
    Side,
    Value,
)
from rec_estimator.sample_compression.rewrite.expansion import RowExpansion, repeat_rows


class RepeatedRows:
    """Repeats the rows of values, each once.

    Args:
      expansion: The rows of the request.
    """

    def __init__(self, expansion: RowExpansion) -> None:
        self._expansion = expansion
        self._built: Dict[Tuple[str, bool], tf.Tensor] = {}

    def of(self, value: Value, is_broadcast: bool = False) -> tf.Tensor:
        """The tensor with a row per candidate.

        Args:
          value: The tensor.
          is_broadcast: Whether one row is enough if there is one user.
        """
        if value.side != Side.USER:
            return value.computed()
        key = (value.computed().name, is_broadcast)
        if key not in self._built:
            self._built[key] = self._repeat(value, is_broadcast)
        return self._built[key]

    def occurrences(self, tensor: tf.Tensor, value: Value) -> tf.Tensor:
        """int32 [n], how often the original model repeats each element of a user's tensor.

        Args:
          tensor: The tensor.
          value: What the pass knows about it.

        Raises:
          ValueError: The elements are neither rows of users nor entries.
        """
        count = tf.size(tensor)
        places = tf.reshape(tf.range(count), tf.shape(tensor))
        if not isinstance(value, (DenseValue, EntryRows)):
            raise ValueError(
                "keys of a lookup must be a dense tensor, or the values of a SparseTensor or of a "
                f"RaggedTensor with one ragged axis, got {tensor.name!r}; convert them"
            )
        numbers = dataclasses.replace(value, tensor=places, make=None)
        repeated = tf.reshape(self._repeat(numbers, is_broadcast=False), [-1])
        return tf.math.unsorted_segment_sum(tf.ones_like(repeated), repeated, count)

    def _repeat(self, value: Value, is_broadcast: bool) -> tf.Tensor:
        if isinstance(value, ListValue):
            return self._repeat_list(value)
        if isinstance(value, EntryNumbers):
            return value.repeated()
        axis, tensor = value.axis, value.computed()
        assert axis is not None
        rows = self._expansion.users if value.entries is None else value.entries.count
        per_row = 1 if value.per_row == ONE else sizes_lib.evaluate(value.per_row, rows)
        if value.entries is not None:
            return repeat_rows(tensor, axis, rows, per_row, value.entries.places)
        return self._expansion.repeat(tensor, axis, per_row, is_broadcast)

    def _repeat_list(self, value: ListValue) -> tf.Tensor:
        """A list of tensors that have a row per candidate each."""
        sizes, axis = value.dims.sizes, value.axis
        assert axis is not None
        known = [size.factor if sizes_lib.is_number(size) else -1 for size in sizes]
        shape = tf.constant(known, tf.int32, shape=[len(known)])
        stacked = tf.raw_ops.TensorListStack(
            input_handle=value.tensor, element_shape=shape, element_dtype=value.dims.dtype
        )
        per_row = sizes_lib.evaluate(value.per_row, self._expansion.users)
        repeated = self._expansion.repeat(stacked, axis + 1, per_row)
        return tf.raw_ops.TensorListFromTensor(tensor=repeated, element_shape=shape)
