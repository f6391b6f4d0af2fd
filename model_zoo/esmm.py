# SPDX-License-Identifier: Apache-2.0
"""ESMM: the conversion rate after a click, trained on all rows by way of a product.

Ma et al. (2018), Entire Space Multi-Task Model: An Effective Approach for Estimating
Post-Click Conversion Rate, https://arxiv.org/abs/1804.07931. The first label is the click, the
second one the conversion. The networks estimate P(click) and P(conversion | click); the losses are
those of P(click) and of their product, P(click and conversion), so that rows without a click train
both, and nothing divides. The product is computed from logits.
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
    """One vector per id.

    Raises:
      ValueError: There are fewer than two labels.
    """
    layers.check_labels(data, "esmm")
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of ESMM; model_zoo/models.py describes the arguments."""
    click, conversion = params["labels"][:2]
    rate = f"{conversion}_after_{click}"
    network = layers.network_settings(params, mode)
    inputs = layers.flat(layers.fields(features, params["columns"], params["dim"]))
    towers = layers.task_towers({click: inputs, rate: inputs}, params["hidden_units"], **network)
    logits = {click: towers[click], conversion: layers.product_logits(towers[click], towers[rate])}
    if labels is not None:
        labels = {click: labels[click], conversion: labels[click] * labels[conversion]}
    rates = {f"probabilities/{rate}": tf.sigmoid(towers[rate])}
    return heads.tasks_spec(logits, features, labels, mode, params, rates)
