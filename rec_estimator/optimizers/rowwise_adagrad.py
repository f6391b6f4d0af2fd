# SPDX-License-Identifier: Apache-2.0
"""Adagrad with one accumulator per row. At dim 16 it needs 1/16 of the slot memory of Adagrad.

Source: M. Gupta, S. Bengio, J. Weston, "Training Highly Multiclass Classifiers", JMLR 15, 2014;
D. Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning
Recommendation Models", ISCA 2022. Differs: no epsilon; the accumulator starts above 0, as in
TensorFlow's Adagrad.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adagrad import AdagradOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, root
from rec_estimator.optimizers.table_optimizer import Hyperparameter, TableSlot


class RowwiseAdagradOptimizer(DenseSteps, AdagradOptimizer):
    """Adagrad that keeps the sum of mean squared gradients, one float per row.

    For each key of the batch, where g is the sum over its occurrences: ``a += mean(g**2)``,
    ``value -= learning_rate / sqrt(a) * g``. The rows of a dense variable are along its first axis;
    in a vector, every element is a row.

    Args:
      learning_rate: At least 0.
      initial_accumulator_value: Initial value of ``a``; above 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slot.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.RowwiseAdagradOptimizer(0.05).minimize(loss)
    """

    table_rule = "RowwiseAdagrad"

    def __init__(
        self,
        learning_rate: Hyperparameter,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "RowwiseAdagrad",
    ) -> None:
        super().__init__(learning_rate, initial_accumulator_value, use_locking, name)

    def table_slots(self) -> Sequence[TableSlot]:
        """The sum of mean squared gradients."""
        return (TableSlot("accumulator", self.get_name(), self._initial_accumulator_value, 1),)

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            dtype = variable.dtype.base_dtype
            self._get_or_make_slot_with_initializer(
                variable,
                tf.constant_initializer(self._initial_accumulator_value, dtype=dtype),
                variable.shape[:1],
                dtype,
                "accumulator",
                self.get_name(),
            )

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        (rate,) = (tf.cast(x, gradient.dtype) for x in self.table_hyperparameters(variable))
        accumulator = self.get_slot(variable, "accumulator")
        # In float64, the order of the sum does not change the rounded result.
        squares = tf.square(tf.cast(gradient, tf.float64))
        axes = list(range(1, variable.shape.rank))
        mean = tf.cast(tf.reduce_mean(squares, axes, keepdims=True), gradient.dtype)
        old = rows.read(accumulator)
        sums = tf.reshape(old, tf.shape(mean)) + mean
        rows.write(accumulator, tf.reshape(sums, tf.shape(old)))
        rows.subtract(variable, gradient * (rate / root(sums)))
