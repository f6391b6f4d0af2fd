# SPDX-License-Identifier: Apache-2.0
"""Adam with sparse group lasso, whose groups are the rows: whole rows become zero.

Source: Y. Yue et al., "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR
Prediction", ECML PKDD 2021, "Group Adam". Differs: a step changes only the rows of the batch.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, adam_moments
from rec_estimator.optimizers.group_lasso import EVICT_ZEROS, shrink_groups
from rec_estimator.optimizers.proximal_gradient_descent import check_penalties
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableSlot,
    check_hyperparameter,
)


class GroupAdamOptimizer(DenseSteps, AdamOptimizer):
    """Adam that takes away rows of little use, of tables and dense variables.

    For each key of the batch, m and v are those of AdamOptimizer, t is the step, counted from 1,
    ``q' = sqrt(v / (1 - beta2**t)) + epsilon``,
    ``z += m / (1 - beta1**t) - (q' - q) / learning_rate * value``,
    ``s = clip(z, -l1, l1) - z``, ``limit = l21 * sqrt(dim)`` and
    ``value = max(1 - limit / norm(s), 0) * s / (q' / learning_rate + 2 * l2)``. Without penalties
    this is Adam, as the paper of Adam states it first. Rows that are not in the batch keep value
    and slots.
    A row that becomes zero returns once its gradients are strong enough. Full saves and
    ``table.evict()`` take such rows away: their keys then start from their initial vectors again.

    The rows of a dense variable are along its first axis; in a vector, every element is a row.

    Args:
      learning_rate: Above 0.
      beta1: In [0, 1).
      beta2: In [0, 1).
      epsilon: Above 0.
      l1_regularization_strength: Of single elements; at least 0.
      l2_regularization_strength: At least 0.
      l21_regularization_strength: Of rows; at least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> optimizer = rec.optimizers.GroupAdamOptimizer(0.001, l21_regularization_strength=1e-5)
      >>> train_op = optimizer.minimize(loss)
    """

    table_rule = "GroupAdam"
    computes_values_from_slots = True
    evict_option = EVICT_ZEROS

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l21_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "GroupAdam",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, above=0)
        check_hyperparameter("epsilon", epsilon, above=0)
        check_penalties(l1_regularization_strength, l2_regularization_strength)
        check_hyperparameter("l21_regularization_strength", l21_regularization_strength, at_least=0)
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._penalties = (
            l1_regularization_strength,
            l2_regularization_strength,
            l21_regularization_strength,
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The moments, q, and z."""
        name = self.get_name()
        return (
            *super().table_slots(),
            TableSlot("accum", name, 0.0),
            TableSlot("linear", name, 0.0),
        )

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Those of Adam, and the strengths of L1, L2 and group lasso."""
        return (*super().table_hyperparameters(variable), *self._penalties)

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_dense_slots(var_list)
        for variable in var_list:
            for slot in ("accum", "linear"):
                self._zeros_slot(variable, slot, self.get_name())

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        rate, beta1, beta2, epsilon, beta1_power, beta2_power, l1, l2, l21 = (
            tf.cast(value, gradient.dtype) for value in self.table_hyperparameters(variable)
        )
        m, v, accum, linear = (
            self.get_slot(variable, name) for name in ("m", "v", "accum", "linear")
        )
        m_rows, v_rows = adam_moments(gradient, m, v, rows, beta1, beta2)
        roots = tf.sqrt(v_rows / (1 - beta2_power)) + epsilon
        sigma = (roots - rows.read(accum)) / rate
        step = m_rows / (1 - beta1_power) - sigma * rows.read(variable)
        z = rows.read(linear) + step
        rows.write(accum, roots)
        rows.write(linear, z)
        shrunk = tf.clip_by_value(z, -l1, l1) - z
        rows.write(variable, shrink_groups(shrunk, l21, roots / rate + 2 * l2))
