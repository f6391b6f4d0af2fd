# SPDX-License-Identifier: Apache-2.0
"""DIEN: a GRU over the history, and a second one that attends to the candidate.

Zhou et al. (2019), Deep Interest Evolution Network for Click-Through Rate Prediction,
https://arxiv.org/abs/1809.03672. Differences: no auxiliary loss, because it needs items that were
shown and not clicked at each step of the history; the attention is that of DIN; ReLU instead of
Dice.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "attention_units": (32, 16),
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id; each item of a history keeps its own.

    Raises:
      ValueError: There is no history.
    """
    return layers.declare_with_histories(data.columns, params["dim"], "dien")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DIEN; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    columns = params["columns"]
    inputs = layers.vectors(features, layers.without_histories(columns), params["dim"])
    for history in layers.histories(columns):
        candidate = layers.candidate(features, history)  # [B, dim]
        dim = tf.dimension_value(candidate.shape[1])
        # The oldest item first: [B, max_length, dim] and [B, max_length].
        items = tf.reverse(features[history.name], [1])
        mask = tf.reverse(features[f"{history.name}_mask"], [1])
        with tf.variable_scope(history.name):
            interests = layers.recurrent(items, mask, dim, "extractor")
            weights = layers.attention_weights(
                interests, mask, candidate, params["attention_units"], "attention"
            )
            evolved = layers.recurrent(interests, mask, dim, "evolution", weights)[:, -1]
        inputs += [evolved, evolved * candidate]
    logits = layers.tower(tf.concat(inputs, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(logits, features, labels, mode, params)
