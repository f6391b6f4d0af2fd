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
_MASKED = -1e9  # becomes 0 in a softmax; finite, because a whole row may be masked


def embedding_features(columns: Sequence[Column], dim: int) -> List[rec.EmbeddingFeature]:
    """One vector per key; the history is not combined and shares the table of the candidates.

    Raises:
      ValueError: There is no history.
    """
    declared = {feature.name: feature for feature in layers.declare(columns, dim)}
    history = next((column for column in columns if column.name == "history"), None)
    if history is None:
        raise ValueError(
            f"din must have a column 'history', got {[column.name for column in columns]}; choose "
            "another model for data without histories"
        )
    declared["history"] = rec.EmbeddingFeature(
        "history", dim, table=history.table, combiner=None, max_length=history.max_length
    )
    return list(declared.values())


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
    candidate = features["item"]
    interest = attend(features["history"], features["history_mask"], candidate)
    others = [features[column.name] for column in params["columns"] if column.name != "history"]
    inputs = tf.concat([*others, interest, interest * candidate], axis=1)
    return click_spec(layers.tower(inputs, params["hidden_units"], "deep"), labels, mode, params)


def attend(history: tf.Tensor, mask: tf.Tensor, query: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the history, weighted by attention to the query.

    Args:
      history: float32 [B, T, dim].
      mask: bool [B, T]. False: padding, with weight 0.
      query: float32 [B, dim].

    Returns:
      float32 [B, dim]; zeros for an empty history.
    """
    queries = tf.broadcast_to(query[:, tf.newaxis, :], tf.shape(history))
    queries.set_shape(history.shape)
    pairs = tf.concat([history, queries, history - queries, history * queries], axis=-1)
    scores = layers.tower(pairs, _ATTENTION_UNITS, "attention")
    weights = tf.nn.softmax(tf.where(mask, scores, tf.fill(tf.shape(scores), _MASKED)))
    # The softmax of an empty history is uniform; the mask makes it 0.
    weights *= tf.cast(mask, tf.float32)
    return tf.reduce_sum(history * weights[..., tf.newaxis], axis=1)
