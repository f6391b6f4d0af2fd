# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with momentum, plain or Nesterov's.

Source: B. Polyak, "Some methods of speeding up the convergence of iteration methods", USSR
Computational Mathematics 4(5), 1964; I. Sutskever et al., "On the importance of initialization and
momentum in deep learning", ICML 2013.
"""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_text
from rec_estimator.optimizers.hash_optimizer import (
    MAX_NAME,
    check_expansion,
    check_float,
    check_learning_rate,
)
from rec_estimator.optimizers.table_updates import (
    Hyperparameter,
    TableSlot,
    TableUpdates,
    check_hyperparameter,
)


class MomentumOptimizer(TableUpdates, tf.train.MomentumOptimizer):
    """``tf.compat.v1.train.MomentumOptimizer`` that also trains tables.

    Per key of the batch, g the sum over its occurrences: ``m = momentum * m + g``, then
    ``value -= learning_rate * m``, or with use_nesterov
    ``value -= learning_rate * (g + momentum * m)``.

    Args:
      learning_rate: At least 0.
      momentum: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Of the ops and of the slot.
      use_nesterov: Whether the gradient is taken to be that of the point after the step.

    Raises:
      ValueError: A number out of range.

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
        """The running sum of gradients."""
        return (TableSlot(self.get_name(), 0.0),)

    def table_hyperparameters(self, variable: Any) -> Sequence[Any]:
        """Learning rate, momentum, whether Nesterov's."""
        return (self._learning_rate_tensor, self._momentum_tensor, float(self._use_nesterov))


def create_hash_optimizer(
    learning_rate: Hyperparameter = 0.001,
    mom: float = 0.9,
    use_locking: bool = False,
    name: str = "momentum",
    enable_nesterov: bool = False,
) -> MomentumOptimizer:
    """Rec SDK's factory of momentum for tables, which its first versions had.

    Args:
      learning_rate: In [0, 10], or a tensor.
      mom: The momentum, at least 0.
      use_locking: For dense variables.
      name: 1 to 200 characters.
      enable_nesterov: Whether the gradient is taken to be that of the point after the step.

    Returns:
      The optimizer.

    Raises:
      ValueError: An argument of a wrong type or out of range; ``init(use_dynamic_expansion=True)``.

    Example:
      >>> rec.optimizers.momentum.create_hash_optimizer(mom=0.5).get_name()
      'momentum'
    """
    check_expansion("momentum.create_hash_optimizer", is_by_address=False)
    check_learning_rate(learning_rate)
    check_float("mom", mom, at_least=0)
    check_bool("use_locking", use_locking)
    check_text("name", name, MAX_NAME)
    check_bool("enable_nesterov", enable_nesterov)
    return MomentumOptimizer(learning_rate, mom, use_locking, name, enable_nesterov)
