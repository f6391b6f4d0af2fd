"""The private base classes of TensorFlow's initializers. Checked on TensorFlow 2.15."""

from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.ops import init_ops_v2 as _init_ops_v2

# What all of TensorFlow's initializers are instances of: tf.compat.v1's and tf's.
INITIALIZERS = (_init_ops.Initializer, _init_ops_v2.Initializer)
