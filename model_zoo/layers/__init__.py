# SPDX-License-Identifier: Apache-2.0
"""Layers that the models share, of tf.get_variable and tf.nn only, so that Keras is not needed."""

from model_zoo.layers.embeddings import (
    candidate,
    declare,
    declare_with_histories,
    declare_with_linear,
    fields,
    flat,
    histories,
    of_kind,
    split_linear,
    vectors,
    without_histories,
)
from model_zoo.layers.experts import mixture, multi_gate_mixtures, progressive_extraction
from model_zoo.layers.interactions import (
    bilinear_fusion,
    bilinear_pairs,
    compressed_interactions,
    cross_matrices,
    cross_vectors,
    gate,
    inner_products,
    mask_block,
    pairwise_products,
    squeeze_excite,
)
from model_zoo.layers.networks import batch_norm, dense, hidden, layer_norm, network_settings, tower
from model_zoo.layers.retrieval import cosine_scores, sampled_softmax_losses
from model_zoo.layers.sequences import (
    add_positions,
    attention_weights,
    masked_mean,
    recurrent,
    transformer_layer,
    weighted_mean,
)
from model_zoo.layers.tasks import check_labels, product_logits, task_towers

__all__ = [
    "add_positions",
    "attention_weights",
    "batch_norm",
    "bilinear_fusion",
    "bilinear_pairs",
    "candidate",
    "check_labels",
    "compressed_interactions",
    "cosine_scores",
    "cross_matrices",
    "cross_vectors",
    "declare",
    "declare_with_histories",
    "declare_with_linear",
    "dense",
    "fields",
    "flat",
    "gate",
    "hidden",
    "histories",
    "inner_products",
    "layer_norm",
    "mask_block",
    "masked_mean",
    "mixture",
    "multi_gate_mixtures",
    "network_settings",
    "of_kind",
    "pairwise_products",
    "product_logits",
    "progressive_extraction",
    "recurrent",
    "sampled_softmax_losses",
    "split_linear",
    "squeeze_excite",
    "task_towers",
    "tower",
    "transformer_layer",
    "vectors",
    "weighted_mean",
    "without_histories",
]
