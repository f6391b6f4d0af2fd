# SPDX-License-Identifier: Apache-2.0
"""DIN: attention of the candidate item over the items that the user liked before.

Zhou et al. (2018), Deep Interest Network for Click-Through Rate Prediction,
https://arxiv.org/abs/1706.06978. The attention network sees (h, q, h - q, h * q) for each item h of
a history and the candidate q. Differences: a softmax normalizes the attention, as in the authors'
code (https://github.com/zhougr1993/DeepInterestNetwork) and unlike the text of the paper. The
network also gets the product of interest and candidate. Both can be switched off; README.md says
what they are worth. ReLU instead of Dice, no mini-batch aware regularization.
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
    "softmax": True,  # of the attention
    "product": True,  # of interest and candidate, as an input of the network
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id; each item of a history keeps its own.

    Raises:
      ValueError: There is no history.
    """
    return layers.declare_with_histories(data.columns, params["dim"], "din")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DIN; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    columns, units = params["columns"], params["attention_units"]
    inputs = layers.vectors(features, layers.without_histories(columns), params["dim"])
    for history in layers.histories(columns):
        items, mask = features[history.name], features[f"{history.name}_mask"]
        candidate = layers.candidate(features, history)  # [B, dim]
        weights = layers.attention_weights(
            items, mask, candidate, units, f"attention_{history.name}", softmax=params["softmax"]
        )
        interest = layers.weighted_mean(items, weights)  # [B, dim]
        inputs += [interest, interest * candidate] if params["product"] else [interest]
    logits = layers.tower(tf.concat(inputs, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(logits, features, labels, mode, params)
