# SPDX-License-Identifier: Apache-2.0
"""The interface of data sets, and data sets that are in memory."""

import abc
import dataclasses
import itertools
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data.column import Column
from model_zoo.data.measures import arrays

PARTS = ("train", "validation", "test")

InputFn = Callable[[], tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class Reading:
    """Which batches are read, and in which order: the arguments of DataSet.input_fn.

    Raises:
      ValueError: An argument is out of range.
    """

    part: str
    batch_size: int
    seed: Optional[int] = None
    epochs: Optional[int] = 1
    skip: int = 0

    def __post_init__(self) -> None:
        check_part(self.part)
        for name, lowest in (("batch_size", 1), ("epochs", 1), ("skip", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not hasattr(value, "__index__") or value < lowest):
                raise ValueError(f"{name} must be an integer from {lowest} on, got {value!r}")


class DataSet(abc.ABC):
    """What a model is trained on: columns, labels, and rows in three parts.

    Attributes:
      name: Name of the data set.
      columns: The description of each feature.
      labels: Names of the labels, float32 each; the first is the main one.
      credit: The owner and the license of the data, to be shown to the user.
    """

    name: str
    columns: Tuple[Column, ...]
    labels: Tuple[str, ...]
    credit: str

    @abc.abstractmethod
    def rows(self, part: str) -> Optional[int]:
        """Returns the number of rows of a part; None: not known, because large files
        are streamed.

        Args:
          part: "train", "validation" or "test". A part that the data set lacks has 0 rows.

        Raises:
          ValueError: There is no such part.
        """

    def count_training_rows(self) -> int:
        """Returns the number of training rows; reads them if it is not known."""
        rows = self.rows("train")
        if rows is None:
            batches = arrays(lambda size: self.input_fn("train", size)())
            rows = sum(len(tf.nest.flatten(labels)[0]) for _, labels in batches)
        return rows

    def late_row(self) -> str:
        """Returns the file, line and column of the first training row that is earlier than the one
        before it; "" if there is none, or times are not known.
        """
        return ""

    def input_fn(
        self,
        part: str,
        batch_size: int,
        *,
        seed: Optional[int] = None,
        epochs: Optional[int] = 1,
        skip: int = 0,
    ) -> InputFn:
        """Returns an input_fn of the rows of a part.

        Args:
          part: "train", "validation" or "test".
          batch_size: Rows per batch. The last, smaller batch of an epoch is dropped if there is a
            seed, and kept if there is none.
          seed: None: rows come in their order. Else they are shuffled, anew in each epoch; the same
            seed gives the same rows in the same order.
          epochs: Passes over the rows. None: unlimited.
          skip: Batches to leave out at the start, so that a resumed run goes on where it stopped.

        Returns:
          A function without arguments that makes a dataset of (features, labels). Features are
          {column: tensor} as Column describes them. Labels are float32 [B], or {label: float32 [B]}
          if there are several.

        Raises:
          ValueError: An argument is out of range, or the part has no rows.
        """
        return self.read(Reading(part, batch_size, seed, epochs, skip))

    @abc.abstractmethod
    def read(self, reading: Reading) -> InputFn:
        """Returns the input_fn of a reading, as `input_fn` describes it."""

    @abc.abstractmethod
    def without_validation(self) -> "DataSet":
        """Returns the data set whose validation rows are training rows."""

    def receiver_fn(self) -> Callable[[], rec.ServingInputReceiver]:
        """Returns the receiver of an export: a placeholder per column, of any batch size."""

        def receiver() -> rec.ServingInputReceiver:
            placeholders = {
                column.name: tf.placeholder(
                    tf.int64 if column.kind == "id" else tf.float32,
                    [None, column.max_length] if column.is_padded else [None],
                    name=column.name,
                )
                for column in self.columns
            }
            return rec.ServingInputReceiver(placeholders, placeholders)

        return receiver

    def places(self, part: str) -> Iterator[Tuple[str, str, int]]:
        """Yields where each row of a part is, in the order of `input_fn` without a seed.

        Args:
          part: "train", "validation" or "test".

        Yields:
          The file, "" for rows of none; what is counted in it: "line", "record" or "row"; and the
          number, from 1.
        """
        check_part(part)
        return (("", "row", number) for number in itertools.count(1))

    def texts(self, column: str, part: Optional[str] = None) -> Mapping[int, str]:
        """Returns the text that each key of a column stands for; {} if ids are integers.

        Args:
          column: A column of single ids.
          part: "train", "validation" or "test". None: all parts.
        """
        del column, part
        return {}

    def item_name(self, key: int) -> str:
        """Returns the name of an item, for output."""
        return f"item {key}"


def check_columns(columns: Tuple[Column, ...], labels: Tuple[str, ...]) -> None:
    """Checks that columns go together.

    Raises:
      ValueError: A name is given twice, or a column shares the table of one that has none.
    """
    names = [column.name for column in columns]
    for name in (*names, *labels):
        if [*names, *labels].count(name) > 1:
            raise ValueError(f"columns and labels must have names of their own, got {name!r} twice")
    if not labels:
        raise ValueError("labels must be one name or more, got none")
    owners = [column.name for column in columns if column.kind == "id" and column.table is None]
    for column in columns:
        if column.table is not None and column.table not in owners:
            raise ValueError(
                f"table of column {column.name!r} must be an id column with a table of its own, "
                f"got {column.table!r}; there are {', '.join(owners) or 'none'}"
            )


def check_part(part: str) -> None:
    """Raises ValueError if a name is not one of PARTS."""
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows in memory.

    Attributes:
      features: By column, int64 [n] or [n, max_length], or float32 [n].
      labels: By label, float32 [n].
    """

    features: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.labels.values())))

    def __getitem__(self, rows: Any) -> "Rows":
        """The rows that a slice, a mask or indices choose."""
        return Rows(
            {name: array[rows] for name, array in self.features.items()},
            {name: array[rows] for name, array in self.labels.items()},
        )

    def followed_by(self, other: "Rows") -> "Rows":
        """These rows, then others of the same columns."""

        def joined(
            arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
        ) -> Dict[str, np.ndarray]:
            return {name: np.concatenate([array, others[name]]) for name, array in arrays.items()}

        return Rows(joined(self.features, other.features), joined(self.labels, other.labels))


class MemoryDataSet(DataSet):
    """A data set whose rows are in memory, which is shuffled completely.

    Args:
      name: Name of the data set.
      columns: One per feature.
      parts: Rows by part. A part may be missing.
      credit: The owner and the license of the data.
      item_names: Names of items by key, for output.
      attainable_auc: Test AUC of a model that knows the true probabilities. None: unknown.

    Raises:
      ValueError: Columns, labels and rows do not go together.

    Example:
      >>> rows = Rows({"item": np.array([7, 8, 9])}, {"click": np.array([1, 0, 1], np.float32)})
      >>> shop = MemoryDataSet("shop", (Column("item", "item"),), {"train": rows})
      >>> features, labels = shop.input_fn("train", batch_size=2)().element_spec
      >>> shop.rows("train"), features["item"].dtype, labels.dtype
      (3, tf.int64, tf.float32)
    """

    def __init__(
        self,
        name: str,
        columns: Tuple[Column, ...],
        parts: Mapping[str, Rows],
        *,
        credit: str = "",
        item_names: Optional[Mapping[int, str]] = None,
        attainable_auc: Optional[float] = None,
    ) -> None:
        if "train" not in parts:
            raise ValueError(f"parts of {name} must have a train part, got {', '.join(parts)}")
        self.name = name
        self.columns = tuple(columns)
        self.labels = tuple(parts["train"].labels)
        self.credit = credit
        self.attainable_auc = attainable_auc
        self._item_names = dict(item_names or {})
        check_columns(self.columns, self.labels)
        self._parts = {part: self._converted(part, rows) for part, rows in parts.items()}

    def rows(self, part: str) -> int:
        """Returns the number of rows of a part."""
        check_part(part)
        return len(self._parts[part]) if part in self._parts else 0

    def in_memory(self, part: str) -> Rows:
        """Returns the rows of a part, for analyses in NumPy."""
        if not self.rows(part):
            raise self._no_rows(part)
        return self._parts[part]

    def without_validation(self) -> "MemoryDataSet":
        """Returns the data set whose validation rows are training rows."""
        parts = dict(self._parts)
        if "validation" in parts:
            parts["train"] = parts["train"].followed_by(parts.pop("validation"))
        return MemoryDataSet(
            self.name,
            self.columns,
            parts,
            credit=self.credit,
            item_names=self._item_names,
            attainable_auc=self.attainable_auc,
        )

    def read(self, reading: Reading) -> InputFn:
        """Returns the input_fn of a reading, as `input_fn` describes it."""
        rows = self.in_memory(reading.part)
        order = _Order(len(rows), reading.batch_size, reading.seed)
        if not order.batches:
            raise ValueError(
                f"batch_size must be at most the {len(rows)} rows of {reading.part} of "
                f"{self.name}, got {reading.batch_size}; smaller batches are dropped in training"
            )
        arrays = [rows.features[column.name] for column in self.columns]
        arrays += [rows.labels[label] for label in self.labels]

        def batch(number: tf.Tensor) -> Any:
            types = [tf.as_dtype(array.dtype) for array in arrays]
            tensors = tf.numpy_function(
                lambda at: [array[order.rows(int(at))] for array in arrays], [number], types
            )
            size = None if reading.seed is None else reading.batch_size
            for tensor, array in zip(tensors, arrays):
                tensor.set_shape([size, *array.shape[1:]])
            return self._features_and_labels(tensors)

        def make() -> tf.data.Dataset:
            epochs, skip = reading.epochs, reading.skip
            end = tf.int64.max if epochs is None else order.batches * epochs
            return tf.data.Dataset.range(skip, max(skip, end)).map(batch).prefetch(2)

        return make

    def item_name(self, key: int) -> str:
        """Returns the name of an item, for output."""
        return self._item_names.get(int(key)) or super().item_name(key)

    def _features_and_labels(self, tensors: List[tf.Tensor]) -> Any:
        features = {column.name: tensor for column, tensor in zip(self.columns, tensors)}
        labels = dict(zip(self.labels, tensors[len(features) :]))
        return features, labels if len(labels) > 1 else labels[self.labels[0]]

    def _converted(self, part: str, rows: Rows) -> Rows:
        """Checks rows, and gives them the types of their columns."""
        if part not in PARTS:
            raise ValueError(f"parts of {self.name} must be of {', '.join(PARTS)}, got {part!r}")
        if set(rows.labels) != set(self.labels):
            raise ValueError(
                f"labels of {part} of {self.name} must be {', '.join(self.labels)}, got "
                f"{', '.join(rows.labels)}"
            )
        features = {}
        for column in self.columns:
            dtype = np.int64 if column.kind == "id" else np.float32
            if column.name not in rows.features:
                raise ValueError(f"{part} of {self.name} must have a column {column.name!r}")
            features[column.name] = np.asarray(rows.features[column.name], dtype)
            shape = (len(rows), column.max_length) if column.is_padded else (len(rows),)
            self._check_shape(f"column {column.name!r}", part, features[column.name], shape)
        labels = {name: np.asarray(rows.labels[name], np.float32) for name in self.labels}
        for name, array in labels.items():
            self._check_shape(f"label {name!r}", part, array, (len(rows),))
        return Rows(features, labels)

    def _check_shape(self, what: str, part: str, array: np.ndarray, shape: Tuple[int, ...]) -> None:
        found = np.shape(array)
        if found != shape:
            raise ValueError(
                f"{what} must have the shape {shape} in {part} of {self.name}, got {found}"
            )

    def _no_rows(self, part: str) -> ValueError:
        there = [each for each in PARTS if self.rows(each)]
        return ValueError(
            f"part must be one that {self.name} has, {', '.join(there)}, got {part!r}"
        )


class _Order:
    """Says which rows are in which batch; numbers of batches go on from epoch to epoch."""

    def __init__(self, count: int, batch_size: int, seed: Optional[int]) -> None:
        self._count, self._size, self._seed = count, batch_size, seed
        self.batches = count // batch_size if seed is not None else -(-count // batch_size)
        self._permutations: Dict[int, np.ndarray] = {}

    def rows(self, number: int) -> Any:
        epoch, batch = divmod(number, self.batches)
        rows = slice(batch * self._size, (batch + 1) * self._size)
        return rows if self._seed is None else self._permutation(self._seed, epoch)[rows]

    def _permutation(self, seed: int, epoch: int) -> np.ndarray:
        permutation = self._permutations.get(epoch)
        if permutation is None:
            permutation = np.random.default_rng([seed, epoch]).permutation(self._count)
            self._permutations = {epoch: permutation}  # threads that read it replace it whole
        return permutation
