# SPDX-License-Identifier: Apache-2.0
"""The trainable dense variables and tables of a graph, in two lists as in Rec SDK.

Source: Rec SDK TensorFlow, ``get_dense_and_sparse_variable``.
"""

from typing import List, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator.table.shard import TableShard
from rec_estimator.table.table import (
    EmbeddingTable,
    dense_variables,
    graph_tables,
    trainable_members,
)


def get_dense_and_sparse_variable() -> Tuple[
    List[tf.Variable], List[Union[EmbeddingTable, TableShard]]
]:
    """Returns the trainable variables and the trainable tables of the default graph.

    Returns:
      The dense variables of TRAINABLE_VARIABLES, and the tables in the order they were made. For a
      partitioned table the list has its shards, because ``tf.gradients`` and ``apply_gradients()``
      take shards.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> bias = tf.get_variable("bias", [])
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9])) * bias
      >>> dense_variables, sparse_variables = rec.get_dense_and_sparse_variable()
      >>> grads = tf.gradients(loss, sparse_variables)
      >>> optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(learning_rate=0.001)
      >>> train_op = optimizer.apply_gradients(zip(grads, sparse_variables))
    """
    sparse: List[Union[EmbeddingTable, TableShard]] = []
    for table in graph_tables():
        if table.trainable:
            sparse.extend(trainable_members(table))
    return dense_variables(), sparse
