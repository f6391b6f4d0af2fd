# SPDX-License-Identifier: Apache-2.0
"""Which rows are of which part."""

import dataclasses
from typing import Any, Dict, Mapping, Optional, Protocol, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.dataset import PARTS
from model_zoo.data.fields import Conversion, Texts, Times, time_of
from model_zoo.data.schema import Split

_SHARES = 2**20  # into which "fraction" divides the rows
_SAMPLE = 1_000_000


class RowFilter(Protocol):
    """Chooses rows."""

    @property
    def conversion(self) -> Optional[Conversion]:
        """The conversion of the column that decides; None: the location of the row decides."""

    def chooses(self, values: tf.Tensor) -> tf.Tensor:
        """Returns bool [n] for the values of the column, or for locations."""


@dataclasses.dataclass(frozen=True)
class ByValue:
    """Chooses rows by the texts of a column."""

    conversion: Conversion
    values: Tuple[str, ...]

    def chooses(self, values: tf.Tensor) -> tf.Tensor:
        """Returns bool [n] for texts."""
        return tf.reduce_any(
            tf.equal(values[:, tf.newaxis], tf.constant(self.values, tf.string)), axis=1
        )


@dataclasses.dataclass(frozen=True)
class ByTime:
    """Chooses rows with begin <= time < end."""

    conversion: Optional[Conversion]
    begin: float
    end: float

    def chooses(self, values: tf.Tensor) -> tf.Tensor:
        """Returns bool [n] for times or locations."""
        values = tf.cast(values, tf.float64)
        return tf.logical_and(values >= self.begin, values < self.end)


@dataclasses.dataclass(frozen=True)
class ByHash:
    """Chooses a share of the rows, always the same, by a hash with a seed."""

    conversion: Optional[Conversion]
    begin: float
    end: float
    seed: int

    def chooses(self, values: tf.Tensor) -> tf.Tensor:
        """Returns bool [n] for texts or locations."""
        text = values if values.dtype == tf.string else tf.as_string(values)
        share = tf.strings.to_hash_bucket_fast(tf.strings.join([f"{self.seed} ", text]), _SHARES)
        return tf.logical_and(share >= int(self.begin * _SHARES), share < int(self.end * _SHARES))


def conversion_of_split(split: Split, missing: Tuple[str, ...]) -> Optional[Conversion]:
    """Returns the conversion of the column that decides; None: locations decide."""
    if split.column is None:
        return None
    return Times(split.column, missing) if split.by == "time" else Texts(split.column, missing)


def row_filter(
    split: Split, part: str, missing: Tuple[str, ...], begins: Mapping[str, float]
) -> RowFilter:
    """Returns the filter of a part.

    Args:
      split: Which rows are of which part.
      part: One of PARTS.
      missing: Texts that mean that a value is missing.
      begins: Of "time", what time_limits returns.
    """
    conversion = conversion_of_split(split, missing)
    if split.by == "column":
        return ByValue(Texts(split.column or "", missing), split.values[part])
    if split.by == "time":
        limits = (time_of_begin(split), begins["validation"], begins["test"], np.inf)
        begin, end = limits[PARTS.index(part) : PARTS.index(part) + 2]
        return ByTime(conversion, begin, end)
    test, validation = float(split.test), float(split.validation)
    shares = {
        "train": (test + validation, 1.0),
        "validation": (test, test + validation),
        "test": (0.0, test),
    }
    return ByHash(conversion, *shares[part], split.seed)


def time_of_begin(split: Split) -> float:
    """Returns the time from which rows are in a part."""
    return -np.inf if split.begin is None else time_of(split.begin)


class TimeSample:
    """The times of a log: all of them up to a million, and from there on a sample of a million."""

    def __init__(self) -> None:
        self.count = 0
        self._random = np.random.default_rng(0)  # so that a split is the same in every run
        self._times = np.empty(0, np.float64)
        self._keys = np.empty(0, np.float64)

    def extend(self, times: np.ndarray) -> None:
        """Adds times, [n]."""
        self.count += len(times)
        self._times = np.append(self._times, times)
        self._keys = np.append(self._keys, self._random.random(len(times)))
        if len(self._times) > 2 * _SAMPLE:
            self._shrink()

    def sorted(self) -> np.ndarray:
        """Returns the sample in ascending order."""
        if len(self._times) > _SAMPLE:
            self._shrink()
        return np.sort(self._times)

    def _shrink(self) -> None:
        kept = np.argpartition(self._keys, _SAMPLE)[:_SAMPLE]
        self._times, self._keys = self._times[kept], self._keys[kept]


def time_limits(split: Split, times: np.ndarray) -> Dict[str, float]:
    """Returns the times from which rows are validation, and from which they are test.

    Rows of one time are never divided. Validation is the end of what is not test.

    Args:
      split: Its fractions are of all rows.
      times: [n] All times, or a sample of them, in ascending order.

    Raises:
      ValueError: No row would be left for training.

    Example:
      >>> time_limits(Split("time", validation=0.2, test=0.2), np.arange(10.0))
      {'validation': 6.0, 'test': 8.0}
    """

    def begin_of(share: Any, end: int) -> float:
        if isinstance(share, str):
            return time_of(share)
        begin = end - round(float(share) * len(times))
        return float(times[begin]) if begin < len(times) else np.inf

    times = times[times >= time_of_begin(split)]
    test = begin_of(split.test, len(times))
    before = int(np.searchsorted(times, test))
    if isinstance(split.validation, str) or split.validation:
        validation = min(begin_of(split.validation, before), test)
    else:
        validation = test
    if not len(times) or validation <= times[0]:
        raise ValueError(f"split must leave rows for training, got none before {validation:.17g}")
    return {"validation": validation, "test": test}
