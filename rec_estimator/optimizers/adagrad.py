# SPDX-License-Identifier: Apache-2.0
"""Adagrad.

Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online Learning and
Stochastic Optimization", JMLR 12, 2011.
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


class AdagradOptimizer(TableUpdates, tf.train.AdagradOptimizer):
    """``tf.compat.v1.train.AdagradOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences: ``a += g**2``,
    ``value -= learning_rate * g / sqrt(a)``.

    Args:
      learning_rate: At least 0.
      initial_accumulator_value: Initial value of ``a``; above 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slot.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.AdagradOptimizer(0.05).minimize(loss)
    """

    table_rule = "Adagrad"

    def __init__(
        self,
        learning_rate: Hyperparameter,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        check_hyperparameter("initial_accumulator_value", initial_accumulator_value, above=0)
        super().__init__(
            learning_rate,
            initial_accumulator_value=initial_accumulator_value,
            use_locking=use_locking,
            name=name,
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The sum of squared gradients."""
        return (TableSlot("accumulator", self.get_name(), self._initial_accumulator_value),)

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """The learning rate."""
        return (self._learning_rate_tensor,)


create_hash_optimizer = factory_of("adagrad.create_hash_optimizer", AdagradOptimizer)
