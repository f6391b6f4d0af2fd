# SPDX-License-Identifier: Apache-2.0
"""The gradient of a lookup: its slices, and their sums.

A lookup has one slice per occurrence of a key. One that combines rows has one slice per distinct
key, as in TensorFlow: ``tf.nn.embedding_lookup_sparse`` reads each distinct id of a lookup once, so
that the gradient of a variable has the sums of the slices, and its norm is theirs. Clipping the
gradient of a table thus gives what it gives in TensorFlow.

An update needs no sums if nobody has changed the gradient: it gets the slices of the occurrences,
which it adds up and counts itself. The ops of the sums are then not part of the step. A gradient
that was changed, for example clipped, has lost how often each key occurs; the update gets the
further occurrences as keys to count.
"""

from typing import Any, List, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.observers import observers

# Marks the op of the keys of a gradient with one slice per occurrence, and the op that finds the
# distinct ones among them.
_OCCURRENCES = "_rec_estimator_gradient_keys"
_SUMS = "_rec_estimator_distinct_gradient_keys"


def gradient_slices(keys: tf.Tensor, grad: Any, dim: int) -> tf.IndexedSlices:
    """The slices of the occurrences of keys, reported to the observers of the graph.

    Args:
      keys: int64, any shape. The keys that the lookup reads.
      grad: [keys.shape, dim]. The gradient of the values.
      dim: Floats per value.
    """
    slices = tf.IndexedSlices(tf.reshape(grad, [-1, dim]), tf.reshape(keys, [-1]))
    graphs.set_attr(slices.indices.op, _OCCURRENCES, tf.AttrValue(b=True))
    for observer in observers():
        observer.lookup_gradient_built(keys, slices)
    return slices


def sum_occurrences(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the slices of each key, in the order of occurrence.

    Args:
      slices: values [n, dim], indices int64 [n]. One slice per occurrence of a key.

    Returns:
      One slice per distinct key, in the order of first occurrence.
    """
    keys, places, _ = tf.unique_with_counts(slices.indices)
    graphs.set_attr(keys.op, _SUMS, tf.AttrValue(b=True))
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(slices.values, places, tf.size(keys)), keys
    )


def occurrences(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The slices out of which an unchanged gradient was summed.

    Args:
      gradient: The gradient of a shard: of one lookup, or of several, which tf.gradients
        concatenates.

    Returns:
      One slice per occurrence of a key. Lookups whose sums were changed keep their slices.
    """
    values, keys = _parts(gradient.values), _parts(gradient.indices)
    if len(values) != len(keys):
        return gradient
    pairs = [_of_lookup(*pair) for pair in zip(values, keys)]
    if all(new is old for (new, _), old in zip(pairs, values)):
        return gradient
    if len(pairs) == 1:
        return tf.IndexedSlices(*pairs[0])
    return tf.IndexedSlices(*(tf.concat(parts, axis=0) for parts in zip(*pairs)))


def further_occurrences(indices: tf.Tensor) -> List[tf.Tensor]:
    """The occurrences of keys that sums have joined with an earlier one.

    Args:
      indices: Integers [n]. The keys of the gradient of a shard.

    Returns:
      int64 vectors, one for each lookup whose slices were summed.
    """
    sums: List[tf.Operation] = []
    seen = {indices.op}
    found = [indices.op]
    for op in found:
        if _is_sum(op):
            sums.append(op)
        elif _OCCURRENCES not in op.node_def.attr:
            new = [tensor.op for tensor in op.inputs if tensor.op not in seen]
            seen.update(new)
            found += new
    return [repeat_keys(op.outputs[0], op.outputs[2] - 1) for op in sums]


def repeat_keys(keys: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Repeats keys. tf.repeat would need memory for the greatest count times all keys.

    Args:
      keys: int64, any shape.
      counts: int32 or int64 [n], one for each key. From 0.

    Returns:
      int64 [sum of counts]. Each key as often as its count.
    """
    ends = tf.cumsum(counts)
    places = tf.range(tf.reduce_sum(counts))
    index = tf.raw_ops.UpperBound(sorted_inputs=ends[tf.newaxis], values=places[tf.newaxis])[0]
    return tf.gather(tf.reshape(keys, [-1]), index)


def _parts(tensor: tf.Tensor) -> List[tf.Tensor]:
    """The inputs of a concatenation, or the tensor itself."""
    return list(tensor.op.inputs)[:-1] if tensor.op.type == "ConcatV2" else [tensor]


def _of_lookup(values: tf.Tensor, keys: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """The slices of the occurrences of a lookup if `values` are their sums, else what is given."""
    if not _is_sum(keys.op) or values.op.type != "UnsortedSegmentSum":
        return values, keys
    of_occurrences, places, _ = values.op.inputs
    if places.op is not keys.op:
        return values, keys
    return of_occurrences, keys.op.inputs[0]


def _is_sum(op: tf.Operation) -> bool:
    """Whether the op finds the distinct keys of a gradient that sum_occurrences() has built."""
    return op.type == "UniqueWithCounts" and _SUMS in op.node_def.attr
