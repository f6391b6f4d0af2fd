# SPDX-License-Identifier: Apache-2.0
"""Queries of a graph: what an op depends on, which ops are new, the global step."""

import contextlib
from typing import Collection, Iterable, Iterator, List, Optional, Set

import tensorflow.compat.v1 as tf

# The op that takes a batch from an iterator.
GET_NEXT = "IteratorGetNext"


def ancestors(ops: Iterable[tf.Operation]) -> Set[tf.Operation]:
    """The given ops and all ops that must run before them.

    Args:
      ops: Where to start.

    Returns:
      All ops that are reached over data and control edges, the given ops included.
    """
    seen: Set[tf.Operation] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            stack.extend(tensor.op for tensor in op.inputs)
            stack.extend(op.control_inputs)
    return seen


@contextlib.contextmanager
def collect_new_ops() -> Iterator[List[tf.Operation]]:
    """Collects the ops that are added to the default graph inside the block.

    Yields:
      A list, which is filled after the block.
    """
    graph = tf.get_default_graph()
    begin = len(graph.get_operations())
    ops: List[tf.Operation] = []
    try:
        yield ops
    finally:
        ops += graph.get_operations()[begin:]


def has_batch_default(op: tf.Operation) -> bool:
    """Whether an op is a placeholder whose default value comes from a batch.

    Such a placeholder hides a static shape; it is never fed.

    Args:
      op: Any op.
    """
    if op.type != "PlaceholderWithDefault":
        return False
    return any(source.type == GET_NEXT for source in ancestors([op]))


def find_global_step(graph: Optional[tf.Graph] = None) -> Optional[tf.Variable]:
    """The global step of a graph; None: it has none.

    Args:
      graph: The default graph if None.
    """
    graph = graph or tf.get_default_graph()
    # tf.train.get_global_step() raises a TypeError if a resource variable of that name is not in
    # the collection.
    steps = graph.get_collection(tf.GraphKeys.GLOBAL_STEP) or [
        variable
        for variable in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        if variable.op.name == "global_step"
    ]
    return steps[0] if steps else None


def called_functions(node: tf.NodeDef) -> List[str]:
    """The names of the functions that an op calls, such as the branches of an If.

    Args:
      node: The op.
    """
    single = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
    return single + [func.name for attr in node.attr.values() for func in attr.list.func]


def graph_def_of(graph: tf.Graph, ops: Collection[tf.Operation]) -> tf.GraphDef:
    """Exports some ops of a graph, so that they can be imported into a function.

    Args:
      graph: The graph of the ops.
      ops: The ops. Control inputs from other ops are left out.

    Returns:
      The nodes in the order of ops, without devices and colocation, and the functions that they
      call.
    """
    graph_def = tf.GraphDef(versions=graph.graph_def_versions)
    names = {op.name for op in ops}
    calls = False
    for op in ops:
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        # Devices and colocation mean nothing inside a function.
        node.device = ""
        node.attr.pop("_class", None)
        # Inside the function these ops wait for its arguments, and so for the ops left out.
        inputs = [name for name in node.input if not name.startswith("^") or name[1:] in names]
        del node.input[:]
        node.input.extend(inputs)
        calls = calls or bool(called_functions(node))
    if calls:
        graph_def.library.CopyFrom(graph.as_graph_def().library)
    return graph_def
