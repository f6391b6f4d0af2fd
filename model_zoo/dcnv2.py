# SPDX-License-Identifier: Apache-2.0
"""DCN V2: cross layers with a matrix of low rank each, then a network.

Wang et al. (2021), DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems, https://arxiv.org/abs/2008.13535. The stacked form. Differences: no
mixture of experts; a field with several keys is the mean of their vectors.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_CROSS_LAYERS, _RANK = 2, 32


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DCN V2.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    inputs = layers.flat(layers.fields(features, params["columns"]))
    crossed = layers.cross_matrices(inputs, _CROSS_LAYERS, _RANK, "cross")
    return click_spec(layers.tower(crossed, params["hidden_units"], "deep"), labels, mode, params)
