# SPDX-License-Identifier: Apache-2.0
"""Layers that the models share, with tf.get_variable."""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

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


def dense(
    inputs: tf.Tensor,
    units: int,
    name: str,
    activation: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
) -> tf.Tensor:
    """A fully connected layer over the last axis: [..., n] -> [..., units]."""
    width = tf.dimension_value(inputs.shape[-1])
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [width, units])  # Glorot uniform
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    # One matrix product for any number of axes; the last axis is static.
    flat = tf.reshape(inputs, [-1, width])
    outputs = tf.nn.bias_add(tf.matmul(flat, kernel), bias)
    if inputs.shape.rank != 2:
        outputs = tf.reshape(outputs, tf.concat([tf.shape(inputs)[:-1], [units]], axis=0))
        outputs.set_shape([*inputs.shape[:-1], units])
    return outputs if activation is None else activation(outputs)


def tower(inputs: tf.Tensor, hidden_units: Sequence[int], name: str) -> tf.Tensor:
    """ReLU layers with `hidden_units`, then one linear unit: [..., n] -> [...]."""
    with tf.variable_scope(name):
        for number, units in enumerate(hidden_units):
            inputs = dense(inputs, units, f"hidden_{number}", tf.nn.relu)
        return tf.squeeze(dense(inputs, 1, "output"), axis=-1)
