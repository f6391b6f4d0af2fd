# SPDX-License-Identifier: Apache-2.0
"""Adagrad with decay: sums of squared gradients are discounted once per period.

Source: DeepRec, "AdagradDecay Optimizer" (docs/docs_en/AdagradDecay-Optimizer.md in its
repository). Differs from its kernels, but not from its formula: a row that was not trained for
several periods is discounted for all of them in its next step, instead of once per step.
"""

import numbers
from typing import Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.walk import find_global_step
from rec_estimator.optimizers.adagrad import AdagradOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, per_row, root
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableSlot,
    check_hyperparameter,
)


class AdagradDecayOptimizer(DenseSteps, AdagradOptimizer):
    """DeepRec's ``tf.train.AdagradDecayOptimizer``, for tables and dense variables.

    Let t be the step, counted from 1, T = accumulator_decay_step, and g the sum over the
    occurrences of a key. If T divides t, in all rows:
    ``a = max(accumulator_decay_rate * a, initial_accumulator_value)``. Then, in the rows of the
    batch: ``a += g**2`` and ``value -= learning_rate * g / sqrt(a)``.

    Slots: ``<name>`` is a; ``<name>_1`` is the number of periods that a is discounted for. The
    latter has as many floats per row as the value, as in DeepRec's checkpoints; in
    AdagradDecayOptimizerV2 it has one.

    Args:
      learning_rate: At least 0.
      global_step: The variable that counts the steps; None: the global step of the graph.
      initial_accumulator_value: Initial value and lower bound of a; above 0.
      accumulator_decay_step: T, in steps; an integer above 0. Up to 2**24 periods are counted.
      accumulator_decay_rate: In (0, 1).
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range; or there is no global step when gradients are applied.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> optimizer = rec.optimizers.AdagradDecayOptimizer(0.05, step, accumulator_decay_step=1000)
      >>> train_op = optimizer.minimize(loss, step)
    """

    table_rule = "AdagradDecay"
    harm_of_narrow_slots: Optional[str] = (
        "whose count of periods must be exact, as in AdagradDecayOptimizerV2"
    )

    # Floats per row in slot <name>_1; None: the dim of the table.
    _power_width: Optional[int] = None

    _global_step: Optional[tf.Variable]
    _decay_step: int
    _decay_rate: float

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
        self._periods: Optional[tf.Tensor] = None  # The number of ended periods, set in _prepare().

    def table_slots(self) -> Sequence[TableSlot]:
        """The sum of squared gradients, and the number of periods it is discounted for."""
        return (
            *super().table_slots(),
            TableSlot("accumulator_decay_power", self.get_name(), 0.0, self._power_width),
        )

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, decay rate, lower bound of the accumulator, number of ended periods."""
        return (
            *super().table_hyperparameters(variable),
            self._decay_rate,
            self._initial_accumulator_value,
            self._periods,
        )

    def _prepare(self) -> None:
        super()._prepare()
        step = find_global_step() if self._global_step is None else self._global_step
        if step is None:
            raise ValueError(
                f"{self.get_name()!r} got no global_step, and the graph has none; call "
                "tf.compat.v1.train.get_or_create_global_step()"
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

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
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
        rows.write(power, tf.maximum(power_rows, self._periods))
        rows.write(accumulator, sums)
        rows.subtract(variable, gradient * rate / root(sums))


class AdagradDecayOptimizerV2(AdagradDecayOptimizer):
    """AdagradDecayOptimizer with one float per row, instead of one per element, to count periods.

    The counterpart of DeepRec's ``tf.train.AdagradDecayOptimizerV2``: the same steps in less
    memory. Arguments and errors are those of AdagradDecayOptimizer.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> train_op = rec.optimizers.AdagradDecayOptimizerV2(0.05, step).minimize(loss, step)
    """

    table_rule = "AdagradDecayV2"
    harm_of_narrow_slots = None  # One number per row is stored in float32.

    _power_width = 1
