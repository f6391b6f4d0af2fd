# SPDX-License-Identifier: Apache-2.0
"""Columns in memory, from which rows are taken by index.

numpy_input_fn and pandas_input_fn read them.
"""

import dataclasses
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

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
        column = _as_array(name, column)
        if column.ndim == 0:
            raise ValueError(
                f"column {name!r} must be an array or list of rows, got {column!r}; pass one value "
                "per row"
            )
        if column.dtype != object or not any(
            isinstance(row, (list, tuple, np.ndarray)) for row in column
        ):
            values = _Values(name, column, np.arange(len(column)))
            return cls(values.converted(dtype), None)
        rows = []
        for number, row in enumerate(column):
            rows.append(_as_list(name, row))
            if not isinstance(row, (list, tuple, np.ndarray)) or rows[-1].ndim != 1:
                raise ValueError(
                    f"column {name!r} must hold a flat list in every row, got {row!r} in row "
                    f"{number}; flatten it"
                )
        lengths = [len(row) for row in rows]
        splits = np.cumsum([0] + lengths, dtype=np.int64)
        values = _Values(name, _concatenated(name, rows), np.repeat(np.arange(len(rows)), lengths))
        return cls(values.converted(dtype), splits)

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


def _as_array(name: str, column: Any) -> np.ndarray:
    """Converts a column to an array; a list of lists to an array of lists.

    It is an array of lists even if all lists have the same length.
    """
    if not isinstance(column, (list, tuple)) or not any(
        isinstance(row, (list, tuple, np.ndarray)) for row in column
    ):
        return _as_list(name, column)
    rows = np.empty(len(column), dtype=object)
    rows[:] = column
    return rows


def _as_list(name: str, values: Any) -> np.ndarray:
    """Converts values to an array whose type keeps them."""
    missing = _missing(values)
    if missing.any():
        position = int(np.argwhere(missing)[0][0])
        value = np.ma.asarray(values, object)[position]
        raise ValueError(
            f"column {name!r} must have a value in every row, got {value} at position {position}; "
            "fill in missing values first, for example with .filled(0) or .fillna(0)"
        )
    array = np.asarray(values)
    return _kept(name, array, values) if isinstance(values, (list, tuple)) else array


def _missing(values: Any) -> np.ndarray:
    """Which values a masked array, or pandas, says are missing. A NaN among floats is a value."""
    if np.ma.isMaskedArray(values):
        return np.ma.getmaskarray(values)
    if hasattr(values, "isna") and getattr(values.dtype, "kind", "O") not in "Of":
        return np.asarray(values.isna())
    return np.zeros([0], bool)


def _concatenated(name: str, rows: Sequence[np.ndarray]) -> np.ndarray:
    """The values of several rows."""
    filled = [row for row in rows if len(row)]
    if not filled:
        return np.zeros([0], np.int64)
    return _kept(name, np.concatenate(filled), [row[0] for row in filled])


def _kept(name: str, array: np.ndarray, values: Union[np.ndarray, Sequence[Any]]) -> np.ndarray:
    """Checks that NumPy found a type for values that keeps them."""
    if array.dtype.kind in "US" and any(map(_is_missing, values)):
        return np.array(values, object)  # Which says where.
    if array.dtype.kind in "US" and not all(isinstance(v, (str, bytes)) for v in values):
        raise TypeError(
            f"column {name!r} must be numbers or strings, got both; convert it to one of them"
        )
    if array.dtype.kind == "f" and len(values) and all(_is_integer(v) for v in values):
        raise ValueError(
            f"column {name!r} must fit into int64 or uint64, got negative numbers and numbers of "
            "2**63 or more; use one type for all rows"
        )
    return array


@dataclasses.dataclass(frozen=True)
class _Values:
    """The values of a column.

    Attributes:
      name: Name of the column, for error messages.
      array: [n, …]
      row: [n] The row of each value.
    """

    name: str
    array: np.ndarray
    row: np.ndarray

    def converted(self, dtype: Any) -> np.ndarray:
        """Converts to numbers, bools or an object array of bytes, for tf.numpy_function.

        Numbers get the byte order of this machine: tf.numpy_function takes the bytes as they are.

        Args:
          dtype: Type to convert to, or None.
        """
        values = self.array
        if values.dtype.kind in "USO":
            values = self._texts_or_numbers(values.astype(object))
        if values.dtype.kind not in "Obiuf" or values.dtype.itemsize > 8:
            raise TypeError(
                f"column {self.name!r} must be numbers, strings or lists of them, got "
                f"{values.dtype}; convert it first"
            )
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if dtype is None:
            return values
        wanted = tf.as_dtype(dtype)
        if (wanted == tf.string) != (values.dtype == object):
            raise TypeError(
                f"dtypes must convert numbers to numbers, got {wanted.name} for {self.name!r}, "
                f"which is {'string' if values.dtype == object else values.dtype}; convert the "
                "column first"
            )
        return values if wanted == tf.string else self._numbers(values, wanted)

    def _at(self, index: Sequence[int]) -> str:
        return f"in row {self.row[index[0]]}"

    def _texts_or_numbers(self, values: np.ndarray) -> np.ndarray:
        """Converts an object array to an object array of bytes, or to numbers."""
        for index, value in np.ndenumerate(values):
            if _is_missing(value):
                raise TypeError(
                    f"column {self.name!r} must have a value in every row, got {value!r} "
                    f"{self._at(index)}; fill in missing values first"
                )
        if values.size and all(isinstance(v, (bool, int, float, np.number)) for v in values.flat):
            return _kept(self.name, np.array(values.tolist()), values.ravel())
        texts = np.empty(values.shape, dtype=object)
        for index, value in np.ndenumerate(values):
            if not isinstance(value, (str, bytes)):
                raise TypeError(
                    f"column {self.name!r} must be numbers, strings or lists of them, got "
                    f"{value!r} {self._at(index)}; convert it first"
                )
            try:
                texts[index] = value.encode() if isinstance(value, str) else value
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"column {self.name!r} must be text that UTF-8 can encode, got {value!r} "
                    f"{self._at(index)}; replace the surrogate at position {error.start}"
                ) from None
        return texts

    def _numbers(self, values: np.ndarray, dtype: tf.DType) -> np.ndarray:
        """Converts numbers, and refuses those that the type cannot represent.

        A float may lose digits. An integer keeps its value, and a finite number stays finite.
        """
        converted, is_kept = as_numbers(values, dtype)
        if not is_kept.all():
            index = tuple(np.argwhere(~is_kept)[0])
            raise ValueError(
                f"column {self.name!r} must be {dtype.name}, got {values[index].item()!r} "
                f"{self._at(index)}; correct it, or choose another type in dtypes"
            )
        return converted


def as_numbers(values: np.ndarray, dtype: tf.DType) -> Tuple[np.ndarray, np.ndarray]:
    """Converts numbers; returns also which of them the type can represent, bool [n, …]."""
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(dtype.as_numpy_dtype)
    if dtype.is_bool:
        is_kept = np.isin(values, (0, 1))
    elif dtype.is_integer:
        is_kept = _fits(values, int(dtype.min), int(dtype.max))
    else:
        is_kept = np.isfinite(converted) | ~np.isfinite(values)
    return converted, is_kept


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


def _is_missing(value: Any) -> bool:
    # pandas.NA and NaT by name, because this package does not import pandas.
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
    )


def _fits(values: np.ndarray, least: int, most: int) -> np.ndarray:
    """Whether numbers are integers from `least` to `most`."""
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        # `most` + 1 is a power of two, which float64 holds exactly.
        return (wide >= least) & (wide < most + 1) & (np.floor(wide) == wide)
    is_kept = np.full(values.shape, True)
    if values.dtype.kind == "b":
        return is_kept
    info = np.iinfo(values.dtype)
    if info.min < least:
        is_kept &= values >= least
    if info.max > most:
        is_kept &= values <= most
    return is_kept
