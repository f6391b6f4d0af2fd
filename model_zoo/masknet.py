# SPDX-License-Identifier: Apache-2.0
"""MaskNet: networks whose inputs are multiplied by masks made of all vectors.

Wang, She and Zhang (2021), MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models
by Instance-Guided Mask, https://arxiv.org/abs/2102.07619. Difference: a column with several ids is
the mean of their vectors.
"""

import dataclasses
from typing import List

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import heads, layers
from model_zoo.data import DataSet
from model_zoo.heads import Features, Labels, Params
from model_zoo.names import check_names

DEFAULTS = {
    "dim": 16,
    "structure": "parallel",  # or "serial"
    "blocks": 3,
    "block_units": 64,
    "mask_units": 64,
    "hidden_units": (128, 64),
    "dropout": 0.0,
    "batch_norm": False,
}


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id.

    Vectors start near zero. A layer normalization is the first to read them: it would make random
    vectors as long as trained ones, and the network would learn them by heart.
    """
    declared = layers.declare(data.columns, params["dim"])
    start = tf.random_normal_initializer(stddev=1e-4)
    return [dataclasses.replace(feature, initializer=start) for feature in declared]


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of MaskNet; model_zoo/models.py describes the arguments.

    Raises:
      ValueError: structure is unknown, or there are no blocks.
    """
    if params["blocks"] < 1:
        raise ValueError(f"blocks must be at least 1, got {params['blocks']}")
    check_names("structure", [params["structure"]], ("parallel", "serial"))
    network = layers.network_settings(params, mode)
    vectors = layers.fields(features, params["columns"], params["dim"])
    inputs = layers.flat(vectors)  # [B, fields * dim]
    normalized = layers.flat(layers.layer_norm(vectors, "norm_vectors"))
    sizes = params["mask_units"], params["block_units"]
    if params["structure"] == "parallel":
        blocks = [
            layers.mask_block(normalized, inputs, *sizes, f"block_{number}")
            for number in range(params["blocks"])
        ]
        outputs = tf.concat(blocks, axis=1)
    else:
        outputs = normalized
        for number in range(params["blocks"]):
            outputs = layers.mask_block(outputs, inputs, *sizes, f"block_{number}")
    logits = layers.tower(outputs, params["hidden_units"], "deep", **network)
    return heads.click_spec(logits, features, labels, mode, params)
