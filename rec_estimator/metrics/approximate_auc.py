# SPDX-License-Identifier: Apache-2.0
"""The area under the ROC curve of logits, batch by batch, with a bound of its error."""

from typing import Dict, Tuple

import tensorflow.compat.v1 as tf

# Bits of a float32 that name its bucket: the sign, 8 of the exponent, 12 of the mantissa. Logits of
# one bucket differ by less than 1 part in 4096.
_BUCKET_BITS = 21

Metric = Tuple[tf.Tensor, tf.Operation]


def auc_of_logits(labels: tf.Tensor, logits: tf.Tensor, *, name: str = "auc") -> Dict[str, Metric]:
    """Streaming AUC of any logits, however confident the model is.

    ``tf.metrics.auc`` compares probabilities with thresholds that are uniform in [0, 1]: where most
    probabilities are near 0 or 1, most of the ranking lies between two thresholds. This metric
    counts positives and negatives in buckets of logits that have a relative width of 2**-12, and
    takes two logits of one bucket for a tie. Only pairs of one bucket can be wrong, each by 1/2.

    Args:
      labels: float32 [B], 0 or 1.
      logits: float32 [B], finite; any increasing function of them has the same AUC.
      name: Scope of the ops and of the 32 MiB of local variables.

    Returns:
      Metrics for ``eval_metric_ops``: "auc", float32 [], 0.5 without examples of both classes; and
      "auc_error", float32 [], the most by which it differs from the AUC of all pairs.

    Raises:
      tf.errors.InvalidArgumentError: A label other than 0 and 1, or a logit that is not finite
        (while running).

    Example:
      >>> metrics = auc_of_logits(tf.constant([0.0, 1.0, 0.0, 1.0]), tf.constant([-9.0, -8, -7, 3]))
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(metrics["auc"][1])
      ...     print(*session.run([metrics["auc"][0], metrics["auc_error"][0]]))
      0.75 0.0
    """
    with tf.name_scope(name):
        labels, logits = tf.reshape(labels, [-1]), tf.reshape(logits, [-1])
        checks = [
            tf.debugging.assert_equal(
                tf.equal(labels, 0) | tf.equal(labels, 1), True, message="labels must be 0 or 1"
            ),
            tf.debugging.assert_all_finite(logits, "logits must be finite"),
        ]
        # [2, buckets]: negatives, positives.
        counts = tf.get_local_variable(
            f"{name}/counts",
            [2, 2**_BUCKET_BITS],
            tf.int64,
            tf.zeros_initializer(),
            use_resource=True,
        )
        with tf.control_dependencies(checks):
            cells = tf.stack([tf.cast(labels, tf.int32), _buckets(logits)], axis=1)
        update = tf.raw_ops.ResourceScatterNdAdd(
            ref=counts.handle, indices=cells, updates=tf.ones_like(labels, tf.int64)
        )
        auc, error = _auc_and_error(tf.cast(counts.read_value(), tf.float64))
        # As the functions of tf.metrics name them; rec.ProgressHook looks for "<metric>/value".
        return {"auc": (tf.identity(auc, "value"), update), "auc_error": (error, update)}


def _buckets(logits: tf.Tensor) -> tf.Tensor:
    """int32 [B] in [0, 2**_BUCKET_BITS): the greater the logit, the greater the bucket."""
    # -0.0 and 0.0 are one logit with two bit patterns.
    bits = tf.bitcast(tf.where(tf.equal(logits, 0), tf.zeros_like(logits), logits), tf.int32)
    # Read as integers, negative floats are ordered the other way round.
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, 0x7FFFFFFF), bits)
    return tf.bitwise.right_shift(ordered, 32 - _BUCKET_BITS) + 2 ** (_BUCKET_BITS - 1)


def _auc_and_error(counts: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Both float32 [], of float64 [2, buckets]."""
    negatives, positives = tf.unstack(counts)
    pairs = tf.reduce_sum(negatives) * tf.reduce_sum(positives)
    ties = tf.reduce_sum(positives * negatives) / 2
    wins = tf.reduce_sum(positives * tf.cumsum(negatives, exclusive=True)) + ties
    auc = tf.where(pairs > 0, tf.math.divide_no_nan(wins, pairs), tf.constant(0.5, tf.float64))
    return tf.cast(auc, tf.float32), tf.cast(tf.math.divide_no_nan(ties, pairs), tf.float32)
