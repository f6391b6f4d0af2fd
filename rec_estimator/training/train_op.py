# SPDX-License-Identifier: Apache-2.0
"""Completes the train_op of a model_fn that knows nothing of tables.

Step 5 of the data flow, in RecEstimator. All tables are updated from the gradients of the step, and
the global step is incremented after the rows are stamped with it.
"""

from typing import List, Optional, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator._tensorflow.estimator import EstimatorSpec
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.optimizers.table_optimizer import TableUpdates
from rec_estimator.table.table import EmbeddingTable, graph_tables
from rec_estimator.table.untrained_tables import check_tables_are_trained

# Ops that take a variable's handle and do not change the variable.
_READS = ("Identity", "IsVariableInitialized", "ReadVariableOp", "VarIsInitializedOp")

# Ops whose types begin so change a variable, except reads.
_CHANGES = ("Assign", "Apply", "Resource", "Scatter", "SparseApply")
_READS_OF_ROWS = ("ResourceGather", "ResourceGatherNd")


def with_table_updates(
    spec: EstimatorSpec, table_optimizer: Optional[TableUpdates]
) -> EstimatorSpec:
    """Adds the update of the tables that the optimizer of the model_fn does not update.

    Args:
      spec: The EstimatorSpec of a training.
      table_optimizer: Updates these tables. None: there must be none.

    Returns:
      The spec; its train_op also updates the tables.

    Raises:
      ValueError: table_optimizer is None, and the loss depends on a table that nothing updates.
    """
    if table_optimizer is None:
        if isinstance(spec.loss, tf.Tensor):
            state_of().losses.append(spec.loss)
        check_tables_are_trained()
        return spec
    tables = [table for table in graph_tables() if any(shard.lacks_update for shard in table)]
    if not tables:
        return spec
    return spec._replace(train_op=_join_updates(spec, tables, table_optimizer))


def _join_updates(
    spec: EstimatorSpec, tables: List[EmbeddingTable], optimizer: TableUpdates
) -> tf.Operation:
    """Joins the train_op of the model_fn and the update of `tables` in one op."""
    table_op = optimizer.apply_gradients(optimizer.compute_gradients(spec.loss, var_list=tables))
    train_op = _as_operation(spec.train_op)
    # The tables' gradients and their version are those at the beginning of the step. So all that
    # train_op changes, including the global step, waits until they are used.
    needed_before = ancestors([table_op])
    for op in ancestors([train_op]) - needed_before:
        if _changes_variable(op) and not graphs.in_control_flow(op):
            graphs.add_control_inputs(op, [table_op])
    return tf.group(train_op, table_op)


def stamp_before_increment(train_op: Union[tf.Operation, tf.Tensor, None]) -> None:
    """Makes the increment of the global step wait until the tables are stamped with it.

    Our optimizers do so when they increment the step themselves. This function covers steps in
    which a stock optimizer or the model_fn increments it.

    Args:
      train_op: The op of a training step, or its output. None: nothing is done.
    """
    step = tf.train.get_global_step()
    if step is None or train_op is None:
        return
    members = ancestors([_as_operation(train_op)])
    applies = [op for op in members if op.type in op_registry.UPDATES]
    if not applies:
        return
    handle = step.op.outputs[0]
    for op in members - ancestors(applies):
        takes_step = any(tensor is handle for tensor in op.inputs)
        # An op inside a control flow v1 loop cannot have a control input from outside the loop.
        if takes_step and op.type not in _READS and not graphs.in_control_flow(op):
            graphs.add_control_inputs(op, applies)


def _as_operation(train_op: Union[tf.Operation, tf.Tensor]) -> tf.Operation:
    return train_op.op if isinstance(train_op, tf.Tensor) else train_op


def _changes_variable(op: tf.Operation) -> bool:
    return bool(op.inputs) and op.type.startswith(_CHANGES) and op.type not in _READS_OF_ROWS
