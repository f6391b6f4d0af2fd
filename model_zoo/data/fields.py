# SPDX-License-Identifier: Apache-2.0
"""Turns the values of files into what models get: ids, numbers and labels.

A reader gives a column of the files as one tensor: string, int64 or float, [n] or, of lists,
[n, k]. "", MISSING_INT or NaN stands for a missing value and for the padding of lists.
"""

import dataclasses
import json
import math
import re
from typing import Any, Mapping, Protocol, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.column import PADDING
from model_zoo.data.schema import Condition, Field

MISSING_INT = -(2**63)

_HASH_BUCKETS = 2**63 - 1  # as rec_estimator hashes text
_DIGITS = 14  # a date with a time, down to the second

_COMPARISONS = {
    ">=": tf.greater_equal,
    "<=": tf.less_equal,
    "==": tf.equal,
    "!=": tf.not_equal,
    ">": tf.greater,
    "<": tf.less,
}


class Conversion(Protocol):
    """Makes one tensor of one column of the files.

    Attributes:
      source: Name of the column in the files.
    """

    @property
    def source(self) -> str:
        """Name of the column in the files."""

    @property
    def dtype(self) -> tf.DType:
        """The type as which a text file is best decoded."""

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the converted values, and bool [n] or [], whether they are good."""

    def problem(self, value: Any) -> str:
        """Says what is wrong with one value, and the remedy; "" if nothing is.

        Args:
          value: A str, int or float; or an array of them.
        """


@dataclasses.dataclass(frozen=True)
class Ids:
    """Ids: int64 [n], or [n, max_length] padded with PADDING.

    A missing text is a key of its own, that of the empty text; a missing integer needs a default.
    Missing ids of lists are left out.
    """

    field: Field
    missing: Tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Name of the column in the files."""
        return self.field.source

    @property
    def dtype(self) -> tf.DType:
        """The type as which a text file is best decoded."""
        is_integer = self.field.type == "int" and not (self.missing or self.field.separator)
        return tf.int64 if is_integer else tf.string

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the keys, and bool [n] or [], whether they are good."""
        if self.field.separator is not None:
            return self._split(texts(raw, self.missing)), tf.constant(True)
        if self.field.column.is_padded != (raw.shape.ndims == 2):
            raise ValueError(
                f"column {self.source!r} must have lists in the files if and only if max_length is "
                "above 1; set max_length, or a separator of ids in text"
            )
        keys, is_missing = self._keys(raw)
        if self.field.column.is_padded:
            return self._cut(tf.where(is_missing, tf.fill(tf.shape(keys), _PADDING), keys)), (
                tf.constant(True)
            )
        is_good = tf.logical_not(is_missing)
        default = self.field.default
        if default is None and self._is_text(raw):
            return keys, tf.constant(True)
        if default is None:
            return keys, is_good
        filler = _hashed(tf.constant(default)) if self._is_text(raw) else np.int64(int(default))
        return tf.where(is_missing, tf.fill(tf.shape(keys), filler), keys), tf.constant(True)

    def problem(self, value: Any) -> str:
        """Says what is wrong with one value, and the remedy; "" if nothing is."""
        values = np.ravel(value).tolist()
        is_text = self.field.type is None and all(isinstance(v, (str, bytes)) for v in values)
        if is_text or self.field.type == "text":
            return ""
        if self.field.separator is not None:
            values = [each for each in str(value).split(self.field.separator) if each]
        for each in values:
            if not _is_missing(each, self.missing):
                if not re.fullmatch(r"\s*[+-]?\d+(\.0*)?\s*", str(each)):
                    return f"be an integer, got {each!r}; correct it, or set type: text"
            elif self.field.default is None and not self.field.column.is_padded:
                return "not be missing; correct it, or set a default"
        return ""

    def _is_text(self, raw: tf.Tensor) -> bool:
        return self.field.type == "text" or (self.field.type is None and raw.dtype == tf.string)

    def _keys(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns keys, and which of them are missing."""
        if self._is_text(raw):
            text = texts(raw, self.missing)
            return _hashed(text), tf.equal(text, "")
        keys = integers(raw, self.missing)
        return keys, tf.equal(keys, MISSING_INT)

    def _split(self, text: tf.Tensor) -> tf.Tensor:
        parts = tf.strings.split(text, sep=self.field.separator, result_type="RaggedTensor")
        parts = tf.ragged.boolean_mask(parts, tf.not_equal(parts, ""))
        keys = parts.with_flat_values(self._keys(parts.flat_values)[0])
        return keys.to_tensor(PADDING, shape=[None, self.field.column.max_length])

    def _cut(self, keys: tf.Tensor) -> tf.Tensor:
        """[n, k] -> [n, max_length]."""
        length = self.field.column.max_length
        more = tf.maximum(length - tf.shape(keys)[1], 0)
        keys = tf.pad(keys[:, :length], [[0, 0], [0, more]], constant_values=PADDING)
        return tf.ensure_shape(keys, [None, length])


@dataclasses.dataclass(frozen=True)
class RawNumbers:
    """Numbers without a transformation: float32 [n], NaN where one is missing."""

    field: Field
    missing: Tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Name of the column in the files."""
        return self.field.source

    @property
    def dtype(self) -> tf.DType:
        """The type as which a text file is best decoded."""
        return tf.string if self.missing else tf.float32

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the numbers, and whether they are finite or missing."""
        value = numbers(raw, self.missing)
        if self.field.default is not None:
            default = tf.fill(tf.shape(value), np.float32(float(self.field.default)))
            value = tf.where(tf.is_nan(value), default, value)
        return value, tf.logical_not(tf.is_inf(value))

    def problem(self, value: Any) -> str:
        """Says what is wrong with one value, and the remedy; "" if nothing is."""
        return _number_problem(value, self.missing)


@dataclasses.dataclass(frozen=True)
class Numbers(RawNumbers):
    """Numbers: float32 [n]. A missing one is 0 after the transformation, or the default before it.

    Attributes:
      field: The column. Its transform is "log", the sign of x times log(1 + |x|); "standard",
        (x - mean) / deviation; or None.
      moments: Mean and standard deviation, of "standard".
    """

    moments: Tuple[float, float] = (0.0, 1.0)

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the transformed numbers, and whether they are finite."""
        value, is_good = super().convert(raw)
        is_missing = tf.is_nan(value)
        if self.field.transform == "log":
            value = tf.sign(value) * tf.log1p(tf.abs(value))
        elif self.field.transform == "standard":
            mean, deviation = self.moments
            value = (value - mean) / (deviation or 1.0)
        value = tf.where(is_missing, tf.zeros_like(value), value)
        return value, is_good


@dataclasses.dataclass(frozen=True)
class Buckets(RawNumbers):
    """Ids of numbers: int64 [n].

    Boundaries b[0] < b[1] < … give 1 + the count of b[i] <= x. "log_buckets" gives floor(log(x)^2)
    above 2 and floor(x) else, as the winners of the Criteo contest of 2014 did, one more from 0 on
    and one less below 0. The id of a missing number is 0.
    """

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids, and whether the numbers are finite."""
        value, is_good = super().convert(raw)
        is_missing = tf.is_nan(value)
        if self.field.buckets is not None:
            bucket = 1 + tf.raw_ops.Bucketize(input=value, boundaries=list(self.field.buckets))
        else:
            above = tf.square(tf.log(tf.maximum(value, 1.0)))
            bucket = tf.cast(tf.floor(tf.where(value > 2.0, above, value)), tf.int64)
            bucket += tf.where(bucket < 0, -tf.ones_like(bucket), tf.ones_like(bucket))
        bucket = tf.cast(bucket, tf.int64)
        bucket = tf.where(is_missing, tf.zeros_like(bucket), bucket)
        return bucket, is_good


@dataclasses.dataclass(frozen=True)
class TimeParts:
    """Ids of the hour or the day of the week of times: int64 [n].

    Times are dates like 2011-11-01 08:26:00, seconds since 1970, or written as time_format says.
    Hours have the ids 1 to 24, days 1 (Monday) to 7, and a missing time has 0.
    """

    field: Field
    missing: Tuple[str, ...] = ()
    dtype = tf.string

    @property
    def source(self) -> str:
        """Name of the column in the files."""
        return self.field.source

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids, and whether the values are times or missing."""
        text = tf.strings.strip(texts(raw, self.missing))
        is_missing = tf.equal(text, "")
        is_date = tf.strings.regex_full_match(text, self._pattern())
        date = tf.where(is_date, text, tf.zeros_like(text)) + "0" * _DIGITS
        year, month, day, hour = (self._digits(date, part) for part in "YmdH")
        days = _days_since_1970(year, month, day)
        is_good = tf.logical_or(is_date, is_missing)
        if self.field.time_format is None:
            number = tf.where(is_good, tf.fill(tf.shape(text), "0"), text)
            seconds = tf.cast(tf.floor(tf.strings.to_number(number, tf.float64)), tf.int64)
            days = tf.where(is_date, days, seconds // 86_400)
            hour = tf.where(is_date, hour, seconds // 3600 % 24)
            is_good = tf.ones_like(is_good)
        ids = 1 + (hour if self.field.transform == "hour" else (days + 3) % 7)
        return tf.where(is_missing, tf.zeros_like(ids), ids), is_good

    def problem(self, value: Any) -> str:
        """Says what is wrong with one value, and the remedy; "" if nothing is."""
        if _is_missing(value, self.missing):
            return ""
        if self.field.time_format is not None:
            if re.fullmatch(self._pattern(), str(value).strip()):
                return ""
            return f"be a time like {self.field.time_format}, got {value!r}; correct it"
        try:
            time_of(str(value))
        except ValueError as error:
            return f"be {error}"
        return ""

    def _pattern(self) -> str:
        """The regular expression of a date."""
        if self.field.time_format is None:
            return _DATE
        parts = re.split("(%.)", self.field.time_format)
        return "".join(
            rf"\d{{{_WIDTHS[part[1]]}}}" if part[:1] == "%" else re.escape(part) for part in parts
        )

    def _digits(self, date: tf.Tensor, part: str) -> tf.Tensor:
        """The year, month, day or hour of dates: int64 [n]; 0 where the format has none."""
        form = self.field.time_format or "%Y-%m-%d %H"
        century = 0
        if part == "Y" and "%y" in form:
            part, century = "y", 2000
        before, found, _ = form.partition(f"%{part}")
        if not found:
            return tf.zeros_like(date, tf.int64)
        at = sum(_WIDTHS[each[1]] if each[0] == "%" else 1 for each in re.findall("%.|.", before))
        digits = tf.strings.substr(date, at, _WIDTHS[part])
        digits = tf.where(
            tf.strings.regex_full_match(digits, r"\d+"), digits, tf.zeros_like(digits) + "0"
        )
        return century + tf.strings.to_number(digits, tf.int64)


_WIDTHS = {"Y": 4, "y": 2, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2}


def _days_since_1970(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor) -> tf.Tensor:
    """Days from 1970-01-01 in the Gregorian calendar, int64 [n].

    Source: days_from_civil of Hinnant, https://howardhinnant.github.io/date_algorithms.html
    """
    year = year - tf.cast(month <= 2, tf.int64)  # which begins in March
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719_468


@dataclasses.dataclass(frozen=True)
class Labels:
    """A label: float32 [n], 0 or 1."""

    condition: Condition
    missing: Tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Name of the column in the files."""
        return self.condition.source

    @property
    def dtype(self) -> tf.DType:
        """The type as which a text file is best decoded."""
        is_text = self.missing or isinstance(self.condition.value, str)
        return tf.string if is_text else tf.float32

    @property
    def _may_be_missing(self) -> bool:
        """Whether the label says if the value is there: `order != ''`."""
        return self.condition.value == ""

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the labels, and whether the values are there and labels."""
        if isinstance(self.condition.value, str):
            text = texts(raw, self.missing)
            label = _COMPARISONS[self.condition.operator](text, self.condition.value)
            is_good = tf.logical_or(tf.not_equal(text, ""), self._may_be_missing)
            return tf.cast(label, tf.float32), is_good
        value = numbers(raw, self.missing)
        if not self.condition.operator:
            return value, tf.logical_or(tf.equal(value, 0.0), tf.equal(value, 1.0))
        label = _COMPARISONS[self.condition.operator](value, self.condition.value)
        return tf.cast(label, tf.float32), tf.logical_not(tf.is_nan(value))

    def problem(self, value: Any) -> str:
        """Says what is wrong with one value, and the remedy; "" if nothing is."""
        if _is_missing(value, self.missing) and not self._may_be_missing:
            is_there = self._comparison("!=", "''")
            return (
                "not be missing, because it is a label; fill it in or delete the row, or write "
                f"{is_there} if the label is whether it is there"
            )
        if isinstance(self.condition.value, str):
            return ""
        problem = _number_problem(value, self.missing)
        if self.condition.operator or (not problem and float(value) in (0.0, 1.0)):
            return problem
        example = self._comparison("==", f"'{value}'") if problem else self._comparison(">", "0")
        return f"be 0 or 1 to be a label, got {value!r}; write a comparison, for example {example}"

    def _comparison(self, operator: str, constant: str) -> str:
        """A comparison as a schema has it: in quotes of YAML, which are those of JSON, too."""
        return json.dumps(f"{self.source} {operator} {constant}", ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Times:
    """Times of rows: float64 [n]. See time_of."""

    source: str
    missing: Tuple[str, ...] = ()
    dtype = tf.string

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns times, and whether they are there."""
        if raw.dtype != tf.string:
            time = tf.cast(raw, tf.float64)
            is_missing = tf.equal(raw, MISSING_INT) if raw.dtype.is_integer else tf.is_nan(time)
            return time, tf.logical_not(is_missing)
        text = tf.strings.strip(texts(raw, self.missing))
        is_date = tf.strings.regex_full_match(text, _DATE)
        digits = tf.strings.regex_replace(text, r"\D", "") + "0" * _DIGITS
        digits = tf.strings.substr(digits, 0, _DIGITS)
        text = tf.where(is_date, digits, text)
        is_missing = tf.equal(text, "")
        text = tf.where(is_missing, tf.fill(tf.shape(text), "nan"), text)
        return tf.strings.to_number(text, tf.float64), tf.logical_not(is_missing)

    def problem(self, value: Any) -> str:
        """Says what is wrong with one value, and the remedy; "" if nothing is."""
        if _is_missing(value, self.missing):
            return "not be missing, because it is a time; correct it"
        try:
            time_of(str(value))
        except ValueError as error:
            return f"be {error}"
        return ""


_DATE = r"\d{4}-\d\d-\d\d.*"


def time_of(text: str) -> float:
    """Returns the time of a text: a number, or of a date like 2011-11-01 08:26:00 its digits.

    Raises:
      ValueError: The text is neither.

    Example:
      >>> time_of("2011-11-01") < time_of("2011-11-01 08:26") == 20111101082600.0
      True
    """
    if re.fullmatch(_DATE, text.strip()):
        return float((re.sub(r"\D", "", text) + "0" * _DIGITS)[:_DIGITS])
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"a number or a date like 2011-11-01 08:26:00, got {text!r}") from None


@dataclasses.dataclass(frozen=True)
class Texts:
    """Values as text: string [n]; "" where one is missing."""

    source: str
    missing: Tuple[str, ...] = ()
    dtype = tf.string

    def convert(self, raw: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns texts, all of which are good."""
        return texts(raw, self.missing), tf.constant(True)

    def problem(self, value: Any) -> str:
        """Says nothing: every value is a text."""
        return ""


def conversion_of(
    field: Field, missing: Tuple[str, ...], moments: Mapping[str, Tuple[float, float]]
) -> Conversion:
    """Returns the conversion of a column.

    Args:
      field: The column.
      missing: Texts that mean that a value is missing.
      moments: By column with the transform "standard", the mean and the deviation.
    """
    if field.transform in ("hour", "weekday"):
        return TimeParts(field, missing)
    if field.buckets is not None or field.transform == "log_buckets":
        return Buckets(field, missing)
    if field.column.kind == "number":
        return Numbers(field, missing, moments.get(field.column.name, (0.0, 1.0)))
    return Ids(field, missing)


def texts(raw: tf.Tensor, missing: Tuple[str, ...]) -> tf.Tensor:
    """Returns values as text, "" where one is missing."""
    empty = tf.zeros_like(raw, tf.string)
    if raw.dtype != tf.string:
        gone = tf.equal(raw, MISSING_INT) if raw.dtype.is_integer else tf.is_nan(raw)
        return tf.where(gone, empty, tf.as_string(raw))
    if not missing:
        return raw
    bare = tf.strings.strip(raw)
    for text in missing:
        raw = tf.where(tf.equal(bare, text), empty, raw)
    return raw


def numbers(raw: tf.Tensor, missing: Tuple[str, ...]) -> tf.Tensor:
    """Returns values as float32, NaN where one is missing."""
    if raw.dtype == tf.string:
        text = tf.strings.strip(texts(raw, missing))
        text = tf.where(tf.equal(text, ""), tf.fill(tf.shape(text), "nan"), text)
        return tf.strings.to_number(text, tf.float32)
    value = tf.cast(raw, tf.float32)
    if not raw.dtype.is_integer:
        return value
    return tf.where(tf.equal(raw, MISSING_INT), tf.fill(tf.shape(value), np.float32(np.nan)), value)


def integers(raw: tf.Tensor, missing: Tuple[str, ...]) -> tf.Tensor:
    """Returns values as int64, MISSING_INT where one is missing."""
    if raw.dtype == tf.string:
        text = texts(raw, missing)
        text = tf.where(tf.equal(text, ""), tf.fill(tf.shape(text), str(MISSING_INT)), text)
        return tf.strings.to_number(text, tf.int64)
    if raw.dtype.is_floating:
        return tf.where(tf.is_nan(raw), tf.fill(tf.shape(raw), _MISSING), tf.cast(raw, tf.int64))
    return tf.cast(raw, tf.int64)


_PADDING, _MISSING = np.int64(PADDING), np.int64(MISSING_INT)


def _hashed(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(text, _HASH_BUCKETS)


def _is_missing(value: Any, missing: Tuple[str, ...]) -> bool:
    if isinstance(value, str):
        return value.strip() in ("", *missing)
    return value == MISSING_INT or (isinstance(value, float) and math.isnan(value))


def _number_problem(value: Any, missing: Tuple[str, ...]) -> str:
    if _is_missing(value, missing):
        return ""
    try:
        if math.isfinite(float(value)):
            return ""
    except ValueError:
        pass
    return f"be a number, got {value!r}; correct it, or list it under missing of the format"
