# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files with pyarrow."""

from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.fields import MISSING_INT
from model_zoo.data.readers.source import scalar
from rec_estimator.inputs.parquet_columns import open_parquet
from rec_estimator.inputs.row_files import RowFiles

_BLOCK = 8192  # rows per block
_FILE_BITS = 40  # bits of a location above the number of the row


class ParquetFiles:
    """Parquet files, read one group of rows at a time.

    Integers, booleans, dates and times are int64, other numbers float64, text is string. A list is
    a row of [n, k].

    Args:
      patterns: Paths and glob patterns.

    Raises:
      ModuleNotFoundError: pyarrow is not installed.
      ValueError: A pattern matches no file, or a file is not Parquet.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.paths = tuple(RowFiles(list(patterns), "", 1, "error").find())
        self._types = {path: _types_of(path) for path in self.paths}
        self.names = tuple(self._types[self.paths[0]])

    def blocks(self, lengths: Mapping[str, int], seed: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of ({column: tensor}, locations int64 [n]) of one pass."""
        types = self._checked_types(lengths)
        numbers = tf.data.Dataset.range(len(self.paths))
        if seed is not None:
            numbers = numbers.shuffle(len(self.paths), seed)

        def of_file(number: tf.Tensor) -> tf.data.Dataset:
            specs = {name: dtype for name, (dtype, _) in types.items()}
            shapes = {
                name: [None, lengths[name]] if is_list else [None]
                for name, (_, is_list) in types.items()
            }
            return tf.data.Dataset.from_generator(
                lambda at: self._read(int(at), types, lengths),
                (specs, tf.int64),
                (shapes, [None]),
                args=(number,),
            )

        return numbers.flat_map(of_file)

    def columns(self, rows: Any, dtypes: Mapping[str, tf.DType]) -> Dict[str, tf.Tensor]:
        """Returns the columns of some rows."""
        return {name: rows[name] for name in dtypes}

    def values(self, rows: Any, row: int) -> Dict[str, Any]:
        """Returns the values of one row."""
        return {name: scalar(values[row]) for name, values in rows.items()}

    def place(self, location: int) -> str:
        """Returns the file and the number of a row."""
        path = self.paths[int(location) >> _FILE_BITS]
        return f"{path}, row {(int(location) & ((1 << _FILE_BITS) - 1)) + 1}"

    def _checked_types(self, lengths: Mapping[str, int]) -> Dict[str, Tuple[tf.DType, bool]]:
        """Returns the types of columns, which all files have.

        Raises:
          ValueError: A file lacks a column or has another type there.
        """
        first = self._types[self.paths[0]]
        for path, types in self._types.items():
            for name in lengths:
                if types.get(name) != first[name]:
                    raise ValueError(
                        f"{path}: column {name!r} must be as in {self.paths[0]}, "
                        f"{_type_name(first[name])}, got {_type_name(types.get(name))}"
                    )
        return {name: first[name] for name in lengths}

    def _read(
        self, number: int, types: Mapping[str, Tuple[tf.DType, bool]], lengths: Mapping[str, int]
    ) -> Iterator[Tuple[Dict[str, np.ndarray], np.ndarray]]:
        """Yields blocks of ({column: values}, locations) of one file."""
        row = number << _FILE_BITS
        file = open_parquet(self.paths[number])
        for batch in file.iter_batches(_BLOCK, columns=list(types)):
            columns = {}
            for name, (dtype, is_list) in types.items():
                array = batch.column(batch.schema.get_field_index(name))
                columns[name] = (
                    _padded(array, dtype, lengths[name]) if is_list else _flat(array, dtype)
                )
            yield columns, np.arange(row, row + len(batch), dtype=np.int64)
            row += len(batch)


def _types_of(path: str) -> Dict[str, Tuple[tf.DType, bool]]:
    """Returns, by column that can be read, its type and whether it is a list."""
    from pyarrow import types as of

    found: Dict[str, Tuple[tf.DType, bool]] = {}
    for field in open_parquet(path).schema_arrow:
        is_list = of.is_list(field.type) or of.is_large_list(field.type)
        each = field.type.value_type if is_list else field.type
        each = each.value_type if of.is_dictionary(each) else each
        if of.is_integer(each) or of.is_boolean(each) or of.is_temporal(each):
            found[field.name] = (tf.int64, is_list)
        elif of.is_floating(each) or of.is_decimal(each):
            found[field.name] = (tf.float64, is_list)
        elif of.is_string(each) or of.is_large_string(each) or of.is_binary(each):
            found[field.name] = (tf.string, is_list)
    return found


def _flat(array: Any, dtype: tf.DType) -> np.ndarray:
    """Returns the values [n] of an Arrow array, with missing ones as fields.py describes them."""
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if dtype == tf.string:
        return array.cast(pyarrow.binary()).fill_null(b"").to_numpy(zero_copy_only=False)
    if dtype == tf.float64:
        return array.cast(pyarrow.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    if pyarrow.types.is_temporal(array.type) and array.type.bit_width == 32:
        array = array.cast(pyarrow.int32())
    array = array.cast(pyarrow.int64(), safe=False)  # ids of 64 bits without a sign stay distinct
    return array.fill_null(MISSING_INT).to_numpy(zero_copy_only=False)


def _padded(array: Any, dtype: tf.DType, length: int) -> np.ndarray:
    """Returns the first `length` values of each list, [n, length]."""
    from pyarrow import compute

    lengths = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    values = _flat(array.flatten(), dtype)  # without those of lists that are missing
    missing: Any = {tf.string: b"", tf.float64: np.nan, tf.int64: MISSING_INT}[dtype]
    padded = np.full((len(lengths), length), missing, values.dtype)
    starts = np.cumsum(lengths) - lengths
    within = np.arange(len(values)) - np.repeat(starts, lengths)
    kept = within < length
    padded[np.repeat(np.arange(len(lengths)), lengths)[kept], within[kept]] = values[kept]
    return padded


def _type_name(found: Optional[Tuple[tf.DType, bool]]) -> str:
    if found is None:
        return "no such column"
    return f"lists of {found[0].name}" if found[1] else found[0].name
