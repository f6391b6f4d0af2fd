# SPDX-License-Identifier: Apache-2.0
"""Gradients that ``tf.train.SyncReplicasOptimizer`` adds over the workers.

TensorFlow's accumulator of sparse gradients adds rows right only if each worker sends distinct keys
in ascending order, and it does not know how often a key occurred. So a worker sends each key once,
with two further columns:

    key | sum of its gradients [dim] | its occurrences | 1

The accumulator adds these rows over the workers. The gradient of a key is the first part divided by
the last: the mean over the workers that have the key, as TensorFlow defines it for sparse
gradients (tf.compat.v1.SparseConditionalAccumulator).
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.table.lookup_gradient import further_occurrences, occurrences


class Accumulated(NamedTuple):
    """The gradient of a shard over all workers.

    Attributes:
      gradient: values float32 [n, dim], indices int64 [n], distinct keys in ascending order.
      further: int64 [m]. Each key once for every occurrence after its first.
    """

    gradient: tf.IndexedSlices
    further: tf.Tensor


def is_accumulated(keys: tf.Tensor) -> bool:
    """Whether the keys of a gradient come from an accumulator."""
    return keys.op.type == "SparseAccumulatorTakeGradient"


def sent_by_worker(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The gradient that this worker sends to the accumulator.

    Args:
      gradient: What is taken out of the accumulator.
    """
    send = _send(gradient)
    return occurrences(tf.IndexedSlices(send.inputs[3], send.inputs[2]))


def count_occurrences(gradient: tf.IndexedSlices, dim: int) -> Accumulated:
    """Makes the workers send distinct keys with their occurrences.

    Args:
      gradient: What is taken out of the accumulator. Changes the graph, so call this once.
      dim: Floats per key.

    Returns:
      The mean of the gradient over the workers, and the occurrences in all of them.
    """
    sent = sent_by_worker(gradient)
    with graphs.colocate_with(sent.values.op, ignore_existing=True):
        counted = tf.concat([sent.indices, *further_occurrences(sent.indices)], axis=0)
        keys, positions, counts = tf.unique_with_counts(counted)
        positions = positions[: tf.size(sent.indices)]
        sums = tf.math.unsorted_segment_sum(sent.values, positions, tf.size(keys))
        columns = tf.cast(tf.stack([counts, tf.ones_like(counts)], axis=1), tf.float32)
        order = tf.argsort(keys)
        ascending = tf.gather(keys, order)
        rows = tf.gather(tf.concat([sums, columns], axis=1), order)
        # The shape is unknown: an input must not be replaced by one of another shape.
        rows = tf.placeholder_with_default(rows, shape=None)
    send = _send(gradient)
    graphs.update_input(send, 2, ascending)
    graphs.update_input(send, 3, rows)
    graphs.set_attr(_accumulator(gradient), "reduction_type", tf.AttrValue(s=b"SUM"))
    with graphs.colocate_with(gradient.values.op, ignore_existing=True):
        sums, counts, workers = tf.split(gradient.values, [dim, 1, 1], axis=1)
        repeats = tf.cast(tf.squeeze(counts, axis=1), tf.int64) - 1
        return Accumulated(
            tf.IndexedSlices(sums / workers, gradient.indices), tf.repeat(gradient.indices, repeats)
        )


def _accumulator(gradient: tf.IndexedSlices) -> tf.Operation:
    return gradient.indices.op.inputs[0].op


def _send(gradient: tf.IndexedSlices) -> tf.Operation:
    """The op that sends the worker's gradient to the accumulator."""
    (send,) = (
        op
        for op in _accumulator(gradient).outputs[0].consumers()
        if op.type == "SparseAccumulatorApplyGradient"
    )
    return send
