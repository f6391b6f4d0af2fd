# SPDX-License-Identifier: Apache-2.0
"""Metrics of probabilities: log loss, normalized entropy and calibration."""

from typing import Any, Dict, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.metrics import samples
from rec_estimator.metrics.samples import Metric

# Probabilities are clipped to this distance from 0 and 1: half the spacing of float32 below 1.
_EPSILON = 2.0**-24

_DECILES = 10


def log_loss(
    labels: Any, predictions: Any, weights: Any = None, *, name: str = "log_loss"
) -> Metric:
    """Mean of -log of the probability that was predicted for what happened, in nats.

    Args:
      labels: Numbers [B], 0 or 1.
      predictions: Probabilities [B] in [0, 1].
      weights: Finite numbers [B] of at least 0. None: 1 for each sample.
      name: Scope of the ops and local variables.

    Returns:
      (value, update): float32 [], 0 without samples, and the op that adds the batch.

    Raises:
      tf.errors.InvalidArgumentError: A label, prediction or weight is not as above (while running).

    Example:
      >>> value, update = rec.metrics.log_loss(tf.constant([0, 1]), tf.constant([.5, .25]))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(f"{session.run(value):.4f}")
      1.0397
    """
    with tf.name_scope(name):
        batch = samples.check_batch(labels, predictions, weights, probabilities=True)
        (loss, _, count), update = _sums(batch)
        return tf.cast(tf.math.divide_no_nan(loss, count), tf.float32, name="value"), update


def normalized_entropy(
    labels: Any, predictions: Any, weights: Any = None, *, name: str = "normalized_entropy"
) -> Metric:
    """Log loss over that of the best constant, which is the entropy of the mean label.

    Below 1 is better than a constant. Unlike log loss, it compares data sets of different click
    rates.

    Args:
      labels: Numbers [B], 0 or 1.
      predictions: Probabilities [B] in [0, 1].
      weights: Finite numbers [B] of at least 0. None: 1 for each sample.
      name: Scope of the ops and local variables.

    Returns:
      (value, update): float32 [], 0 without samples of both classes, and the op that adds the
      batch.

    Raises:
      tf.errors.InvalidArgumentError: A label, prediction or weight is not as above (while running).

    Example:
      >>> value, update = rec.metrics.normalized_entropy(
      ...     tf.constant([0, 1]), tf.constant([.5, .25]))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(session.run(value))
      1.5

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014,
    equation 1.
    """
    with tf.name_scope(name):
        batch = samples.check_batch(labels, predictions, weights, probabilities=True)
        (loss, clicks, count), update = _sums(batch)
        rate = tf.math.divide_no_nan(clicks, count)
        # xlogy is 0 at 0.
        entropy = -tf.math.xlogy(rate, rate) - tf.math.xlogy(1 - rate, 1 - rate)
        value = tf.math.divide_no_nan(loss, count * entropy)
        return tf.cast(value, tf.float32, name="value"), update


def calibration(
    labels: Any, predictions: Any, weights: Any = None, *, name: str = "calibration"
) -> Metric:
    """The sum of the predicted probabilities over the number of positives; 1 is best.

    Args:
      labels: Numbers [B], 0 or 1.
      predictions: Probabilities [B] in [0, 1].
      weights: Finite numbers [B] of at least 0. None: 1 for each sample.
      name: Scope of the ops and local variables.

    Returns:
      (value, update): float32 [], 0 without positives, and the op that adds the batch.

    Raises:
      tf.errors.InvalidArgumentError: A label, prediction or weight is not as above (while running).

    Example:
      >>> value, update = rec.metrics.calibration(tf.constant([0, 1]), tf.constant([.5, .25]))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(session.run(value))
      0.75

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014,
    section 3.
    """
    with tf.name_scope(name):
        batch = samples.check_batch(labels, predictions, weights, probabilities=True)
        predicted = tf.cast(batch.predictions, tf.float64)
        totals, update = samples.sums(
            *(tf.reduce_sum(batch.weights * each) for each in (predicted, batch.labels))
        )
        value = tf.math.divide_no_nan(totals[0], totals[1])
        return tf.cast(value, tf.float32, name="value"), update


def calibration_by_decile(
    labels: Any, predictions: Any, *, name: str = "calibration_by_decile"
) -> Dict[str, Metric]:
    """Calibration of each tenth of the samples, from the least to the greatest predictions.

    A model may be calibrated on the whole and wrong at both ends. Samples of one prediction may be
    in two tenths, in the order in which they came. Each sample takes 12 bytes until the evaluation
    ends.

    Args:
      labels: Numbers [B], 0 or 1.
      predictions: Probabilities [B] in [0, 1].
      name: Scope of the ops and local variables, and prefix of the names of the metrics.

    Returns:
      {"<name>/1": (value, update), ... "<name>/10": ...}: float32 [], 0 for a tenth without
      positives.

    Raises:
      tf.errors.InvalidArgumentError: A label or prediction is not as above (while running).

    Example:
      >>> found = rec.metrics.calibration_by_decile(
      ...     tf.constant([0, 1] * 10), tf.constant([.25] * 10 + [.75] * 10))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(found["calibration_by_decile/1"][1])
      ...     print(*[session.run(found[f"calibration_by_decile/{i}"][0]) for i in (1, 10)])
      0.5 1.5
    """
    with tf.name_scope(name):
        batch = samples.check_batch(labels, predictions, probabilities=True)
        store = samples.SampleStore(batch.labels, batch.predictions)
        kept_labels, kept_predictions = store.read()
        order = tf.argsort(kept_predictions, stable=True)
        count = tf.size(order, out_type=tf.int64)
        decile = tf.range(count) * _DECILES // tf.maximum(count, 1)
        ordered = (
            tf.cast(tf.gather(each, order), tf.float64) for each in (kept_predictions, kept_labels)
        )
        predicted, observed = (
            tf.math.unsorted_segment_sum(each, decile, _DECILES) for each in ordered
        )
        ratios = tf.unstack(tf.cast(tf.math.divide_no_nan(predicted, observed), tf.float32))
        update = store.append()
        return {f"{name}/{i}": (ratio, update) for i, ratio in enumerate(ratios, 1)}


def _sums(batch: samples.Batch) -> Tuple[Tuple[tf.Tensor, ...], tf.Operation]:
    """Sums of losses, labels and weights, each float64 [], and the op that adds the batch."""
    predictions = tf.cast(batch.predictions, tf.float64)
    predictions = tf.clip_by_value(predictions, _EPSILON, 1 - _EPSILON)
    losses = -tf.math.log(tf.where(batch.labels > 0, predictions, 1 - predictions))
    totals, update = samples.sums(
        *(tf.reduce_sum(batch.weights * each) for each in (losses, batch.labels, 1))
    )
    return tuple(tf.unstack(totals, 3)), update
