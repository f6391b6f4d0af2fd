# SPDX-License-Identifier: Apache-2.0
"""DCN: cross layers with a weight vector each, beside a network.

Wang et al. (2017), Deep & Cross Network for Ad Click Predictions, https://arxiv.org/abs/1708.05123.
Differences: no batch normalization; a field with several keys is the mean of their vectors.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_CROSS_LAYERS = 3


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DCN.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    inputs = layers.flat(layers.fields(features, params["columns"]))
    crossed = layers.cross_vectors(inputs, _CROSS_LAYERS, "cross")
    deep = layers.hidden(inputs, params["hidden_units"], "deep")
    logits = layers.tower(tf.concat([crossed, deep], axis=1), (), "head")
    return click_spec(logits, labels, mode, params)
