# SPDX-License-Identifier: Apache-2.0
"""FinalMLP: two networks over differently gated vectors, and the products of their outputs.

Mao et al. (2023), FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction,
https://arxiv.org/abs/2304.00902. The gate of a network depends on the columns of one role, user or
item; it is a trained constant if the data set has no such column. Difference: a column with several
ids is the mean of their vectors.
"""

from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "gates": ("user", "item"),  # roles of the columns that gate each network; (): no gates
    "gate_units": (64,),
    "hidden_units": (128, 64),
    "second_units": (64,),  # the second network's
    "heads": 4,
    "dropout": 0.0,
    "second_dropout": None,  # the second network's; None: as the first
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id."""
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of FinalMLP; model_zoo/models.py describes the arguments.

    Raises:
      ValueError: heads does not divide the last units of both networks.
    """
    network = layers.network_settings(params, mode)
    columns, dim = params["columns"], params["dim"]
    vectors = layers.vectors(features, columns, dim)
    inputs = tf.concat(vectors, axis=1)  # [B, fields * dim]
    gated = [inputs, inputs]
    for number, role in enumerate(params["gates"]):
        with tf.variable_scope(f"gate_{number}"):
            of_role = [vector for column, vector in zip(columns, vectors) if column.role == role]
            context = (
                tf.concat(of_role, axis=1) if of_role else tf.get_variable("context", [1, dim])
            )
            gated[number] = layers.gate(inputs, context, params["gate_units"])
    first = layers.hidden(gated[0], params["hidden_units"], "first", **network)
    if params["second_dropout"] is not None:
        network["dropout"] = params["second_dropout"]
    second = layers.hidden(gated[1], params["second_units"], "second", **network)
    logits = layers.bilinear_fusion(first, second, params["heads"], "fusion")
    return heads.click_spec(logits, features, labels, mode, params)
