# SPDX-License-Identifier: Apache-2.0
"""Finds tables on which a loss depends and which no op updates.

A list of variables made by hand may leave a table out. TensorFlow would then train all other
variables silently. Here this is an error when a session begins.
"""

from typing import Iterable, List, Optional, Set

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import sync_replicas
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.interfaces import SavedShard
from rec_estimator.table.table import EmbeddingTable, graph_tables

# TensorFlow's optimizers change variables with ops whose types begin with these, or send gradients
# to accumulators.
_UPDATES = (
    *("Apply", "ResourceApply", "ResourceSparseApply", "SparseApply"),
    *("AccumulatorApply", "ResourceAccumulatorApply", "SparseAccumulatorApply"),
)

# No gradient flows through these ops.
_STOPS = frozenset({"PreventGradient", "StopGradient"})


def untrained_tables(graph: Optional[tf.Graph] = None) -> List[EmbeddingTable]:
    """The trainable tables on which a loss depends and which no optimizer updates.

    The losses are those of our optimizers and of RecEstimator. The loss of a stock optimizer is not
    known, but its updates of dense variables depend on the same lookups. A lookup behind
    tf.stop_gradient does not count.

    Args:
      graph: The graph; None: the default graph.

    Returns:
      The tables, in the order of creation; [] if the graph does not train.
    """
    graph = graph or tf.get_default_graph()
    if not state_of(graph).trains:
        return []
    candidates = [
        table for table in graph_tables(graph) if any(shard.lacks_update for shard in table)
    ]
    if not candidates:
        return []
    ends = [loss.op for loss in state_of(graph).losses]
    ends += [op for op in graph.get_operations() if op.type.startswith(_UPDATES)]
    upstream = _differentiable_ancestors(ends)
    return [
        table
        for table in candidates
        if any(lookup.op in upstream for shard in table for lookup in shard.lookups)
    ]


def _differentiable_ancestors(ops: Iterable[tf.Operation]) -> Set[tf.Operation]:
    seen: Set[tf.Operation] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op not in seen and op.type not in _STOPS:
            seen.add(op)
            stack.extend(tensor.op for tensor in op.inputs)
    return seen


def _message(tables: Iterable[EmbeddingTable]) -> str:
    names = ", ".join(repr(table.name) for table in tables)
    return (
        f"no optimizer updates table {names}, on which the loss depends; "
        "minimize with one of rec_estimator.optimizers and a var_list that has the table, as "
        "tf.trainable_variables() does, or pass RecEstimator(table_optimizer=...), or make the "
        "table with trainable=False"
    )


def is_synchronous(graph: Optional[tf.Graph] = None) -> bool:
    """Whether a tf.train.SyncReplicasOptimizer, which accumulates gradients, trains the graph.

    Args:
      graph: The graph; None: the default graph.
    """
    ops = (graph or tf.get_default_graph()).get_operations()
    return any(op.type.endswith("ConditionalAccumulator") for op in ops)


def is_first_without_update(shard: SavedShard) -> bool:
    """Whether a shard is the first of its table that is looked up and that no optimizer updates.

    What TensorFlow asks of each shard searches the graph for untrained tables at these only.
    """
    return shard.lacks_update and shard is next(
        each for each in shard.table.shards if each.lacks_update
    )


def check_tables_are_trained(graph: Optional[tf.Graph] = None) -> None:
    """Refuses a graph with untrained tables.

    Args:
      graph: The graph; None: the default graph.

    Raises:
      ValueError: The graph has an untrained table.
    """
    graph = graph or tf.get_default_graph()
    tables = untrained_tables(graph)
    # A SyncReplicasOptimizer asks which variables are initialized before it applies gradients.
    if tables and not sync_replicas.is_applying_gradients(graph):
        raise ValueError(_message(tables))


def warn_of_untrained_tables(graph: Optional[tf.Graph] = None) -> None:
    """Logs a warning, once for each table: where a script may still be building its graph.

    Args:
      graph: The graph; None: the default graph.
    """
    warned = state_of(graph).tables_warned_of
    tables = [table for table in untrained_tables(graph) if table.name not in warned]
    if tables:
        warned.update(table.name for table in tables)
        tf.logging.warning("%s", _message(tables))
