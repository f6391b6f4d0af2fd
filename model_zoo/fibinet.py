# SPDX-License-Identifier: Apache-2.0
"""FiBiNET: fields weighted by all fields, and bilinear products of pairs of fields.

Huang et al. (2019), FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for
Click-Through Rate Prediction, https://arxiv.org/abs/1905.09433. Differences: a sigmoid weights the
fields (layers/interactions.py says why); a column with several ids is the mean of their vectors.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "reduction": 3,  # fields for each unit of the squeezed layer
    "bilinear": "all",  # one matrix for all pairs; or "each" field, or each "pair"
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One row per id: a vector, then the weight of the linear part."""
    return layers.declare_with_linear(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of FiBiNET; model_zoo/models.py describes the arguments.

    Raises:
      ValueError: bilinear is unknown.
    """
    network = layers.network_settings(params, mode)
    linear, rows = layers.split_linear(features, params["columns"], params["dim"])
    vectors = layers.stack(rows, params["columns"])  # [B, fields, dim]
    weighted = layers.squeeze_excite(vectors, params["reduction"], "squeeze_excite")
    pairs = [
        layers.bilinear_pairs(vectors, params["bilinear"], "pairs"),
        layers.bilinear_pairs(weighted, params["bilinear"], "weighted_pairs"),
    ]
    deep = layers.tower(tf.concat(pairs, axis=1), params["hidden_units"], "deep", **network)
    return heads.click_spec(linear + deep, features, labels, mode, params)
