# SPDX-License-Identifier: Apache-2.0
"""Signatures: the named inputs and outputs of a model, and the check of what a request feeds."""

from typing import Any, Dict, Mapping, NamedTuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

_Tensor = Union[tf.Tensor, tf.SparseTensor, tf.RaggedTensor]


class Signature(NamedTuple):
    """The tensors that a request feeds and those that it gets, by their public names."""

    inputs: Dict[str, _Tensor]
    outputs: Dict[str, _Tensor]

    def feed(self, features: Mapping[str, Any]) -> Dict[_Tensor, Any]:
        """Converts the features of a request to a feed of a session.

        Args:
          features: {name: value} of all inputs. A value is an array of the input's dtype, or Python
            numbers or strings that fit into it. A sparse input takes a SparseTensorValue, a ragged
            one a RaggedTensorValue.

        Raises:
          ValueError: A feature is missing or unknown, or its shape does not fit.
          TypeError: The dtype of a feature is not that of the input.

        Example:
          >>> from rec_estimator.serving.signature import Signature
          >>> ids = tf.placeholder(tf.int64, [None])
          >>> list(Signature({"ids": ids}, {}).feed({"ids": [1, 2]}).values())
          [array([1, 2])]
        """
        missing, unknown = set(self.inputs) - set(features), set(features) - set(self.inputs)
        if missing or unknown:
            faults = [f"{name!r} is missing" for name in sorted(missing)]
            faults += [f"{name!r} is unknown" for name in sorted(unknown)]
            raise ValueError(
                f"features must be {sorted(self.inputs)}, got {sorted(features)}; "
                + ", ".join(faults)
            )
        return {
            tensor: _fitting(name, tensor, features[name]) for name, tensor in self.inputs.items()
        }


def _fitting(name: str, tensor: _Tensor, value: Any) -> Any:
    """The value to feed to an input, checked."""
    if isinstance(tensor, tf.SparseTensor):
        # TensorFlow's session checks the three parts.
        return _composite(name, value, tf.SparseTensorValue)
    if isinstance(tensor, tf.RaggedTensor):
        return _composite(name, value, tf.ragged.RaggedTensorValue)
    array = _array(name, value, tensor.dtype)
    if not tensor.shape.is_compatible_with(array.shape):
        raise ValueError(f"feature {name!r} must have shape {tensor.shape}, got {array.shape}")
    return array


def _composite(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"feature {name!r} must be a {kind.__name__}, got {type(value).__name__}")
    return value


def _array(name: str, value: Any, dtype: tf.DType) -> np.ndarray:
    """An array of a dtype: numbers of Python are converted if no value changes its kind."""
    if dtype == tf.string:
        # Not arrays of NumPy's strings, which drop zero bytes at the end.
        array = np.asarray(value, object)
        if not all(isinstance(each, (str, bytes)) for each in array.flat):
            raise TypeError(f"feature {name!r} must have strings, got {np.asarray(value).dtype}")
        return array
    try:
        array = np.asarray(value)
    except ValueError as error:  # Rows of different lengths.
        raise ValueError(f"feature {name!r} must be an array, got {value!r}") from error
    wanted = np.dtype(dtype.as_numpy_dtype)
    if array.dtype == wanted:
        return array
    if not hasattr(value, "dtype") and (
        not array.size or np.can_cast(array.dtype, wanted, "same_kind")
    ):
        converted = array.astype(wanted)
        if wanted.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise TypeError(f"feature {name!r} must have dtype {wanted}, got {array.dtype}")
