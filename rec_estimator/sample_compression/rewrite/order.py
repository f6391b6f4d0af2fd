# SPDX-License-Identifier: Apache-2.0
"""The order in which the pass visits ops that depend on the request."""

import collections
from typing import Dict, List, Sequence, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.rules.control_flow_v1 import Subgraph, find_subgraphs

Node = Union[tf.Operation, Subgraph]


def downstream(tensors: Sequence[tf.Tensor]) -> List[Node]:
    """The ops and subgraphs that depend on the tensors, each after its inputs."""
    found: Set[tf.Operation] = set()
    stack = [op for tensor in tensors for op in tensor.consumers()]
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack.extend(consumer for tensor in op.outputs for consumer in tensor.consumers())
    subgraphs = find_subgraphs(tensors[0].graph)
    given = {tensor.name for tensor in tensors}
    order, rest = _ordered(found, given, subgraphs)
    if rest:
        # An outside op lies between two ops of a subgraph: the ops are visited one by one.
        cut = {node for node in rest if isinstance(node, Subgraph)}
        subgraphs = {op: subgraph for op, subgraph in subgraphs.items() if subgraph not in cut}
        order, _ = _ordered(found, given, subgraphs)
    return order


def _ordered(
    ops: Set[tf.Operation], given: Set[str], subgraphs: Dict[tf.Operation, Subgraph]
) -> Tuple[List[Node], List[Node]]:
    """Ops and subgraphs in order, and those that are in a cycle.

    The back edge of a loop of control flow v1 is left out.
    """
    waits: Dict[Node, int] = {}
    consumers: Dict[Node, List[Node]] = collections.defaultdict(list)
    # Nodes that are ready come in order of creation, so that two exports are equal.
    age: Dict[Node, int] = {}
    all_ops = next(iter(ops)).graph.get_operations() if ops else []
    for number, op in enumerate(all_ops):
        if op not in ops:
            continue
        node: Node = subgraphs.get(op, op)
        age.setdefault(node, number)
        waits.setdefault(node, 0)
        for tensor in op.inputs:
            source = subgraphs.get(tensor.op, tensor.op)
            is_awaited = tensor.op in ops and tensor.name not in given and source is not node
            if is_awaited and tensor.op.type != "NextIteration":
                waits[node] += 1
                consumers[source].append(node)
    ready = collections.deque(
        sorted((node for node, count in waits.items() if not count), key=lambda node: age[node])
    )
    order: List[Node] = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for consumer in consumers[node]:
            waits[consumer] -= 1
            if not waits[consumer]:
                ready.append(consumer)
    return order, [node for node, count in waits.items() if count]
