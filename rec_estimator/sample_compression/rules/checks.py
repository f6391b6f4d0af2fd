# SPDX-License-Identifier: Apache-2.0
"""What rules of ops ask of the inputs, and Stop where it is not so."""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import Size, Sizes
from rec_estimator.sample_compression.analysis.values import Stop, Value, known_dims

# What tf.get_static_value leaves out, and tf.nn.softmax along an inner axis transposes by.
_ARITHMETIC: Dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Sub": np.subtract,
}


# Longer arithmetic is no axis or permutation.
_MOST_STEPS = 6


def static_value(tensor: tf.Tensor, steps: int = _MOST_STEPS) -> Any:
    """What a tensor of whole numbers is before a request comes; None where only that tells."""
    found = tf.get_static_value(tensor)
    op = tensor.op
    is_folded = op.type in _ARITHMETIC or op.type in ("ConcatV2", "Pack", "Range")
    if found is not None or not is_folded or not tensor.dtype.is_integer or steps == 0:
        return found
    parts = [static_value(part, steps - 1) for part in op.inputs]
    if any(part is None for part in parts):
        return None
    if op.type == "ConcatV2":
        return np.concatenate(parts[:-1], axis=int(parts[-1]))
    if op.type == "Pack":
        return np.stack(parts, axis=op.get_attr("axis"))
    if op.type == "Range":
        return np.arange(*(int(part) for part in parts))
    return _ARITHMETIC[op.type](*parts)


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
    found = static_value(value.tensor)
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
