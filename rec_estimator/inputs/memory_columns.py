# SPDX-License-Identifier: Apache-2.0
"""Columns in memory, of which batches are taken by row number.

What inputs.numpy_input_fn and pandas_input_fn read with.
"""

import dataclasses
from typing import Any, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Column:
    """A column in memory: `values` [n, …], or with `splits` [n + 1] the values of n lists."""

    values: np.ndarray
    splits: Optional[np.ndarray]

    @classmethod
    def of(cls, name: str, column: Any, dtype: Any) -> "Column":
        """Reads an array, list or Series."""
        if not isinstance(name, str):
            raise TypeError(f"columns must have strings as names, got {name!r}")
        if not isinstance(column, np.ndarray):
            is_list = isinstance(column, (list, tuple))
            if is_list and any(isinstance(row, (list, tuple, np.ndarray)) for row in column):
                column = _objects(column)
            else:
                column = np.asarray(column)
        if column.ndim == 0:
            raise ValueError(f"column {name!r} must be an array or list of rows, got {column!r}")
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
                    f"{number}"
                )
        splits = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
        filled = [row for row in rows if len(row)]
        values = np.concatenate(filled) if filled else np.zeros([0], np.int64)
        return cls(_tensor_values(name, values, dtype), splits)

    def __len__(self) -> int:
        return len(self.values) if self.splits is None else len(self.splits) - 1

    @property
    def part_dtypes(self) -> List[tf.DType]:
        """Types of what take() gives."""
        dtype = tf.as_dtype(self.values.dtype) if self.values.dtype != object else tf.string
        return [dtype] if self.splits is None else [dtype, tf.int64]

    def take(self, rows: np.ndarray) -> List[np.ndarray]:
        """The rows of these numbers: values, and row splits where multi-valued."""
        if self.splits is None:
            return [self.values[rows]]
        starts = self.splits[rows]
        lengths = self.splits[rows + 1] - starts
        splits = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
        return [self.values[np.repeat(starts, lengths) + within], splits]

    def tensor(self, parts: Iterator[tf.Tensor], batch_size: Optional[int]) -> Any:
        """The column of a batch, from what take() gave."""
        values = next(parts)
        if self.splits is None:
            values.set_shape([batch_size, *self.values.shape[1:]])
            return values
        values.set_shape([None])
        splits = next(parts)
        splits.set_shape([None if batch_size is None else batch_size + 1])
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def _objects(rows: Sequence[Any]) -> np.ndarray:
    """A list of lists as an array of lists, also where all are of one length."""
    column = np.empty(len(rows), dtype=object)
    column[:] = rows
    return column


def _tensor_values(name: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values that tf.numpy_function takes: numbers, bools, or an object array of bytes."""
    if values.dtype.kind in "US":
        values = values.astype(object)
    if values.dtype == object:
        texts = np.empty(values.shape, dtype=object)
        for place, value in np.ndenumerate(values):
            if not isinstance(value, (str, bytes)):
                raise TypeError(
                    f"column {name!r} must be numbers, strings or lists of them, got {value!r} in "
                    f"row {place[0]}; fill in missing values first"
                )
            texts[place] = value.encode() if isinstance(value, str) else value
        values = texts
    elif values.dtype.kind not in "biuf":
        raise TypeError(
            f"column {name!r} must be numbers, strings or lists of them, got {values.dtype}"
        )
    if dtype is None:
        return values
    wanted = tf.as_dtype(dtype)
    if (wanted == tf.string) != (values.dtype == object):
        raise TypeError(
            f"dtypes must turn numbers into numbers, got {wanted.name} for {name!r}, which is "
            f"{'string' if values.dtype == object else values.dtype}"
        )
    return values if wanted == tf.string else values.astype(wanted.as_numpy_dtype)
