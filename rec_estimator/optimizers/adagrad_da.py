# SPDX-License-Identifier: Apache-2.0
"""Adagrad with dual averaging, for sparse linear models.

Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online Learning and
Stochastic Optimization", JMLR 12, 2011.
"""

from typing import Sequence, Union

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


class AdagradDAOptimizer(TableUpdates, tf.train.AdagradDAOptimizer):
    """``tf.compat.v1.train.AdagradDAOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences and t the step, counted from
    1: ``s += g``, ``a += g**2``,
    ``value = -learning_rate * sign(s) * max(abs(s) - l1 * t, 0) / (l2 * t * learning_rate +
    sqrt(a))``. A row forgets its initial vector in its first step.

    Args:
      learning_rate: Above 0; a number or a tensor.
      global_step: The global step before its increment, which is t - 1.
      initial_gradient_squared_accumulator_value: Initial value of ``a``; above 0.
      l1_regularization_strength: At least 0.
      l2_regularization_strength: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> train_op = rec.optimizers.AdagradDAOptimizer(0.1, step).minimize(loss, step)
    """

    table_rule = "AdagradDA"
    computes_values_from_slots = True

    def __init__(
        self,
        learning_rate: Hyperparameter,
        global_step: Union[tf.Variable, tf.Tensor],
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, above=0)
        check_hyperparameter(
            "initial_gradient_squared_accumulator_value",
            initial_gradient_squared_accumulator_value,
            above=0,
        )
        check_penalties(l1_regularization_strength, l2_regularization_strength)
        super().__init__(
            learning_rate,
            global_step,
            initial_gradient_squared_accumulator_value,
            l1_regularization_strength,
            l2_regularization_strength,
            use_locking,
            name,
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The sums of gradients and of squared gradients."""
        initial = self._initial_gradient_squared_accumulator_value
        return (
            TableSlot("gradient_accumulator", self.get_name(), 0.0),
            TableSlot("gradient_squared_accumulator", self.get_name(), initial),
        )

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, L1, L2 and the step."""
        return (
            self._learning_rate_tensor,
            self._l1_regularization_strength,
            self._l2_regularization_strength,
            self._global_step_on_worker,
        )
