# SPDX-License-Identifier: Apache-2.0
"""DCN: cross layers with a weight vector each, beside a network.

Wang et al. (2017), Deep & Cross Network for Ad Click Predictions, https://arxiv.org/abs/1708.05123.
Difference: a column with several ids is the mean of their vectors.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "cross_layers": 3,
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id."""
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DCN; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    # [B, fields * dim]
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    crossed = layers.cross_vectors(inputs, params["cross_layers"], "cross")
    deep = layers.hidden(inputs, params["hidden_units"], "deep", **network)
    logits = layers.tower(tf.concat([crossed, deep], axis=1), (), "head")
    return heads.click_spec(logits, features, labels, mode, params)
