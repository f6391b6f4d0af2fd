# SPDX-License-Identifier: Apache-2.0
"""MaskNet: networks whose inputs are multiplied by masks made of all vectors.

Wang, She and Zhang (2021), MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models
by Instance-Guided Mask, https://arxiv.org/abs/2102.07619. The parallel form. Differences: no
dropout; a field with several keys is the mean of their vectors.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_BLOCKS, _BLOCK_UNITS, _MASK_UNITS = 3, 64, 64


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of MaskNet.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    vectors = layers.fields(features, params["columns"])
    inputs = layers.flat(vectors)
    normalized = layers.flat(layers.layer_norm(vectors, "norm_vectors"))
    width = tf.dimension_value(inputs.shape[-1])
    blocks = []
    for number in range(_BLOCKS):
        with tf.variable_scope(f"block_{number}"):
            mask = layers.dense(inputs, _MASK_UNITS, "aggregate", tf.nn.relu)
            mask = layers.dense(mask, width, "project")
            masked = layers.dense(normalized * mask, _BLOCK_UNITS, "hidden")
            blocks.append(tf.nn.relu(layers.layer_norm(masked, "norm")))
    deep = layers.tower(tf.concat(blocks, axis=1), params["hidden_units"], "deep")
    return click_spec(deep, labels, mode, params)
