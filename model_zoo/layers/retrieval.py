# SPDX-License-Identifier: Apache-2.0
"""Layers of two towers: scores of all pairs of users and candidates, their loss and best ones."""

from typing import Tuple

import tensorflow.compat.v1 as tf

_EXCLUDED = -1e9  # 0 in a softmax; finite, so that its gradient is


def cosine_scores(users: tf.Tensor, items: tf.Tensor, temperature: float) -> tf.Tensor:
    """Cosines over a temperature, of all pairs: [B, n], [C, n] of unit vectors -> [B, C]."""
    return tf.matmul(users, items, transpose_b=True) / temperature


def sampled_softmax_losses(
    scores: tf.Tensor, rows: tf.Tensor, candidates: tf.Tensor, log_q: tf.Tensor
) -> tf.Tensor:
    """Cross entropies of the right candidates among those of the batch, corrected for sampling.

    The log of its sampling probability is subtracted from the score of each candidate, so that the
    scores estimate those of a softmax over all items. Further occurrences of the right item among
    the candidates are no negatives: they are left out of the row.

    Args:
      scores: float32 [B, C].
      rows: int64 [B], the right candidate of each row, in [0, C).
      candidates: int64 [C], the keys of the items.
      log_q: float32 [C], the log of the probability with which each candidate was sampled.

    Returns:
      float32 [B].

    Source: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
    Recommendations, RecSys 2019, equations 2 to 5; accidental hits as in
    ``tf.nn.sampled_softmax_loss``.
    """
    right = tf.gather(candidates, rows)
    is_again = tf.equal(right[:, tf.newaxis], candidates) & tf.not_equal(
        rows[:, tf.newaxis], tf.range(tf.size(candidates, out_type=rows.dtype))
    )
    corrected = scores - log_q
    logits = tf.where(is_again, tf.fill(tf.shape(corrected), _EXCLUDED), corrected)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=rows, logits=logits)


def best_candidates(scores: tf.Tensor, rows: tf.Tensor, count: int) -> Tuple[tf.Tensor, tf.Tensor]:
    """The right candidate of each row and the best others, which decide its metrics up to `count`.

    Ranking metrics sort their lists; a catalogue has many more items than these.

    Args:
      scores: float32 [B, C].
      rows: int64 [B], the right candidate of each row.
      count: The number of others, fewer if there are fewer candidates.

    Returns:
      float32 [B, 1 + count]: 1 for the right one, which is the first, and 0; and their scores.
    """
    size = tf.shape(scores)[1]
    is_right = tf.one_hot(rows, size, on_value=True, off_value=False)
    lowest = tf.fill(tf.shape(scores), scores.dtype.min)
    others, _ = tf.math.top_k(tf.where(is_right, lowest, scores), tf.minimum(count, size - 1))
    right = tf.gather(scores, rows, batch_dims=1)[:, tf.newaxis]
    return (
        tf.concat([tf.ones_like(right), tf.zeros_like(others)], axis=1),
        tf.concat([right, others], axis=1),
    )
