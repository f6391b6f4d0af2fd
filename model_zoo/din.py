# SPDX-License-Identifier: Apache-2.0
"""DIN: attention of the candidate item over the items that the user liked before.

Zhou et al. (2018), Deep Interest Network for Click-Through Rate Prediction,
https://arxiv.org/abs/1706.06978. The attention network sees (h, q, h - q, h * q) for each item h of
the history and the candidate q. Differences: a softmax normalizes the attention, as in the authors'
code (https://github.com/zhougr1993/DeepInterestNetwork) and unlike the text of the paper. The
network also gets the product of interest and candidate; README.md says how both were chosen. ReLU
instead of Dice, no mini-batch aware regularization.
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
    return layers.declare_with_history(columns, dim, "din")


def model_fn(
    features: Dict[str, tf.Tensor],
    labels: Optional[tf.Tensor],
    mode: str,
    params: Dict[str, Any],
) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DIN.

    Args:
      features: float32 [B, dim] by column name; "history" float32 [B, max_length, dim] with
        "history_mask" bool [B, max_length].
      labels: float32 [B], 0 or 1; None in prediction.
      mode: One of rec.ModeKeys.
      params: "columns", "hidden_units" and "learning_rate".
    """
    candidate, history = features["item"], features["history"]
    weights = layers.attention_weights(
        history, features["history_mask"], candidate, _ATTENTION_UNITS, "attention"
    )
    interest = layers.weighted_mean(history, weights)
    others = layers.without_history(features, params["columns"])
    inputs = tf.concat([*others, interest, interest * candidate], axis=1)
    return click_spec(layers.tower(inputs, params["hidden_units"], "deep"), labels, mode, params)
