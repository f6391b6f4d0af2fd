# SPDX-License-Identifier: Apache-2.0
"""Parses records of files to features and labels, and explains why a record cannot be parsed.

A record is a line of a CSV file or a serialized tf.train.Example.
"""

import csv
import dataclasses
import re
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
)

import tensorflow as tf

_CSV_DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.string)

# One label, several labels as a dict, or no label.
_Labels = Union[str, Sequence[str], None]


class RecordFormat(Protocol):
    """Splits files into records.

    Attributes:
      number_name: What a record is called in errors.
      is_text: Whether a record is a line of text.
    """

    number_name: str
    is_text: bool

    @property
    def header(self) -> bool:
        """Whether the first record of a file names the columns."""

    def records(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """The records of a file, after its header."""


class RowParser(RecordFormat, Protocol):
    """Splits files into records, and parses these."""

    def parse(self, records: tf.Tensor) -> Any:
        """Parses records, string [n], to features or (features, labels)."""

    def explain(self, record: bytes) -> str:
        """Explains why parse() cannot parse a record."""


@dataclasses.dataclass(frozen=True)
class CsvRows:
    """Parses lines of CSV files. The attributes are arguments of inputs.csv_input_fn."""

    names: Tuple[str, ...]  # all columns, in the order of the file
    features: Tuple[str, ...]
    labels: _Labels
    dtypes: Mapping[str, tf.DType]  # {column: type} of all features and labels
    defaults: Mapping[str, Any]  # {column: value}; None: the field must not be empty
    multi_valued: Tuple[str, ...]
    delimiter: str
    value_delimiter: str
    header: bool

    number_name = "line"
    is_text = True

    def parse(self, lines: tf.Tensor) -> Any:
        """Parses lines, string [n], to features or (features, labels)."""
        defaults = []
        for name in self.names:
            if name in self.multi_valued or name not in self.dtypes:
                # Columns that are not used are decoded too, so that a row with a wrong number of
                # fields is an error.
                defaults.append(tf.constant([""]))
            else:
                default = self.defaults.get(name)
                values = [] if default is None else [default]
                defaults.append(tf.constant(values, self.dtypes[name]))
        columns = dict(zip(self.names, tf.io.decode_csv(lines, defaults, self.delimiter)))
        for name in self.multi_valued:
            split = tf.compat.v1.string_split(columns[name], self.value_delimiter, skip_empty=True)
            values = split.values
            if self.dtypes[name] != tf.string:
                values = tf.strings.to_number(values, self.dtypes[name])
            columns[name] = tf.RaggedTensor.from_value_rowids(
                values, split.indices[:, 0], nrows=split.dense_shape[0], validate=False
            )
        return with_labels({name: columns[name] for name in self.features}, self.labels, columns)

    def records(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """The lines of a file after its header."""
        lines = tf.data.TextLineDataset(path, compression_type=compression)
        return lines.skip(1) if self.header else lines

    def explain(self, line: bytes) -> str:
        """Explains why parse() cannot parse a line."""
        text = _shortened(line)
        generic = (
            f'row must be CSV with quotes around whole fields only, and "" for a quote, got {text}'
        )
        try:
            fields = csv_fields(line, self.delimiter)
        except (csv.Error, StopIteration):
            return generic
        if len(fields) != len(self.names):
            return f"row must have {len(self.names)} fields, got {len(fields)} in {text}"
        for name, field in zip(self.names, fields):
            problem = self._explain_field(name, field)
            if problem:
                return f"column {name!r} must {problem}{text}"
        return generic

    def _explain_field(self, name: str, field: str) -> str:
        """Explains why a field cannot be parsed; "" if it can."""
        dtype = self.dtypes.get(name, tf.string)
        if name in self.multi_valued:
            values = [value for value in field.split(self.value_delimiter) if value]
        elif field:
            values = [field]
        else:
            is_required = name in self.dtypes and self.defaults.get(name) is None
            return "not be empty, got " if is_required else ""
        for value in values:
            if not _is_readable(value, dtype):
                return f"be {dtype.name}, got {value!r} in "
        return ""


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """Parses serialized tf.train.Examples."""

    features: Mapping[str, Any]  # {name: tf.io feature} of all features and labels
    labels: _Labels

    number_name = "record"
    is_text = False
    header = False

    def parse(self, records: tf.Tensor) -> Any:
        """Parses records, string [n], to features or (features, labels)."""
        columns = tf.io.parse_example(records, self.features)
        labels = {self.labels} if isinstance(self.labels, str) else set(self.labels or ())
        features = {name: value for name, value in columns.items() if name not in labels}
        return with_labels(features, self.labels, columns)

    def records(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """The records of a file."""
        return tf.data.TFRecordDataset(path, compression_type=compression)

    def explain(self, record: bytes) -> str:
        """Explains why parse() cannot parse a record."""
        try:
            example = tf.train.Example.FromString(record)
        except Exception:
            # The class of this error differs between releases of protobuf.
            return f"record must be a tf.train.Example, got {len(record)} other bytes"
        kinds = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
        for name, spec in self.features.items():
            if not hasattr(spec, "dtype") or isinstance(spec, tf.io.SparseFeature):
                continue
            key = getattr(spec, "value_key", None) or name
            # Indexing a protobuf map adds missing entries; this changes only our copy.
            kind = example.features.feature[key].WhichOneof("kind")
            is_fixed = isinstance(spec, tf.io.FixedLenFeature)
            if kind is None:
                if is_fixed and spec.default_value is None:
                    there = sorted(set(example.features.feature) - {key})
                    return f"feature {name!r} must be in the record, got {there}"
                continue
            if kinds[kind] != spec.dtype:
                return f"feature {name!r} must be {spec.dtype.name}, got a {kind}"
            length = len(getattr(example.features.feature[key], kind).value)
            shape = tf.TensorShape(spec.shape) if is_fixed else None
            if shape is not None and length != shape.num_elements():
                return (
                    f"feature {name!r} must have the shape {shape.as_list()}, got {length} values"
                )
        return "record must have the declared features, got others"


def with_labels(features: Dict[str, Any], labels: _Labels, columns: Mapping[str, Any]) -> Any:
    """Returns features, or (features, label), or (features, dict of labels).

    Args:
      features: The features.
      labels: The name or names of labels, or None.
      columns: The columns that contain the labels.
    """
    if not labels:
        return features
    if isinstance(labels, str):
        return features, columns[labels]
    return features, {name: columns[name] for name in labels}


def csv_fields(line: bytes, delimiter: str) -> List[str]:
    """The fields of one line; bytes that are not UTF-8 are replaced.

    Raises:
      csv.Error: The line is not CSV.
      StopIteration: The line is blank.
    """
    text = line.decode(errors="replace")
    # Before Python 3.11, csv refuses NUL.
    return next(csv.reader([text.replace("\0", "\ufffd")], delimiter=delimiter))


def csv_rows(
    names: Tuple[str, ...],
    *,
    features: Optional[Sequence[str]],
    labels: _Labels,
    dtypes: Mapping[str, Any],
    defaults: Mapping[str, Any],
    multi_valued: Sequence[str],
    delimiter: str,
    value_delimiter: str,
    header: bool,
) -> CsvRows:
    """Makes the parser of inputs.csv_input_fn, whose arguments it checks.

    Args:
      names: All columns, in the order of the file. The other arguments are those of csv_input_fn.

    Raises:
      ValueError: A column does not exist, or a default does not have the type of its column.
    """
    label_names = as_names("label_column", labels)
    check_known("label_column", label_names, names)
    feature_names = as_names("columns", features)
    if features is None:
        feature_names = tuple(name for name in names if name not in label_names)
    check_known("columns", feature_names, names)
    check_known("dtypes", dtypes, names)
    check_known("defaults", defaults, names)
    check_known("multi_valued", as_names("multi_valued", multi_valued), names)
    both = [name for name in feature_names if name in label_names]
    if both:
        raise ValueError(f"columns must leave out the labels, got {both}; remove them")
    types, values = {}, {}
    for name in [*feature_names, *label_names]:
        types[name] = _csv_dtype(name, dtypes, defaults, name in label_names)
        values[name] = defaults.get(name)
        if values[name] is None and name not in label_names:
            values[name] = types[name].as_numpy_dtype() if types[name] != tf.string else ""
        if values[name] is not None and not _fits(values[name], types[name]):
            raise ValueError(
                f"defaults must be of their columns' dtypes, got {values[name]!r} for {name!r}, "
                f"which is {types[name].name}; correct it or set dtypes"
            )
    return CsvRows(
        names=names,
        features=feature_names,
        labels=labels if labels is None or isinstance(labels, str) else label_names,
        dtypes=types,
        defaults=values,
        multi_valued=tuple(n for n in as_names("multi_valued", multi_valued) if n in types),
        delimiter=delimiter,
        value_delimiter=value_delimiter,
        header=header,
    )


def as_names(argument: str, names: _Labels) -> Tuple[str, ...]:
    """Converts one name, several names or None to a tuple.

    Args:
      argument: Name of the user's argument, for the error message.
      names: The names.

    Raises:
      ValueError: A name is not a string or is given twice.
    """
    if names is None:
        return ()
    names = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ValueError(f"{argument} must be distinct names, got {names}; pass strings")
    return names


def check_count(name: str, value: Any) -> None:
    """Raises a ValueError unless value is an integer >= 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}; pass a positive integer")


def check_known(argument: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raises a ValueError unless all names are known.

    Args:
      argument: Name of the user's argument.
      names: The names to check.
      known: The columns that exist.
    """
    for name in names:
        if name not in known:
            raise ValueError(
                f"{argument} must name columns that exist, got {name!r}; there are {list(known)}"
            )


def _csv_dtype(
    name: str, dtypes: Mapping[str, Any], defaults: Mapping[str, Any], is_label: bool
) -> tf.DType:
    if name in dtypes:
        try:
            dtype = tf.as_dtype(dtypes[name])
        except TypeError:
            dtype = None
        if dtype not in _CSV_DTYPES:
            raise ValueError(
                f"dtypes must be {', '.join(t.name for t in _CSV_DTYPES)}, got {dtypes[name]!r} "
                f"for {name!r}; choose the nearest"
            )
        return dtype
    default = defaults.get(name)
    if default is None:
        return tf.float32 if is_label else tf.string
    if isinstance(default, (str, bytes)):
        return tf.string
    # An integer default suggests a column of keys, which are int64; other numbers are float32.
    return tf.int64 if hasattr(default, "__index__") else tf.float32


def _fits(value: Any, dtype: tf.DType) -> bool:
    if isinstance(value, (str, bytes)) or dtype == tf.string:
        return isinstance(value, (str, bytes)) and dtype == tf.string
    return _is_readable(str(value), dtype)


def _is_readable(text: str, dtype: tf.DType) -> bool:
    """Whether tf.io.decode_csv accepts a text. It is stricter than int() and float()."""
    if dtype == tf.string:
        return True
    if dtype.is_integer:
        is_number = re.fullmatch(r"\s*-?[0-9]+\s*", text)
        return bool(is_number) and dtype.min <= int(text) <= dtype.max
    exponent = r"(e[+-]?[0-9]+)?"
    number = rf"([0-9]+\.?[0-9]*{exponent}|\.[0-9]+{exponent}|inf|nan)"
    return bool(re.fullmatch(rf"\s*[+-]?{number}\s*", text, re.IGNORECASE))


def _shortened(record: bytes) -> str:
    text = record.decode(errors="replace")
    return repr(text if len(text) <= 200 else text[:200] + "…")
