# SPDX-License-Identifier: Apache-2.0
"""The exact area under the ROC curve: over all samples, and by groups such as users."""

from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from rec_estimator.metrics import samples
from rec_estimator.metrics.samples import Metric

IMPRESSIONS, CLICKS = "impressions", "clicks"


def auc(labels: Any, predictions: Any, weights: Any = None, *, name: str = "auc") -> Metric:
    """Exact AUC: the share of pairs of a positive and a negative that are in the right order.

    A tie counts one half; a pair has the product of its weights. Each sample takes 20 bytes until
    the evaluation ends. ``auc_of_logits`` takes 32 MiB for any number of samples.

    Args:
      labels: Numbers [B], 0 or 1.
      predictions: Finite numbers [B]; probabilities or logits, because only their order counts.
      weights: Finite numbers [B] of at least 0. None: 1 for each sample.
      name: Scope of the ops and local variables.

    Returns:
      (value, update): float32 [], 0.5 without samples of both classes, and the op that adds the
      batch.

    Raises:
      tf.errors.InvalidArgumentError: A label, prediction or weight is not as above (while running).

    Example:
      >>> value, update = rec.metrics.auc(tf.constant([0, 1, 0, 1]), tf.constant([.1, .2, .3, .3]))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(session.run(value))
      0.625

    Source: Hanley and McNeil, The meaning and use of the area under a receiver operating
    characteristic (ROC) curve, Radiology 143 (1982).
    """
    with tf.name_scope(name):
        batch = samples.check_batch(labels, predictions, weights)
        store = samples.SampleStore(*batch)
        kept = samples.Batch(*store.read())
        found = _areas(kept, tf.zeros_like(kept.predictions, tf.int64))
        # One group, or none if there is no sample yet.
        area = tf.where(
            tf.reduce_any(found.has_both), tf.reduce_sum(found.areas), tf.constant(0.5, tf.float64)
        )
        return tf.cast(area, tf.float32, name="value"), store.append()


def grouped_auc(
    labels: Any,
    predictions: Any,
    groups: Any,
    weights: Any = None,
    *,
    weighted_by: str = IMPRESSIONS,
    name: str = "grouped_auc",
) -> Metric:
    """The mean of the exact AUC of each group, such as a user or a request.

    A model that only knows which users click often has a good AUC and a grouped AUC of 0.5. Groups
    of one class have no AUC and are left out. Samples of a group may be in different batches; each
    sample takes 28 bytes until the evaluation ends.

    Args:
      labels: Numbers [B], 0 or 1.
      predictions: Finite numbers [B]; only their order counts.
      groups: Integers or strings [B].
      weights: Finite numbers [B] of at least 0. None: 1 for each sample.
      weighted_by: "impressions" weights a group by its samples, "clicks" by its positives; both by
        their weights.
      name: Scope of the ops and local variables.

    Returns:
      (value, update): float32 [], 0.5 without a group of both classes, and the op that adds the
      batch.

    Raises:
      ValueError: weighted_by is neither.
      tf.errors.InvalidArgumentError: A label, prediction or weight is not as above (while running).

    Example:
      >>> value, update = rec.metrics.grouped_auc(
      ...     tf.constant([0, 1, 1, 0, 1]), tf.constant([.1, .2, .3, .4, .5]),
      ...     groups=tf.constant(["ann", "ann", "bob", "bob", "bob"]))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(session.run(value))
      0.7

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018,
    section 6.2; there weighted by impressions.
    """
    if weighted_by not in (IMPRESSIONS, CLICKS):
        raise ValueError(
            f"weighted_by must be {IMPRESSIONS!r} or {CLICKS!r}, got {weighted_by!r}; "
            "papers on DIN use impressions"
        )
    with tf.name_scope(name):
        batch = samples.check_batch(labels, predictions, weights)
        store = samples.SampleStore(*batch, samples.group_ids(groups, batch.predictions))
        *kept, kept_groups = store.read()
        found = _areas(samples.Batch(*kept), kept_groups)
        group_weights = found.positives
        if weighted_by == IMPRESSIONS:
            group_weights += found.negatives
        group_weights = tf.where(found.has_both, group_weights, tf.zeros_like(group_weights))
        total = tf.reduce_sum(group_weights)
        mean = tf.math.divide_no_nan(tf.reduce_sum(group_weights * found.areas), total)
        value = tf.where(total > 0, mean, tf.constant(0.5, tf.float64))
        return tf.cast(value, tf.float32, name="value"), store.append()


class _Areas(NamedTuple):
    """By group, float64 [groups]: the AUC, 0 without both classes, and sums of weights."""

    areas: tf.Tensor
    positives: tf.Tensor
    negatives: tf.Tensor

    @property
    def has_both(self) -> tf.Tensor:
        """bool [groups]."""
        return (self.positives > 0) & (self.negatives > 0)


def _areas(kept: samples.Batch, groups: tf.Tensor) -> _Areas:
    """Areas of the groups of all samples; groups: int64 [n]."""
    order = tf.argsort(kept.predictions, stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(groups, order), stable=True))
    scores, groups, labels, weights = (
        tf.gather(each, order) for each in (kept.predictions, groups, kept.labels, kept.weights)
    )
    # Ties are runs of samples of one group and score; groups are runs of ties.
    tie = samples.runs(groups, scores)
    positive, negative = (
        tf.math.segment_sum(weights * is_of_class, tie) for is_of_class in (labels, 1 - labels)
    )
    group = tf.math.segment_max(samples.runs(groups), tie)
    below = tf.cumsum(negative, exclusive=True)
    below -= tf.gather(tf.math.segment_min(below, group), group)
    wins = tf.math.segment_sum(positive * (below + negative / 2), group)
    positives, negatives = (tf.math.segment_sum(each, group) for each in (positive, negative))
    return _Areas(tf.math.divide_no_nan(wins, positives * negatives), positives, negatives)
