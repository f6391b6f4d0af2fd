# SPDX-License-Identifier: Apache-2.0
"""FiBiNET: fields weighted by all fields, and bilinear products of pairs of fields.

Huang et al. (2019), FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for
Click-Through Rate Prediction, https://arxiv.org/abs/1905.09433. One matrix for all pairs
("field-all"). Differences: a sigmoid weights the fields (layers/interactions.py says why); no
dropout, no linear weights; a field with several keys is the mean of their vectors.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_REDUCTION = 3


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key."""
    return layers.declare(columns, dim)


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of FiBiNET.

    Args:
      features: float32 [B, dim] by column name.
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    vectors = layers.fields(features, params["columns"])
    weighted = layers.squeeze_excite(vectors, _REDUCTION, "squeeze_excite")
    pairs = [
        layers.bilinear_pairs(vectors, "pairs"),
        layers.bilinear_pairs(weighted, "weighted_pairs"),
    ]
    deep = layers.tower(tf.concat(pairs, axis=1), params["hidden_units"], "deep")
    return click_spec(deep, labels, mode, params)
