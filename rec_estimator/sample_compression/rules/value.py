# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that compute: element by element, along an axis, products. See rules.py."""

from typing import Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.sizes import ONE, Size, Sizes
from rec_estimator.sample_compression.analysis.values import Side, Stop, Value, known_dims
from rec_estimator.sample_compression.rules.checks import (
    constant,
    not_the_rows,
    out_dims,
    rank_of,
    refuse_rows,
    same_rows,
)


def each_element(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Element by element of one input; the others, if any, hold no rows."""
    for value in inputs[1:]:
        if value.tensor.dtype != tf.resource:
            refuse_rows(value, "parameter")
    if inputs[0].side == Side.ITEM:
        known_dims(inputs[0])
    return [inputs[0].dims] * len(op.outputs)


def each_identity(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Each output is one input, with rows or without: IdentityN, as tf.custom_gradient adds it."""
    if {Side.USER, Side.ITEM} <= {value.side for value in inputs}:
        raise Stop("takes tensors of users and of candidates")
    return [
        each_element(op, [value])[0] if value.side == Side.USER else known_dims(value)
        for value in inputs
    ]


def broadcast(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Element by element, with NumPy's broadcasting."""
    # As Python's == has it, shapes that do not fit give a scalar.
    is_lax = op.type in ("Equal", "NotEqual") and not op.get_attr("incompatible_shape_error")
    if is_lax and len({known_dims(value) for value in inputs} - {()}) > 1:
        raise Stop("compares tensors of any shapes")
    ranks = [rank_of(value) for value in inputs]
    rank = max(ranks)
    carriers = [value for value in inputs if value.axis is not None]
    # Places count from the last axis, as broadcasting does.
    places = [value.axis - rank_of(value) for value in carriers]
    same_rows(carriers, places)
    dims = []
    for place in range(-rank, 0):
        found = [value.dims[place] for value, r in zip(inputs, ranks) if place >= -r]
        wide = {size for size in found if size != ONE}
        if carriers and place == places[0]:
            if len(wide) > 1:
                raise Stop("meets the rows with something of another length")
            dims.append(carriers[0].dims[place])
        elif len(wide) <= 1:
            dims.append(wide.pop() if wide else ONE)
        else:
            numbers = [size for size in wide if sizes_lib.is_number(size)]
            dims.append(numbers[0] if numbers else None)
    return [out_dims(op, 0, dims)]


def same_shape(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Element by element of inputs of one shape: AddN."""
    if any(value.axis is None for value in inputs):
        raise Stop("adds something without rows to rows")
    return broadcast(op, inputs)


def select(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Select: a condition of rank 1 chooses rows, otherwise all shapes are equal."""
    ranks = [rank_of(value) for value in inputs]
    if len(set(ranks)) == 1:
        if any(value.axis is None for value in inputs):
            raise Stop("chooses between rows and something without rows")
        return broadcast(op, inputs)
    if any(value.axis != 0 for value in inputs):
        raise Stop("chooses rows by something else than rows")
    same_rows(inputs, [0])
    return [inputs[1].dims]


def strings(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """StringJoin: scalars, and others of one shape."""
    wide = [value for value in inputs if rank_of(value)]
    return same_shape(op, wide) if wide else [()]


def bias(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """BiasAdd along an axis that is not that of the rows."""
    data, bias = inputs
    refuse_rows(bias, "bias")
    channel = 1 if op.get_attr("data_format") == b"NCHW" else -1
    not_the_rows(data, [channel], "adds along")
    return [data.dims]


def last_axis(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Works along the last axis and keeps the shape: softmax."""
    not_the_rows(inputs[0], [-1], "normalizes")
    return [inputs[0].dims] * len(op.outputs)


def top(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """The largest along the last axis: TopKV2."""
    data, count = inputs
    refuse_rows(count, "k")
    not_the_rows(data, [-1], "chooses along")
    return [out_dims(op, output, [*data.dims[:-1], None]) for output in range(2)]


def reduction(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Sum and its like over constant axes."""
    data, axes = inputs
    known_dims(data)
    axes = constant(axes, "axis").reshape(-1).tolist()
    axes = not_the_rows(data, axes, "reduces")
    keep = op.get_attr("keep_dims")
    dims = [
        ONE if axis in axes else size
        for axis, size in enumerate(data.dims)
        if keep or axis not in axes
    ]
    return [tuple(dims)]


def arg(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """ArgMax and ArgMin along a constant axis."""
    (axis,) = not_the_rows(inputs[0], [int(constant(inputs[1], "axis"))], "reduces")
    return [tuple(size for i, size in enumerate(inputs[0].dims) if i != axis)]


def along(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Works along constant axes and keeps the shape: Cumsum, Reverse."""
    axes = constant(inputs[1], "axis").reshape(-1).tolist()
    not_the_rows(inputs[0], axes, "runs along")
    return [inputs[0].dims]


def reverse_sequence(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """ReverseSequence: each row by its own length."""
    data, lengths = inputs
    not_the_rows(data, [op.get_attr("seq_dim")], "reverses")
    if data.axis == op.get_attr("batch_dim") and lengths.axis is not None:
        same_rows([data, lengths], [0])
    else:
        refuse_rows(lengths, "lengths")
        not_the_rows(data, [op.get_attr("batch_dim")], "takes one length for each place of")
    return [data.dims]


def matmul(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """MatMul and the batched ones: rows in a free or a batch axis, never in the contracted one."""
    a, b = inputs[:2]
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    flip_a, flip_b = (op.get_attr(name) for name in names)
    rank_a, rank_b = rank_of(a), rank_of(b)
    for value, flip, free in ((a, flip_a, -2), (b, flip_b, -1)):
        if value.axis is None:
            continue
        place = value.axis - rank_of(value)
        free = (-1 if free == -2 else -2) if flip else free
        if place >= -2 and place != free:
            raise Stop("contracts the axis of the rows")
    carriers = [value for value in (a, b) if value.axis is not None]
    if len(carriers) == 2:
        places = [value.axis - rank_of(value) for value in carriers]
        if max(places) >= -2:
            raise Stop("multiplies rows with all other rows")
        same_rows(carriers, places)
    rank = max(rank_a, rank_b)
    dims = []
    for place in range(-rank, -2):
        found = [v.dims[place] for v, r in ((a, rank_a), (b, rank_b)) if place >= -r]
        wide = {size for size in found if size != ONE}
        rows = [size for size in wide if size.is_batch]
        if rows and len(wide) > 1:
            raise Stop("meets the rows with something of another length")
        dims.append(rows[0] if rows else (wide.pop() if len(wide) == 1 else None))
    dims.append(a.dims[-1 if flip_a else -2])
    dims.append(b.dims[-2 if flip_b else -1])
    return [out_dims(op, 0, dims)]


def einsum(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Einsum: rows under one label that is not summed."""
    equation = op.get_attr("equation").decode()
    if "..." in equation:
        raise Stop("has an ellipsis in its equation")
    left, right = equation.replace(" ", "").split("->")
    terms = left.split(",")
    carriers = [
        (value, term)
        for value, term in zip(inputs, terms)
        if known_dims(value) and value.axis is not None
    ]
    if not carriers:
        raise Stop("takes no rows")
    labels = {term[value.axis] for value, term in carriers}
    if len(labels) > 1:
        raise Stop("takes rows under different labels")
    (label,) = labels
    same_rows([value for value, _ in carriers], [0])
    for value, term in zip(inputs, terms):
        if term.count(label) > 1 or (value.axis is None and label in term):
            raise Stop("takes the rows' label elsewhere too")
    if right.count(label) != 1:
        raise Stop("contracts the axis of the rows")
    sizes: Dict[str, Size] = {}
    for value, term in zip(inputs, terms):
        for axis, name in enumerate(term):
            if sizes.get(name, ONE) == ONE:
                sizes[name] = known_dims(value)[axis]
    return [tuple(sizes[name] for name in right)]


def images(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Convolution and pooling: image by image."""
    for value in inputs[1:]:
        refuse_rows(value, "kernel")
    if inputs[0].axis != 0:
        raise Stop("takes rows that are not images")
    rank = rank_of(inputs[0])
    return [out_dims(op, 0, [inputs[0].dims[0], *[None] * (rank - 1)])]


def batch_norm(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """FusedBatchNorm with given statistics."""
    if op.get_attr("is_training"):
        raise Stop("takes means over the rows")
    for value in inputs[1:]:
        refuse_rows(value, "statistics")
    if inputs[0].axis != 0:
        raise Stop("takes rows that are not images")
    statistics = [values_lib.static_dims(tensor, symbols=True) for tensor in op.outputs[1:]]
    return [inputs[0].dims, *statistics]


def ensure_shape(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """EnsureShape: like an identity, where it leaves the number of rows open."""
    shape = tf.TensorShape(op.get_attr("shape"))
    axis = inputs[0].axis
    if shape.rank is not None and axis is not None and shape[axis] is not None:
        raise Stop("asks for a number of rows")
    return each_element(op, inputs)


def matrices(op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
    """Works on the last two axes and keeps the shape."""
    for value in inputs[1:]:
        refuse_rows(value, "parameter")
    not_the_rows(inputs[0], [-2, -1], "works along")
    return [inputs[0].dims]
