# SPDX-License-Identifier: Apache-2.0
"""Adam.

Source: D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, in the form
before section 2.1. Differs for tables: a step changes only the rows of the batch.
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


def check_adam(
    learning_rate: Hyperparameter,
    beta1: Hyperparameter,
    beta2: Hyperparameter,
    epsilon: Hyperparameter,
) -> None:
    """Refuses hyperparameters of Adam that are out of range.

    Raises:
      ValueError: One of them is out of range.
    """
    check_hyperparameter("learning_rate", learning_rate, at_least=0)
    check_hyperparameter("beta1", beta1, at_least=0, below=1)
    check_hyperparameter("beta2", beta2, at_least=0, below=1)
    check_hyperparameter("epsilon", epsilon, at_least=0)


class AdamOptimizer(TableUpdates, tf.train.AdamOptimizer):
    """``tf.compat.v1.train.AdamOptimizer`` that also trains tables, lazily.

    For each key of the batch, where g is the sum over its occurrences and t the step, counted from
    1:
    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``value -= learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)``.
    Rows that are not in the batch keep value, m and v. Dense variables are updated as TensorFlow
    does: a sparse gradient changes all rows. LazyAdamOptimizer treats both alike.

    Args:
      learning_rate: At least 0.
      beta1: In [0, 1).
      beta2: In [0, 1).
      epsilon: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.AdamOptimizer(0.001).minimize(loss)
    """

    table_rule = "Adam"

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        check_adam(learning_rate, beta1, beta2, epsilon)
        super().__init__(
            learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            use_locking=use_locking,
            name=name,
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The first and the second moment."""
        return (TableSlot("m", self.get_name(), 0.0), TableSlot("v", self.get_name(), 0.0))

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, betas, epsilon, and the betas to the power of the step."""
        return (
            self._lr_t,
            self._beta1_t,
            self._beta2_t,
            self._epsilon_t,
            *self._get_beta_accumulators(),
        )

    def _create_slots(self, var_list: Sequence[RuleVariable]) -> None:
        super()._create_slots(var_list)
        # TensorFlow has made these variables already if there is a dense variable.
        first = min(var_list, key=lambda variable: variable.name)
        for name, beta in (("beta1_power", self._beta1), ("beta2_power", self._beta2)):
            self._create_non_slot_variable(beta, name=name, colocate_with=first)
