# SPDX-License-Identifier: Apache-2.0
"""The part of a table that lives on one task, and what the graph's collections hold of it.

Step 2 of the data flow, one task's side. table.py has the logical table that users see.
"""

import dataclasses
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.table import saveable


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


class LookupRecord(NamedTuple):
    """A lookup that training may count.

    Attributes:
      keys: int64, any shape.
      op: What reads them.
      is_training: Whether its keys are counted in every step, gradient or not; others are where
        the loss depends on them.
      admits: bool, the shape of keys: which of them own a row or get one in this step; None: the
        lookup does not ask.
      address: What scripts for dynamic expansion pair a gradient of the values with.
    """

    keys: tf.Tensor
    op: tf.Operation
    is_training: bool = False
    admits: Optional[tf.Tensor] = None
    address: Optional[tf.Tensor] = None


def not_for_tensorflow(name: str) -> str:
    """What a class of TensorFlow's is told that takes a table for a resource variable.

    Args:
      name: Of the table.
    """
    return (
        f"table {name!r} must be given to one of rec_estimator.optimizers, or to "
        "rec_estimator.Saver, got one of TensorFlow's; use ours of the same name"
    )


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
        self._lookups: List[LookupRecord] = []
        self._gradients: List[Tuple[tf.Operation, tf.Tensor]] = []
        self._updated_by: Optional[str] = None
        with tf.device("/device:CPU:0"), tf.name_scope(None):
            self.handle: tf.Tensor = _ops.gen.rec_estimator_table_handle(
                shared_name=self.name, name=self.name, **table.handle_attrs(num_parts)
            )
        with graphs.colocate_with(self.handle), tf.name_scope(f"{self.handle.op.name}/"):
            self.initializer: tf.Operation = _ops.gen.rec_estimator_table_initialize(
                self.handle, table.initial_value, name="Initialize"
            )
        self.saveable = saveable.TableSaveable(self)

    @property
    def dim(self) -> int:
        """Elements of a row's value."""
        return self.table.dim

    @property
    def _in_graph_mode(self) -> NoReturn:
        # What TensorFlow's optimizers ask of a resource variable first.
        raise AttributeError(not_for_tensorflow(self.name))

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

    def record_lookup(self, lookup: LookupRecord) -> bool:
        """Remembers a lookup, so that its keys are counted even if no gradient reaches them.

        Args:
          lookup: Of this shard.

        Returns:
          Whether it can be: one inside of control flow cannot.
        """
        for op in (lookup.op, lookup.keys.op):
            if op.graph is not self.graph or graphs.in_control_flow(op):
                return False
        self._lookups.append(lookup)
        return True

    def record_gradient(self, op: tf.Operation, indices: tf.Tensor) -> None:
        """Remembers that a gradient of a lookup was built.

        Args:
          op: The lookup.
          indices: int64 [n]. The keys that the gradient has.
        """
        self._gradients.append((op, indices))

    @property
    def lookups(self) -> Tuple[LookupRecord, ...]:
        """The lookups of this shard that training may count, in the order they were built."""
        return tuple(self._lookups)

    @property
    def is_looked_up(self) -> bool:
        """Whether the graph reads rows of this shard."""
        return bool(self._lookups)

    @property
    def updated_by(self) -> Optional[str]:
        """Name of the optimizer that updates this shard in this graph, if any."""
        return self._updated_by

    def counted_keys(
        self, gradient: Optional[tf.IndexedSlices], step: Optional[Set[tf.Operation]] = None
    ) -> List[tf.Tensor]:
        """Keys of the training lookups of the table that no gradient reaches.

        Args:
          gradient: The shard's in this step, if it has one.
          step: The ops that the loss depends on; lookups elsewhere are no training lookups, unless
            they said so. None: all of the graph.

        Returns:
          One int64 [n] per lookup, repeats kept.
        """
        reached: Set[tf.Operation] = set()
        if gradient is not None and any(lookup.is_training for lookup in self._lookups):
            upstream = ancestors([gradient.indices.op])
            reached = {op for op, indices in self._gradients if indices.op in upstream}

        def is_counted(lookup: LookupRecord) -> bool:
            if lookup.is_training:
                return lookup.op not in reached
            return gradient is None and (step is None or lookup.op in step)

        return [tf.reshape(each.keys, [-1]) for each in self._lookups if is_counted(each)]

    def training_reads(self) -> List[tf.Operation]:
        """The reads of the lookups that are counted in every step, which its update waits for.

        So a step's lookups read the table as it was before the step, also where no gradient makes
        the update wait for them. Those that ask which keys are admitted ask together from here on:
        that depends on a key's occurrences in all of them, of which each knew its own.

        Raises:
          ValueError: The keys of one lookup are computed from the values of another that asks.
        """
        training = [lookup for lookup in self._lookups if lookup.is_training]
        asking = [lookup for lookup in training if lookup.admits is not None]
        if len(asking) > 1:
            self._ask_together(asking)
        return [lookup.op for lookup in training] + [lookup.admits.op for lookup in asking]

    def _ask_together(self, asking: Sequence[LookupRecord]) -> None:
        upstream = ancestors([lookup.keys.op for lookup in asking])
        for lookup in asking:
            if lookup.admits.op in upstream:
                raise ValueError(
                    f"ids of table {self.name!r}, which admits keys by a threshold, must not "
                    f"depend on what {lookup.op.name!r} reads from it, got ids that do; use "
                    "another table for one of the two"
                )
        with tf.control_dependencies(None), graphs.colocate_with(self.handle):
            # What each asks by now: compression may have given it other keys.
            asked = [lookup.admits.op.inputs[0].op.inputs[1:] for lookup in asking]
            keys = [tf.reshape(each, [-1]) for each, _ in asked]
            admits = _ops.gen.rec_estimator_table_admits(
                self.handle, tf.concat(keys, 0), tf.concat([counted for _, counted in asked], 0)
            )
            sizes = tf.stack([tf.size(each) for each in keys])
            parts = tf.split(admits, sizes, num=len(keys))
            for lookup, (each, _), part in zip(asking, asked, parts):
                answer = tf.reshape(part, tf.shape(each))
                graphs.update_input(lookup.admits.op, 0, answer)

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


class InitializerEntry(saving.Trackable):
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
        return saving.Reference(self)

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
        with graphs.colocate_with(self._handle):
            return _ops.gen.rec_estimator_table_is_initialized(self._handle, name=name)

    def to_proto(self, export_scope: Optional[str] = None) -> None:
        """None: a MetaGraph leaves the entry out."""
        del export_scope


class UnsavedEntry(InitializerEntry):
    """The entry of a table that no checkpoint has.

    tf.global_variables_initializer() fills it; but a session that restores runs no such op, and
    must not wait for it: a LocalEntry makes it wait.
    """

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        return {}

    def is_initialized(self, name: Optional[str] = None) -> tf.Tensor:
        """True, bool []."""
        return tf.constant(True, name=name)


class LocalEntry(InitializerEntry):
    """The entry in LOCAL_VARIABLES of a table that no checkpoint has.

    Its initializer leaves a table that was initialized as it is: scripts run
    tf.local_variables_initializer() again and again to reset metrics.
    """

    def __init__(self, shard: TableShard) -> None:
        super().__init__(shard)
        with graphs.colocate_with(shard.handle), tf.name_scope(f"{shard.handle.op.name}/"):
            self.initializer = _ops.gen.rec_estimator_table_initialize(
                shard.handle, shard.table.initial_value, only_new=True, name="InitializeNew"
            )

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        return {}
