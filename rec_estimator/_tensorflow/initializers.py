# SPDX-License-Identifier: Apache-2.0
"""Private base classes of TensorFlow's initializers. Checked on TensorFlow 2.15."""

from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.ops import init_ops_v2 as _init_ops_v2

# The base classes of all initializers of tf.compat.v1 and of tf. Needed to tell an initializer from
# any other callable.
INITIALIZERS = (_init_ops.Initializer, _init_ops_v2.Initializer)
