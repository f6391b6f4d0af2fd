"""The part of a table that lives on one task, and what the graph's collections hold of it.

Step 2 of the data flow, one task's side. table.py has the logical table that users see.
"""

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops, _tf_private, checkpoint
from rec_estimator.options import CounterFilter, Filter


@dataclasses.dataclass(frozen=True)
class SlotSpec:
    """One optimizer slot that every row of a table carries.

    Attributes:
      name: TensorFlow's name of the slot, e.g. "Adagrad" or "Adam_1"; the checkpoint has it as
        ``<table>/<name>``.
      width: Floats per row.
      initial: What the slot of a new row starts from.
    """

    name: str
    width: int
    initial: float = 0.0


class TableShard:
    """The part of a table that lives on one task; the whole table if it is not partitioned.

    Made by ``get_embedding_variable``. ``tf.gradients`` accepts it like a variable.
    """

    # tf.gradients takes `.handle` of what has this attribute; the gradient is tf.IndexedSlices.
    _should_act_as_resource_variable = True

    def __init__(self, table: Any, part: int, num_parts: int) -> None:
        self.table = table
        self.part = part
        self.num_parts = num_parts
        self.name = table.name if num_parts == 1 else f"{table.name}/part_{part}"
        self.slots: Tuple[SlotSpec, ...] = ()
        self._lookups: List[Tuple[tf.Tensor, tf.Operation]] = []
        self._updated_by: Optional[str] = None
        with tf.device("/device:CPU:0"), tf.name_scope(None):
            self.handle: tf.Tensor = _ops.gen.rec_estimator_table_handle(
                shared_name=self.name,
                dim=table.dim,
                default_value=table.ev_option.init.default_value_no_permission,
                name=self.name,
                **_filter_attrs(table.filter),
            )
        with _tf_private.colocate_with(self.handle), tf.name_scope(f"{self.handle.op.name}/"):
            self.initializer: tf.Operation = _ops.gen.rec_estimator_table_initialize(
                self.handle, table.initial_value, name="Initialize"
            )
        self.saveable = checkpoint.TableSaveable(self)

    @property
    def dim(self) -> int:
        """Elements of a row's value."""
        return self.table.dim

    @property
    def dtype(self) -> tf.DType:
        """Type of the values: float32."""
        return tf.float32

    @property
    def trainable(self) -> bool:
        """Whether optimizers update the table unasked."""
        return self.table.trainable

    @property
    def device(self) -> str:
        """Device of the rows."""
        return self.handle.device

    @property
    def op(self) -> tf.Operation:
        """The op that makes the handle."""
        return self.handle.op

    @property
    def graph(self) -> tf.Graph:
        """The graph the shard was made in."""
        return self.handle.graph

    def add_slots(self, specs: Sequence[SlotSpec]) -> None:
        """Makes every row carry these optimizer slots.

        Args:
          specs: The slots. One that is there already with the same width and initial value is kept.

        Raises:
          ValueError: A slot of that name is there with another width or initial value.
        """
        slots = {slot.name: slot for slot in self.slots}
        for spec in specs:
            present = slots.setdefault(spec.name, spec)
            if present != spec:
                raise ValueError(
                    f"slot {spec.name!r} of table {self.name!r} must be {present}, got {spec}; "
                    "one table has one optimizer"
                )
        self.slots = tuple(slots.values())

    def record_lookup(self, keys: tf.Tensor, lookup: tf.Operation) -> None:
        """Remembers a lookup, so that its keys are counted even if no gradient reaches them.

        Args:
          keys: int64, any shape.
          lookup: The op that reads them.
        """
        if keys.graph is self.graph and not _tf_private.in_control_flow(keys.op):
            self._lookups.append((keys, lookup))

    @property
    def is_looked_up(self) -> bool:
        """Whether the graph reads rows of this shard."""
        return bool(self._lookups)

    @property
    def updated_by(self) -> Optional[str]:
        """Name of the optimizer that updates this shard in this graph, if any."""
        return self._updated_by

    def counted_keys(self, step: Optional[Set[tf.Operation]] = None) -> List[tf.Tensor]:
        """Keys of the training lookups of a table that no gradient reaches.

        Args:
          step: The ops that the loss depends on; lookups elsewhere, such as an eval tower's, are no
            training lookups. None: all of the graph.

        Returns:
          One int64 [n] per lookup, repeats kept.
        """
        return [
            tf.reshape(keys, [-1])
            for keys, lookup in self._lookups
            if step is None or lookup in step
        ]

    def check_not_updated(self, optimizer_name: str) -> None:
        """Refuses a second update of the table in a step.

        Raises:
          ValueError: The graph updates the table already.
        """
        if self._updated_by is not None:
            raise ValueError(
                f"table {self.name!r} must be updated once per step, got a second update by "
                f"{optimizer_name!r} after {self._updated_by!r}; sum the losses and call "
                "minimize() once, or give var_list="
            )

    def mark_updated(self, optimizer_name: str) -> None:
        """Claims the one update that a table gets in a step, once it is built."""
        self.check_not_updated(optimizer_name)
        self._updated_by = optimizer_name

    def __repr__(self) -> str:
        return f"<rec_estimator.TableShard {self.name!r} dim={self.dim}>"


def _filter_attrs(filter_option: Optional[Filter]) -> Dict[str, Any]:
    """The handle's attributes. A Bloom filter's size is of the logical table, in every shard."""
    if filter_option is None:
        return {}
    if isinstance(filter_option, CounterFilter):
        return {"filter_freq": filter_option.filter_freq}
    return {
        "filter_freq": filter_option.filter_freq,
        "max_element_size": filter_option.max_element_size,
        "false_positive_probability": filter_option.false_positive_probability,
    }


class InitializerEntry(_tf_private.Trackable):
    """A shard's entry in GLOBAL_VARIABLES: its initializer and whether it ran.

    So tf.global_variables_initializer() fills the bank and empties the table, and
    tf.report_uninitialized_variables() and MonitoredSession know of it. A Saver that is given
    tf.global_variables() gets the shard's SaveableObject from it; a MetaGraph leaves it out.
    """

    def __init__(self, shard: TableShard) -> None:
        self.name = shard.name
        self.op = shard.op
        self.device = shard.device
        self.graph = shard.graph
        self.dtype = shard.dtype
        self.shape = shard.table.shape
        self.trainable = False
        self.initializer = shard.initializer
        self.saveable = shard.saveable
        self._handle = shard.handle

    def ref(self) -> Any:
        """A hashable stand-in, as a variable has."""
        return _tf_private.Reference(self)

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        # The same object as in SAVEABLE_OBJECTS: a Saver that meets both takes one.
        return {"rows": self.saveable}

    def __repr__(self) -> str:
        return f"<initializer of rec_estimator table {self.name!r}>"

    def get_shape(self) -> tf.TensorShape:
        """[dim]."""
        return self.shape

    def is_initialized(self, name: Optional[str] = None) -> tf.Tensor:
        """Whether the shard has its bank, bool []."""
        with _tf_private.colocate_with(self._handle):
            return _ops.gen.rec_estimator_table_is_initialized(self._handle, name=name)

    def to_proto(self, export_scope: Optional[str] = None) -> None:
        """None: a MetaGraph leaves the entry out."""
        del export_scope
