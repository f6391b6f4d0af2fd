# SPDX-License-Identifier: Apache-2.0
"""xDeepFM: a compressed interaction network beside linear weights and a network.

Lian et al. (2018), xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
Systems, https://arxiv.org/abs/1803.05170. Difference: a column with several ids is the mean of
their vectors.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "maps": (32, 32),  # maps of each layer of the interaction network
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One row per id: a vector, then the weight of the linear part."""
    return layers.declare_with_linear(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of xDeepFM; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    linear, vectors = layers.split_linear(features, params["columns"], params["dim"])
    stacked = layers.stack(vectors, params["columns"])
    maps = layers.compressed_interactions(stacked, params["maps"], "interactions")
    interactions = layers.tower(maps, (), "interactions_head")
    deep = layers.tower(tf.concat(vectors, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(linear + interactions + deep, features, labels, mode, params)
