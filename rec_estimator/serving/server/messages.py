# SPDX-License-Identifier: Apache-2.0
"""Messages of TensorFlow Serving to arrays, and back."""

import math
from typing import Any, Dict, Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow_serving.apis import classification_pb2, input_pb2, regression_pb2

_Arrays = Dict[str, np.ndarray]


def invalid(message: str) -> tf.errors.InvalidArgumentError:
    """An error that a client gets with the code INVALID_ARGUMENT."""
    return tf.errors.InvalidArgumentError(None, None, message)


def arrays_of(tensors: Mapping[str, Any], most_bytes: int) -> _Arrays:
    """Converts {name: TensorProto} to {name: array}.

    Args:
      most_bytes: The most bytes of an array. A TensorProto of a few bytes can describe an array of
        any size, because its last value stands for those that are missing.

    Raises:
      tf.errors.InvalidArgumentError: A tensor is too large, or its parts contradict each other.
    """
    return {name: _array_of(name, tensor, most_bytes) for name, tensor in tensors.items()}


def _array_of(name: str, tensor: Any, most_bytes: int) -> np.ndarray:
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or any(size < 0 for size in sizes):
        raise invalid(f"input {name!r} must have a known shape, got {sizes}")
    try:
        dtype = tf.as_dtype(tensor.dtype)
        if math.prod(sizes) * np.dtype(dtype.as_numpy_dtype).itemsize > most_bytes:
            raise invalid(f"input {name!r} must have at most {most_bytes} bytes, got shape {sizes}")
        return tf.make_ndarray(tensor)
    except (TypeError, ValueError) as error:
        raise invalid(f"input {name!r} must be a tensor with values, got: {error}") from error


def write_arrays(arrays: _Arrays, tensors: Any) -> None:
    """Writes {name: array} to a map field of TensorProtos."""
    for name, array in arrays.items():
        tensors[name].CopyFrom(tf.make_tensor_proto(array))


def examples_of(given: input_pb2.Input) -> np.ndarray:
    """The tf.train.Examples of a request to classify or regress: serialized, object [B].

    Raises:
      tf.errors.InvalidArgumentError: There is none.
    """
    context = b""
    examples = given.example_list.examples
    if given.WhichOneof("kind") == "example_list_with_context":
        # Bytes of two messages one after the other are the message in which the second one wins.
        context = given.example_list_with_context.context.SerializeToString()
        examples = given.example_list_with_context.examples
    if not examples:
        raise invalid("Input is empty.")
    return np.array([context + each.SerializeToString() for each in examples], object)


def write_classes(
    arrays: _Arrays, size: int, result: classification_pb2.ClassificationResult
) -> None:
    """Writes the outputs "classes" and "scores", each [size, C] and one of them optional.

    Raises:
      tf.errors.InvalidArgumentError: An output has another shape.
    """
    classes, scores = arrays.get("classes"), arrays.get("scores")
    found = [array for array in (classes, scores) if array is not None]
    count = found[0].size // size if found else 0
    if not found or any(array.shape != (size, count) for array in found):
        shapes = [array.shape for array in found]
        raise invalid(f"classes and scores must be [{size}, C], got {shapes}")
    for row in range(size):
        classification = result.classifications.add()
        for column in range(count):
            label = None if classes is None else classes[row, column]
            score = None if scores is None else float(scores[row, column])
            classification.classes.add(label=label, score=score)


def write_values(values: np.ndarray, size: int, result: regression_pb2.RegressionResult) -> None:
    """Writes the output "outputs", [size] or [size, 1].

    Raises:
      tf.errors.InvalidArgumentError: It has another shape.
    """
    if values.shape not in ((size,), (size, 1)):
        raise invalid(f"outputs must be [{size}] or [{size}, 1], got shape {values.shape}")
    for value in values.flat:
        result.regressions.add(value=float(value))
