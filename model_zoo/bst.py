# SPDX-License-Identifier: Apache-2.0
"""BST: self-attention over the history and the candidate.

Chen et al. (2019), Behavior Sequence Transformer for E-commerce Recommendation in Alibaba,
https://arxiv.org/abs/1905.06874. Differences: a vector for each position instead of the time since
an item, because the data sets have no times; the network gets the mean over the positions.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "heads": 2,
    "blocks": 1,
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id; each item of a history keeps its own.

    Raises:
      ValueError: There is no history.
    """
    return layers.declare_with_histories(data.columns, params["dim"], "bst")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of BST; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    dropout = {name: network[name] for name in ("is_training", "dropout")}
    columns = params["columns"]
    inputs = layers.vectors(features, layers.without_histories(columns), params["dim"])
    for history in layers.histories(columns):
        candidate = layers.candidate(features, history)[:, tf.newaxis, :]
        mask = features[f"{history.name}_mask"]
        # [B, 1 + max_length, dim] and [B, 1 + max_length]
        sequence = tf.concat([candidate, features[history.name]], axis=1)
        mask = tf.pad(mask, [[0, 0], [1, 0]], constant_values=True)
        with tf.variable_scope(history.name):
            sequence = layers.add_positions(sequence, "positions")
            for block in range(params["blocks"]):
                sequence = layers.transformer_layer(
                    sequence, mask, params["heads"], f"transformer_{block}", **dropout
                )
        inputs.append(layers.masked_mean(sequence, mask))
    logits = layers.tower(tf.concat(inputs, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(logits, features, labels, mode, params)
