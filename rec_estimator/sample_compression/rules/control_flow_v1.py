# SPDX-License-Identifier: Apache-2.0
"""Finds the loops and branches of control flow v1, which run on one side as a whole.

Control flow v1 writes the ops of a tf.while_loop or tf.cond into the graph itself. A subgraph is
everything inside the outermost loop or branch, and every op that uses a TensorArray of it.
"""

from typing import Dict, Iterable, List, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs

# Ops that return the handle of a TensorArray that they take.
_PASSES_ON = frozenset({"Enter", "Identity", "Switch"})


class Subgraph:
    """Ops that run on one side as a whole.

    Args:
      ops: All of them.

    Attributes:
      ops: Sorted: each op comes after its inputs, except a Merge before its NextIteration.
    """

    def __init__(self, ops: Set[tf.Operation]) -> None:
        self.ops: List[tf.Operation] = []
        seen: Set[tf.Operation] = set()
        # Sorted by name, so that two exports are equal.
        stack = sorted(ops, key=lambda op: op.name, reverse=True)
        while stack:
            op = stack[-1]
            before = [
                tensor.op
                for tensor in op.inputs
                if tensor.op in ops and tensor.op not in seen and tensor.op.type != "NextIteration"
            ]
            if op in seen or not before:
                stack.pop()
                if op not in seen:
                    self.ops.append(op)
                    seen.add(op)
            else:
                stack += before
        self._ops = seen

    def __contains__(self, op: tf.Operation) -> bool:
        return op in self._ops

    def inputs(self) -> Iterable[Tuple[tf.Operation, int, tf.Tensor]]:
        """(op, index, tensor) of each input that comes from outside."""
        for op in self.ops:
            for index, tensor in enumerate(op.inputs):
                if tensor.op not in self._ops:
                    yield op, index, tensor

    def outputs(self) -> Iterable[tf.Tensor]:
        """The tensors that ops outside take, and those that a session may fetch."""
        for op in self.ops:
            is_inside = graphs.in_control_flow(op) and op.type != "Exit"
            for tensor in op.outputs:
                if not is_inside or any(user not in self._ops for user in tensor.consumers()):
                    yield tensor


def find_subgraphs(graph: tf.Graph) -> Dict[tf.Operation, Subgraph]:
    """The subgraph of each op that is in one."""
    groups: Dict[
        object, Set[tf.Operation]
    ] = {}  # The keys are contexts and arrays, which identify subgraphs.
    names: Dict[tf.Operation, object] = {}

    def put(op: tf.Operation, name: object) -> None:
        old = names.get(op, name)
        for member in groups.pop(old, set()) if old != name else set():
            names[member] = name
            groups.setdefault(name, set()).add(member)
        names[op] = name
        groups.setdefault(name, set()).add(op)

    ops = graph.get_operations()
    for op in ops:
        context = graphs.outermost_control_flow(op)
        if context is not None:
            put(op, context)
    for op in ops:
        if op.type == "Merge" and op not in names:
            for tensor in op.inputs:
                if tensor.op in names:
                    put(op, names[tensor.op])
        if op.type == "TensorArrayV3":
            for user in _ops_on_array(op):
                put(user, names.setdefault(op, op))
    subgraphs = {name: Subgraph(group) for name, group in groups.items()}
    return {op: subgraphs[name] for op, name in names.items() if name in subgraphs}


def _ops_on_array(array: tf.Operation) -> Iterable[tf.Operation]:
    """The ops that use a TensorArray, including the op that makes it."""
    stack, seen = [array.outputs[0]], {array}
    yield array
    while stack:
        for op in stack.pop().consumers():
            if op not in seen:
                seen.add(op)
                yield op
                if op.type in _PASSES_ON:
                    stack += op.outputs
