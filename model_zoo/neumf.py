# SPDX-License-Identifier: Apache-2.0
"""NeuMF: the product of the vectors of user and item, beside a network over other vectors.

He et al. (2017), Neural Collaborative Filtering, https://arxiv.org/abs/1708.05031. The two parts
have tables of their own, and one linear unit joins them. Differences: the network also reads the
further columns of the data; no pre-training.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet, id_column
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {"dim": 16, "hidden_units": (64, 32, 16), "dropout": 0.0, "batch_norm": False}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id for the network, and further ones of user and item for the product.

    Raises:
      ValueError: There is no id of the user, or none of the item.
    """
    columns = [id_column(data.columns, role, "neumf") for role in ("user", "item")]
    factors = [
        rec.EmbeddingFeature(f"{column.role}_factors", params["dim"], source=column.name)
        for column in columns
    ]
    return [*layers.declare(data.columns, params["dim"]), *factors]


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of NeuMF; model_zoo/models.py describes the arguments."""
    product = features["user_factors"] * features["item_factors"]
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    deep = layers.hidden(
        inputs, params["hidden_units"], "deep", **layers.network_settings(params, mode)
    )
    logits = layers.dense(tf.concat([product, deep], axis=1), 1, "output")
    return heads.click_spec(tf.squeeze(logits, axis=1), features, labels, mode, params)
