# SPDX-License-Identifier: Apache-2.0
"""Two towers: a vector of the user and one of the item, whose cosine ranks the catalogue.

Huang et al. (2013), Learning Deep Structured Semantic Models for Web Search using Clickthrough
Data, https://doi.org/10.1145/2505515.2505665; trained by a softmax over the candidates of a batch
(the items of its rows, and sampled ones if the data have them), corrected for how often each item
is sampled: Yi et al. (2019), Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
Recommendations, https://doi.org/10.1145/3298689.3346996. Differences: embedded columns instead of
letter trigrams; the sampling probabilities come from the data instead of being estimated.
"""

from typing import Any, Dict, List, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers, minimize
from model_zoo.data import Column, DataSet, RetrievalDataSet, id_column
from model_zoo.heads import Features, Params

DEFAULTS = {
    "dim": 16,
    "hidden_units": (64, 32),  # the last one is the size of the vectors
    "temperature": 0.1,
    "negatives": 256,  # candidates drawn for each batch, besides the items of its rows
    "log_q_correction": True,
    "dropout": 0.0,
    "batch_norm": False,
}
_K = 10
_LABELS = ("item_row",)


def view(data: DataSet, params: Params) -> DataSet:
    """The data set with candidates; without negatives, they are the items of the batch."""
    return data if data.labels == _LABELS else RetrievalDataSet(data, params["negatives"])


def features(data: DataSet, params: Params) -> List[rec.EmbeddingFeature]:
    """One vector per id.

    Raises:
      ValueError: The data set has no candidates, one of the two sides has no columns, or there are
        no hidden_units.
    """
    if data.labels != _LABELS:
        raise ValueError(
            f"dssm must have the label item_row, got {', '.join(data.labels)} of {data.name}; "
            "give it a RetrievalDataSet"
        )
    id_column(data.columns, "item", "dssm")
    if not params["hidden_units"]:
        raise ValueError("hidden_units must have the size of the vectors at their end, got none")
    if not _user_columns(data.columns):
        raise ValueError(
            "dssm must have a column with another role than item, got "
            f"{', '.join(column.name for column in data.columns)}; describe the user"
        )
    return layers.declare(data.columns, params["dim"])


def model_fn(features: Features, labels: tf.Tensor, mode: str, params: Params) -> rec.EstimatorSpec:
    """Returns the EstimatorSpec of two towers.

    Args:
      features: By column name, float32 [B, dim] of users and contexts, float32 [C, dim] of items;
        [B] and [C] for numbers. "item_log_q" float32 [C] in training: the log of the probability
        with which each candidate is in a batch.
      labels: int64 [B], the row of the right candidate; None in prediction.
      mode: One of rec.ModeKeys.
      params: DEFAULTS, "columns" and "training".

    Returns:
      Predictions: scores [B, C] and user_vectors [B, n]. Signatures of an export: "user" gives
      user_vectors, "item" item_vectors [C, n], and the default one scores. Metrics: hit_rate,
      recall and ndcg at 10.
    """
    columns = params["columns"]
    item_columns = [column for column in columns if column.role == "item"]
    user_columns = _user_columns(columns)
    users = _tower(features, user_columns, "user", mode, params)
    items = _tower(features, item_columns, "item", mode, params)
    scores = layers.cosine_scores(users, items, params["temperature"])
    if mode == rec.ModeKeys.PREDICT:
        of_users, of_items = ([column.name for column in of] for of in (user_columns, item_columns))
        outputs = {
            "serving_default": rec.PredictOutput({"scores": scores}),
            "user": _Vectors({"user_vectors": users}, of_users),
            "item": _Vectors({"item_vectors": items}, of_items),
        }
        predictions = {"scores": scores, "user_vectors": users}
        return rec.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)

    candidates = features[f"{id_column(columns, 'item', 'dssm').name}_ids"]
    is_training = mode == rec.ModeKeys.TRAIN
    log_q = tf.zeros_like(candidates, tf.float32)
    if is_training and params["log_q_correction"]:
        log_q = features["item_log_q"]
    loss = tf.reduce_mean(layers.sampled_softmax_losses(scores, labels, candidates, log_q))
    if is_training:
        return rec.EstimatorSpec(mode, loss=loss, train_op=minimize.train_op(loss, params))
    is_right, best = layers.best_candidates(scores, labels, _K)
    metrics = {
        f"{metric.__name__}_at_{_K}": metric(is_right, best, _K)
        for metric in (rec.metrics.hit_rate, rec.metrics.recall, rec.metrics.ndcg)
    }
    return rec.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


def _user_columns(columns: Sequence[Column]) -> List[Column]:
    return [column for column in columns if column.role != "item"]


def _tower(
    features: Features, columns: Sequence[Column], side: str, mode: str, params: Params
) -> tf.Tensor:
    """Unit vectors, float32 [B, hidden_units[-1]]; the last layer is linear."""
    *hidden_units, size = params["hidden_units"]
    inputs = layers.flat(layers.fields(features, columns, params["dim"]))
    network = layers.network_settings(params, mode)
    outputs = layers.hidden(inputs, hidden_units, side, **network)
    return tf.math.l2_normalize(layers.dense(outputs, size, f"{side}/vector"), axis=1)


class _Vectors(rec.PredictOutput):
    """A signature with some of the inputs: a client that asks for vectors has no others."""

    def __init__(self, outputs: Dict[str, tf.Tensor], inputs: Sequence[str]) -> None:
        super().__init__(outputs)
        self._inputs = frozenset(inputs)

    def as_signature_def(self, receiver_tensors: Dict[str, tf.Tensor]) -> Any:
        kept = {name: each for name, each in receiver_tensors.items() if name in self._inputs}
        return super().as_signature_def(kept)
