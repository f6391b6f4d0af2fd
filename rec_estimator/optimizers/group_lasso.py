# SPDX-License-Identifier: Apache-2.0
"""Sparse group lasso: what GroupFtrl and GroupAdam share.

Source: Y. Yue et al., "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR
Prediction", ECML PKDD 2021, algorithm 1.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.dense_optimizer import root
from rec_estimator.options import L2WeightEvict

# Evicts rows of zeros: half a sum of squares below the smallest normal float.
EVICT_ZEROS = L2WeightEvict(float(np.finfo(np.float32).tiny))


def shrink_groups(values: tf.Tensor, l21: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    """Builds the rows of a rule with group lasso, as ops/core/math/row_update.cc does.

    Args:
      values: [n, ...] of known inner shape. The s of the paper; each row is a group.
      l21: A scalar of the same dtype, the strength of group lasso.
      divisor: [n, ...]. What the paper divides the elements by.

    Returns:
      The new rows, [n, ...]. All zeros where the norm is at most l21 times the root of the
      number of elements.
    """
    axes = list(range(1, values.shape.rank))
    elements = float(np.prod(values.shape[1:].as_list()))
    # In float64, the order of the sum does not change the rounded result.
    squares = tf.reduce_sum(tf.square(tf.cast(values, tf.float64)), axes, keepdims=True)
    norm = tf.cast(tf.sqrt(squares), values.dtype)
    limit = l21 * root(tf.constant(elements, values.dtype))
    kept = values * ((norm - limit) / norm) / divisor
    return tf.where_v2(norm <= limit, tf.zeros_like(values), kept)
