# SPDX-License-Identifier: Apache-2.0
"""MMoE: experts that all labels share, and for each label a gate and a network.

Ma et al. (2018), Modeling Task Relationships in Multi-task Learning with Multi-gate
Mixture-of-Experts, https://doi.org/10.1145/3219819.3220007.
"""

from typing import List

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "num_experts": 4,
    "expert_units": (64,),
    "task_units": (32,),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id.

    Raises:
      ValueError: There are fewer than two labels.
    """
    layers.check_labels(data, "mmoe")
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of MMoE; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    mixtures = layers.multi_gate_mixtures(
        inputs,
        len(params["labels"]),
        params["num_experts"],
        params["expert_units"],
        "mmoe",
        **network,
    )
    of_label = dict(zip(params["labels"], mixtures))
    logits = layers.task_towers(of_label, params["task_units"], **network)
    return heads.tasks_spec(logits, features, labels, mode, params)
