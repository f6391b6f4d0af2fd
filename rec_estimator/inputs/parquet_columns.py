# SPDX-License-Identifier: Apache-2.0
"""The columns of Parquet files: their types, and their values as arrays."""

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.memory_columns import Column, as_numbers
from rec_estimator.inputs.row_parsers import as_names, check_known

_DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.string)

_Names = Union[str, Sequence[str], None]


def import_parquet(path: str) -> Tuple[Any, Any]:
    """Returns the modules pyarrow and pyarrow.parquet, for a file of this path.

    Raises:
      ModuleNotFoundError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"pyarrow is not installed, and {path} is Parquet; pip install 'rec_estimator[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet


def open_parquet(path: str) -> Any:
    """Returns the pyarrow.parquet.ParquetFile of a path.

    Raises:
      ModuleNotFoundError: pyarrow is not installed.
      ValueError: The file is not Parquet.
    """
    pyarrow, parquet = import_parquet(path)
    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{path} must be a complete Parquet file, got one with: {error}; write the file again"
        ) from None


def row_group_sizes(path: str) -> List[int]:
    """Returns the number of rows of each row group of a file."""
    metadata = open_parquet(path).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


@dataclasses.dataclass(frozen=True)
class ParquetColumn:
    """A column of all files.

    Attributes:
      name: Its name.
      dtype: The type of its values in a batch.
      is_list: Whether a row has a list of values.
      default: What takes the place of a missing value. None: a missing value makes a bad row.
    """

    name: str
    dtype: tf.DType
    is_list: bool
    default: Any

    @property
    def empty(self) -> Column:
        """The column of no rows."""
        splits = np.zeros([1], np.int64) if self.is_list else None
        kind = object if self.dtype == tf.string else self.dtype.as_numpy_dtype
        return Column(np.zeros([0], kind), splits)

    @property
    def kind(self) -> str:
        """Its type, for errors."""
        return f"lists of {self.dtype.name}" if self.is_list else self.dtype.name

    def read(self, array: Any) -> Tuple[Column, np.ndarray]:
        """Converts a pyarrow.Array.

        Returns:
          The column, and the sorted numbers of its bad rows.
        """
        if not self.is_list:
            values, is_good = self._values(array)
            return Column(values, None), np.flatnonzero(~is_good)
        import pyarrow
        from pyarrow import compute

        if pyarrow.types.is_fixed_size_list(array.type):
            array = array.cast(pyarrow.list_(array.type.value_type))
        lengths = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        values, is_good = self._values(array.flatten())  # Without the values of missing lists.
        splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return Column(values, splits), np.unique(rows[~is_good])

    def explain(self, value: Any) -> str:
        """Explains why a value of a row is bad."""
        rule = f"be {self.dtype.name} without a missing value"
        return f"column {self.name!r} must {rule}, got {value!r}"

    def _values(self, array: Any) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the values [n] of an array, and which of them are good."""
        import pyarrow

        if pyarrow.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        is_missing = array.is_null().to_numpy(zero_copy_only=False)
        if self.dtype == tf.string:
            is_large = pyarrow.types.is_large_string(array.type) or pyarrow.types.is_large_binary(
                array.type
            )
            array = array.cast(pyarrow.large_binary() if is_large else pyarrow.binary())
            values = array.fill_null(b"").to_numpy(zero_copy_only=False).astype(object)
            is_good = np.ones(len(values), bool)
        else:
            if pyarrow.types.is_boolean(array.type):
                array = array.cast(pyarrow.int8())
            filled = array.fill_null(0) if array.null_count else array
            values, is_good = as_numbers(filled.to_numpy(zero_copy_only=False), self.dtype)
        if is_missing.any():
            is_good = is_good & ~is_missing if self.default is None else is_good | is_missing
            if self.default is not None:
                values[is_missing] = self.default
        return values, is_good


@dataclasses.dataclass(frozen=True)
class ParquetRows:
    """Which columns of Parquet files to read. The attributes are arguments of parquet_input_fn."""

    columns: Optional[Sequence[str]]
    labels: _Names
    dtypes: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def features_and_labels(
        self, paths: Sequence[str]
    ) -> Tuple[List[ParquetColumn], List[ParquetColumn]]:
        """Returns the columns that all files have.

        Raises:
          ValueError: A column does not exist, has a type that cannot be read, or differs.
        """
        features, labels = self._columns_of(paths[0])
        for path in paths[1:]:
            other_features, other_labels = self._columns_of(path)
            for here, first in zip([*other_features, *other_labels], [*features, *labels]):
                if here != first:
                    raise ValueError(
                        f"{path}: column {here.name!r} must be as in {paths[0]}, {first.kind}, got "
                        f"{here.kind}; give its type in dtypes, or write the file again"
                    )
        return features, labels

    def _columns_of(self, path: str) -> Tuple[List[ParquetColumn], List[ParquetColumn]]:
        fields: Dict[str, Any] = {}
        for field in open_parquet(path).schema_arrow:
            if field.name in fields:
                raise ValueError(
                    f"{path} must name each column once, got {field.name!r} twice; rename a column"
                )
            fields[field.name] = field.type
        labels = as_names("label_column", self.labels)
        features = as_names("columns", self.columns)
        if self.columns is None:
            features = tuple(name for name in fields if name not in labels)
        for argument, names in (
            ("label_column", labels),
            ("columns", features),
            ("dtypes", self.dtypes),
            ("defaults", self.defaults),
        ):
            check_known(argument, names, fields)
        both = [name for name in features if name in labels]
        if both:
            raise ValueError(f"columns must leave out the labels, got {both}; remove them")
        kinds = {name: _type_of(path, name, fields[name]) for name in [*features, *labels]}
        return (
            [self._column(name, *kinds[name], is_label=False) for name in features],
            [self._column(name, *kinds[name], is_label=True) for name in labels],
        )

    def _column(self, name: str, dtype: tf.DType, is_list: bool, is_label: bool) -> ParquetColumn:
        if name in self.dtypes:
            dtype = _chosen(name, self.dtypes[name], dtype)
        elif is_label and dtype != tf.string:
            dtype = tf.float32
        return ParquetColumn(name, dtype, is_list, _default(name, self.defaults.get(name), dtype))


def _type_of(path: str, name: str, kind: Any) -> Tuple[tf.DType, bool]:
    """Returns the type of a column's values, and whether its rows are lists."""
    from pyarrow import types as of

    is_list = of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind)
    each = kind.value_type if is_list else kind
    each = each.value_type if of.is_dictionary(each) else each
    if of.is_int32(each):
        return tf.int32, is_list
    if of.is_integer(each) or of.is_boolean(each):
        return tf.int64, is_list
    if of.is_float16(each) or of.is_float32(each):
        return tf.float32, is_list
    if of.is_float64(each):
        return tf.float64, is_list
    if (
        of.is_string(each)
        or of.is_large_string(each)
        or of.is_binary(each)
        or of.is_large_binary(each)
    ):
        return tf.string, is_list
    raise ValueError(
        f"{path}: column {name!r} must hold numbers, booleans, strings or lists of them, got "
        f"{kind}; leave it out of columns, or convert it where the file is written"
    )


def _chosen(name: str, chosen: Any, stored: tf.DType) -> tf.DType:
    try:
        dtype = tf.as_dtype(chosen)
    except TypeError:
        dtype = None
    if dtype not in _DTYPES or (dtype == tf.string) != (stored == tf.string):
        raise ValueError(
            f"dtypes must be {', '.join(t.name for t in _DTYPES)}, and string for text only, got "
            f"{chosen!r} for {name!r}, which is {stored.name}; choose the nearest"
        )
    return dtype


def _default(name: str, default: Any, dtype: tf.DType) -> Any:
    """Returns the default of a column as an element of its arrays."""
    if default is None:
        return None
    is_text = isinstance(default, (str, bytes))
    if is_text == (dtype == tf.string):
        if is_text:
            return default.encode() if isinstance(default, str) else default
        converted, is_kept = as_numbers(np.array([default]), dtype)
        if is_kept.all():
            return converted[0]
    raise ValueError(
        f"defaults must be of their columns' dtypes, got {default!r} for {name!r}, which is "
        f"{dtype.name}; correct it or set dtypes"
    )
