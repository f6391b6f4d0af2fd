# SPDX-License-Identifier: Apache-2.0
"""What finds the row of a prediction again: its place in the files, its ids and its labels."""

from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data import DataSet, id_column
from model_zoo.data.retrieval import RetrievalDataSet

Row = Dict[str, Any]


def rows_of(data: DataSet, part: str, batch_size: int) -> Iterator[Row]:
    """Yields what identifies each row of a part, in the order of `input_fn` without a seed.

    Yields:
      "file" and "line", "record" or "row", the number in it; the first id of the user and of the
      item, as the data have them, by the names of their columns; and the labels.
    """
    names = _id_columns(data)
    texts = {name: data.texts(name, part) for name in names}
    places = data.places(part)
    for features, labels in _batches(data, part, batch_size):
        named = labels if isinstance(labels, Mapping) else {data.labels[0]: labels}
        columns = {name: features[name].tolist() for name in names}
        columns.update({name: values.astype(int).tolist() for name, values in named.items()})
        for values in zip(*columns.values()):
            file, unit, number = next(places)
            place: Row = {"file": file, unit: number} if file else {unit: number}
            row: Row = dict(zip(columns, values))
            row.update({name: texts[name].get(row[name], row[name]) for name in names})
            yield {**place, **row}


def with_best(
    rows: Iterator[Row],
    predictions: Iterator[Mapping[str, np.ndarray]],
    data: DataSet,
    view: RetrievalDataSet,
    k: int,
) -> Iterator[Row]:
    """Yields rows of two towers, with the k best items in place of the scores of all.

    Args:
      rows: Those of `rows_of`. Two towers predict the ones whose first label is 1.
      predictions: "scores" of all items, for these rows.
      data: The data.
      view: The data as two towers read them.
      k: Number of items.

    Yields:
      The row, "best", the ids of the items as the files have them, and "score".
    """
    texts = data.texts(id_column(data.columns, "item", data.name).name)
    items = [texts.get(key, key) for key in view.catalogue.ids.tolist()]
    positives = (row for row in rows if row[data.labels[0]])
    for row, found in zip(positives, predictions):
        best = np.argsort(-found["scores"], kind="stable")[:k]
        best_items = np.array([items[at] for at in best])
        yield {**row, "best": best_items, "score": found["scores"][best]}


def _id_columns(data: DataSet) -> List[str]:
    """The first column of single ids of the user, and that of the item, as far as there are."""
    names = []
    for role in ("user", "item"):
        if any(c.role == role and c.kind == "id" and not c.is_padded for c in data.columns):
            names.append(id_column(data.columns, role, data.name).name)
    return names


def _batches(data: DataSet, part: str, batch_size: int) -> Iterator[Tuple[Any, Any]]:
    """Yields features and labels in NumPy; no graph is the default one between two batches."""
    with tf.Graph().as_default() as graph:
        iterator = tf.data.make_initializable_iterator(data.input_fn(part, batch_size)())
        following = iterator.get_next()
    session = tf.Session(graph=graph)
    try:
        session.run(iterator.initializer)
        while True:
            try:
                batch = session.run(following)
            except tf.errors.OutOfRangeError:
                return
            yield batch
    finally:
        session.close()
