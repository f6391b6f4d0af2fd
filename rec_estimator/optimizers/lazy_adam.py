"""Adam that leaves rows alone which are not in the batch, in tables and dense variables.

Source: as adam.py; the lazy variant is that of TensorFlow 1's ``tf.contrib.opt.LazyAdamOptimizer``.
"""

from typing import Any

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import AdamOptimizer


class LazyAdamOptimizer(AdamOptimizer):
    """AdamOptimizer whose lazy rule also holds for dense variables with sparse gradients.

    Of a ``tf.Variable`` read by ``tf.gather`` or ``tf.nn.embedding_lookup``, only the rows of the
    batch move and decay. Arguments and errors are those of AdamOptimizer.

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
        """One step of the rows `indices` [n], which are distinct, by their gradients [n, ...]."""
        rate, beta1, beta2, epsilon, beta1_power, beta2_power = (
            tf.cast(value, grad.dtype) for value in self.table_hyperparameters()
        )
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = tf.gather(m, indices) * beta1 + grad * (1 - beta1)
        v_rows = tf.gather(v, indices) * beta2 + tf.square(grad) * (1 - beta2)
        corrected_rate = rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        step = corrected_rate * m_rows / (tf.sqrt(v_rows) + epsilon)
        locking: Any = self._use_locking
        return tf.group(
            tf.scatter_update(m, indices, m_rows, use_locking=locking),
            tf.scatter_update(v, indices, v_rows, use_locking=locking),
            tf.scatter_sub(var, indices, step, use_locking=locking),
        )
