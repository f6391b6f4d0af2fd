# SPDX-License-Identifier: Apache-2.0
"""The entries of a table in GLOBAL_VARIABLES and LOCAL_VARIABLES, which initialize its shards."""

from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving, variable_store
from rec_estimator.table.left_out_tables import warn_of_left_out_tables
from rec_estimator.table.saveable import saveable_of
from rec_estimator.table.shard import TableShard
from rec_estimator.table.table import graph_tables
from rec_estimator.table.untrained_tables import (
    check_tables_are_trained,
    is_first_without_update,
    warn_of_untrained_tables,
)
from rec_estimator.table.variable_like import ExplainsMissing


class InitializerEntry(ExplainsMissing, saving.Trackable):
    """The entry of a shard in GLOBAL_VARIABLES: its initializer, and whether that has run.

    With it, tf.global_variables_initializer() fills the bank and empties the table, and
    tf.report_uninitialized_variables() and MonitoredSession include the table. A Saver of
    tf.global_variables() finds the SaveableObject of the shard here. A MetaGraph leaves the entry
    out.
    """

    def __init__(self, shard: TableShard) -> None:
        self.name = shard.name
        self.op = shard.op
        self.device = shard.device
        self.graph = shard.graph
        self.dtype = shard.dtype
        self.shape = shard.table.shape
        self.trainable = False
        self.shard = shard
        self.saveable = shard.saveable
        self._handle = shard.handle

    @property
    def initializer(self) -> tf.Operation:
        """Fills the bank and empties the shard.

        Raises:
          ValueError: tf.get_variable has made a variable of the table's name.
        """
        self._check_name()
        if is_first_without_update(self.shard):
            warn_of_untrained_tables(self.graph)
        if any(self.shard is table.shards[0] for table in graph_tables(self.graph)[:1]):
            warn_of_left_out_tables(self.graph)  # Once, for all tables.
        return self.shard.initializer

    def _check_name(self) -> None:
        name = self.shard.table.name
        if variable_store.has_variable(self.graph, name):
            raise ValueError(
                f"name of tf.get_variable must not be that of a table, got {name!r}; call "
                "rec_estimator.get_embedding_variable for the table, or give the variable another "
                "name"
            )

    def ref(self) -> Any:
        """A hashable reference, as tf.Variable.ref() returns."""
        return saving.Reference(self)

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        self._check_name()
        if is_first_without_update(self.shard):
            warn_of_untrained_tables(self.graph)
        # The same object as in SAVEABLE_OBJECTS, so that a Saver that finds both saves it once.
        return {"rows": saveable_of(self.shard)}

    def __repr__(self) -> str:
        return f"<initializer of rec_estimator table {self.name!r}>"

    def get_shape(self) -> tf.TensorShape:
        """[dim]."""
        return self.shape

    def is_initialized(self, name: Optional[str] = None) -> tf.Tensor:
        """bool []. Whether the shard has its bank.

        MonitoredSession, and with it every Estimator, calls this when the graph is complete.

        Raises:
          ValueError: A loss of the graph depends on a table that nothing trains, or
            tf.get_variable has made a variable of the table's name.
        """
        self._check_name()
        if is_first_without_update(self.shard):
            check_tables_are_trained(self.graph)
        with graphs.colocate_with(self._handle):
            return _ops.gen.rec_estimator_table_is_initialized(self._handle, name=name)

    def to_proto(self, export_scope: Optional[str] = None) -> None:
        """None, so that a MetaGraph leaves the entry out."""
        del export_scope


class UnsavedEntry(InitializerEntry):
    """The entry in GLOBAL_VARIABLES of a table that is not saved.

    tf.global_variables_initializer() fills the table. A session that restores a checkpoint does not
    run that op and must not wait for it; it waits for the LocalEntry.
    """

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        return {}

    def is_initialized(self, name: Optional[str] = None) -> tf.Tensor:
        """bool []. Always True."""
        return tf.constant(True, name=name)


class LocalEntry(InitializerEntry):
    """The entry in LOCAL_VARIABLES of a table that is not saved.

    Its initializer does nothing if the table is already initialized, because scripts run
    tf.local_variables_initializer() again and again to reset metrics.
    """

    def __init__(self, shard: TableShard) -> None:
        super().__init__(shard)
        with graphs.colocate_with(shard.handle), tf.name_scope(f"{shard.handle.op.name}/"):
            self._initialize_new = _ops.gen.rec_estimator_table_initialize(
                shard.handle, shard.table.initial_value, only_new=True, name="InitializeNew"
            )

    @property
    def initializer(self) -> tf.Operation:
        """Fills the bank of a shard that is not initialized."""
        return self._initialize_new

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        return {}
