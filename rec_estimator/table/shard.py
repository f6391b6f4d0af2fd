# SPDX-License-Identifier: Apache-2.0
"""Table shards: the part of a table that lives on one task.

Step 2 of the data flow, on one task. table.py has the logical table that users see.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.table import placement, saveable
from rec_estimator.table.interfaces import LogicalTable, SlotSpec
from rec_estimator.table.variable_like import VariableLike, VariableName

# floormod(key, KEY_CLASSES), the class of a key, determines the shard of the key and its place in a
# checkpoint, as in DeepRec.
KEY_CLASSES = 1000


class LookupRecord(NamedTuple):
    """A lookup whose keys training may count.

    Attributes:
      keys: int64, any shape.
      op: The lookup op.
      is_training: Whether every step counts the keys, with or without a gradient. If False, a step
        counts them if its loss depends on the lookup.
      admits: bool, the shape of keys. Whether a key owns a row or gets one in this step; None: the
        lookup does not ask.
      address: The tensor that scripts for dynamic expansion pair a gradient of the values with.
      further: int64 [n]. Further keys that a step counts if it trains the lookup.
    """

    keys: tf.Tensor
    op: tf.Operation
    is_training: bool = False
    admits: Optional[tf.Tensor] = None
    address: Optional[tf.Tensor] = None
    further: Optional[tf.Tensor] = None


class TableShard(VariableLike):
    """The part of a table that lives on one task; the whole table if it is not partitioned.

    Made by ``get_embedding_variable``. ``tf.gradients`` accepts it like a variable.
    """

    def __init__(self, table: LogicalTable, part: int, num_parts: int, device: str) -> None:
        self.table = table
        self.part = part
        self.num_parts = num_parts
        self.name = VariableName(table.name if num_parts == 1 else f"{table.name}/part_{part}")
        self.slots: Tuple[SlotSpec, ...] = ()
        self._lookups: List[LookupRecord] = []
        self._gradients: List[Tuple[tf.Operation, tf.Tensor]] = []
        self._updated_by: Optional[str] = None
        # The op that gives an update without gradient the keys to count.
        self._counting: Optional[tf.Operation] = None
        # The admission op of each lookup alone, by the op that gives the lookup its answer.
        self._asked_alone: Dict[tf.Operation, tf.Operation] = {}
        with tf.device(device), tf.name_scope(None):
            self.handle: tf.Tensor = _ops.gen.rec_estimator_table_handle(
                shared_name=self.name, name=self.name, **table.handle_attrs(part, num_parts)
            )
        placement.check_device(self.name, self.handle.device, device)
        with graphs.colocate_with(self.handle), tf.name_scope(f"{self.handle.op.name}/"):
            self.initializer: tf.Operation = _ops.gen.rec_estimator_table_initialize(
                self.handle, table.initial_value, name="Initialize"
            )
        self.saveable = saveable.TableSaveable(self)

    @property
    def dim(self) -> int:
        """Number of floats in the value of a row."""
        return self.table.dim

    @property
    def shape(self) -> tf.TensorShape:
        """[dim], the shape of the table."""
        return self.table.shape

    def get_shape(self) -> tf.TensorShape:
        """[dim], as of a variable."""
        return self.shape

    @property
    def trainable(self) -> bool:
        """Whether optimizers update the table without being given it in var_list."""
        return self.table.trainable

    @property
    def device(self) -> str:
        """The device of the rows."""
        return self.handle.device

    @property
    def op(self) -> tf.Operation:
        """The op that makes the handle."""
        return self.handle.op

    @property
    def graph(self) -> tf.Graph:
        """The graph of the shard."""
        return self.handle.graph

    def total_count(self) -> tf.Tensor:
        """int32 [2]. DeepRec's older name of ``get_dynamic_shape()``."""
        return self.get_dynamic_shape()

    def get_dynamic_shape(self) -> tf.Tensor:
        """int32 [2]. As ``EmbeddingTable.get_dynamic_shape()``, of the keys of this shard."""
        return self.table.dynamic_shape([self.part])

    def add_slots(self, specs: Sequence[SlotSpec]) -> None:
        """Adds optimizer slots to every row.

        Args:
          specs: The slots. A slot that the rows already have is kept.

        Raises:
          ValueError: The rows have a slot of that name with another width or initial value.
        """
        slots = {slot.name: slot for slot in self.slots}
        for spec in specs:
            present = slots.setdefault(spec.name, spec)
            if present != spec:
                raise ValueError(
                    f"slot {spec.name!r} of table {self.name!r} must be {present}, got {spec}; "
                    "train one table with one optimizer"
                )
        self.slots = tuple(slots.values())

    def record_lookup(self, lookup: LookupRecord) -> bool:
        """Records a lookup, so that its keys are counted even if no gradient reaches them.

        Args:
          lookup: A lookup of this shard.

        Returns:
          Whether the lookup was recorded. A lookup inside control flow is not.
        """
        for op in (lookup.op, lookup.keys.op):
            if op.graph is not self.graph or graphs.in_control_flow(op):
                return False
        self._lookups.append(lookup)
        return True

    def record_gradient(self, op: tf.Operation, indices: tf.Tensor) -> None:
        """Records that the gradient of a lookup was built.

        Args:
          op: The lookup op.
          indices: int64 [n]. The keys of the gradient.
        """
        self._gradients.append((op, indices))

    @property
    def lookups(self) -> Tuple[LookupRecord, ...]:
        """The recorded lookups, in the order in which they were built."""
        return tuple(self._lookups)

    @property
    def is_looked_up(self) -> bool:
        """Whether the graph reads rows of this shard."""
        return bool(self._lookups)

    @property
    def lacks_update(self) -> bool:
        """Whether the graph reads rows that optimizers should update and none does."""
        return self.is_looked_up and self.trainable and self._updated_by is None

    @property
    def updated_by(self) -> Optional[str]:
        """The name of the optimizer that updates this shard in this graph, if any."""
        return self._updated_by

    def counted_keys(
        self, gradient: Optional[tf.IndexedSlices], step: Optional[Set[tf.Operation]] = None
    ) -> List[tf.Tensor]:
        """The keys of those training lookups that no gradient reaches, and their further keys.

        Args:
          gradient: The gradient of the shard in this step, if it has one.
          step: The ops that the loss depends on. A lookup outside of them trains only if its record
            says is_training. None: all ops of the graph.

        Returns:
          int64 [n] each, with repeated keys.
        """
        reached: Set[tf.Operation] = set()
        asks = any(each.is_training or each.further is not None for each in self._lookups)
        if gradient is not None and asks:
            reached = self.lookups_of_gradient(gradient.indices)

        def is_counted(lookup: LookupRecord) -> bool:
            if lookup.is_training:
                return lookup.op not in reached
            return gradient is None and (step is None or lookup.op in step)

        counted = [tf.reshape(each.keys, [-1]) for each in self._lookups if is_counted(each)]
        for each in self._lookups:
            if each.further is not None and (each.op in reached or is_counted(each)):
                counted.append(each.further)
        return counted

    def lookups_of_gradient(self, indices: tf.Tensor) -> Set[tf.Operation]:
        """The lookups whose gradients are part of a gradient of the shard.

        Args:
          indices: Integers [n]. The keys of the gradient.
        """
        upstream = ancestors([indices.op])
        return {op for op, of_lookup in self._gradients if of_lookup.op in upstream}

    def training_reads(self) -> List[tf.Operation]:
        """The ops of the lookups that every step counts. The update must wait for them.

        Then all lookups of a step read the table as it was before the step, even if no gradient
        makes the update wait for them. Call this when all lookups are built: lookups that ask which
        keys are admitted are joined into one question, because the answer depends on how often a
        key occurs in all of them.

        Raises:
          ValueError: The keys of such a lookup are computed from the values of another one.
        """
        training = [lookup for lookup in self._lookups if lookup.is_training]
        asking = [(each, each.admits) for each in training if each.admits is not None]
        if len(asking) > 1:
            self._ask_together(asking)
        return [lookup.op for lookup in training] + [admits.op for _, admits in asking]

    def _ask_together(self, asking: Sequence[Tuple[LookupRecord, tf.Tensor]]) -> None:
        upstream = ancestors([lookup.keys.op for lookup, _ in asking])
        for lookup, admits in asking:
            if admits.op in upstream:
                raise ValueError(
                    f"ids of table {self.name!r}, which admits keys by a threshold, must not "
                    f"depend on what {lookup.op.name!r} reads from it, got ids that do; use "
                    "another table for one of the two"
                )
        with (
            tf.control_dependencies(None),
            graphs.colocate_with(self.handle, ignore_existing=True),
        ):
            # The current inputs of the ops: a graph pass may have replaced the keys.
            alone = [
                self._asked_alone.setdefault(admits.op, admits.op.inputs[0].op)
                for _, admits in asking
            ]
            asked = [op.inputs[1:] for op in alone]
            keys = [tf.reshape(each, [-1]) for each, _ in asked]
            answers = _ops.gen.rec_estimator_table_admits(
                self.handle, tf.concat(keys, 0), tf.concat([counted for _, counted in asked], 0)
            )
            sizes = tf.stack([tf.size(each) for each in keys])
            parts = tf.split(answers, sizes, num=len(keys))
            for (_, admits), (each, _), part in zip(asking, asked, parts):
                graphs.update_input(admits.op, 0, tf.reshape(part, tf.shape(each)))

    def check_not_updated(self, optimizer_name: str) -> None:
        """Refuses a second update of the table in a step.

        Raises:
          ValueError: The graph already updates the table.
        """
        if self._updated_by is not None:
            raise ValueError(
                f"table {self.name!r} must be updated once per step, got a second update by "
                f"{optimizer_name!r} after {self._updated_by!r}; minimize the sum of the losses; "
                "if other variables need an optimizer for each loss, give both a var_list without "
                "the table, and the table to a third optimizer of the sum"
            )

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        # The same object as in SAVEABLE_OBJECTS, so that a Saver that finds both saves it once.
        return {"rows": saveable.saveable_of(self)} if self.table.is_save else {}

    def mark_updated(self, optimizer_name: str, counting: Optional[tf.Operation] = None) -> None:
        """Records the update of the table. A table is updated once in a step.

        Args:
          optimizer_name: The name of the optimizer.
          counting: If the update has no gradient and only counts keys: the op that gives them.
        """
        self.check_not_updated(optimizer_name)
        self._updated_by, self._counting = optimizer_name, counting

    def take_over_counting(self) -> None:
        """Leaves the keys that an update without gradient counts to the next update.

        So each of two losses may train a table of its own, although the optimizer of the first loss
        was also given the table of the second one.
        """
        if self._counting is not None:
            with tf.control_dependencies(None):
                # An edge can only be changed to a shape that is compatible, as [None] is with all.
                nothing = tf.reshape(tf.where(tf.zeros([0], tf.bool)), [-1])
            graphs.update_input(self._counting, 0, nothing)
            self._updated_by = self._counting = None

    def __repr__(self) -> str:
        return f"<rec_estimator.TableShard {self.name!r} dim={self.dim}>"


def as_keys(table: LogicalTable, ids: Any, argument: str) -> tf.Tensor:
    """Converts ids to the keys that the ops of a table take.

    Args:
      table: The table.
      ids: int32 of any shape; also int64 if that is the key_dtype of the table.
      argument: The caller's name for ids, for error messages.

    Returns:
      int64, the shape of ids.

    Raises:
      TypeError: ids have another type.
    """
    keys = tf.convert_to_tensor(ids, name="ids")
    if keys.dtype == tf.int64 and table.key_dtype == tf.int32:
        raise TypeError(
            f"{argument} must be int32, the key_dtype of table {table.name!r}, got int64; make "
            "the table with key_dtype=tf.int64"
        )
    if keys.dtype == tf.int32:
        return tf.cast(keys, tf.int64)
    if keys.dtype != tf.int64:
        remedy = (
            "hash strings with tf.strings.to_hash_bucket_fast(values, 2**63 - 1)"
            if keys.dtype == tf.string
            else "cast them, if they are whole numbers"
        )
        raise TypeError(f"{argument} must be int64 or int32, got {keys.dtype.name}; {remedy}")
    return keys
