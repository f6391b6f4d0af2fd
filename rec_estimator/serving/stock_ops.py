# SPDX-License-Identifier: Apache-2.0
"""What ops around lookups do, made of TensorFlow's own ops, for portable SavedModels.

The ops that read tables are in stock_tables.py.
"""

from typing import Callable, Dict, List

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes import op_registry
from rec_estimator.table.shard import KEY_CLASSES


def _ids_without_padding(op: tf.Operation) -> List[tf.Tensor]:
    (ids,) = op.inputs
    indices = tf.where(tf.not_equal(ids, "" if ids.dtype == tf.string else -1))
    return [indices, tf.gather_nd(ids, indices)]


def _shard_keys_split(op: tf.Operation) -> List[tf.Tensor]:
    (keys,) = op.inputs
    count = op.get_attr("N")
    # Key classes are cast first, because TensorFlow divides int32 faster than int64.
    shards = tf.math.floormod(tf.cast(tf.math.floormod(keys, KEY_CLASSES), tf.int32), count)
    return [shards, *tf.dynamic_partition(keys, shards, count), *_places(shards, count)]


def _shard_rows_merge(op: tf.Operation) -> List[tf.Tensor]:
    shards, *rows = op.inputs
    return [tf.dynamic_stitch(_places(shards, len(rows)), rows)]


def _shard_rows_split(op: tf.Operation) -> List[tf.Tensor]:
    shards, values = op.inputs
    return tf.dynamic_partition(values, shards, op.get_attr("N"))


def _places(shards: tf.Tensor, count: int) -> List[tf.Tensor]:
    """int32, one for each shard. Where its keys are in the batch."""
    return tf.dynamic_partition(tf.range(tf.size(shards)), shards, count)


def _combine_weighted(op: tf.Operation) -> List[tf.Tensor]:
    values, weights, indices, dense_shape = op.inputs
    combiner = tf.compat.as_str(op.get_attr("combiners")[0])
    rows, count = indices[:, 0], dense_shape[0]
    # A product with a sparse matrix fails if there is not one weight for each value.
    n = tf.size(rows, out_type=tf.int64)
    matrix = tf.SparseTensor(tf.stack([rows, tf.range(n)], axis=1), weights, tf.stack([count, n]))
    total = tf.sparse.sparse_dense_matmul(matrix, values)
    if combiner == "sum":
        return [total]
    powers = weights if combiner == "mean" else tf.square(weights)
    divisor = tf.math.unsorted_segment_sum(powers, rows, count)
    divisor = divisor if combiner == "mean" else tf.sqrt(divisor)
    return [tf.math.divide_no_nan(total, divisor[:, tf.newaxis])]


# By op type: adds the ops that do what an op does, and returns their results, one for each output.
STOCK_FORMS: Dict[str, Callable[[tf.Operation], List[tf.Tensor]]] = {
    op_registry.COMBINE_WEIGHTED: _combine_weighted,
    op_registry.IDS_WITHOUT_PADDING: _ids_without_padding,
    op_registry.SHARD_KEYS_SPLIT: _shard_keys_split,
    op_registry.SHARD_ROWS_MERGE: _shard_rows_merge,
    op_registry.SHARD_ROWS_SPLIT: _shard_rows_split,
}
