# SPDX-License-Identifier: Apache-2.0
"""Warns of what a table does not take over from a checkpoint, because it is declared otherwise."""

from typing import Iterator, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.checkpoint.format.stored_tables import SKETCH, TIMESTAMP_VARIABLE
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.interfaces import STEPS, LogicalTable, SavedShard, SlotSpec


def warn_of_shards(index: Index, shards: Sequence[SavedShard]) -> None:
    """Logs what tables do not take over from a checkpoint that is restored.

    Args:
      index: The index of the checkpoint. Of a delta it has the changes only.
      shards: The shards that are restored.
    """
    for shard in shards:
        if shard.part == 0:
            # A graph that does not train keeps no slots.
            trains = state_of(shard.handle.graph).trains and shard.updated_by is not None
            warn_of_table(index, shard.table, shard.table.name, shard.slots if trains else ())


def warn_of_table(
    index: Index,
    table: LogicalTable,
    source: str,
    slots: Sequence[SlotSpec],
    keeps_versions: bool = True,
) -> None:
    """Logs what a table does not take over from a checkpoint.

    Args:
      index: The index of the checkpoint.
      table: The table.
      source: The name of the table in the checkpoint, which has it.
      slots: The slots to restore.
      keeps_versions: Whether to restore versions.
    """
    parts = _parts_of(index, source)
    if not parts or not _rows_in(index, parts, "-keys") + _rows_in(index, parts, "-keys_filtered"):
        return
    messages = [*_lacking_slots(index, parts[0], slots), *_dropped_filter(index, parts, table)]
    if keeps_versions:
        messages.extend(_other_unit(index, parts[0], table))
    for message in messages:
        tf.logging.warning("Table %r from checkpoint %s: %s.", table.name, index.prefix, message)


def _lacking_slots(index: Index, part: str, slots: Sequence[SlotSpec]) -> Iterator[str]:
    lacking = [slot.name for slot in slots if f"{part}/{slot.name}-values" not in index.names]
    if lacking:
        yield f"the checkpoint has no slots {', '.join(lacking)} of it, so that they start fresh"


def _dropped_filter(index: Index, parts: List[str], table: LogicalTable) -> Iterator[str]:
    # The graph's op knows it; a table of create_table may not know its thresholds yet.
    if table.shards[0].handle.op.get_attr("filter_freq"):
        return
    filtered = _rows_in(index, parts, "-keys_filtered")
    if filtered or any(parts[0] + suffix in index.names for suffix in SKETCH):
        yield (
            "it has no filter here, but had one when it was saved. Keys that the filter had not "
            "admitted read their initial vectors instead of default_value_no_permission; declare "
            "the filter in every graph"
        )


def _other_unit(index: Index, part: str, table: LogicalTable) -> Iterator[str]:
    stored, present = stored_unit(index, part), table.version_unit
    if stored and present and stored != present:
        yield (
            f"its versions are {stored}s there and {present}s here, and are not kept. The age of "
            "its keys counts from the first eviction"
        )


def stored_unit(index: Index, part: str) -> Optional[str]:
    """What the versions of a shard count, as TableRestore reads it.

    Args:
      index: The index of the checkpoint.
      part: The name of the shard.

    Returns:
      STEPS or SECONDS. None: what those of the table count that restores them.
    """
    name = f"{part}-version_unit"
    if name in index.names:
        return index.read_string(name)
    is_older = not any(name.endswith("-version_unit") for name in index.names)
    return None if is_older and TIMESTAMP_VARIABLE in index.names else STEPS


def _parts_of(index: Index, table: str) -> List[str]:
    """The names of a table's shards in a checkpoint; [] if it has no such table."""
    if f"{table}-keys" in index.names:
        return [table]
    parts: List[str] = []
    while f"{table}/part_{len(parts)}-keys" in index.names:
        parts.append(f"{table}/part_{len(parts)}")
    return parts


def _rows_in(index: Index, parts: List[str], suffix: str) -> int:
    names = [part + suffix for part in parts if part + suffix in index.names]
    return sum(int(np.prod(index.tensor(name).shape)) for name in names)
