# SPDX-License-Identifier: Apache-2.0
"""Layers of models with several labels: a network per label, and the product of two of them."""

from typing import Any, Dict, Mapping, Sequence, Tuple

import tensorflow.compat.v1 as tf

from model_zoo.data import DataSet
from model_zoo.layers.networks import tower


def check_labels(data: DataSet, model: str, least: int = 2) -> Tuple[str, ...]:
    """Refuses data with fewer labels than a model needs.

    Args:
      data: The data set.
      model: Name of the model, for the error.
      least: The labels that it needs.

    Returns:
      The names of the labels.

    Raises:
      ValueError: There are fewer.
    """
    if len(data.labels) < least:
        raise ValueError(
            f"{model} must have {least} labels, got {', '.join(data.labels)} of {data.name}; "
            "choose a model of one label, such as dcnv2"
        )
    return data.labels


def task_towers(
    inputs: Mapping[str, tf.Tensor], units: Sequence[int], **options: Any
) -> Dict[str, tf.Tensor]:
    """A network of its own for each label: {label: [B, n]} -> {label: logits [B]}.

    Args:
      inputs: float32 [B, n] by label.
      units: Units of the hidden layers of each network; none: one linear unit.
      **options: As in `hidden`.
    """
    return {
        label: tower(each, units, f"tower_{label}", **options) for label, each in inputs.items()
    }


def product_logits(logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """The logits of the product of two probabilities, without leaving the log scale: [B] -> [B].

    For p = sigmoid(a) sigmoid(b), log(p / (1 - p)) = a + b - log(1 + exp(a) + exp(b)).
    """
    terms = tf.stack([tf.zeros_like(logits), logits, others])
    return logits + others - tf.reduce_logsumexp(terms, axis=0)
