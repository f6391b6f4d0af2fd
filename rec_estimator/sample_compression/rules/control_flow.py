# SPDX-License-Identifier: Apache-2.0
"""Follows rows through tf.while_loop, tf.cond and tf.function.

The pass rewires nothing inside control flow. It moves a loop, branch or call as a whole, or not
at all. It follows the ops inside by the rules of op_rules.py and one more: inside, every number of
rows is that of the users. It may become a shape; control flow that uses it for anything else stays
with the candidates.
"""

import dataclasses
from typing import Callable, Container, Dict, Iterable, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.shape_values import elements_of
from rec_estimator.sample_compression.analysis.sizes import ListSizes, Shape, Size
from rec_estimator.sample_compression.analysis.values import (
    CannotMove,
    DenseValue,
    ListValue,
    Side,
    SparseValue,
    Value,
    elements_in,
    value_of,
)
from rec_estimator.sample_compression.rules.checks import refuse_rows
from rec_estimator.sample_compression.rules.lists import ARRAY_RULES, LIST_RULES, NotYetKnown, join
from rec_estimator.sample_compression.rules.op_rules import RULES, SHAPE_OPERANDS, Rule

# A loop whose shapes change for longer than this stays with the candidates.
_MAX_ROUNDS = 5


def call_shapes(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """The rule of While, If, Case and calls of functions.

    Raises:
      CannotMove: The op may mix rows.
    """
    return CALL_RULES[op.type](op, [value_inside(value) for value in inputs])


def value_inside(value: Value) -> Value:
    """What control flow knows about a tensor that enters it.

    Raises:
      CannotMove: Too little is known about it.
    """
    if isinstance(value, SparseValue) or value.entries is not None:
        raise CannotMove("takes a sparse or ragged tensor into control flow")
    if isinstance(value, ListValue):
        return value
    tensor = value.tensor
    if tensor.dtype == tf.variant:
        # An empty list, which a loop fills.
        source = tensor.op
        if source.type != "TensorListReserve":
            raise CannotMove("takes a list whose elements are not known")
        inputs = [values_lib.fixed(source_input) for source_input in source.inputs]
        return _value(tensor, LIST_RULES[source.type](source, inputs)[0])
    if _counts_rows(value):
        raise CannotMove("takes a number of rows into control flow")
    side = Side.FIXED if value.axis is None else Side.USER
    return DenseValue(tensor, side, value.known_dims(), elements_in(value))


def follow_subgraph(ops: Sequence[tf.Operation], values: Dict[str, Value]) -> None:
    """Follows the ops of a loop or branch of control flow v1.

    Args:
      ops: Sorted as in Subgraph.
      values: The values of the tensors that enter, by name. Gets the values inside.

    Raises:
      CannotMove: The op may mix rows.
    """
    merges = [op.outputs[0] for op in ops if op.type == "Merge"]
    for _ in range(_MAX_ROUNDS):
        before = [_dims_in(values, tensor) for tensor in merges]
        # Only the next iteration can read what an iteration writes.
        is_complete = _follow(ops, values, is_whole=not merges)
        if is_complete and before == [_dims_in(values, tensor) for tensor in merges]:
            return
        if not merges:
            return
    raise CannotMove("has a loop whose shapes do not settle")


def shape_outside(value: Value, subgraph: Container[tf.Operation]) -> Shape:
    """The shape of a tensor that leaves a loop or branch of control flow v1.

    Args:
      value: As follow_subgraph found it.
      subgraph: The ops of the loop or branch.

    Raises:
      CannotMove: The value has no meaning outside.
    """
    if isinstance(value, ListValue):
        # Only the subgraph reads the list. To others its flow is a number.
        if any(consumer not in subgraph for consumer in value.tensor.consumers()):
            raise CannotMove("gives a list out of control flow")
        return ()
    if _counts_rows(value):
        raise CannotMove("gives a number of rows out of control flow")
    return _outside(value.tensor, value, lambda tensor: tensor.op in subgraph)


def _dims_in(values: Dict[str, Value], tensor: tf.Tensor) -> Shape:
    return values[tensor.name].dims if tensor.name in values else None


def _follow(ops: Iterable[tf.Operation], values: Dict[str, Value], is_whole: bool) -> bool:
    """Follows ops in order; returns whether the inputs of every op were known.

    Raises:
      CannotMove: An op may mix rows; or is_whole, and an input was unknown.
    """
    is_complete = True
    for op in ops:
        inputs = [values[tensor.name] for tensor in op.inputs if tensor.name in values]
        is_there = len(inputs) == len(op.inputs) or (op.type == "Merge" and inputs)
        try:
            if not is_there:
                raise NotYetKnown(f"has {op.type} of a tensor that is not known inside")
            for value in _step(op, inputs):
                values[value.tensor.name] = value
        except NotYetKnown:
            if is_whole:
                raise
            is_complete = False
    return is_complete


def _step(op: tf.Operation, inputs: Sequence[Value]) -> List[Value]:
    """The outputs of one op inside."""
    if op.type in ("Shape", "ShapeN", "Size") and any(v.axis is not None for v in inputs):
        return [_shape_answer(op, value, tensor) for value, tensor in zip(inputs, op.outputs)]
    counts = [place for place, value in enumerate(inputs) if _counts_rows(value)]
    if counts and counts != [SHAPE_OPERANDS.get(op.type)]:
        elements = elements_of(op, inputs)
        if elements is None or None in elements:
            raise CannotMove(f"uses a number of rows in {op.type} inside")
        (tensor,) = op.outputs
        dims = values_lib.static_dims(tensor, symbols=True)
        return [DenseValue(tensor, Side.FIXED, dims, elements)]
    values = [_value(tensor, dims) for tensor, dims in zip(op.outputs, _shapes(op, inputs, counts))]
    only = values[0] if len(values) == 1 else None
    if isinstance(only, DenseValue) and only.elements is None and only.side == Side.FIXED:
        # A size that may become part of a shape next to the number of rows.
        return [dataclasses.replace(only, elements=elements_of(op, inputs))]
    return values


def _shapes(op: tf.Operation, inputs: Sequence[Value], counts: Sequence[int]) -> List[Shape]:
    for rules in (CALL_RULES, STEP_RULES, LIST_RULES, ARRAY_RULES):
        if op.type in rules:
            return rules[op.type](op, inputs)
    if any(isinstance(value, ListValue) for value in inputs):
        raise CannotMove(f"has {op.type} of a list inside")
    if not counts and all(value.axis is None for value in inputs):
        return [values_lib.static_dims(tensor, symbols=True) for tensor in op.outputs]
    if op.type not in RULES:
        raise CannotMove(f"has {op.type} inside, which has no rule")
    return RULES[op.type](op, inputs)


def _shape_answer(op: tf.Operation, value: Value, tensor: tf.Tensor) -> Value:
    """The output of Shape, ShapeN or Size."""
    dims = value.known_dims()
    elements = (sizes_lib.product(dims),) if op.type == "Size" else dims
    static = values_lib.static_dims(tensor, symbols=True)
    return DenseValue(tensor, Side.FIXED, static, elements)


def _value(tensor: tf.Tensor, shape: Shape) -> Value:
    if shape is None or (not isinstance(shape, ListSizes) and None in shape):
        raise CannotMove(f"has a tensor of unknown shape inside, of {tensor.op.type}")
    has_rows = sizes_lib.has_rows(shape)
    is_number = not has_rows and not isinstance(shape, ListSizes)
    elements = values_lib.constant_elements(tensor) if is_number else None
    return value_of(tensor, Side.USER if has_rows else Side.FIXED, shape, elements)


def _counts_rows(value: Value) -> bool:
    """Whether a tensor contains a number of rows."""
    return sizes_lib.has_rows(elements_in(value))


def _run(graph: tf.Graph, inputs: Sequence[Value]) -> List[Value]:
    """The outputs of a function."""
    values: Dict[str, Value] = {}
    for tensor, value in zip(graph.inputs, inputs):
        values[tensor.name] = value_of(tensor, value.side, value.dims, elements_in(value))
    parameters = {tensor.op for tensor in graph.inputs}
    _follow([op for op in graph.get_operations() if op not in parameters], values, is_whole=True)
    outputs = [values[tensor.name] for tensor in graph.outputs]
    if any(map(_counts_rows, outputs)):
        raise CannotMove("gives a number of rows out of control flow")
    return outputs


def _all_outside(op: tf.Operation, outputs: Sequence[Value]) -> List[Shape]:
    """The shapes of the outputs of an op that calls functions."""
    return [
        _outside(tensor, value, lambda inner: inner.graph is not op.graph)
        for tensor, value in zip(op.outputs, outputs)
    ]


def _outside(tensor: tf.Tensor, value: Value, is_inside: Callable[[tf.Tensor], bool]) -> Shape:
    """The shape of a tensor that leaves control flow, without symbols of tensors inside.

    Args:
      tensor: The tensor outside. Its axes replace the symbols.
      value: What is known about it inside.
      is_inside: Whether a tensor is inside.

    Raises:
      CannotMove: No tensor outside has such a size.
    """
    if isinstance(value, ListValue):
        if any(is_inside(symbol.tensor) for size in value.dims.sizes for symbol in size.symbols):
            raise CannotMove("gives a tensor whose size is known inside only")
        return value.dims
    found: List[Size] = []
    for axis, size in enumerate(value.known_dims()):
        if any(is_inside(symbol.tensor) for symbol in size.symbols):
            if size.is_batch:
                raise CannotMove("gives a tensor whose size is known inside only")
            size = sizes_lib.unknown(tensor, axis)
        found.append(size)
    return tuple(found)


def _function(op: tf.Operation, attribute: str) -> tf.Graph:
    return _graph(op, op.get_attr(attribute).name)


def _graph(op: tf.Operation, name: str) -> tf.Graph:
    graph = graphs.function_graph(op.graph, name)
    if graph is None:
        raise CannotMove("calls a function of a loaded graph, whose ops are not readable")
    return graph


def graphs_of(op: tf.Operation) -> List[Optional[tf.Graph]]:
    """The functions that an op calls; None for a function of a loaded graph."""
    names = [op.get_attr(attribute) for attribute in ("cond", "body") if "While" in op.type]
    if op.type.endswith("Case"):
        names = op.get_attr("branches")
    elif op.type.endswith("If"):
        names = [op.get_attr("then_branch"), op.get_attr("else_branch")]
    elif op.type.endswith("PartitionedCall"):
        names = [op.get_attr("f")]
    return [graphs.function_graph(op.graph, function.name) for function in names]


def _while(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _refuse_row_counts(inputs)
    body, condition = _function(op, "body"), _function(op, "cond")
    # A loop variable is not constant, even if its initial value is.
    state = [_value(tensor, value.dims) for tensor, value in zip(body.inputs, inputs)]
    for _ in range(_MAX_ROUNDS):
        outputs = _run(body, state)
        joined = [
            _value(tensor, join(tensor, before.dims, after.dims))
            for tensor, before, after in zip(body.inputs, state, outputs)
        ]
        is_settled = [v.dims for v in joined] == [v.dims for v in state]
        state = joined
        if is_settled:
            break
    else:
        raise CannotMove("has a loop whose shapes do not settle")
    refuse_rows(_run(condition, state)[0], "condition of a loop")
    return _all_outside(op, state)


def _branches(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _refuse_row_counts(inputs)
    refuse_rows(inputs[0], "choice of a branch")
    if op.type.endswith("Case"):
        graphs = [_graph(op, function.name) for function in op.get_attr("branches")]
    else:
        graphs = [_function(op, "then_branch"), _function(op, "else_branch")]
    first, *others = (_all_outside(op, _run(graph, inputs[1:])) for graph in graphs)
    for other in others:
        first = [join(*pair) for pair in zip(op.outputs, first, other)]
    return first


def _partitioned_call(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    _refuse_row_counts(inputs)
    return _all_outside(op, _run(_function(op, "f"), inputs))


def _refuse_row_counts(inputs: Sequence[Value]) -> None:
    if any(map(_counts_rows, inputs)):
        raise CannotMove("takes a number of rows into control flow")


CALL_RULES: Dict[str, Rule] = {
    "Case": _branches,
    "If": _branches,
    "PartitionedCall": _partitioned_call,
    "StatefulPartitionedCall": _partitioned_call,
    "StatelessCase": _branches,
    "StatelessIf": _branches,
    "StatelessWhile": _while,
    "While": _while,
}


def _same(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    return [inputs[0].dims]


def _loop_condition(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    refuse_rows(inputs[0], "condition of a loop")
    return [()]


def _switch(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    refuse_rows(inputs[1], "choice of a branch")
    return [inputs[0].dims] * len(op.outputs)


def _merge(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    dims = inputs[0].dims
    for other in inputs[1:]:
        dims = join(op.outputs[0], dims, other.dims)
    return [dims, ()]


# The ops of control flow v1, and Identity, which also takes a list.
STEP_RULES: Dict[str, Rule] = {
    "Enter": _same,
    "Exit": _same,
    "Identity": _same,
    "LoopCond": _loop_condition,
    "Merge": _merge,
    "NextIteration": _same,
    "Switch": _switch,
}
