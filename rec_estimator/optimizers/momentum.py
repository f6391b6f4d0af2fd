# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with momentum, optionally Nesterov momentum.

Source: B. Polyak, "Some methods of speeding up the convergence of iteration methods", USSR
Computational Mathematics 4(5), 1964; I. Sutskever et al., "On the importance of initialization and
momentum in deep learning", ICML 2013.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.hash_optimizer import factory_of
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableSlot,
    TableUpdates,
    check_hyperparameter,
)


class MomentumOptimizer(TableUpdates, tf.train.MomentumOptimizer):
    """``tf.compat.v1.train.MomentumOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences: ``m = momentum * m + g``,
    then ``value -= learning_rate * m``. With use_nesterov:
    ``value -= learning_rate * (g + momentum * m)``.

    Args:
      learning_rate: At least 0.
      momentum: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slot.
      use_nesterov: Whether to use Nesterov momentum.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.MomentumOptimizer(0.1, momentum=0.9).minimize(loss)
    """

    table_rule = "Momentum"

    def __init__(
        self,
        learning_rate: Hyperparameter,
        momentum: Hyperparameter,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        check_hyperparameter("momentum", momentum, at_least=0)
        super().__init__(
            learning_rate, momentum, use_locking=use_locking, name=name, use_nesterov=use_nesterov
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The decaying sum of gradients."""
        return (TableSlot("momentum", self.get_name(), 0.0),)

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, momentum, and 1 for Nesterov momentum."""
        return (self._learning_rate_tensor, self._momentum_tensor, float(self._use_nesterov))


create_hash_optimizer = factory_of("momentum.create_hash_optimizer", MomentumOptimizer)
