"""What rules of ops ask of the inputs, and Stop where it is not so."""

from typing import Any, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression import sizes as sizes_lib
from rec_estimator.sample_compression.sizes import Size, Sizes
from rec_estimator.sample_compression.values import Stop, Value, known_dims


def rank_of(value: Value) -> int:
    """The number of axes."""
    return len(known_dims(value))


def refuse_rows(value: Value, what: str) -> None:
    """Refuses a parameter that has rows, or may have."""
    known_dims(value)
    if value.axis is not None:
        raise Stop(f"takes rows as its {what}")


def constant(value: Value, what: str) -> Any:
    """What a parameter is before a request comes."""
    found = tf.get_static_value(value.tensor)
    if found is None:
        raise Stop(f"takes a {what} that only a request tells")
    return found


def same_rows(carriers: Sequence[Value], places: Sequence[int]) -> None:
    """Refuses inputs whose rows would not meet row by row."""
    if len(set(places)) > 1:
        raise Stop("takes rows on different axes")
    if len({value.per_row for value in carriers}) > 1:
        raise Stop("takes rows of different lengths")


def not_the_rows(value: Value, axes: Sequence[int], verb: str) -> List[int]:
    """Axes, negative ones made positive, none of them that of the rows."""
    rank = rank_of(value)
    positive = [int(axis) % rank if rank else 0 for axis in axes]
    if value.axis in positive:
        raise Stop(f"{verb} the axis of the rows")
    return positive


def out_dims(op: tf.Operation, output: int, dims: Sequence[Optional[Size]]) -> Sizes:
    """dims, what is None in them by the static shape or as a size that only a request tells."""
    tensor = op.outputs[output]
    filled = []
    for axis, size in enumerate(dims):
        static = tensor.shape[axis] if tensor.shape.rank is not None else None
        static = tf.compat.dimension_value(static)
        if size is None:
            size = sizes_lib.unknown(tensor, axis) if static is None else sizes_lib.number(static)
        filled.append(size)
    return tuple(filled)
