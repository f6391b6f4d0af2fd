# SPDX-License-Identifier: Apache-2.0
"""Streaming metrics of click models and rankings, for ``eval_metric_ops``.

Each function returns a pair (value, update) as those of ``tf.metrics`` do, or a dict of such pairs.
The update adds a batch to local variables; the value is of all batches since they were initialized.
docs/metrics.md merges the local variables of several evaluators.
"""

from rec_estimator.metrics.approximate_auc import auc_of_logits
from rec_estimator.metrics.exact_auc import auc, grouped_auc
from rec_estimator.metrics.probabilities import (
    calibration,
    calibration_by_decile,
    log_loss,
    normalized_entropy,
)
from rec_estimator.metrics.ranking import hit_rate, ndcg, recall

__all__ = [
    "auc",
    "auc_of_logits",
    "calibration",
    "calibration_by_decile",
    "grouped_auc",
    "hit_rate",
    "log_loss",
    "ndcg",
    "normalized_entropy",
    "recall",
]
