# SPDX-License-Identifier: Apache-2.0
"""Adadelta.

Source: M. Zeiler, "ADADELTA: An Adaptive Learning Rate Method", arXiv:1212.5701, 2012. Differs: a
learning rate, which is 1 in the paper, comes from TensorFlow.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableSlot,
    TableUpdates,
    check_hyperparameter,
)


class AdadeltaOptimizer(TableUpdates, tf.train.AdadeltaOptimizer):
    """``tf.compat.v1.train.AdadeltaOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences:
    ``a = rho * a + (1 - rho) * g**2``, ``u = sqrt(b + epsilon) / sqrt(a + epsilon) * g``,
    ``value -= learning_rate * u``, ``b = rho * b + (1 - rho) * u**2``. Rows that are not in the
    batch keep value, a and b, as those of a dense variable with sparse gradients do in TensorFlow.

    Args:
      learning_rate: At least 0. The paper uses 1.
      rho: In [0, 1].
      epsilon: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.AdadeltaOptimizer(1.0).minimize(loss)
    """

    table_rule = "Adadelta"

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        rho: Hyperparameter = 0.95,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        check_hyperparameter("rho", rho, at_least=0, at_most=1)
        check_hyperparameter("epsilon", epsilon, at_least=0)
        super().__init__(learning_rate, rho, epsilon, use_locking, name)

    def table_slots(self) -> Sequence[TableSlot]:
        """The means of the squared gradients and of the squared updates."""
        name = self.get_name()
        return (TableSlot("accum", name, 0.0), TableSlot("accum_update", name, 0.0))

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, rho and epsilon."""
        return (self._lr_t, self._rho_t, self._epsilon_t)
