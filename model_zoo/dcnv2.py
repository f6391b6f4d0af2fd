# SPDX-License-Identifier: Apache-2.0
"""DCN V2: cross layers with a matrix each, before or beside a network.

Wang et al. (2021), DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems, https://arxiv.org/abs/2008.13535. Differences: no mixture of experts; a
column with several ids is the mean of their vectors.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params
from model_zoo.names import check_names

DEFAULTS = {
    "dim": 16,
    "cross_layers": 2,
    "rank": 32,  # rank of the matrices; 0: full matrices
    "structure": "stacked",  # or "parallel"
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id."""
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DCN V2; model_zoo/models.py describes the arguments.

    Raises:
      ValueError: structure is unknown.
    """
    check_names("structure", [params["structure"]], ("stacked", "parallel"))
    network = layers.network_settings(params, mode)
    # [B, fields * dim]
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    crossed = layers.cross_matrices(inputs, params["cross_layers"], params["rank"], "cross")
    if params["structure"] == "stacked":
        logits = layers.tower(crossed, params["hidden_units"], "deep", **network)
    else:
        deep = layers.hidden(inputs, params["hidden_units"], "deep", **network)
        logits = layers.tower(tf.concat([crossed, deep], axis=1), (), "head")
    return heads.click_spec(logits, features, labels, mode, params)
