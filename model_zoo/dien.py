# SPDX-License-Identifier: Apache-2.0
"""DIEN: a GRU over the history, and a second one that attends to the candidate.

Zhou et al. (2019), Deep Interest Evolution Network for Click-Through Rate Prediction,
https://arxiv.org/abs/1809.03672. Differences: no auxiliary loss, because it needs items that were
shown and not clicked at each step of the history; ReLU instead of Dice.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_ATTENTION_UNITS = (32, 16)


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key; the history is not combined and shares the table of the candidates.

    Raises:
      ValueError: There is no history.
    """
    return layers.declare_with_history(columns, dim, "dien")


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DIEN.

    Args:
      features: float32 [B, dim] by column name; "history" float32 [B, max_length, dim], most recent
        first, with "history_mask" bool [B, max_length].
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    candidate = features["item"]
    # The oldest item first.
    history, mask = (tf.reverse(features[name], [1]) for name in ("history", "history_mask"))
    dim = tf.dimension_value(candidate.shape[-1])
    interests = layers.recurrent(history, mask, dim, "extractor")
    weights = layers.attention_weights(interests, mask, candidate, _ATTENTION_UNITS, "attention")
    evolved = layers.recurrent(interests, mask, dim, "evolution", weights)[:, -1]
    others = layers.without_history(features, params["columns"])
    inputs = tf.concat([*others, evolved, evolved * candidate], axis=1)
    return click_spec(layers.tower(inputs, params["hidden_units"], "deep"), labels, mode, params)
