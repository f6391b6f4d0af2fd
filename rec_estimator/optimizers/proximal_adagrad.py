# SPDX-License-Identifier: Apache-2.0
"""Proximal Adagrad: Adagrad with L1 and L2 penalties that give exact zeros.

Source: J. Duchi, Y. Singer, "Efficient Online and Batch Learning using Forward Backward Splitting",
JMLR 10, 2009, with the learning rate of J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient
Methods for Online Learning and Stochastic Optimization", JMLR 12, 2011.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.proximal_gradient_descent import check_penalties
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableSlot,
    TableUpdates,
    check_hyperparameter,
)


class ProximalAdagradOptimizer(TableUpdates, tf.train.ProximalAdagradOptimizer):
    """``tf.compat.v1.train.ProximalAdagradOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences: ``a += g**2``,
    ``rate = learning_rate / sqrt(a)``, ``v = value - rate * g``,
    ``value = sign(v) * max(abs(v) - rate * l1, 0) / (1 + rate * l2)``.

    Args:
      learning_rate: Above 0; a number or a tensor.
      initial_accumulator_value: Initial value of ``a``; above 0.
      l1_regularization_strength: At least 0.
      l2_regularization_strength: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slot.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> optimizer = rec.optimizers.ProximalAdagradOptimizer(
      ...     0.1, l1_regularization_strength=0.01
      ... )
      >>> train_op = optimizer.minimize(loss)
    """

    table_rule = "ProximalAdagrad"

    def __init__(
        self,
        learning_rate: Hyperparameter,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, above=0)
        check_hyperparameter("initial_accumulator_value", initial_accumulator_value, above=0)
        check_penalties(l1_regularization_strength, l2_regularization_strength)
        super().__init__(
            learning_rate,
            initial_accumulator_value,
            l1_regularization_strength,
            l2_regularization_strength,
            use_locking,
            name,
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The sum of squared gradients."""
        return (TableSlot("accumulator", self.get_name(), self._initial_accumulator_value),)

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, L1 and L2."""
        return (
            self._learning_rate_tensor,
            self._l1_regularization_strength_tensor,
            self._l2_regularization_strength_tensor,
        )
