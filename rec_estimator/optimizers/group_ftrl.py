# SPDX-License-Identifier: Apache-2.0
"""FTRL-Proximal with sparse group lasso, whose groups are the rows: whole rows become zero.

Source: Y. Yue et al., "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR
Prediction", ECML PKDD 2021, "Group AdaGrad"; FTRL see ftrl.py.
"""

from typing import Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, root
from rec_estimator.optimizers.ftrl import FtrlOptimizer
from rec_estimator.optimizers.group_lasso import EVICT_ZEROS, shrink_groups
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    check_hyperparameter,
)


class GroupFtrlOptimizer(DenseSteps, FtrlOptimizer):
    """FtrlOptimizer that takes away rows of little use, of tables and dense variables.

    For each key of the batch, n and z are those of FtrlOptimizer,
    ``s = clip(z, -l1, l1) - z``, ``limit = l21 * sqrt(dim)`` and
    ``value = max(1 - limit / norm(s), 0) * s / (n**p / learning_rate + 2 * l2)``.
    A row that becomes zero returns once its gradients are strong enough. Full saves and
    ``table.evict()`` take such rows away: their keys then start from their initial vectors again.

    The rows of a dense variable are along its first axis; in a vector, every element is a row.

    Args:
      learning_rate: Above 0.
      learning_rate_power: At most 0. The paper uses -0.5.
      initial_accumulator_value: Initial value of ``n``; at least 0.
      l1_regularization_strength: Of single elements; at least 0.
      l2_regularization_strength: At least 0.
      l21_regularization_strength: Of rows; at least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops, and of the slots that are not named.
      accum_name: Name of the slot ``n``.
      linear_name: Name of the slot ``z``.
      l2_shrinkage_regularization_strength: At least 0.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4, initializer=tf.zeros_initializer())
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> optimizer = rec.optimizers.GroupFtrlOptimizer(0.1, l21_regularization_strength=0.01)
      >>> train_op = optimizer.minimize(loss)
    """

    table_rule = "GroupFtrl"
    evict_option = EVICT_ZEROS

    def __init__(
        self,
        learning_rate: Hyperparameter,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l21_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "GroupFtrl",
        accum_name: Optional[str] = None,
        linear_name: Optional[str] = None,
        l2_shrinkage_regularization_strength: float = 0.0,
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, above=0)
        check_hyperparameter("l21_regularization_strength", l21_regularization_strength, at_least=0)
        super().__init__(
            learning_rate,
            learning_rate_power,
            initial_accumulator_value,
            l1_regularization_strength,
            l2_regularization_strength,
            use_locking,
            name,
            accum_name,
            linear_name,
            l2_shrinkage_regularization_strength,
        )
        self._l21 = l21_regularization_strength

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Those of Ftrl, and the strength of group lasso."""
        return (*super().table_hyperparameters(variable), self._l21)

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        rate, power, l1, l2, shrinkage, l21 = (
            tf.cast(value, gradient.dtype) for value in self.table_hyperparameters(variable)
        )

        def powered(sums: tf.Tensor) -> tf.Tensor:
            return root(sums) if self._learning_rate_power == -0.5 else tf.pow(sums, -power)

        accum, linear = self.get_slot(variable, "accum"), self.get_slot(variable, "linear")
        sums, value = rows.read(accum), rows.read(variable)
        new_sums = sums + tf.square(gradient)
        sigma = (powered(new_sums) - powered(sums)) / rate
        z = rows.read(linear) + (gradient + value * (2 * shrinkage) - sigma * value)
        rows.write(accum, new_sums)
        rows.write(linear, z)
        divisor = powered(new_sums) / rate + 2 * l2
        shrunk = tf.clip_by_value(z, -l1, l1) - z
        rows.write(variable, shrink_groups(shrunk, l21, divisor))
