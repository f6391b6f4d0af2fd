"""Gradient descent.

Source: H. Robbins, S. Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics
22(3), 1951.
"""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.table_updates import (
    Hyperparameter,
    TableUpdates,
    check_hyperparameter,
)


class GradientDescentOptimizer(TableUpdates, tf.train.GradientDescentOptimizer):
    """``tf.compat.v1.train.GradientDescentOptimizer`` that also trains tables.

    Per occurrence of a key, in batch order: ``value -= learning_rate * g``.

    Args:
      learning_rate: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Of the ops.

    Raises:
      ValueError: learning_rate is a number out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    """

    table_rule = "GradientDescent"

    def __init__(
        self,
        learning_rate: Hyperparameter,
        use_locking: bool = False,
        name: str = "GradientDescent",
    ) -> None:
        check_hyperparameter("learning_rate", learning_rate, at_least=0)
        super().__init__(learning_rate, use_locking=use_locking, name=name)

    def table_hyperparameters(self) -> Sequence[Any]:
        """The learning rate."""
        return (self._learning_rate_tensor,)
