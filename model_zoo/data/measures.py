# SPDX-License-Identifier: Apache-2.0
"""What must be known of the rows of a data set before it is read: measured once, and kept."""

import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any, Callable, Iterator, Mapping, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

_BATCH = 16_384


@dataclasses.dataclass(frozen=True)
class Measures:
    """What was measured.

    Attributes:
      time_limits: Of a split by time, the times from which rows are validation and test.
      moments: By column with the transform "standard", mean and standard deviation of the training
        rows that have a value.
      rows: Number of rows by part, of parts that were counted.
      late: File and line of the first row that is earlier than the one before it; "" if there is
        none, or no column has times.
    """

    time_limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    moments: Mapping[str, Tuple[float, float]] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    late: str = ""


class MeasuresFile:
    """A small JSON file with the measures of a data set.

    Args:
      folder: Folder of the file.
      name: Name of the data set.
      of: Whatever the measures depend on; other values have another file.
      files: The files that are measured. A file of another size or date has another one.
    """

    def __init__(self, folder: pathlib.Path, name: str, of: Any, files: Tuple[str, ...]) -> None:
        states = [(path, stat.length, stat.mtime_nsec) for path, stat in _stats(files)]
        digest = hashlib.sha256(repr((of, states)).encode()).hexdigest()[:16]
        self.path = folder / "measures" / f"{name}-{digest}.json"

    def get(self, measure: Callable[[], Measures]) -> Measures:
        """Returns the measures of the file, or measures and writes it."""
        try:
            found = json.loads(self.path.read_text())
            moments = {name: tuple(each) for name, each in found["moments"].items()}
            return Measures(found["time_limits"], moments, found["rows"], found["late"])
        except (OSError, ValueError, KeyError, AttributeError):
            pass  # not there, or not whole
        measures = measure()
        try:
            self._write(json.dumps(dataclasses.asdict(measures), indent=2) + "\n")
        except OSError as error:
            tf.logging.warning("%s could not be written (%s).", self.path, error)
        return measures

    def _write(self, text: str) -> None:
        """Writes the file whole or not at all; several workers may do it at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, self.path)


class Moments:
    """Mean and standard deviation of numbers that come in batches; NaNs are left out.

    Example:
      >>> moments = Moments()
      >>> moments.extend(np.array([1.0, 3.0, np.nan]))
      >>> moments.result()
      (2.0, 1.0)
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0  # the sum of squared distances from the mean

    def extend(self, numbers: np.ndarray) -> None:
        """Adds a batch, [n]. The update is that of Chan, Golub and LeVeque (1983)."""
        numbers = numbers[~np.isnan(numbers)].astype(np.float64)
        if not len(numbers):
            return
        mean, total = float(numbers.mean()), self._count + len(numbers)
        distance = mean - self._mean
        self._squares += float(np.square(numbers - mean).sum())
        self._squares += distance * distance * self._count * len(numbers) / total
        self._mean += distance * len(numbers) / total
        self._count = total

    def result(self) -> Tuple[float, float]:
        """Returns (mean, standard deviation); (0, 0) of no numbers."""
        return self._mean, float(np.sqrt(self._squares / self._count)) if self._count else 0.0


def arrays(
    make_batches: Callable[[int], tf.data.Dataset], batch_size: int = _BATCH
) -> Iterator[Any]:
    """Yields the batches of a dataset in NumPy.

    Args:
      make_batches: Makes a dataset of batches of some size, in a graph of its own.
      batch_size: Rows per batch.
    """
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(make_batches(batch_size))
        following = iterator.get_next()
        config = tf.ConfigProto(device_count={"GPU": 0})
        with tf.Session(config=config) as session:
            session.run(iterator.initializer)
            while True:
                try:
                    batch = session.run(following)
                except tf.errors.OutOfRangeError:
                    return
                yield batch


def _stats(files: Tuple[str, ...]) -> Iterator[Tuple[str, Any]]:
    return ((path, tf.io.gfile.stat(path)) for path in files)
