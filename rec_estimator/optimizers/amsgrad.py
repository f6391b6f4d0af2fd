# SPDX-License-Identifier: Apache-2.0
"""AMSGrad: Adam that divides by the largest second moment so far.

Source: S. Reddi, S. Kale, S. Kumar, "On the Convergence of Adam and Beyond", ICLR 2018. Differs:
the bias correction of Adam, as in TensorFlow's ApplyAdamWithAmsgrad.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, adam_step
from rec_estimator.optimizers.table_optimizer import Hyperparameter, TableSlot


class AMSGradOptimizer(DenseSteps, AdamOptimizer):
    """Adam whose steps never grow again because a second moment shrinks.

    For each key of the batch, m and v are those of AdamOptimizer, ``h = max(h, v)``, and
    ``value -= learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(h) + epsilon)``.
    Rows that are not in the batch keep value, m, v and h, also in dense variables.

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
      >>> train_op = rec.optimizers.AMSGradOptimizer(0.001).minimize(loss)
    """

    table_rule = "AMSGrad"
    harm_of_narrow_slots = "whose largest moment would only keep errors of rounding that raise it"

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "AMSGrad",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)

    def table_slots(self) -> Sequence[TableSlot]:
        """The first and the second moment, and the largest second moment."""
        return (*super().table_slots(), TableSlot("vhat", self.get_name(), 0.0))

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_dense_slots(var_list)
        for variable in var_list:
            self._zeros_slot(variable, "vhat", self.get_name())

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        m, v, vhat = (self.get_slot(variable, name) for name in ("m", "v", "vhat"))
        hyperparameters = self.table_hyperparameters(variable)
        rows.subtract(variable, adam_step(gradient, m, v, rows, hyperparameters, vhat))
