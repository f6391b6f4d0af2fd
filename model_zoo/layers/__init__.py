# SPDX-License-Identifier: Apache-2.0
"""Layers that the models share, of tf.get_variable and tf.nn only, so that Keras is not needed."""

from model_zoo.layers.embeddings import (
    declare,
    declare_with_history,
    fields,
    flat,
    split_linear,
    without_history,
)
from model_zoo.layers.experts import mixture, multi_gate_mixtures, progressive_extraction
from model_zoo.layers.interactions import (
    bilinear_pairs,
    compressed_interactions,
    cross_matrices,
    cross_vectors,
    inner_products,
    pairwise_products,
    squeeze_excite,
)
from model_zoo.layers.networks import batch_norm, dense, hidden, layer_norm, tower
from model_zoo.layers.retrieval import cosine_scores, sampled_softmax_losses
from model_zoo.layers.sequences import (
    add_positions,
    attention_weights,
    recurrent,
    transformer_layer,
    weighted_mean,
)
from model_zoo.layers.tasks import check_labels, product_logits, task_towers

__all__ = [
    "add_positions",
    "attention_weights",
    "batch_norm",
    "bilinear_pairs",
    "check_labels",
    "compressed_interactions",
    "cosine_scores",
    "cross_matrices",
    "cross_vectors",
    "declare",
    "declare_with_history",
    "dense",
    "fields",
    "flat",
    "hidden",
    "inner_products",
    "layer_norm",
    "mixture",
    "multi_gate_mixtures",
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
    "weighted_mean",
    "without_history",
]
