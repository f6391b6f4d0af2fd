# SPDX-License-Identifier: Apache-2.0
"""DeepFM: a factorization machine and a network over the same vectors.

Guo et al. (2017), DeepFM: A Factorization-Machine based Neural Network for CTR Prediction,
https://arxiv.org/abs/1703.04247. Difference: a column with several ids, such as a history, is the
mean of their vectors.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One row per id: a vector, then the weight of the linear part."""
    return layers.declare_with_linear(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DeepFM; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    first_order, vectors = layers.split_linear(features, params["columns"], params["dim"])
    second_order = layers.pairwise_products(layers.stack(vectors, params["columns"]))
    deep = layers.tower(tf.concat(vectors, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(first_order + second_order + deep, features, labels, mode, params)
