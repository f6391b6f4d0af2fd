# SPDX-License-Identifier: Apache-2.0
"""DLRM: the inner products of all pairs of vectors, then a network.

Naumov et al. (2019), Deep Learning Recommendation Model for Personalization and Recommendation
Systems, https://arxiv.org/abs/1906.00091. A bottom network makes one vector of all numbers.
Difference: the top network gets all vectors besides their products, not only that of the numbers,
because many data sets have no numbers.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "bottom_units": (64,),  # before the layer of dim units
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id."""
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DLRM; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    columns, dim = params["columns"], params["dim"]
    vectors = layers.vectors(features, layers.of_kind(columns, "id"), dim)
    numbers = [features[column.name] for column in layers.of_kind(columns, "number")]
    if numbers:
        units = (*params["bottom_units"], dim)
        vectors.append(layers.hidden(tf.stack(numbers, axis=1), units, "bottom", **network))
    fields = layers.stack(vectors, layers.of_kind(columns, "id"))  # [B, fields, dim]
    inputs = tf.concat([layers.flat(fields), layers.inner_products(fields)], axis=1)
    logits = layers.tower(inputs, params["hidden_units"], "top", **network)
    return heads.click_spec(logits, features, labels, mode, params)
