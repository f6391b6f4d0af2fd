# SPDX-License-Identifier: Apache-2.0
"""DBMTL: the network of each label also reads those of the labels before it.

Wang et al. (2019), Deep Bayesian Multi-Target Learning for Recommender Systems,
https://arxiv.org/abs/1902.09154. P(all labels) is a product of P(label | labels before it); each
factor is a network over the hidden layers of its label and of its parents. The Bayesian network is
the chain of the labels in their order, such as a click before a purchase.
"""

from typing import Dict, List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "hidden_units": (128, 64),
    "task_units": (32,),
    "relation_units": (32,),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id.

    Raises:
      ValueError: There are fewer than two labels.
    """
    layers.check_labels(data, "dbmtl")
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of DBMTL; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    shared = layers.hidden(inputs, params["hidden_units"], "shared", **network)
    of_label: Dict[str, tf.Tensor] = {}
    specific: List[tf.Tensor] = []
    for label in params["labels"]:
        specific.append(layers.hidden(shared, params["task_units"], f"task_{label}", **network))
        of_label[label] = tf.concat(specific, axis=1)
    logits = layers.task_towers(of_label, params["relation_units"], **network)
    return heads.tasks_spec(logits, features, labels, mode, params)
