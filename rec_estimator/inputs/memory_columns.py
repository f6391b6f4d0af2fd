# SPDX-License-Identifier: Apache-2.0
"""Columns in memory, from which rows are taken by index.

numpy_input_fn and pandas_input_fn read them.
"""

import dataclasses
from typing import Any, Iterator, List, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

_Tensor = Union[tf.Tensor, tf.RaggedTensor]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column in memory.

    Attributes:
      values: [n, …]; with splits, the concatenated values of n lists.
      splits: [n + 1]. The list of row i is values[splits[i] : splits[i + 1]]. None: the column is
        not multi-valued.
    """

    values: np.ndarray
    splits: Optional[np.ndarray]

    @classmethod
    def of(cls, name: str, column: Any, dtype: Any) -> "Column":
        """Converts an array, list or Series.

        Args:
          name: Name of the column, for error messages.
          column: The array, list or Series.
          dtype: Type to convert to, or None.

        Raises:
          TypeError: name is not a string, or the values are neither numbers nor strings.
          ValueError: column has no rows axis, or contains nested lists.
        """
        if not isinstance(name, str):
            raise TypeError(f"columns must have strings as names, got {name!r}; rename the column")
        if not isinstance(column, np.ndarray):
            is_list = isinstance(column, (list, tuple))
            if is_list and any(isinstance(row, (list, tuple, np.ndarray)) for row in column):
                column = _objects(column)
            else:
                column = np.asarray(column)
        if column.ndim == 0:
            raise ValueError(
                f"column {name!r} must be an array or list of rows, got {column!r}; pass one value "
                "per row"
            )
        if column.dtype != object or not any(
            isinstance(row, (list, tuple, np.ndarray)) for row in column
        ):
            return cls(_tensor_values(name, column, dtype), None)
        rows = []
        for number, row in enumerate(column):
            rows.append(np.asarray(row))
            if not isinstance(row, (list, tuple, np.ndarray)) or rows[-1].ndim != 1:
                raise ValueError(
                    f"column {name!r} must hold a flat list in every row, got {row!r} in row "
                    f"{number}; flatten it"
                )
        splits = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
        filled = [row for row in rows if len(row)]
        values = np.concatenate(filled) if filled else np.zeros([0], np.int64)
        return cls(_tensor_values(name, values, dtype), splits)

    def __len__(self) -> int:
        return len(self.values) if self.splits is None else len(self.splits) - 1

    @property
    def part_dtypes(self) -> List[tf.DType]:
        """Types of the arrays that take() returns."""
        dtype = tf.as_dtype(self.values.dtype) if self.values.dtype != object else tf.string
        return [dtype] if self.splits is None else [dtype, tf.int64]

    def take(self, rows: np.ndarray) -> List[np.ndarray]:
        """Returns the values of some rows, and their row splits if the column is multi-valued."""
        if self.splits is None:
            return [self.values[rows]]
        starts = self.splits[rows]
        lengths = self.splits[rows + 1] - starts
        splits = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
        return [self.values[np.repeat(starts, lengths) + within], splits]

    def tensor(self, parts: Iterator[tf.Tensor], batch_size: Optional[int]) -> _Tensor:
        """Builds the tensor of a batch from the arrays of take()."""
        values = next(parts)
        if self.splits is None:
            values.set_shape([batch_size, *self.values.shape[1:]])
            return values
        values.set_shape([None])
        splits = next(parts)
        splits.set_shape([None if batch_size is None else batch_size + 1])
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def take_rows(columns: Sequence[Column], indices: tf.Tensor) -> List[_Tensor]:
    """Adds an op that takes some rows of columns.

    Args:
      columns: The columns.
      indices: int64 [B]. The rows.

    Returns:
      A tensor per column: [B, …], or tf.RaggedTensor [B, (k)] of a multi-valued column.
    """
    parts = tf.numpy_function(
        lambda rows: [part for column in columns for part in column.take(rows)],
        [indices],
        [dtype for column in columns for dtype in column.part_dtypes],
    )
    remaining = iter(parts)
    batch_size = tf.compat.dimension_value(indices.shape[0])
    return [column.tensor(remaining, batch_size) for column in columns]


def _objects(rows: Sequence[Any]) -> np.ndarray:
    """Converts a list of lists to an array of lists, even if all lists have the same length."""
    column = np.empty(len(rows), dtype=object)
    column[:] = rows
    return column


def _tensor_values(name: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    """Converts values to numbers, bools or an object array of bytes, for tf.numpy_function."""
    if values.dtype.kind in "US":
        values = values.astype(object)
    if values.dtype == object:
        texts = np.empty(values.shape, dtype=object)
        for index, value in np.ndenumerate(values):
            if not isinstance(value, (str, bytes)):
                raise TypeError(
                    f"column {name!r} must be numbers, strings or lists of them, got {value!r} in "
                    f"row {index[0]}; fill in missing values first"
                )
            texts[index] = value.encode() if isinstance(value, str) else value
        values = texts
    elif values.dtype.kind not in "biuf":
        raise TypeError(
            f"column {name!r} must be numbers, strings or lists of them, got {values.dtype}; "
            "convert it first"
        )
    if dtype is None:
        return values
    wanted = tf.as_dtype(dtype)
    if (wanted == tf.string) != (values.dtype == object):
        raise TypeError(
            f"dtypes must convert numbers to numbers, got {wanted.name} for {name!r}, which is "
            f"{'string' if values.dtype == object else values.dtype}; convert the column first"
        )
    return values if wanted == tf.string else values.astype(wanted.as_numpy_dtype)
