# SPDX-License-Identifier: Apache-2.0
"""Wide & deep: a linear model and a network over vectors, trained together.

Cheng et al. (2016), Wide & Deep Learning for Recommender Systems, https://arxiv.org/abs/1606.07792.
Differences: the wide part has one weight per id and no crossed features. Both parts have the same
optimizers; the paper uses FTRL with L1 for the wide part and AdaGrad for the deep part. A column
with several ids, such as a history, is the mean of their vectors.
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
    """Returns the EstimatorSpec of wide & deep; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    wide, vectors = layers.split_linear(features, params["columns"], params["dim"])
    deep = layers.tower(tf.concat(vectors, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(wide + deep, features, labels, mode, params)
