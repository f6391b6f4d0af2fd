# SPDX-License-Identifier: Apache-2.0
"""Wide & deep: a linear model and a network over vectors, trained together.

Cheng et al. (2016), Wide & Deep Learning for Recommender Systems, https://arxiv.org/abs/1606.07792.
Differences: the wide part has one weight per key and no crossed features. One optimizer trains both
parts; the paper uses FTRL with L1 for the wide part and AdaGrad for the deep part. The history is
an additional feature, the mean of its items.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One row per key: the vector of the deep part, then the weight of the wide part."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of wide & deep.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    wide, vectors = layers.split_linear(features, params["columns"])
    deep = layers.tower(tf.concat(vectors, axis=1), params["hidden_units"], "deep")
    return click_spec(wide + deep, labels, mode, params)
