# SPDX-License-Identifier: Apache-2.0
"""Adam with a bias correction for each table and variable instead of one for the model.

Source: DeepRec, "AdamAsync Optimizer" (docs/docs_en/AdamAsync-Optimizer.md in its repository), and
its kernels for apply_sparse_rmsprop, which the page mentions without a formula.
"""

from typing import Dict, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import check_adam
from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, adam_step, root
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    RuleVariable,
    Scalar,
    TableSlot,
    TableUpdates,
    Variable,
    table_of,
)
from rec_estimator.table.slot_rows import SlotRows

# The powers of the betas, as ``get_slot()`` names them.
_POWERS = ("beta1_power", "beta2_power")


class AdamAsyncOptimizer(DenseSteps, TableUpdates):
    """DeepRec's ``tf.train.AdamAsyncOptimizer``, for tables and dense variables.

    For each key of the batch, where g is the sum over its occurrences, the step is that of Adam:
    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``value -= learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)``,
    where t counts the steps of this table or variable. Rows that are not in the batch keep value, m
    and v, also in dense variables.

    With apply_sparse_rmsprop, tables and sparse gradients take another step, without t:
    ``v = beta2 * v + (1 - beta2) * g**2``,
    ``m = beta1 * m + learning_rate * g / sqrt(v + epsilon)``, ``value -= m``.

    Slots: ``<name>`` is m, ``<name>_1`` is v. The variables ``<table>/<name>_2`` and ``_3`` hold
    the powers of the betas, the slots "beta1_power" and "beta2_power". All shards of a table share
    them.

    Args:
      learning_rate: At least 0.
      beta1: In [0, 1).
      beta2: In [0, 1).
      epsilon: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      apply_sparse_rmsprop: Whether sparse gradients take the step of RMSProp with momentum.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.AdamAsyncOptimizer(0.001).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        apply_sparse_rmsprop: bool = False,
        name: str = "AdamAsync",
    ) -> None:
        check_adam(learning_rate, beta1, beta2, epsilon)
        super().__init__(use_locking, name)
        self._given = (learning_rate, beta1, beta2, epsilon)
        self._tensors: Tuple[tf.Tensor, ...] = ()  # The tensors, set in _prepare().
        self._sparse_rmsprop = apply_sparse_rmsprop
        self.table_rule = "AdamAsyncRmsprop" if apply_sparse_rmsprop else "Adam"
        # The powers of the betas that this step uses and then advances, by the name of the first.
        self._used: Dict[str, Tuple[tf.Variable, tf.Variable]] = {}

    def table_slots(self) -> Sequence[TableSlot]:
        """The momentum or first moment, and the second moment."""
        return (TableSlot("m", self.get_name(), 0.0), TableSlot("v", self.get_name(), 0.0))

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """Learning rate, betas, epsilon and, for Adam, the betas to the power of the step."""
        if self._sparse_rmsprop:
            return self._tensors
        return (*self._tensors, *self._use_powers(variable))

    def get_slot(self, var: Variable, name: str) -> Optional[Union[tf.Variable, SlotRows]]:
        """As of the other optimizers; the powers of the betas are variables for tables, too."""
        if name not in _POWERS:
            return super().get_slot(var, name)
        power = self._power_names(var)[_POWERS.index(name)]
        return self._get_non_slot_variable(power, var.graph)

    def get_slot_names(self) -> List[str]:
        """The names that ``get_slot()`` takes, sorted."""
        names = super().get_slot_names()
        return sorted([*names, *_POWERS]) if names else names

    def _prepare(self) -> None:
        super()._prepare()
        names = ("learning_rate", "beta1", "beta2", "epsilon")
        self._tensors = tuple(
            tf.convert_to_tensor(self._call_if_callable(value), name=name)
            for name, value in zip(names, self._given)
        )
        self._used = {}

    def _create_slots(self, var_list: Sequence[RuleVariable]) -> None:
        super()._create_slots(var_list)
        for variable in var_list:
            for name, beta in zip(self._power_names(variable), self._given[1:3]):
                with tf.name_scope(None):
                    self._create_non_slot_variable(beta, name=name, colocate_with=variable)

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", self.get_name())
            self._zeros_slot(variable, "v", self.get_name())

    def _power_names(self, variable: Union[RuleVariable, Variable]) -> List[str]:
        # Named after the table, so that a checkpoint restores into any number of shards.
        table = table_of(variable)
        owner = variable.op.name if table is None else table.name
        return [f"{owner}/{self.get_name()}_{i}" for i in (2, 3)]

    def _use_powers(self, variable: RuleVariable) -> Tuple[tf.Variable, tf.Variable]:
        names = self._power_names(variable)
        powers = tuple(self._get_non_slot_variable(name, variable.graph) for name in names)
        self._used[names[0]] = powers
        return powers

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        if rows.are_all or not self._sparse_rmsprop:
            adam = (*self._tensors, *self._use_powers(variable))
            rows.subtract(variable, adam_step(gradient, m, v, rows, adam))
            return
        rate, beta1, beta2, epsilon = (tf.cast(x, gradient.dtype) for x in self._tensors)
        v_rows = rows.read(v) * beta2 + tf.square(gradient) * (1 - beta2)
        m_rows = rows.read(m) * beta1 + gradient * rate / root(v_rows + epsilon)
        rows.write(v, v_rows)
        rows.write(m, m_rows)
        rows.subtract(variable, m_rows)

    def _finish(self, update_ops: Sequence[tf.Operation], name_scope: str) -> tf.Operation:
        with tf.control_dependencies(update_ops):
            advanced = [
                power.assign(power * tf.cast(beta, power.dtype.base_dtype))
                for powers in self._used.values()
                for power, beta in zip(powers, self._tensors[1:3])
            ]
        return tf.group(*update_ops, *advanced, name=name_scope)
