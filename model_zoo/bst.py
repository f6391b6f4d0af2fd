# SPDX-License-Identifier: Apache-2.0
"""BST: self-attention over the history and the candidate.

Chen et al. (2019), Behavior Sequence Transformer for E-commerce Recommendation in Alibaba,
https://arxiv.org/abs/1905.06874. Differences: a vector for each position instead of the time since
an item, because the tasks have no times; no dropout; the network gets the mean over the positions.
"""

from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from model_zoo.click_head import click_spec
from model_zoo.data import Column

_HEADS = 2


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key; the history is not combined and shares the table of the candidates.

    Raises:
      ValueError: There is no history.
    """
    return layers.declare_with_history(columns, dim, "bst")


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of BST.

    Args:
      features: float32 [B, dim] by column name; "history" float32 [B, max_length, dim], most recent
        first, with "history_mask" bool [B, max_length].
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    candidate, history = features["item"][:, None, :], features["history"]
    sequence = tf.concat([candidate, history], axis=1)
    mask = tf.pad(features["history_mask"], [[0, 0], [1, 0]], constant_values=True)
    sequence = layers.add_positions(sequence, "positions")
    sequence = layers.transformer_layer(sequence, mask, _HEADS, "transformer")
    is_item = tf.cast(mask, tf.float32)
    interest = layers.weighted_mean(
        sequence, is_item / tf.reduce_sum(is_item, axis=1, keepdims=True)
    )
    others = layers.without_history(features, params["columns"])
    inputs = tf.concat([*others, interest], axis=1)
    return click_spec(layers.tower(inputs, params["hidden_units"], "deep"), labels, mode, params)
