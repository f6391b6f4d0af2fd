# SPDX-License-Identifier: Apache-2.0
"""Selects the tables and slots that a checkpoint initializes, by the arguments of TensorFlow.

The arguments are the assignment map of init_from_checkpoint() and the vars_to_warm_start of
WarmStartSettings. What is not a table is left to TensorFlow.
"""

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.table.initializer_entries import InitializerEntry
from rec_estimator.table.shard import SlotSpec
from rec_estimator.table.table import EmbeddingTable, dense_variables, graph_tables


class TableSource(NamedTuple):
    """The table of a checkpoint that initializes a table, and the slots to read."""

    name: str
    slots: Tuple[SlotSpec, ...]


def split_map(
    pairs: Sequence[Tuple[str, object]],
) -> Tuple[Dict[EmbeddingTable, TableSource], List[Tuple[str, object]]]:
    """Splits an assignment map into its tables and TensorFlow's part, which has scopes, too."""
    by_name = {table.name: table for table in graph_tables()}
    by_slot = {f"{t.name}/{slot.name}": (t, slot) for t in graph_tables() for slot in _slots(t)}
    sources: Dict[EmbeddingTable, TableSource] = {}
    left = []
    # In TensorFlow's order, in which a scope comes before its members and a table before its slots.
    for old, new in sorted(pairs, key=lambda pair: pair[0]):
        found = _as_table(new, by_name)
        if found is not None:
            _add(sources, found, old, _slots(found) if _is_of_initialization(new) else ())
        elif isinstance(new, str) and new.rstrip("/") in by_slot:
            # In TensorFlow's store of variables, the names of slots end in "/".
            _add_slot(sources, *by_slot[new.rstrip("/")], old)
        else:
            left.append((old, new))
            if isinstance(new, str) and old.endswith("/"):
                for table, source in _tables_of_scope(old, new, by_name).items():
                    _add(sources, table, source, _slots(table))
    return sources, left


def _add(
    sources: Dict[EmbeddingTable, TableSource],
    table: EmbeddingTable,
    name: str,
    slots: Sequence[SlotSpec],
) -> None:
    present = sources.get(table)
    if present is not None and present.name == name:
        slots = tuple(dict.fromkeys([*present.slots, *slots]))
    sources[table] = TableSource(name, tuple(slots))


def _add_slot(
    sources: Dict[EmbeddingTable, TableSource], table: EmbeddingTable, slot: SlotSpec, old: str
) -> None:
    source = sources.get(table)
    if source is None or old != f"{source.name}/{slot.name}":
        raise ValueError(
            f"assignment_map must map a table and its slot {slot.name!r} from one table, got "
            f"{old!r} to {table.name + '/' + slot.name!r} with {table.name!r} from "
            f"{source.name if source else None!r}; slots come with their table"
        )
    _add(sources, table, source.name, [slot])


def _slots(table: EmbeddingTable) -> Tuple[SlotSpec, ...]:
    return table.shards[0].slots


def select(
    chosen: object,
) -> Tuple[object, List[Tuple[EmbeddingTable, Tuple[SlotSpec, ...]]]]:
    """Splits `vars_to_warm_start` into TensorFlow's part and tables, with the slots to read."""
    if isinstance(chosen, str):
        # A string selects trainable variables only, and therefore no slots.
        return dense_variables(chosen), [
            (t, ()) for t in graph_tables() if t.trainable and t.is_save and _matches([chosen], t)
        ]
    if not isinstance(chosen, list):
        return chosen, []
    if all(isinstance(each, str) for each in chosen):
        variables = [
            variable
            for each in chosen
            for variable in tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope=each)
            if not isinstance(variable, InitializerEntry)
        ]
        found = [
            (table, tuple(slot for slot in _slots(table) if _matches(chosen, table, slot)))
            for table in graph_tables()
            if table.is_save and _matches(chosen, table)
        ]
        # Without duplicates: TensorFlow takes a variable that is listed twice for two parts of it.
        return list({id(variable): variable for variable in variables}.values()), found
    return _select_objects(chosen)


def _select_objects(
    chosen: Sequence[object],
) -> Tuple[List[object], List[Tuple[EmbeddingTable, Tuple[SlotSpec, ...]]]]:
    by_name = {table.name: table for table in graph_tables()}
    left: List[object] = []
    found: Dict[EmbeddingTable, Tuple[SlotSpec, ...]] = {}
    for each in chosen:
        table = None if isinstance(each, str) else _as_table(each, by_name)
        if table is None:
            left.append(each)
        elif _is_of_initialization(each):
            found[table] = _slots(table)
        else:
            found.setdefault(table, ())
    return left, list(found.items())


def _matches(
    expressions: Sequence[str], table: EmbeddingTable, slot: Optional[SlotSpec] = None
) -> bool:
    """Whether an expression selects a table, or a slot of it, by the name of any of its shards."""
    names = [table.name, *(shard.name for shard in table.shards)]
    if slot is not None:
        names = [f"{name}/{slot.name}" for name in names]
    # TensorFlow matches the variable's name, which ends in ":0".
    return any(
        re.match(expression, name) or re.match(expression, f"{name}:0")
        for expression in expressions
        for name in names
    )


def _as_table(item: object, by_name: Mapping[str, EmbeddingTable]) -> Optional[EmbeddingTable]:
    """Returns the table that an item of an assignment map names, None if it is no table."""
    if isinstance(item, str):
        return by_name.get(item)
    if isinstance(item, list) and item:
        tables = {_as_table(each, {}) for each in item}
        return tables.pop() if len(tables) == 1 else None
    if isinstance(item, InitializerEntry):
        item = item.shard
    item = getattr(item, "table", item)
    return item if isinstance(item, EmbeddingTable) else None


def _is_of_initialization(item: object) -> bool:
    """Whether an item is from GLOBAL_VARIABLES, which also has the slots of variables."""
    return isinstance(item[0] if isinstance(item, list) else item, InitializerEntry)


def _tables_of_scope(
    old: str, new: str, by_name: Mapping[str, EmbeddingTable]
) -> Dict[EmbeddingTable, str]:
    scope = new[: new.rindex("/") + 1] if "/" in new else ""
    scope = "" if scope == "/" else scope
    return {
        table: (old if old != "/" else "") + name[len(scope) :]
        for name, table in by_name.items()
        if name.startswith(scope) and table.is_save
    }
