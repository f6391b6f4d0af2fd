# SPDX-License-Identifier: Apache-2.0
"""Proximal gradient descent: gradient descent with L1 and L2 penalties that give exact zeros.

Source: J. Duchi, Y. Singer, "Efficient Online and Batch Learning using Forward Backward Splitting",
JMLR 10, 2009.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableUpdates,
    check_hyperparameter,
)


class ProximalGradientDescentOptimizer(TableUpdates, tf.train.ProximalGradientDescentOptimizer):
    """``tf.compat.v1.train.ProximalGradientDescentOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences:
    ``v = value - learning_rate * g``,
    ``value = sign(v) * max(abs(v) - learning_rate * l1, 0) / (1 + learning_rate * l2)``.

    Args:
      learning_rate: At least 0; a number or a tensor.
      l1_regularization_strength: At least 0.
      l2_regularization_strength: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> optimizer = rec.optimizers.ProximalGradientDescentOptimizer(
      ...     0.1, l1_regularization_strength=0.01
      ... )
      >>> train_op = optimizer.minimize(loss)
    """

    table_rule = "ProximalGradientDescent"

    def __init__(
        self,
        learning_rate: Hyperparameter,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        check_penalties(l1_regularization_strength, l2_regularization_strength)
        super().__init__(
            learning_rate, l1_regularization_strength, l2_regularization_strength, use_locking, name
        )

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, L1 and L2."""
        return (
            self._learning_rate_tensor,
            self._l1_regularization_strength_tensor,
            self._l2_regularization_strength_tensor,
        )


def check_penalties(l1: float, l2: float) -> None:
    """Refuses negative strengths of regularization.

    Raises:
      ValueError: One of them is out of range.
    """
    check_hyperparameter("l1_regularization_strength", l1, at_least=0)
    check_hyperparameter("l2_regularization_strength", l2, at_least=0)
