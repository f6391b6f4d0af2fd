# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that compute: element by element, along an axis, products. See op_rules.py."""

from typing import Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.sizes import ONE, Shape, Size
from rec_estimator.sample_compression.analysis.values import CannotMove, Side, Value
from rec_estimator.sample_compression.rules.checks import (
    constant,
    not_the_rows,
    out_dims,
    rank_of,
    refuse_rows,
    same_rows,
)


def _place(value: Value) -> int:
    """The axis of the rows, counted from behind: -1 is the last axis."""
    assert value.axis is not None
    return value.axis - rank_of(value)


def each_element(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Element by element of the first input; other inputs are parameters without rows."""
    for value in inputs[1:]:
        if value.tensor.dtype != tf.resource:
            refuse_rows(value, "parameter")
    if inputs[0].side == Side.ITEM:
        inputs[0].known_dims()
    return [inputs[0].dims] * len(op.outputs)


def each_identity(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Each output is an input: IdentityN, which tf.custom_gradient adds."""
    if {Side.USER, Side.ITEM} <= {value.side for value in inputs}:
        raise CannotMove("takes tensors of users and of candidates")
    return [
        each_element(op, [value])[0] if value.side == Side.USER else value.known_dims()
        for value in inputs
    ]


def broadcast(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Element by element, with NumPy's broadcasting."""
    # Like Python's ==: the result is a scalar if the shapes do not fit.
    is_lax = op.type in ("Equal", "NotEqual") and not op.get_attr("incompatible_shape_error")
    if is_lax and len({value.known_dims() for value in inputs} - {()}) > 1:
        raise CannotMove("compares tensors of any shapes")
    ranks = [rank_of(value) for value in inputs]
    rank = max(ranks)
    carriers = [value for value in inputs if value.axis is not None]
    # Places count from the last axis, as broadcasting does.
    places = [_place(value) for value in carriers]
    same_rows(carriers, places)
    dims: List[Optional[Size]] = []
    for place in range(-rank, 0):
        found = [value.known_dims()[place] for value, r in zip(inputs, ranks) if place >= -r]
        wide = {size for size in found if size != ONE}
        if carriers and place == places[0]:
            if len(wide) > 1:
                raise CannotMove("meets the rows with something of another length")
            dims.append(carriers[0].known_dims()[place])
        elif len(wide) <= 1:
            dims.append(wide.pop() if wide else ONE)
        else:
            numbers = [size for size in wide if sizes_lib.is_number(size)]
            dims.append(numbers[0] if numbers else None)
    return [out_dims(op, 0, dims)]


def same_shape(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Element by element, all inputs of one shape: AddN."""
    if any(value.axis is None for value in inputs):
        raise CannotMove("adds something without rows to rows")
    return broadcast(op, inputs)


def select(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Select: a condition of rank 1 chooses rows. Otherwise all shapes are equal."""
    ranks = [rank_of(value) for value in inputs]
    if len(set(ranks)) == 1:
        if any(value.axis is None for value in inputs):
            raise CannotMove("chooses between rows and something without rows")
        return broadcast(op, inputs)
    if any(value.axis != 0 for value in inputs):
        raise CannotMove("chooses rows by something else than rows")
    same_rows(inputs, [0])
    return [inputs[1].dims]


def strings(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """StringJoin: scalars, and tensors of one shape."""
    wide = [value for value in inputs if rank_of(value)]
    return same_shape(op, wide) if wide else [()]


def bias(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """BiasAdd along an axis that is not that of the rows."""
    data, bias = inputs
    refuse_rows(bias, "bias")
    channel = 1 if op.get_attr("data_format") == b"NCHW" else -1
    not_the_rows(data, [channel], "adds along")
    return [data.dims]


def last_axis(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Works along the last axis and keeps the shape: softmax."""
    not_the_rows(inputs[0], [-1], "normalizes")
    return [inputs[0].dims] * len(op.outputs)


def top(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """The largest along the last axis: TopKV2."""
    data, count = inputs
    refuse_rows(count, "k")
    not_the_rows(data, [-1], "chooses along")
    return [out_dims(op, output, [*data.known_dims()[:-1], None]) for output in range(2)]


def reduction(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Reductions over constant axes."""
    data = inputs[0]
    sizes = data.known_dims()
    axes = not_the_rows(data, constant(inputs[1], "axis").reshape(-1).tolist(), "reduces")
    keep = op.get_attr("keep_dims")
    dims = [
        ONE if axis in axes else size for axis, size in enumerate(sizes) if keep or axis not in axes
    ]
    return [tuple(dims)]


def arg(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """ArgMax and ArgMin along a constant axis."""
    (axis,) = not_the_rows(inputs[0], [int(constant(inputs[1], "axis"))], "reduces")
    return [tuple(size for i, size in enumerate(inputs[0].known_dims()) if i != axis)]


def along(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Works along constant axes and keeps the shape: Cumsum, Reverse."""
    axes = constant(inputs[1], "axis").reshape(-1).tolist()
    not_the_rows(inputs[0], axes, "runs along")
    return [inputs[0].dims]


def reverse_sequence(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """ReverseSequence: reverses each row by its own length."""
    data, lengths = inputs
    not_the_rows(data, [op.get_attr("seq_dim")], "reverses")
    if data.axis == op.get_attr("batch_dim") and lengths.axis is not None:
        same_rows([data, lengths], [0])
    else:
        refuse_rows(lengths, "lengths")
        not_the_rows(data, [op.get_attr("batch_dim")], "takes one length for each place of")
    return [data.dims]


def matmul(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Matrix products: rows on a free or a batch axis, never on the contracted one."""
    a, b = inputs[:2]
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    flip_a, flip_b = (op.get_attr(name) for name in names)
    rank_a, rank_b = rank_of(a), rank_of(b)
    for value, flip, free in ((a, flip_a, -2), (b, flip_b, -1)):
        if value.axis is None:
            continue
        place = _place(value)
        free = (-1 if free == -2 else -2) if flip else free
        if place >= -2 and place != free:
            raise CannotMove("contracts the axis of the rows")
    carriers = [value for value in (a, b) if value.axis is not None]
    if len(carriers) == 2:
        places = [_place(value) for value in carriers]
        if max(places) >= -2:
            raise CannotMove("multiplies rows with all other rows")
        same_rows(carriers, places)
    rank = max(rank_a, rank_b)
    dims: List[Optional[Size]] = []
    for place in range(-rank, -2):
        found = [v.known_dims()[place] for v, r in ((a, rank_a), (b, rank_b)) if place >= -r]
        wide = {size for size in found if size != ONE}
        rows = [size for size in wide if size.is_batch]
        if rows and len(wide) > 1:
            raise CannotMove("meets the rows with something of another length")
        dims.append(rows[0] if rows else (wide.pop() if len(wide) == 1 else None))
    dims.append(a.known_dims()[-1 if flip_a else -2])
    dims.append(b.known_dims()[-2 if flip_b else -1])
    return [out_dims(op, 0, dims)]


def einsum(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Einsum: the rows have one label, and it is not summed."""
    equation = op.get_attr("equation").decode()
    if "..." in equation:
        raise CannotMove("has an ellipsis in its equation")
    left, right = equation.replace(" ", "").split("->")
    terms = left.split(",")
    carriers = [
        (value, term)
        for value, term in zip(inputs, terms)
        if value.known_dims() and value.axis is not None
    ]
    if not carriers:
        raise CannotMove("takes no rows")
    labels = {term[value.axis] for value, term in carriers}
    if len(labels) > 1:
        raise CannotMove("takes rows under different labels")
    (label,) = labels
    same_rows([value for value, _ in carriers], [0])
    for value, term in zip(inputs, terms):
        if term.count(label) > 1 or (value.axis is None and label in term):
            raise CannotMove("uses the label of the rows for another axis too")
    if right.count(label) != 1:
        raise CannotMove("contracts the axis of the rows")
    sizes: Dict[str, Size] = {}
    for value, term in zip(inputs, terms):
        for axis, name in enumerate(term):
            if sizes.get(name, ONE) == ONE:
                sizes[name] = value.known_dims()[axis]
    return [tuple(sizes[name] for name in right)]


def images(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Convolution and pooling: each row is an image."""
    for value in inputs[1:]:
        refuse_rows(value, "kernel")
    if inputs[0].axis != 0:
        raise CannotMove("takes rows that are not images")
    rank = rank_of(inputs[0])
    return [out_dims(op, 0, [inputs[0].known_dims()[0], *[None] * (rank - 1)])]


def batch_norm(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """FusedBatchNorm in inference, with given statistics."""
    if op.get_attr("is_training"):
        raise CannotMove("takes means over the rows")
    for value in inputs[1:]:
        refuse_rows(value, "statistics")
    if inputs[0].axis != 0:
        raise CannotMove("takes rows that are not images")
    statistics = [values_lib.static_dims(tensor, symbols=True) for tensor in op.outputs[1:]]
    return [inputs[0].dims, *statistics]


def ensure_shape(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """EnsureShape: an identity, if it leaves the number of rows open."""
    shape = tf.TensorShape(op.get_attr("shape"))
    axis = inputs[0].axis
    is_known = shape.rank is not None and axis is not None
    if is_known and tf.dimension_value(shape[axis]) is not None:
        raise CannotMove("fixes the number of rows")
    return each_element(op, inputs)


def matrices(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """Works on the last two axes and keeps the shape."""
    for value in inputs[1:]:
        refuse_rows(value, "parameter")
    not_the_rows(inputs[0], [-2, -1], "works along")
    return [inputs[0].dims]
