# SPDX-License-Identifier: Apache-2.0
"""Walks over a finished graph, for the passes that look at what a model_fn has built."""

from typing import Collection, Iterable, List, Set

import tensorflow.compat.v1 as tf

# The op that takes a batch from an iterator.
GET_NEXT = "IteratorGetNext"


def ancestors(ops: Iterable[tf.Operation]) -> Set[tf.Operation]:
    """The ops and all that must run before them, by data and by control edges.

    Args:
      ops: Where to start.

    Returns:
      The ops themselves included.
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


def has_batch_default(op: tf.Operation) -> bool:
    """Whether an op is a placeholder for what a batch gives anyway, as one that hides a shape is.

    Args:
      op: Any op.
    """
    if op.type != "PlaceholderWithDefault":
        return False
    return any(source.type == GET_NEXT for source in ancestors([op]))


def called_functions(node: tf.NodeDef) -> List[str]:
    """Names of the functions that an op calls: a dataset's map, the branches of an If.

    Args:
      node: The op.
    """
    single = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
    return single + [func.name for attr in node.attr.values() for func in attr.list.func]


def graph_def_of(graph: tf.Graph, ops: Collection[tf.Operation]) -> tf.GraphDef:
    """Some ops of a graph, to be imported into a function.

    Args:
      graph: Theirs.
      ops: The ops. What they wait for outside of them is left out.

    Returns:
      Their nodes in the order of ops, without devices and colocation, and with the functions they
      call.
    """
    graph_def = tf.GraphDef(versions=graph.graph_def_versions)
    names = {op.name for op in ops}
    calls = False
    for op in ops:
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        # A function has no devices, and other neighbours.
        node.device = ""
        node.attr.pop("_class", None)
        # What waited for an op outside waits for the function's arguments now.
        inputs = [name for name in node.input if not name.startswith("^") or name[1:] in names]
        del node.input[:]
        node.input.extend(inputs)
        calls = calls or bool(called_functions(node))
    if calls:
        graph_def.library.CopyFrom(graph.as_graph_def().library)
    return graph_def
