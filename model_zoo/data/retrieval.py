# SPDX-License-Identifier: Apache-2.0
"""A data set as two towers need it: users, candidates, and which candidate is the right one."""

import dataclasses
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data.catalogue import Catalogue, Columns
from model_zoo.data.column import id_column
from model_zoo.data.dataset import PARTS, DataSet, InputFn, Reading

_SCAN_ROWS = 4096  # in a batch while the catalogue is collected

_Features = Dict[str, tf.Tensor]


class RetrievalDataSet(DataSet):
    """The rows of a data set whose first label is 1, each with candidates to choose its item from.

    Columns of items have a row for each of C candidates, all others one for each of B users. The
    labels are int64 [B], the row of the right candidate.

    In "train" the candidates are the items of the batch, in its order, and some more drawn from the
    catalogue; `item_log_q`, float32 [C], has the log of how often each is expected among them. In
    the other parts they are the whole catalogue: every item of the data set, in order of the ids.

    Args:
      data: A data set with an item column of single ids.
      negatives: How many candidates are drawn for each training batch, beyond its own items.

    Raises:
      ValueError: There is no such column, or negatives is below 0.

    Example:
      >>> data = RetrievalDataSet(generate_clicks(rows=2000), negatives=64)
      >>> features, labels = data.input_fn("train", 32, seed=1)().element_spec
      >>> features["user"].shape, features["item"].shape, labels.shape
      (TensorShape([32]), TensorShape([96]), TensorShape([32]))
    """

    labels = ("item_row",)

    def __init__(self, data: DataSet, negatives: int = 256) -> None:
        if negatives < 0:
            raise ValueError(f"negatives must be at least 0, got {negatives}")
        self._data, self._negatives = data, negatives
        self.name, self.columns, self.credit = data.name, data.columns, data.credit
        self._item = id_column(data.columns, "item", data.name).name

    @functools.cached_property
    def catalogue(self) -> Catalogue:
        """The items of all parts. They are read once, at the first use."""
        return Catalogue.of(self._item, self._items())

    def rows(self, part: str) -> Optional[int]:
        """Returns 0 for a part that the data set lacks, else None: nobody counted its rows."""
        return 0 if self._data.rows(part) == 0 else None

    def count_training_rows(self) -> int:
        """Returns the number of training rows whose first label is 1."""
        return int(self.catalogue.counts.sum())

    def late_row(self) -> str:
        """Returns the first training row that is earlier than the one before it, or ""."""
        return self._data.late_row()

    def without_validation(self) -> "RetrievalDataSet":
        """Returns the data set whose validation rows are training rows."""
        return RetrievalDataSet(self._data.without_validation(), self._negatives)

    def read(self, reading: Reading) -> InputFn:
        """Returns the input_fn of a reading, of the batches that this class describes.

        A batch may contain the end of an epoch and the start of the next.
        """
        batch_size, seed = reading.batch_size, reading.seed
        all_rows = self._data.read(dataclasses.replace(reading, skip=0))
        users = None if seed is None else batch_size
        catalogue = self.catalogue
        if reading.part == "train" and not catalogue.counts.any():
            raise ValueError(
                f"{self.name} must have training rows whose label {self._data.labels[0]!r} is 1, "
                "got none; two towers learn from these only: check labels of the schema"
            )

        def make() -> tf.data.Dataset:
            rows = all_rows().map(self._positives)
            rows = rows.rebatch(batch_size, drop_remainder=seed is not None).skip(reading.skip)
            if reading.part != "train":
                return rows.map(self._add_all(users)).prefetch(2)
            sampler = rec.inputs.CandidateSampler(
                catalogue.columns,
                catalogue.counts,
                item=self._item,
                negatives=self._negatives,
                seed=seed or 0,
            )
            return sampler.add_to(rows, first=reading.skip).prefetch(2)

        return make

    def item_name(self, key: int) -> str:
        """Returns the name of an item, for output."""
        return self._data.item_name(key)

    def _positives(self, features: _Features, labels: Any) -> _Features:
        """The rows of a batch whose first label is 1."""
        first = labels[self._data.labels[0]] if isinstance(labels, dict) else labels
        return {name: tf.boolean_mask(each, first > 0.5) for name, each in features.items()}

    def _add_all(self, users: Optional[int]) -> Callable[..., Any]:
        """Returns the function that adds the whole catalogue to a batch."""
        catalogue = self.catalogue

        def look_up(ids: np.ndarray) -> List[np.ndarray]:
            return [catalogue.rows(ids), *catalogue.columns.values()]

        def add(features: _Features) -> Tuple[_Features, tf.Tensor]:
            # From NumPy, so that the catalogue is not in the graph.
            types = [tf.int64, *_types_of(catalogue)]
            labels, *items = tf.numpy_function(look_up, [features[self._item]], types)
            labels.set_shape([users])
            return {**features, **self._shaped(items, len(catalogue))}, labels

        return add

    def _shaped(self, items: Sequence[tf.Tensor], count: Optional[int]) -> _Features:
        """Columns of the catalogue by name, with the static shapes that numpy_function lost."""
        columns = dict(zip(self.catalogue.columns, items))
        for name, column in columns.items():
            column.set_shape([count, *self.catalogue.columns[name].shape[1:]])
        return columns

    def _items(self) -> Iterator[Tuple[Columns, np.ndarray]]:
        """Columns of items, batch by batch, and which rows are right ones of training."""
        names = [column.name for column in self.columns if column.role == "item"]
        for part in PARTS:
            if self._data.rows(part) == 0:
                continue
            with tf.Graph().as_default(), tf.Session() as session:
                dataset = self._data.input_fn(part, _SCAN_ROWS)()
                iterator = tf.data.make_initializable_iterator(dataset)
                features, labels = iterator.get_next()
                first = labels[self._data.labels[0]] if isinstance(labels, dict) else labels
                wanted = {name: features[name] for name in names}, first
                session.run(iterator.initializer)
                while True:
                    try:
                        items, is_right = session.run(wanted)
                    except tf.errors.OutOfRangeError:
                        break
                    yield items, (is_right > 0.5) & (part == "train")


def _types_of(catalogue: Catalogue) -> List[tf.DType]:
    return [tf.as_dtype(column.dtype) for column in catalogue.columns.values()]
