# SPDX-License-Identifier: Apache-2.0
"""Declared features of a data set's columns, and the vectors that models make of them."""

import dataclasses
from typing import List, Mapping, Sequence, Tuple

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data import Column

Columns = Sequence[Column]


def declare(columns: Columns, dim: int) -> List[rec.EmbeddingFeature]:
    """Declares one embedded feature per column of ids; several ids of an example are averaged.

    Args:
      columns: The columns of the data set. Numbers are no embedded features.
      dim: Floats per row, the same in every table.
    """
    return [
        rec.EmbeddingFeature(column.name, dim, table=column.table, combiner="mean")
        for column in of_kind(columns, "id")
    ]


def declare_with_linear(columns: Columns, dim: int) -> List[rec.EmbeddingFeature]:
    """As `declare`, with a linear weight behind each vector, for `split_linear`."""
    return declare(columns, dim + 1)


def declare_with_histories(columns: Columns, dim: int, model: str) -> List[rec.EmbeddingFeature]:
    """As `declare`, but a history keeps a vector for each of its items.

    Args:
      columns: The columns of the data set.
      dim: Floats per row.
      model: Name of the model, for the error.

    Raises:
      ValueError: There is no history.
    """
    lengths = {column.name: column.max_length for column in histories(columns)}
    if not lengths:
        raise ValueError(
            f"{model} must have a history column, got {', '.join(c.name for c in columns)}; choose "
            "another model, or describe a history in the schema"
        )
    return [
        dataclasses.replace(feature, combiner=None, max_length=lengths[feature.name])
        if feature.name in lengths
        else feature
        for feature in declare(columns, dim)
    ]


def of_kind(columns: Columns, kind: str) -> List[Column]:
    """The columns of a kind, "id" or "number"."""
    return [column for column in columns if column.kind == kind]


def histories(columns: Columns) -> List[Column]:
    """The columns with the role history."""
    return [column for column in columns if column.role == "history"]


def candidate(features: Mapping[str, tf.Tensor], history: Column) -> tf.Tensor:
    """float32 [B, dim], the vector of the item whose table a history shares."""
    assert history.table is not None, "Column refuses a history without a table"
    return features[history.table]


def without_histories(columns: Columns) -> List[Column]:
    """The columns with another role than history."""
    return [column for column in columns if column.role != "history"]


def vectors(features: Mapping[str, tf.Tensor], columns: Columns, dim: int) -> List[tf.Tensor]:
    """One vector per column, float32 [B, dim].

    The vector of a number is its value times a trained vector.

    Args:
      features: float32 [B, dim] by name of a column of ids, float32 [B] by name of a number.
      columns: The columns to use.
      dim: Floats per vector.

    Source of the vectors of numbers: Song et al., AutoInt, CIKM 2019,
    https://arxiv.org/abs/1810.11921, equation 4.
    """
    return [
        _number_vector(features[column.name], column.name, dim)
        if column.kind == "number"
        else features[column.name]
        for column in columns
    ]


def _number_vector(values: tf.Tensor, name: str, dim: int) -> tf.Tensor:
    with tf.variable_scope("numbers"):
        initializer = tf.truncated_normal_initializer(stddev=0.05)  # as the rows of tables
        vector = tf.get_variable(name, [1, dim], initializer=initializer)
    return values[:, tf.newaxis] * vector


def fields(features: Mapping[str, tf.Tensor], columns: Columns, dim: int) -> tf.Tensor:
    """The vectors of `vectors` in one tensor, float32 [B, fields, dim]."""
    return stack(vectors(features, columns, dim), columns)


def stack(rows: Sequence[tf.Tensor], columns: Columns) -> tf.Tensor:
    """Returns vectors in one tensor, float32 [B, fields, dim].

    Args:
      rows: float32 [B, dim], one per column; one more is of all numbers.
      columns: The columns, for the error.

    Raises:
      ValueError: The vectors have several sizes.
    """
    names = [f"column {column.name!r}" for column in columns] + ["the numbers"]
    sizes = [tf.dimension_value(row.shape[1]) for row in rows]
    usual = max(sizes, key=sizes.count)
    for name, size in zip(names, sizes):
        if size != usual:
            raise ValueError(
                f"vectors must have one size in this model, got {size} floats of {name} and "
                f"{usual} of another; set params.dim, which is for all, in place of tables.*.dim"
            )
    return tf.stack(rows, axis=1)


def split_linear(
    features: Mapping[str, tf.Tensor], columns: Columns, dim: int
) -> Tuple[tf.Tensor, List[tf.Tensor]]:
    """Splits each row into a vector and a linear weight, its last element.

    So one lookup serves the linear and the deep part of a model. The weight of a number is times
    its value.

    Args:
      features: float32 [B, dim + 1] by name of a column of ids, float32 [B] by name of a number.
      columns: The columns to use.
      dim: Floats per vector.

    Returns:
      [B], the sum of the weights, and one [B, dim] per column.
    """
    rows = vectors(features, columns, dim + 1)
    return tf.add_n([row[:, -1] for row in rows]), [row[:, :-1] for row in rows]


def flat(inputs: tf.Tensor) -> tf.Tensor:
    """[B, fields, dim] -> [B, fields * dim]; the last two sizes are static."""
    count, dim = (tf.dimension_value(size) for size in inputs.shape[1:])
    return tf.reshape(inputs, [-1, count * dim])
