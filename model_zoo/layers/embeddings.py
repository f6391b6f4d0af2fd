# SPDX-License-Identifier: Apache-2.0
"""Declared features of a task's columns, and how models take their vectors apart."""

import dataclasses
from typing import Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data import Column


def declare(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """Declares one embedded feature per column; several keys of an example are averaged.

    Args:
      columns: The columns of the task.
      dim: Floats per row, the same in every table.
    """
    return [
        rec.EmbeddingFeature(column.name, dim, table=column.table, combiner="mean")
        for column in columns
    ]


def declare_with_history(
    columns: Sequence[Column], dim: int, model: str
) -> List[rec.EmbeddingFeature]:
    """As `declare`, but the history keeps a vector for each of its items.

    Args:
      columns: The columns of the task.
      dim: Floats per row.
      model: Name of the model, for the error.

    Raises:
      ValueError: There is no history.
    """
    if "history" not in {column.name for column in columns}:
        raise ValueError(
            f"{model} must have a column 'history', got {[column.name for column in columns]}; "
            "choose another model for data without histories"
        )
    return [
        dataclasses.replace(feature, combiner=None, max_length=column.max_length)
        if column.name == "history"
        else feature
        for feature, column in zip(declare(columns, dim), columns)
    ]


def fields(features: Dict[str, tf.Tensor], columns: Sequence[Column]) -> tf.Tensor:
    """float32 [B, fields, dim], the vector of each column."""
    return tf.stack([features[column.name] for column in columns], axis=1)


def flat(vectors: tf.Tensor) -> tf.Tensor:
    """[B, fields, dim] -> [B, fields * dim]; the last two sizes are static."""
    count, dim = (tf.dimension_value(size) for size in vectors.shape[1:])
    return tf.reshape(vectors, [-1, count * dim])


def without_history(features: Dict[str, tf.Tensor], columns: Sequence[Column]) -> List[tf.Tensor]:
    """float32 [B, dim], the vector of each column but the history."""
    return [features[column.name] for column in columns if column.name != "history"]


def split_linear(
    features: Dict[str, tf.Tensor], columns: Sequence[Column]
) -> Tuple[tf.Tensor, List[tf.Tensor]]:
    """Splits each row into a vector and a linear weight, its last element.

    So one lookup serves the linear and the deep part of a model.

    Args:
      features: float32 [B, dim] by column name.
      columns: The columns to use.

    Returns:
      [B], the sum of the weights, and one [B, dim - 1] per column.
    """
    rows = [features[column.name] for column in columns]
    return tf.add_n([row[:, -1] for row in rows]), [row[:, :-1] for row in rows]
