# SPDX-License-Identifier: Apache-2.0
"""Adam with decoupled weight decay.

Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2
with a schedule multiplier of 1, on top of Adam as in adam.py. Note that weight_decay is not
multiplied by the learning rate; some other libraries do that.
"""

from typing import Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.dense_rows import DenseRows, DenseSteps, adam_step
from rec_estimator.optimizers.table_updates import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    check_hyperparameter,
)


class AdamWOptimizer(DenseSteps, AdamOptimizer):
    """DeepRec's ``tf.train.AdamWOptimizer``, for tables and dense variables.

    For each key of the batch: ``value -= weight_decay * value + d``, where d is the step of
    AdamOptimizer. Rows that are not in the batch keep value, m and v, also in dense variables.

    Args:
      weight_decay: The fraction of a value that a step removes; at least 0. If the learning rate
        has a schedule, use the same schedule here.
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
      >>> train_op = rec.optimizers.AdamWOptimizer(1e-4, learning_rate=0.001).minimize(loss)
    """

    table_rule = "AdamW"

    def __init__(
        self,
        weight_decay: Hyperparameter,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        check_hyperparameter("weight_decay", weight_decay, at_least=0)
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._weight_decay = weight_decay
        self._weight_decay_t: Optional[tf.Tensor] = None  # The tensor, set in _prepare().

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """The hyperparameters of Adam, and weight decay."""
        return (*super().table_hyperparameters(variable), self._weight_decay_t)

    def _prepare(self) -> None:
        super()._prepare()
        weight_decay = self._call_if_callable(self._weight_decay)
        self._weight_decay_t = tf.convert_to_tensor(weight_decay, name="weight_decay")

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        *adam, weight_decay = self.table_hyperparameters(variable)
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        step = adam_step(gradient, m, v, rows, adam)
        decay = rows.read(variable) * tf.cast(weight_decay, gradient.dtype)
        rows.subtract(variable, decay + step)
