# SPDX-License-Identifier: Apache-2.0
"""xDeepFM: a compressed interaction network beside linear weights and a network.

Lian et al. (2018), xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
Systems, https://arxiv.org/abs/1803.05170. Differences: no regularization; a field with several keys
is the mean of their vectors.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_MAPS = (32, 32)


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One row per key: a vector, then the first-order weight as the last element."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of xDeepFM.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    linear, vectors = layers.split_linear(features, params["columns"])
    maps = layers.compressed_interactions(tf.stack(vectors, axis=1), _MAPS, "interactions")
    interactions = layers.tower(maps, (), "interactions_head")
    deep = layers.tower(tf.concat(vectors, axis=1), params["hidden_units"], "deep")
    return click_spec(linear + interactions + deep, labels, mode, params)
