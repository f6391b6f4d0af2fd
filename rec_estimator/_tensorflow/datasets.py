"""Private names about tf.data iterators and batches. Checked on TensorFlow 2.15."""

from tensorflow.python.data.util import structure as _structure


def iterator_resource(iterator):
    """The handle that a tf.data.Iterator takes its batches from."""
    # A graph does not know the structure of a batch; its iterator, found by this, does.
    return iterator._iterator_resource


def batch_of_tensors(element_spec, tensors):
    """The batch of the structure ``element_spec`` from the first ones of ``tensors``."""
    # SparseTensor and RaggedTensor leave an iterator as variants; only TF knows how to read them.
    count = len(_structure.get_flat_tensor_specs(element_spec))
    return _structure.from_compatible_tensor_list(element_spec, list(tensors)[:count])
