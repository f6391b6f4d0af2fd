"""Walks over a finished graph, for the passes that look at what a model_fn has built."""

from typing import Iterable, Set

import tensorflow.compat.v1 as tf


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
