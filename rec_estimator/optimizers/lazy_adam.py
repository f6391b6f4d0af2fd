# SPDX-License-Identifier: Apache-2.0
"""Lazy Adam: a step changes only the rows of the batch, in tables and in dense variables.

Source: see adam.py; the lazy variant is ``tf.contrib.opt.LazyAdamOptimizer`` of TensorFlow 1.
"""

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, adam_step
from rec_estimator.optimizers.hash_optimizer import factory_of


class LazyAdamOptimizer(AdamOptimizer):
    """AdamOptimizer that is also lazy for dense variables with sparse gradients.

    If ``tf.gather`` or ``tf.nn.embedding_lookup`` reads a ``tf.Variable``, a step changes only the
    rows of the batch. Arguments and errors are those of AdamOptimizer.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.LazyAdamOptimizer(0.001).minimize(loss)
    """

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Updates the rows `indices` [n], which are distinct, by their gradients [n, ...]."""
        rows = DenseRows(indices, self._use_locking)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        rows.subtract(var, adam_step(grad, m, v, rows, self.table_hyperparameters(var)))
        return rows.update()


create_hash_optimizer = factory_of("lazy_adam.create_hash_optimizer", LazyAdamOptimizer)
