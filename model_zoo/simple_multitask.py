# SPDX-License-Identifier: Apache-2.0
"""Shared bottom: one network for all labels, then a network per label.

Caruana (1997), Multitask Learning, Machine Learning 28, https://doi.org/10.1023/A:1007379606734.
Without hidden_units, the labels share the tables only.
"""

from typing import List

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "hidden_units": (128, 64),
    "task_units": (32,),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id.

    Raises:
      ValueError: There are fewer than two labels.
    """
    layers.check_labels(data, "simple_multitask")
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of a shared bottom; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    shared = layers.hidden(inputs, params["hidden_units"], "shared", **network)
    of_label = dict.fromkeys(params["labels"], shared)
    logits = layers.task_towers(of_label, params["task_units"], **network)
    return heads.tasks_spec(logits, features, labels, mode, params)
