# SPDX-License-Identifier: Apache-2.0
"""Metrics of the first k items of rankings: hit rate, recall and NDCG."""

from typing import Any, Callable, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_int
from rec_estimator.metrics import samples
from rec_estimator.metrics.samples import Metric


class _Lists(NamedTuple):
    """Items in the order of their lists, and in a list in that of their scores.

    gains: float64 [n]; ranks: float64 [n], from 1; lists: int64 [n], ascending from 0.
    """

    gains: tf.Tensor
    ranks: tf.Tensor
    lists: tf.Tensor

    def total(self, values: tf.Tensor) -> tf.Tensor:
        """float64 [lists], the sum over the items of each list."""
        return tf.math.segment_sum(values, self.lists)


def hit_rate(
    labels: Any, predictions: Any, k: int, *, groups: Any = None, name: Optional[str] = None
) -> Metric:
    """The share of lists with a relevant item among the first k.

    Items with equal predictions are ranked with the least relevant ones first, so that a model that
    predicts a constant wins nothing. Lists without a relevant item are left out.

    Args:
      labels: Finite numbers of at least 0, above 0 for relevant items: [B, N], a list in each row;
        with groups, [B].
      predictions: Finite numbers in the shape of labels; the greatest is ranked first.
      k: How many of the first items count, at least 1.
      groups: Integers or strings [B]: the list, such as the user, of each item. The items of a list
        may be in different batches, and each takes 20 bytes until the evaluation ends.
      name: Scope of the ops and local variables; "hit_rate_at_<k>" when None.

    Returns:
      (value, update): float32 [], 0 without a list that counts, and the op that adds the batch.

    Raises:
      ValueError: k is below 1, or the shapes do not fit.
      TypeError: groups are neither integers nor strings.
      tf.errors.InvalidArgumentError: A label or prediction is not as above (while running).

    Example:
      >>> value, update = rec.metrics.hit_rate(
      ...     tf.constant([[0, 1, 0], [0, 1, 0]]), tf.constant([[.1, .9, .2], [.9, .1, .2]]), k=1)
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(session.run(value))
      0.5
    """

    def hits(lists: _Lists) -> tf.Tensor:
        is_hit = tf.cast((lists.gains > 0) & (lists.ranks <= k), tf.float64)
        return tf.minimum(lists.total(is_hit), 1)

    return _mean(hits, labels, predictions, k, groups, name or f"hit_rate_at_{k}")


def recall(
    labels: Any, predictions: Any, k: int, *, groups: Any = None, name: Optional[str] = None
) -> Metric:
    """The share of a list's relevant items that are among the first k, averaged over the lists.

    Ties, lists without a relevant item, arguments, returned pair and errors are as in ``hit_rate``.

    Args:
      labels: Finite numbers of at least 0: [B, N], or [B] with groups.
      predictions: Finite numbers in the shape of labels.
      k: How many of the first items count, at least 1.
      groups: Integers or strings [B], the list of each item.
      name: Scope of the ops and local variables; "recall_at_<k>" when None.

    Returns:
      (value, update), as ``hit_rate``.

    Raises:
      ValueError: As ``hit_rate``.

    Example:
      >>> value, update = rec.metrics.recall(
      ...     tf.constant([[1, 1, 0]]), tf.constant([[.9, .1, .2]]), k=2)
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(session.run(value))
      0.5
    """

    def recalls(lists: _Lists) -> tf.Tensor:
        is_relevant = tf.cast(lists.gains > 0, tf.float64)
        is_found = is_relevant * tf.cast(lists.ranks <= k, tf.float64)
        return tf.math.divide_no_nan(lists.total(is_found), lists.total(is_relevant))

    return _mean(recalls, labels, predictions, k, groups, name or f"recall_at_{k}")


def ndcg(
    labels: Any, predictions: Any, k: int, *, groups: Any = None, name: Optional[str] = None
) -> Metric:
    """Discounted cumulative gain of the first k items over that of the best order, averaged.

    The gain of an item is its label; its discount at rank r is 1 / log2(1 + r). Pass ``2**labels -
    1`` for exponential gains. Ties, lists without a relevant item, arguments, returned pair and
    errors are as in ``hit_rate``.

    Args:
      labels: Finite numbers of at least 0: [B, N], or [B] with groups.
      predictions: Finite numbers in the shape of labels.
      k: How many of the first items count, at least 1.
      groups: Integers or strings [B], the list of each item.
      name: Scope of the ops and local variables; "ndcg_at_<k>" when None.

    Returns:
      (value, update), as ``hit_rate``.

    Raises:
      ValueError: As ``hit_rate``.

    Example:
      >>> value, update = rec.metrics.ndcg(
      ...     tf.constant([[0, 1, 0]]), tf.constant([[.9, .5, .2]]), k=2)
      >>> with tf.Session() as session:
      ...     session.run(tf.local_variables_initializer())
      ...     session.run(update)
      ...     print(f"{session.run(value):.4f}")
      0.6309

    Source: Järvelin and Kekäläinen, Cumulated gain-based evaluation of IR techniques, ACM TOIS
    20(4), 2002.
    """

    def gain(lists: _Lists) -> tf.Tensor:
        discount = tf.math.log(tf.constant(2.0, tf.float64)) / tf.math.log1p(lists.ranks)
        return lists.total(lists.gains * discount * tf.cast(lists.ranks <= k, tf.float64))

    def normalized_gains(lists: _Lists) -> tf.Tensor:
        best = _ranked(lists.gains, lists.gains, lists.lists)
        return tf.math.divide_no_nan(gain(lists), gain(best))

    return _mean(normalized_gains, labels, predictions, k, groups, name or f"ndcg_at_{k}")


def _mean(
    by_list: Callable[[_Lists], tf.Tensor],
    labels: Any,
    predictions: Any,
    k: int,
    groups: Any,
    name: str,
) -> Metric:
    """The mean of what by_list returns, float64 [lists], over lists with a relevant item."""
    check_int("k", k, 1, 2**31 - 1)
    labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
    rank = 2 if groups is None else 1
    for argument, tensor in (("labels", labels), ("predictions", predictions)):
        if tensor.shape.rank not in (None, rank):
            shape = "[B, N], a list in each row" if groups is None else "[B] with groups"
            raise ValueError(f"{argument} must be {shape}, got {tensor.shape}; reshape it")

    def total(gains: tf.Tensor, scores: tf.Tensor, lists: tf.Tensor) -> tf.Tensor:
        """float64 [2]: the sum over the lists that count, and their number."""
        ranked = _ranked(gains, scores, lists)
        counts = tf.cast(ranked.total(ranked.gains) > 0, tf.float64)
        return tf.stack([tf.reduce_sum(by_list(ranked) * counts), tf.reduce_sum(counts)])

    with tf.name_scope(name):
        gains, scores = _checked(labels, predictions)
        if groups is None:
            rows = tf.broadcast_to(tf.range(tf.shape(predictions)[0])[:, None], tf.shape(labels))
            batch = total(gains, scores, tf.cast(tf.reshape(rows, [-1]), tf.int64))
            sums, update = samples.sums(*tf.unstack(batch))
        else:
            store = samples.SampleStore(gains, scores, samples.group_ids(groups, scores))
            sums, update = total(*store.read()), store.append()
        return tf.cast(tf.math.divide_no_nan(sums[0], sums[1]), tf.float32, name="value"), update


def _checked(labels: tf.Tensor, predictions: tf.Tensor) -> Any:
    """float64 [n] and float32 [n]."""
    gains, scores = tf.cast(labels, tf.float64), tf.cast(predictions, tf.float32)
    checks = [
        tf.debugging.assert_equal(
            tf.math.is_finite(gains) & (gains >= 0),
            True,
            message="labels must be finite and at least 0",
        ),
        tf.debugging.assert_all_finite(scores, "predictions must be finite"),
        tf.debugging.assert_equal(
            tf.shape(gains), tf.shape(scores), message="labels must have the shape of predictions"
        ),
    ]
    with tf.control_dependencies(checks):
        return tf.reshape(gains, [-1]), tf.reshape(scores, [-1])


def _ranked(gains: tf.Tensor, scores: tf.Tensor, lists: tf.Tensor) -> _Lists:
    """Sorts by list, then from the greatest score, and among equal ones from the least gain."""
    order = tf.argsort(gains, stable=True)
    for key, direction in ((scores, "DESCENDING"), (lists, "ASCENDING")):
        order = tf.gather(
            order, tf.argsort(tf.gather(key, order), direction=direction, stable=True)
        )
    gains, lists = tf.gather(gains, order), samples.runs(tf.gather(lists, order))
    position = tf.range(tf.size(gains, out_type=tf.int64))
    first = tf.gather(tf.math.segment_min(position, lists), lists)
    return _Lists(gains, tf.cast(position - first + 1, tf.float64), lists)
