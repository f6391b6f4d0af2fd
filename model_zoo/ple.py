# SPDX-License-Identifier: Apache-2.0
"""PLE: levels of experts, some shared and some of one label, then a network per label.

Tang et al. (2020), Progressive Layered Extraction (PLE): A Novel Multi-Task Learning Model for
Personalized Recommendations, https://doi.org/10.1145/3383313.3412236. Differences: the losses have
equal weights that stay, and all labels are trained on all rows.
"""

from typing import List

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params

DEFAULTS = {
    "dim": 16,
    "num_shared_experts": 2,
    "num_task_experts": 2,
    "expert_units": ((64,), (64,)),  # for each level
    "task_units": (32,),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id.

    Raises:
      ValueError: There are fewer than two labels.
    """
    layers.check_labels(data, "ple")
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of PLE; model_zoo/models.py describes the arguments."""
    network = layers.network_settings(params, mode)
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    extracted = layers.progressive_extraction(
        inputs,
        len(params["labels"]),
        params["num_shared_experts"],
        params["num_task_experts"],
        params["expert_units"],
        "ple",
        **network,
    )
    of_label = dict(zip(params["labels"], extracted))
    logits = layers.task_towers(of_label, params["task_units"], **network)
    return heads.tasks_spec(logits, features, labels, mode, params)
