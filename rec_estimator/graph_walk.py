"""Walks over a finished graph, for the passes that look at what a model_fn has built."""

from typing import Iterable, List, Set

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


def called_functions(node: tf.NodeDef) -> List[str]:
    """Names of the functions that an op calls: a dataset's map, the branches of an If.

    Args:
      node: The op.
    """
    single = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
    return single + [func.name for attr in node.attr.values() for func in attr.list.func]
