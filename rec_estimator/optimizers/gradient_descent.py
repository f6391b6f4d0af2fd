# SPDX-License-Identifier: Apache-2.0
"""Gradient descent, optionally with weight decay.

Source: H. Robbins, S. Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics
22(3), 1951; weight decay: A. Krogh, J. Hertz, "A Simple Weight Decay Can Improve Generalization",
NIPS 1991.
"""

import numbers
from typing import Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.dense_optimizer import DenseRows
from rec_estimator.optimizers.hash_optimizer import factory_of
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableUpdates,
    check_hyperparameter,
    table_of,
)


class GradientDescentOptimizer(TableUpdates, tf.train.GradientDescentOptimizer):
    """``tf.compat.v1.train.GradientDescentOptimizer`` that also trains tables.

    For each occurrence of a key, in the order of the batch: ``value -= learning_rate * g``.

    With weight_decay, once for each key of the batch, where g is the sum over its occurrences:
    ``value -= learning_rate * (g + weight_decay * value)``. Dense variables decay as well; if the
    gradient is sparse, only the rows of the batch do.

    Args:
      learning_rate: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops.
      weight_decay: At least 0. None and 0 mean no decay.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: Hyperparameter,
        use_locking: bool = False,
        name: str = "GradientDescent",
        weight_decay: Optional[Hyperparameter] = None,
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        check_hyperparameter("weight_decay", weight_decay, at_least=0)
        super().__init__(learning_rate, use_locking=use_locking, name=name)
        # Without decay, occurrences are subtracted one by one, as TensorFlow does.
        is_zero = isinstance(weight_decay, numbers.Real) and weight_decay == 0
        self._weight_decay = None if is_zero else weight_decay
        self._weight_decay_t: Optional[tf.Tensor] = None  # The tensor, set in _prepare().
        decays = self._weight_decay is not None
        self.table_rule = "GradientDescentWeightDecay" if decays else "GradientDescent"

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate and, if given, weight decay."""
        if self._weight_decay is None:
            return (self._learning_rate_tensor,)
        return (self._learning_rate_tensor, self._weight_decay_t)

    def _prepare(self) -> None:
        super()._prepare()
        if self._weight_decay is not None:
            weight_decay = self._call_if_callable(self._weight_decay)
            self._weight_decay_t = tf.convert_to_tensor(weight_decay, name="weight_decay")

    def _decayed(self, gradient: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        if self._weight_decay is None:
            return gradient
        return gradient + value * tf.cast(self._weight_decay_t, gradient.dtype)

    # ---- Methods that tf.compat.v1.train.Optimizer calls for dense variables. With decay, the
    # gradients of repeated indices are summed first, so that a row decays once.

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        return super()._apply_dense(self._decayed(grad, var), var)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        return super()._resource_apply_dense(self._decayed(grad, handle), handle)

    def _apply_sparse_duplicate_indices(
        self, grad: tf.IndexedSlices, var: tf.Variable
    ) -> tf.Operation:
        if self._weight_decay is None:
            return super()._apply_sparse_duplicate_indices(grad, var)
        return tf.train.Optimizer._apply_sparse_duplicate_indices(self, grad, var)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: RuleVariable, indices: tf.Tensor
    ) -> tf.Operation:
        if self._weight_decay is None or table_of(handle) is not None:
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        return tf.train.Optimizer._resource_apply_sparse_duplicate_indices(
            self, grad, handle, indices
        )

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Updates the rows `indices` [n], which are distinct, with weight decay."""
        rows = DenseRows(indices, self._use_locking)
        step = self._decayed(grad, rows.read(handle))
        step *= tf.cast(self._learning_rate_tensor, grad.dtype)
        rows.subtract(handle, step)
        return rows.update()


create_hash_optimizer = factory_of(
    "gradient_descent.create_hash_optimizer", GradientDescentOptimizer
)
