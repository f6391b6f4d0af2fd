# SPDX-License-Identifier: Apache-2.0
"""Lazy Adam: a step changes only the rows of the batch, in tables and in dense variables.

Source: see adam.py; the lazy variant is ``tf.contrib.opt.LazyAdamOptimizer`` of TensorFlow 1.
"""

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_text
from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, adam_step
from rec_estimator.optimizers.hash_optimizer import (
    MAX_NAME,
    check_expansion,
    check_float,
    check_learning_rate,
)
from rec_estimator.optimizers.table_optimizer import Hyperparameter


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


def create_hash_optimizer(
    learning_rate: Hyperparameter = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "LazyAdam",
    use_fusion_optim: bool = False,
) -> LazyAdamOptimizer:
    """Rec SDK's factory of lazy Adam for tables.

    Args:
      learning_rate: In [0, 10], or a tensor.
      beta1: In (0, 1).
      beta2: In [0, 1). Rec SDK also accepts 1, with which the model learns nothing.
      epsilon: In (0, 1].
      name: 1 to 200 characters.
      use_fusion_optim: If True, tables with padding_keys are refused, as in Rec SDK. Nothing else
        changes: every update of a table is one op.

    Returns:
      The optimizer.

    Raises:
      ValueError: An argument has the wrong type or is out of range; or
        ``init(use_dynamic_expansion=True)`` was called.

    Example:
      >>> rec.optimizers.lazy_adam.create_hash_optimizer(learning_rate=0.01).get_name()
      'LazyAdam'
    """
    check_expansion("lazy_adam.create_hash_optimizer", is_by_address=False)
    return make_hash_optimizer(learning_rate, beta1, beta2, epsilon, name, use_fusion_optim)


def make_hash_optimizer(
    learning_rate: Hyperparameter,
    beta1: float,
    beta2: float,
    epsilon: float,
    name: str,
    use_fusion_optim: bool,
) -> LazyAdamOptimizer:
    """Makes the optimizer of both factories. Arguments and errors: see create_hash_optimizer."""
    check_learning_rate(learning_rate)
    check_float("beta1", beta1, above=0, below=1)
    check_float("beta2", beta2, at_least=0, below=1)
    check_float("epsilon", epsilon, above=0, at_most=1)
    check_text("name", name, MAX_NAME)
    check_bool("use_fusion_optim", use_fusion_optim)
    optimizer = LazyAdamOptimizer(learning_rate, beta1, beta2, epsilon, name=name)
    optimizer.is_fused = use_fusion_optim
    return optimizer
