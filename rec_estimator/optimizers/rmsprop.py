# SPDX-License-Identifier: Apache-2.0
"""RMSProp, plain and centered.

Source: T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", COURSERA: Neural Networks for Machine
Learning, 2012; centered: A. Graves, "Generating Sequences With Recurrent Neural Networks", 2013.
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


class RMSPropOptimizer(TableUpdates, tf.train.RMSPropOptimizer):
    """``tf.compat.v1.train.RMSPropOptimizer`` that also trains tables.

    For each key of the batch, where g is the sum over its occurrences:
    ``rms = decay * rms + (1 - decay) * g**2``,
    ``mom = momentum * mom + learning_rate * g / sqrt(rms + epsilon)``, ``value -= mom``. If
    centered, ``mg = decay * mg + (1 - decay) * g`` and the root is that of
    ``rms - mg**2 + epsilon``. Rows that are not in the batch keep value and slots, as those of a
    dense variable with sparse gradients do in TensorFlow.

    Args:
      learning_rate: At least 0.
      decay: In [0, 1].
      momentum: At least 0.
      epsilon: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      centered: Whether to divide by the root of the variance instead of the mean square; needs a
        third slot.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.RMSPropOptimizer(0.01).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: Hyperparameter,
        decay: Hyperparameter = 0.9,
        momentum: Hyperparameter = 0.0,
        epsilon: Hyperparameter = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        check_hyperparameter("decay", decay, at_least=0, at_most=1)
        check_hyperparameter("momentum", momentum, at_least=0)
        check_hyperparameter("epsilon", epsilon, at_least=0)
        super().__init__(
            learning_rate,
            decay=decay,
            momentum=momentum,
            epsilon=epsilon,
            use_locking=use_locking,
            centered=centered,
            name=name,
        )
        self.table_rule = "CenteredRMSProp" if centered else "RMSProp"
        if centered:
            self.harm_of_narrow_slots = "whose variance rounded means would make negative"

    def table_slots(self) -> Sequence[TableSlot]:
        """The mean square, the mean if centered, and the momentum."""
        name = self.get_name()
        mean = (TableSlot("mg", name, 0.0),) if self._centered else ()
        return (TableSlot("rms", name, 1.0), *mean, TableSlot("momentum", name, 0.0))

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, decay, momentum and epsilon."""
        return (
            self._learning_rate_tensor,
            self._decay_tensor,
            self._momentum_tensor,
            self._epsilon_tensor,
        )
