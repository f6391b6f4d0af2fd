# SPDX-License-Identifier: Apache-2.0
"""Adagrad that forgets: sums of squared gradients are discounted period by period.

Source: DeepRec, "AdagradDecay Optimizer" (docs/docs_en/AdagradDecay-Optimizer.md in its
repository). Differs from its kernels, not from its formula: a row that was away for several
periods is discounted for all of them when it comes back, not for one a step.
"""

import numbers
from typing import Any, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adagrad import AdagradOptimizer
from rec_estimator.optimizers.dense_rows import DenseRows, DenseSteps, per_row, root
from rec_estimator.optimizers.table_updates import (
    Hyperparameter,
    TableSlot,
    check_hyperparameter,
)
from rec_estimator.table.table import graph_step


class AdagradDecayOptimizer(DenseSteps, AdagradOptimizer):
    """DeepRec's ``tf.train.AdagradDecayOptimizer``, for tables and dense variables.

    With t the step from 1, T = accumulator_decay_step and g the sum over a key's occurrences: where
    T divides t, ``a = max(accumulator_decay_rate * a, initial_accumulator_value)``, in all rows;
    then, in the rows of the batch, ``a += g**2`` and ``value -= learning_rate * g / sqrt(a)``.

    Slots: ``<name>`` is a, ``<name>_1`` how many periods a is discounted for. The latter is as wide
    as the row, as in DeepRec's checkpoints; AdagradDecayOptimizerV2 has one float a row.

    Args:
      learning_rate: At least 0.
      global_step: Counts the steps; None: the graph's.
      initial_accumulator_value: What a starts from and never falls below; above 0.
      accumulator_decay_step: T, in steps; an integer above 0. At most 2**24 periods are told apart.
      accumulator_decay_rate: In (0, 1).
      use_locking: For dense variables; updates of tables always lock.
      name: Of the ops and of the slots.

    Raises:
      ValueError: A number out of range; or, when gradients are applied, no global step.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> optimizer = rec.optimizers.AdagradDecayOptimizer(0.05, step, accumulator_decay_step=1000)
      >>> train_op = optimizer.minimize(loss, step)
    """

    table_rule = "AdagradDecay"

    # Floats of slot <name>_1 in a row; None: as many as the value has.
    _power_width: Optional[int] = None

    def __init__(
        self,
        learning_rate: Hyperparameter,
        global_step: Optional[tf.Variable] = None,
        initial_accumulator_value: float = 0.1,
        accumulator_decay_step: int = 100000,
        accumulator_decay_rate: float = 0.9,
        use_locking: bool = False,
        name: str = "AdagradDecay",
    ) -> None:
        if not isinstance(accumulator_decay_step, numbers.Real) or accumulator_decay_step % 1:
            raise ValueError(
                f"accumulator_decay_step must be an integer, got {accumulator_decay_step!r}; it is "
                "a number of steps"
            )
        check_hyperparameter(
            "accumulator_decay_step", accumulator_decay_step, at_least=1, at_most=2**62
        )
        check_hyperparameter("accumulator_decay_rate", accumulator_decay_rate, above=0, below=1)
        super().__init__(learning_rate, initial_accumulator_value, use_locking, name)
        self._global_step = global_step
        self._decay_step = int(accumulator_decay_step)
        self._decay_rate = accumulator_decay_rate
        self._periods: Optional[tf.Tensor] = None  # That have ended; made in _prepare().

    def table_slots(self) -> Sequence[TableSlot]:
        """The sum of squared gradients, and how many periods it is discounted for."""
        return (*super().table_slots(), TableSlot(self.get_name(), 0.0, self._power_width))

    def table_hyperparameters(self, variable: Any) -> Sequence[Any]:
        """Learning rate, decay rate, least accumulator, periods that have ended."""
        return (
            *super().table_hyperparameters(variable),
            self._decay_rate,
            self._initial_accumulator_value,
            self._periods,
        )

    def _prepare(self) -> None:
        super()._prepare()
        step = graph_step(()) if self._global_step is None else self._global_step
        if step is None:
            raise ValueError(
                f"global_step of {self.get_name()!r} must be given or be in the graph, got "
                "neither; call tf.compat.v1.train.get_or_create_global_step()"
            )
        # Before its increment the global step is one behind t.
        self._periods = (tf.cast(step, tf.int64) + 1) // self._decay_step

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_dense_slots(var_list)
        for variable in var_list:
            self._get_or_make_slot_with_initializer(
                variable,
                tf.zeros_initializer(tf.int64),
                variable.shape if self._power_width is None else variable.shape[:1],
                tf.int64,
                "accumulator_decay_power",
                self.get_name(),
            )

    def dense_step(
        self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows
    ) -> List[tf.Tensor]:
        """The same step on rows of a dense variable."""
        rate, decay_rate, baseline, _ = (
            tf.cast(value, gradient.dtype) for value in self.table_hyperparameters(variable)
        )
        accumulator = self.get_slot(variable, "accumulator")
        power = self.get_slot(variable, "accumulator_decay_power")
        power_rows = rows.read(power)
        due = tf.maximum(self._periods - power_rows, 0)
        discount = tf.pow(tf.cast(decay_rate, tf.float64), tf.cast(due, tf.float64))
        discount = tf.cast(discount, gradient.dtype)
        if self._power_width is not None:
            due, discount = per_row(due, gradient), per_row(discount, gradient)
        sums = rows.read(accumulator)
        sums = tf.where_v2(due > 0, tf.maximum(sums * discount, baseline), sums)
        sums += tf.square(gradient)
        return [
            rows.write(power, tf.maximum(power_rows, self._periods)),
            rows.write(accumulator, sums),
            rows.subtract(variable, gradient * rate / root(sums)),
        ]


class AdagradDecayOptimizerV2(AdagradDecayOptimizer):
    """AdagradDecayOptimizer that counts a row's periods in one float a row, not one an element.

    DeepRec's ``tf.train.AdagradDecayOptimizerV2``: the same steps in less memory. Arguments and
    errors are those of AdagradDecayOptimizer.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> train_op = rec.optimizers.AdagradDecayOptimizerV2(0.05, step).minimize(loss, step)
    """

    table_rule = "AdagradDecayV2"

    _power_width = 1
