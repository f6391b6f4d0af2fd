# SPDX-License-Identifier: Apache-2.0
"""FTRL-Proximal (follow the regularized leader).

Source: H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013. Differs: L2
shrinkage, which adds a penalty on the value to the gradient, comes from TensorFlow.
"""

from typing import Optional, Sequence

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


class FtrlOptimizer(TableUpdates, tf.train.FtrlOptimizer):
    """``tf.compat.v1.train.FtrlOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences and
    p = -learning_rate_power:
    ``n' = n + g**2``,
    ``z += g + 2 * l2_shrinkage * value - (n'**p - n**p) / learning_rate * value``,
    ``value = (clip(z, -l1, l1) - z) / ((beta + n'**p) / learning_rate + 2 * l2)``.

    Args:
      learning_rate: At least 0.
      learning_rate_power: At most 0. The paper uses -0.5.
      initial_accumulator_value: Initial value of ``n``; at least 0.
      l1_regularization_strength: At least 0.
      l2_regularization_strength: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops, and of the slots that are not named.
      accum_name: Name of the slot ``n``.
      linear_name: Name of the slot ``z``.
      l2_shrinkage_regularization_strength: At least 0.
      beta: The beta of the paper. None means 0.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> optimizer = rec.optimizers.FtrlOptimizer(0.1, l1_regularization_strength=0.01)
      >>> train_op = optimizer.minimize(loss)
    """

    table_rule = "Ftrl"
    computes_values_from_slots = True

    def __init__(
        self,
        learning_rate: Hyperparameter,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: Optional[str] = None,
        linear_name: Optional[str] = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: Optional[float] = None,
    ) -> None:
        check_hyperparameter("learning_rate_power", learning_rate_power, at_most=0)
        for argument, value in (
            ("learning_rate", learning_rate),
            ("initial_accumulator_value", initial_accumulator_value),
            ("l1_regularization_strength", l1_regularization_strength),
            ("l2_regularization_strength", l2_regularization_strength),
            ("l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength),
            ("beta", beta),
        ):
            check_hyperparameter(argument, value, at_least=0)
        super().__init__(
            learning_rate,
            learning_rate_power=learning_rate_power,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            use_locking=use_locking,
            name=name,
            accum_name=accum_name,
            linear_name=linear_name,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
            beta=beta,
        )

    def table_slots(self) -> Sequence[TableSlot]:
        """The sum of squared gradients, and z of the paper."""
        return (
            TableSlot(
                "accum", self._accum_name or self.get_name(), self._initial_accumulator_value
            ),
            TableSlot("linear", self._linear_name or self.get_name(), 0.0),
        )

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate and its power, L1, L2 including the term of beta, L2 shrinkage."""
        return (
            self._learning_rate_tensor,
            self._learning_rate_power_tensor,
            self._l1_regularization_strength_tensor,
            self._adjusted_l2_regularization_strength_tensor,
            self._l2_shrinkage_regularization_strength_tensor,
        )


create_hash_optimizer = factory_of("ftrl.create_hash_optimizer", FtrlOptimizer)
