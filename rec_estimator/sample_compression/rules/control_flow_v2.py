# SPDX-License-Identifier: Apache-2.0
"""Control flow as a whole: what tf.while_loop, tf.cond and functions do to rows.

What is inside runs on users' rows altogether or not at all: nothing is rewired there. So it is
followed with the same table of op rules, and one rule more. Inside, a number of rows is that of the
users. It may become the shape of something; a piece that makes anything else of it stays with the
candidates.
"""

from typing import Callable, Container, Dict, Iterable, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.shape_values import elements_of
from rec_estimator.sample_compression.analysis.sizes import ListSizes, Sizes
from rec_estimator.sample_compression.analysis.values import Side, Stop, Value, known_dims
from rec_estimator.sample_compression.rules.checks import refuse_rows
from rec_estimator.sample_compression.rules.lists import ARRAY_RULES, LIST_RULES, NotYet, join
from rec_estimator.sample_compression.rules.table import RULES, SHAPE_OPERANDS

# A loop whose shapes have not settled after so many rounds stays with the candidates.
_MAX_ROUNDS = 5

_Call = Callable[[tf.Operation, Sequence[Value]], List[Sizes]]


def call(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """The rule of ops with bodies: While, If, Case and calls of functions.

    Raises:
      Stop: It is not certain that rows stay apart inside.
    """
    return CALLS[op.type](op, [seeded(value) for value in inputs])


def seeded(value: Value) -> Value:
    """What the inside of a piece knows of a tensor from outside.

    Raises:
      Stop: Too little is known of it outside.
    """
    tensor = value.tensor
    if value.entries is not None or value.repeat is not None:
        raise Stop("takes a sparse or ragged tensor into control flow")
    if isinstance(value.dims, ListSizes):
        return value
    if tensor.dtype == tf.variant:
        # Made of nothing that has rows, as a list to be filled in a loop.
        source = tensor.op
        if source.type != "TensorListReserve":
            raise Stop("takes a list that is not followed")
        inputs = [values_lib.fixed(source_input) for source_input in source.inputs]
        return _value(tensor, LIST_RULES[source.type](source, inputs)[0])
    if _counts(value):
        raise Stop("takes a number of rows into control flow")
    side = Side.FIXED if value.axis is None else Side.USER
    return Value(tensor, side, known_dims(value), value.elements)


def follow_loop(ops: Sequence[tf.Operation], values: Dict[str, Value]) -> None:
    """Follows a piece of a graph, with tf.while_loop and tf.cond of the older kind.

    Args:
      ops: The inputs of each before it, but for the NextIteration of a Merge.
      values: By name the tensors that come into the piece; gets those inside.

    Raises:
      Stop: It is not certain that rows stay apart inside.
    """
    merges = [op.outputs[0] for op in ops if op.type == "Merge"]
    for _ in range(_MAX_ROUNDS):
        before = [_dims_in(values, tensor) for tensor in merges]
        # What a round writes only the next one can read.
        is_complete = _follow(ops, values, is_whole=not merges)
        if is_complete and before == [_dims_in(values, tensor) for tensor in merges]:
            return
        if not merges:
            return
    raise Stop("has a loop whose shapes do not settle")


def leaving(value: Value, piece: Container[tf.Operation]) -> Sizes:
    """The shape of a tensor that leaves a piece of a graph.

    Args:
      value: As follow_loop found it.
      piece: The ops of the piece.

    Raises:
      Stop: It means nothing outside.
    """
    if isinstance(value.dims, ListSizes):
        # A list is read in the piece only; as a tensor it is some number.
        if any(consumer not in piece for consumer in value.tensor.consumers()):
            raise Stop("gives a list out of control flow")
        return ()
    if _counts(value):
        raise Stop("gives a number of rows out of control flow")
    return told_outside(value.tensor, value.dims, lambda tensor: tensor.op in piece)


def _dims_in(values: Dict[str, Value], tensor: tf.Tensor) -> Sizes:
    return values[tensor.name].dims if tensor.name in values else None


def _follow(ops: Iterable[tf.Operation], values: Dict[str, Value], is_whole: bool) -> bool:
    """Follows ops in order; returns whether all inputs of all of them were there.

    Raises:
      Stop: It is not certain that rows stay apart; or an input was not there, and is_whole.
    """
    is_complete = True
    for op in ops:
        inputs = [values[tensor.name] for tensor in op.inputs if tensor.name in values]
        is_there = len(inputs) == len(op.inputs) or (op.type == "Merge" and inputs)
        try:
            if not is_there:
                raise NotYet(f"takes {op.type} of something that is not followed")
            values.update((value.tensor.name, value) for value in _step(op, inputs))
        except NotYet:
            if is_whole:
                raise
            is_complete = False
    return is_complete


def _step(op: tf.Operation, inputs: Sequence[Value]) -> List[Value]:
    """The outputs of one op inside of a piece."""
    if op.type in ("Shape", "ShapeN", "Size") and any(v.axis is not None for v in inputs):
        return [_asked(op, value, tensor) for value, tensor in zip(inputs, op.outputs)]
    counts = [place for place, value in enumerate(inputs) if _counts(value)]
    if counts and counts != [SHAPE_OPERANDS.get(op.type)]:
        elements = elements_of(op, inputs)
        if elements is None or None in elements:
            raise Stop(f"makes something of a number of rows by {op.type} inside")
        (tensor,) = op.outputs
        return [Value(tensor, Side.FIXED, values_lib.static_dims(tensor, symbols=True), elements)]
    values = [_value(tensor, dims) for tensor, dims in zip(op.outputs, _dims(op, inputs, counts))]
    if len(values) == 1 and values[0].elements is None and values[0].side == Side.FIXED:
        # A size other than that of the rows, which a shape may be made of together with theirs.
        values[0].elements = elements_of(op, inputs)
    return values


def _dims(op: tf.Operation, inputs: Sequence[Value], counts: Sequence[int]) -> List[Sizes]:
    for rules in (CALLS, _STEPS, LIST_RULES, ARRAY_RULES):
        if op.type in rules:
            return rules[op.type](op, inputs)
    if any(isinstance(value.dims, ListSizes) for value in inputs):
        raise Stop(f"does {op.type} to a list inside")
    if not counts and all(value.axis is None for value in inputs):
        return [values_lib.static_dims(tensor, symbols=True) for tensor in op.outputs]
    if op.type not in RULES:
        raise Stop(f"has {op.type} inside, which has no rule")
    return RULES[op.type](op, inputs)


def _asked(op: tf.Operation, value: Value, tensor: tf.Tensor) -> Value:
    """The answer to a question for a shape."""
    elements: Sizes = known_dims(value)
    if op.type == "Size":
        elements = (sizes_lib.product(elements),)
    return Value(tensor, Side.FIXED, values_lib.static_dims(tensor, symbols=True), elements)


def _value(tensor: tf.Tensor, dims: Sizes) -> Value:
    if dims is None or None in dims:
        raise Stop(f"has a tensor of unknown shape inside, of {tensor.op.type}")
    has_rows = any(size.is_batch for size in dims)
    if has_rows or isinstance(dims, ListSizes):
        return Value(tensor, Side.USER if has_rows else Side.FIXED, dims)
    return Value(tensor, Side.FIXED, dims, values_lib.constant_elements(tensor))


def _counts(value: Value) -> bool:
    """Whether a tensor says a number of rows."""
    elements = value.elements or ()
    return any(element is not None and element.is_batch for element in elements)


def _run(graph: tf.Graph, inputs: Sequence[Value]) -> List[Value]:
    """The outputs of a function."""
    values: Dict[str, Value] = {}
    for tensor, value in zip(graph.inputs, inputs):
        values[tensor.name] = Value(tensor, value.side, value.dims, value.elements)
    inside = {tensor.op for tensor in graph.inputs}
    _follow([op for op in graph.get_operations() if op not in inside], values, is_whole=True)
    outputs = [values[tensor.name] for tensor in graph.outputs]
    if any(map(_counts, outputs)):
        raise Stop("gives a number of rows out of control flow")
    return outputs


def _outside(op: tf.Operation, outputs: Sequence[Value]) -> List[Sizes]:
    """The shapes of a function's outputs, with what is not known told by the op's own."""
    return [
        told_outside(tensor, value.dims, lambda inner: inner.graph is not op.graph)
        for tensor, value in zip(op.outputs, outputs)
    ]


def told_outside(tensor: tf.Tensor, dims: Sizes, is_inside: Callable[[tf.Tensor], bool]) -> Sizes:
    """A shape without sizes that only tensors inside of a piece tell.

    Args:
      tensor: Of that shape, outside.
      dims: As the inside knows it.
      is_inside: Says which tensors are.

    Raises:
      Stop: No tensor outside tells a size.
    """
    found = []
    for axis, size in enumerate(dims):
        if any(is_inside(symbol.tensor) for symbol in size.symbols):
            if size.is_batch or isinstance(dims, ListSizes):
                raise Stop("gives something whose size only the inside tells")
            size = sizes_lib.unknown(tensor, axis)
        found.append(size)
    return dims.like(found) if isinstance(dims, ListSizes) else tuple(found)


def _function(op: tf.Operation, attribute: str) -> tf.Graph:
    return _graph(op, op.get_attr(attribute))


def _graph(op: tf.Operation, function: object) -> tf.Graph:
    graph = graphs.function_graph(op.graph, function.name)
    if graph is None:
        raise Stop("calls a function that was loaded, not made here")
    return graph


def graphs_of(op: tf.Operation) -> List[Optional[tf.Graph]]:
    """The bodies of an op with bodies; None for those that were loaded, not made here."""
    names = [op.get_attr(attribute) for attribute in ("cond", "body") if "While" in op.type]
    if op.type.endswith("Case"):
        names = op.get_attr("branches")
    elif op.type.endswith("If"):
        names = [op.get_attr("then_branch"), op.get_attr("else_branch")]
    elif op.type.endswith("PartitionedCall"):
        names = [op.get_attr("f")]
    return [graphs.function_graph(op.graph, function.name) for function in names]


def _while(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _refuse_counts(inputs)
    body, condition = _function(op, "body"), _function(op, "cond")
    # What a variable of the loop is before the first round is no constant inside.
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
        raise Stop("has a loop whose shapes do not settle")
    refuse_rows(_run(condition, state)[0], "condition of a loop")
    return _outside(op, state)


def _branches(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _refuse_counts(inputs)
    refuse_rows(inputs[0], "choice of a branch")
    if op.type.endswith("Case"):
        graphs = [_graph(op, function) for function in op.get_attr("branches")]
    else:
        graphs = [_function(op, "then_branch"), _function(op, "else_branch")]
    first, *others = (_outside(op, _run(graph, inputs[1:])) for graph in graphs)
    for other in others:
        first = [join(*pair) for pair in zip(op.outputs, first, other)]
    return first


def _partitioned_call(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    _refuse_counts(inputs)
    return _outside(op, _run(_function(op, "f"), inputs))


def _refuse_counts(inputs: Sequence[Value]) -> None:
    if any(map(_counts, inputs)):
        raise Stop("takes a number of rows into control flow")


CALLS: Dict[str, _Call] = {
    "Case": _branches,
    "If": _branches,
    "PartitionedCall": _partitioned_call,
    "StatefulPartitionedCall": _partitioned_call,
    "StatelessCase": _branches,
    "StatelessIf": _branches,
    "StatelessWhile": _while,
    "While": _while,
}


def _same(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    return [inputs[0].dims]


def _loop_condition(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    refuse_rows(inputs[0], "condition of a loop")
    return [()]


def _switch(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    refuse_rows(inputs[1], "choice of a branch")
    return [inputs[0].dims] * len(op.outputs)


def _merge(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    dims = inputs[0].dims
    for other in inputs[1:]:
        dims = join(op.outputs[0], dims, other.dims)
    return [dims, ()]


# The ops that tf.while_loop and tf.cond of the older kind are made of, and Identity of a list.
_STEPS: Dict[str, _Call] = {
    "Enter": _same,
    "Exit": _same,
    "Identity": _same,
    "LoopCond": _loop_condition,
    "Merge": _merge,
    "NextIteration": _same,
    "Switch": _switch,
}
