# SPDX-License-Identifier: Apache-2.0
"""What differs between the supported releases of TensorFlow. Checked on TensorFlow 2.15 to 2.21."""

import tensorflow as tf

_MINOR = tuple(int(part) for part in tf.__version__.split(".")[:2])

# TensorFlow 2.16 removed tf.estimator, and with it the modules and names that only the
# tensorflow_estimator package used.
SUPPORTS_ESTIMATOR_PACKAGE = _MINOR < (2, 16)
