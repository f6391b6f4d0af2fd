# SPDX-License-Identifier: Apache-2.0
"""DeepFM: a factorization machine and a network over the same vectors.

Guo et al. (2017), DeepFM: A Factorization-Machine based Neural Network for CTR Prediction,
https://arxiv.org/abs/1703.04247. Differences: no dropout, because training is short; a field
with several keys, such as the history, is the mean of their vectors.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One row per key: a vector, then the first-order weight as the last element."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DeepFM.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    first_order, vectors = layers.split_linear(features, params["columns"])
    deep = layers.tower(tf.concat(vectors, axis=1), params["hidden_units"], "deep")
    logits = first_order + layers.pairwise_products(tf.stack(vectors, axis=1)) + deep
    return click_spec(logits, labels, mode, params)
