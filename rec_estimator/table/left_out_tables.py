# SPDX-License-Identifier: Apache-2.0
"""Finds tables that TensorFlow's init_from_checkpoint and warm_start have left out.

These functions replace the initializers of variables. They do not know tables, whose rows would
then be missing silently. The initializers in the graph tell which variables they have replaced, and
under which names the checkpoint has them.
"""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.table import EmbeddingTable, graph_tables

# The ops between the tensor of a checkpoint and the assignment to a variable.
_BETWEEN = ("Identity", "Cast", "Reshape")


class _Source(NamedTuple):
    """Where a variable is initialized from. The scopes are those in which the names differ."""

    prefix: str
    old_scope: str
    new_scope: str


def warn_of_left_out_tables(graph: tf.Graph) -> None:
    """Logs a warning, once for each table.

    Args:
      graph: A graph whose variables are about to be initialized.
    """
    state = state_of(graph)
    if not state.trains:
        return
    left_out = [
        (table, prefix)
        for table, prefix in _left_out_tables(graph, state.chosen_checkpoints)
        if table.name not in state.tables_left_out
    ]
    state.tables_left_out.update(table.name for table, _ in left_out)
    for prefix in dict.fromkeys(prefix for _, prefix in left_out):
        names = ", ".join(repr(table.name) for table, each in left_out if each == prefix)
        tf.logging.warning(
            "Table %s does not start from checkpoint %s, which has its rows and initializes "
            "variables: TensorFlow's init_from_checkpoint and warm_start leave tables out. Call "
            "rec_estimator.init_from_checkpoint with the same arguments, or pass warm_start_from "
            "to an Estimator of rec_estimator.",
            names,
            prefix,
        )


def _left_out_tables(graph: tf.Graph, chosen: Set[str]) -> Iterator[Tuple[EmbeddingTable, str]]:
    tables = [
        table
        for table in graph_tables(graph)
        if table.is_save and table.shards[0].initializer.type != op_registry.TABLE_RESTORE
    ]
    if not tables:
        return
    for source in _sources_of_variables(graph):
        if source.prefix in chosen:
            continue
        names = _names_in(source.prefix)
        for table in tables:
            if not f"{table.name}/".startswith(source.new_scope):
                continue
            old = source.old_scope + table.name[len(source.new_scope) :]
            if f"{old}-keys" in names or f"{old}/part_0-keys" in names:
                yield table, source.prefix


def _sources_of_variables(graph: tf.Graph) -> List[_Source]:
    """Where variables are initialized from, each place once."""
    sources: Dict[_Source, None] = {}
    for variable in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES):
        # Variables with resources and without. The entries of tables are neither.
        if not isinstance(variable, tf.compat.v2.Variable):
            continue
        restore = _restore_of(variable.initializer)
        if restore is None:
            continue
        prefix, names = (tf.get_static_value(tensor) for tensor in restore.inputs[:2])
        if prefix is None or names is None:
            continue
        old, new = tf.compat.as_str(names[0]).split("/"), variable.op.name.split("/")
        if new[-1].startswith("part_") and old[-1] != new[-1]:
            new.pop()
        while old and new and old[-1] == new[-1]:
            old.pop()
            new.pop()
        scopes = ("".join(f"{part}/" for part in parts) for parts in (old, new))
        sources[_Source(tf.compat.as_str(prefix.item()), *scopes)] = None
    return list(sources)


def _restore_of(initializer: Any) -> Optional[tf.Operation]:
    """The op that reads the value of an initializer from a checkpoint, None if none does."""
    # The initializer of a variable without a resource is the tensor of its assignment.
    assign = getattr(initializer, "op", initializer)
    if not isinstance(assign, tf.Operation) or len(assign.inputs) < 2:
        return None
    op = assign.inputs[1].op
    while op.type in _BETWEEN:
        op = op.inputs[0].op
    return op if op.type == "RestoreV2" else None


def _names_in(prefix: str) -> Set[str]:
    try:
        return set(tf.train.load_checkpoint(prefix).get_variable_to_shape_map())
    except (tf.errors.OpError, ValueError):
        return set()  # The initializer will say so, if it ever runs.
