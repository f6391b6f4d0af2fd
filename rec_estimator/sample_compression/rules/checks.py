# SPDX-License-Identifier: Apache-2.0
"""Checks that op rules share. Each raises CannotMove if an input breaks the rule's condition."""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import Size
from rec_estimator.sample_compression.analysis.values import CannotMove, Value

# Ops that tf.get_static_value does not fold; tf.nn.softmax along an inner axis uses them.
_ARITHMETIC: Dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Sub": np.subtract,
}


# The depth of arithmetic that is folded. An axis or a permutation needs less.
_MOST_STEPS = 6


def static_value(tensor: tf.Tensor, steps: int = _MOST_STEPS) -> Optional[np.ndarray]:
    """The value of an integer tensor, if it is known when the graph is built; otherwise None."""
    found = tf.get_static_value(tensor)
    op = tensor.op
    is_folded = op.type in _ARITHMETIC or op.type in ("ConcatV2", "Pack", "Range")
    if found is not None or not is_folded or not tensor.dtype.is_integer or steps == 0:
        return found
    found_parts = [static_value(part, steps - 1) for part in op.inputs]
    parts = [part for part in found_parts if part is not None]
    if len(parts) < len(found_parts):
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
    return len(value.known_dims())


def refuse_rows(value: Value, what: str) -> None:
    """Refuses a parameter that has rows or may have rows."""
    value.known_dims()
    if value.axis is not None:
        raise CannotMove(f"takes rows as its {what}")


def constant(value: Value, what: str) -> np.ndarray:
    """The value of a parameter that must be known when the graph is built."""
    found = static_value(value.tensor)
    if found is None:
        raise CannotMove(f"takes a {what} that is known at run time only")
    return found


def same_rows(carriers: Sequence[Value], places: Sequence[Optional[int]]) -> None:
    """Refuses inputs whose rows do not match one by one.

    Args:
      carriers: The inputs that have rows.
      places: The axis of the rows of each.
    """
    if len(set(places)) > 1:
        raise CannotMove("takes rows on different axes")
    if len({value.per_row for value in carriers}) > 1:
        raise CannotMove("takes rows of different lengths")


def not_the_rows(value: Value, axes: Sequence[int], verb: str) -> List[int]:
    """The axes, counted from the first one; refuses the axis of the rows."""
    rank = rank_of(value)
    positive = [int(axis) % rank if rank else 0 for axis in axes]
    if value.axis in positive:
        raise CannotMove(f"{verb} the axis of the rows")
    return positive


def out_dims(op: tf.Operation, output: int, dims: Sequence[Optional[Size]]) -> Tuple[Size, ...]:
    """The shape of an output: `dims`, with each None replaced by the static size or a symbol."""
    tensor = op.outputs[output]
    filled: List[Size] = []
    for axis, size in enumerate(dims):
        static = None if tensor.shape.rank is None else tf.dimension_value(tensor.shape[axis])
        if size is None:
            size = sizes_lib.unknown(tensor, axis) if static is None else sizes_lib.number(static)
        filled.append(size)
    return tuple(filled)
