# SPDX-License-Identifier: Apache-2.0
"""Private names for tf.data iterators and batches. Checked on TensorFlow 2.15 and 2.21."""

from typing import Any, Iterable

import tensorflow as tf
from tensorflow.python.data.util import structure as _structure


def iterator_resource(iterator: tf.data.Iterator) -> tf.Tensor:
    """Returns the handle of the resource that ``iterator`` takes its batches from."""
    # A graph does not store the structure of a batch, only the iterator object does; the handle
    # connects the IteratorGetNext op with that object.
    return iterator._iterator_resource


def batch_of_tensors(element_spec: Any, tensors: Iterable[tf.Tensor]) -> Any:
    """Builds a batch of structure ``element_spec`` from the first of ``tensors``."""
    # An iterator returns SparseTensor and RaggedTensor as variants; TensorFlow has no public
    # function that decodes them.
    count = len(_structure.get_flat_tensor_specs(element_spec))
    return _structure.from_compatible_tensor_list(element_spec, list(tensors)[:count])
