# SPDX-License-Identifier: Apache-2.0
"""TableStep: the ops that update all tables of one training step.

Two ops update the tables of a device. TablesReserve needs the keys only: it checks the limits of
all tables and gets the memory for the step in all of them. Every update of the step, of a table or
of a dense variable, waits for it. TablesApply updates the tables. So a step without room changes
nothing. If the tables are on another task, ops/passes/pack_transfers_pass.cc replaces both ops and
the lookups by ops that send each distinct key once.
"""

import numbers
from typing import Collection, Dict, List, NamedTuple, Optional, Protocol, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.optimizers import synchronous
from rec_estimator.table import row_limit
from rec_estimator.table.interfaces import SavedShard, SlotSpec
from rec_estimator.table.shard import TableShard


class StepVariable(Protocol):
    """A shard to update. ``table_optimizer.ShardVariable`` documents the members."""

    shard: TableShard
    handle: tf.Tensor
    device: str
    counted_keys: tf.Tensor


class TrainedShard(NamedTuple):
    """The inputs of the update of one shard.

    Attributes:
      variable: The shard.
      indices: Integers [n]. The keys of the gradient.
      slots: The slots of the rule in this shard.
    """

    variable: StepVariable
    indices: tf.Tensor
    slots: Sequence[SlotSpec]


class _Update(NamedTuple):
    """The inputs of an update besides its keys."""

    gradient: tf.Tensor
    version: tf.Tensor
    hyper: Sequence[object]


class _Reserved(NamedTuple):
    """The outputs of TablesReserve, and the shards of its device."""

    reservation: tf.Tensor
    rows: tf.Tensor
    shards: Sequence[TrainedShard]


class TableStep:
    """The update of shards by one rule, in one step.

    Args:
      rule: Name of the rule in ops/core/math/row_update.h.
      shards: The shards to update, at least one.
    """

    def __init__(self, rule: str, shards: Sequence[TrainedShard]) -> None:
        self._updates: Dict[TableShard, _Update] = {}
        self._size = len(shards)
        devices: Dict[str, List[TrainedShard]] = {}
        for each in shards:
            devices.setdefault(each.variable.device, []).append(each)
        self._reserved = [_reserve(rule, on_device) for on_device in devices.values()]
        self._checks = row_limit.checks(self._rows_of_parts())

    @property
    def reservations(self) -> List[tf.Operation]:
        """The ops that fail if the step has no room. Everything that the step changes waits."""
        return [*(each.reservation.op for each in self._reserved), *self._checks]

    def _rows_of_parts(self) -> Dict[SavedShard, tf.Tensor]:
        """The rows after the step of each shard that shares a row limit with others."""
        rows: Dict[SavedShard, tf.Tensor] = {}
        for reserved in self._reserved:
            for i, each in enumerate(reserved.shards):
                shard = each.variable.shard
                if shard.table.max_rows and len(shard.table.shards) > 1:
                    with graphs.colocate_with(shard.handle, ignore_existing=True):
                        rows[shard] = reserved.rows[i]
        return rows

    def add(
        self,
        variable: StepVariable,
        gradient: tf.Tensor,
        version: tf.Tensor,
        hyper: Sequence[object],
    ) -> bool:
        """Adds the inputs of the update of one shard.

        Args:
          variable: The shard.
          gradient: float32 [n, dim].
          version: int64 []. The version of the rows that the step trains.
          hyper: The hyperparameters of the rule, numbers and scalar tensors.

        Returns:
          Whether this was the last shard, so that the update can be built.
        """
        self._updates[variable.shard] = _Update(gradient, version, hyper)
        return len(self._updates) == self._size

    def build(self, step: Optional[Collection[tf.Operation]]) -> tf.Operation:
        """Builds the update.

        Args:
          step: The ops that the loss depends on; None: not known.

        Returns:
          The op that updates all shards, once all training lookups have read them.
        """
        return tf.group(*(self._apply(reserved, step) for reserved in self._reserved))

    def _apply(self, reserved: _Reserved, step: Optional[Collection[tf.Operation]]) -> tf.Operation:
        shards = reserved.shards
        updates = [self._updates[each.variable.shard] for each in shards]
        reads: List[tf.Operation] = []
        # The chief updates what all workers have sent, outside of their steps.
        if not synchronous.is_accumulated(shards[0].indices):
            reads += [op for each in shards for op in each.variable.shard.training_reads()]
            reads += _reads_of_loss(shards, step)
        with (
            graphs.colocate_with(shards[0].variable.handle, ignore_existing=True),
            tf.control_dependencies(reads),
        ):
            return _ops.gen.rec_estimator_tables_apply(
                reservation=reserved.reservation,
                grads=[update.gradient for update in updates],
                version=_for_tables([update.version for update in updates], tf.int64),
                hyper=[
                    _for_tables(values, tf.float32)
                    for values in zip(*(update.hyper for update in updates))
                ],
            )


def _reserve(rule: str, shards: Sequence[TrainedShard]) -> _Reserved:
    slots = shards[0].slots
    with (
        graphs.colocate_with(shards[0].variable.handle, ignore_existing=True),
        tf.control_dependencies(_reads_of_disk(shards)),
    ):
        outputs = _ops.gen.rec_estimator_tables_reserve(
            tables=[each.variable.handle for each in shards],
            keys=[tf.cast(each.indices, tf.int64) for each in shards],
            counted_keys=[each.variable.counted_keys for each in shards],
            rule=rule,
            slot_names=[slot.name for slot in slots],
            slot_widths=[slot.width for each in shards for slot in each.slots],
            slot_initials=[slot.initial for slot in slots],
            l2_scales=_of_regularizers(shards, "l2_scale"),
            decay_rates=_of_regularizers(shards, "decay_rate"),
        )
    return _Reserved(outputs.reservation, outputs.rows, shards)


def _of_regularizers(shards: Sequence[TrainedShard], setting: str) -> List[float]:
    """A setting of the regularizer of each table; [] if it is off in all."""
    rules = [each.variable.shard.table.ev_option.regularizer for each in shards]
    values = [0.0 if rule is None else getattr(rule, setting) for rule in rules]
    return values if any(values) else []


def _reads_of_disk(shards: Sequence[TrainedShard]) -> List[tf.Operation]:
    """The lookups of the gradients of shards that keep rows on disk in this process.

    Reserving brings the rows of the step into memory. The lookups of the step read the same rows
    from disk; without this order, both would read them. For the shards of other tasks, waiting
    would cost another message.
    """
    reads = {
        op
        for each in shards
        if each.variable.shard.table.disk_storage is not None
        and tf.DeviceSpec.from_string(each.variable.device).job is None
        for op in each.variable.shard.lookups_of_gradient(each.indices)
    }
    outside = [op for op in reads if not graphs.in_control_flow(op)]
    return sorted(outside, key=lambda op: op.name)


def _reads_of_loss(
    shards: Sequence[TrainedShard], step: Optional[Collection[tf.Operation]]
) -> List[tf.Operation]:
    """The lookups of the shards that the loss depends on.

    If the gradient needs no values, no other edge makes the update wait for them.
    """
    if step is None:
        reads = {
            op for each in shards for op in each.variable.shard.lookups_of_gradient(each.indices)
        }
    else:
        handles = {each.variable.handle.op for each in shards}
        reads = {
            op
            for op in step
            if op.type in op_registry.LOOKUPS and any(tensor.op in handles for tensor in op.inputs)
        }
    outside = [op for op in reads if not graphs.in_control_flow(op)]
    return sorted(outside, key=lambda op: op.name)


def _for_tables(values: Sequence[object], dtype: tf.DType) -> tf.Tensor:
    """One scalar for all tables, or a vector with one for each if they differ."""
    first = values[0]
    if all(value is first or _same_number(value, first) for value in values):
        return tf.cast(first, dtype)
    return tf.stack([tf.cast(value, dtype) for value in values])


def _same_number(a: object, b: object) -> bool:
    return isinstance(a, numbers.Real) and isinstance(b, numbers.Real) and a == b
