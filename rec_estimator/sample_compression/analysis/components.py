# SPDX-License-Identifier: Apache-2.0
"""The dense tensors that a dense, sparse or ragged tensor consists of."""

from typing import Tuple, Union

import tensorflow.compat.v1 as tf

# A tensor that a model takes, of any kind.
AnyTensor = Union[tf.Tensor, tf.SparseTensor, tf.RaggedTensor]


def components(tensor: AnyTensor) -> Tuple[tf.Tensor, ...]:
    """The dense tensors that a dense, sparse or ragged tensor consists of."""
    if isinstance(tensor, tf.SparseTensor):
        return tensor.indices, tensor.values, tensor.dense_shape
    if isinstance(tensor, tf.RaggedTensor):
        return (tensor.flat_values, *tensor.nested_row_splits)
    return (tensor,)


def tensor_name(tensor: AnyTensor) -> str:
    """The name of a dense, sparse or ragged tensor in an error message."""
    if isinstance(tensor, tf.SparseTensor):
        return tensor.values.op.name
    return components(tensor)[0].op.name
