# SPDX-License-Identifier: Apache-2.0
"""DLRM: the inner products of all pairs of vectors, then a network.

Naumov et al. (2019), Deep Learning Recommendation Model for Personalization and Recommendation
Systems, https://arxiv.org/abs/1906.00091. Differences: the tasks have no numbers, so there is no
bottom network, and the top network gets the vectors themselves beside their products.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DLRM.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    vectors = layers.fields(features, params["columns"])
    inputs = tf.concat([layers.flat(vectors), layers.inner_products(vectors)], axis=1)
    return click_spec(layers.tower(inputs, params["hidden_units"], "top"), labels, mode, params)
