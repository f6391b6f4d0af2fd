# SPDX-License-Identifier: Apache-2.0
"""Base class of rules that TensorFlow does not have, for training dense variables.

Such a rule is written once, as dense_step(), for the rows that a step changes. If the gradient is a
tensor, these are all rows of the variable; if it is tf.IndexedSlices, the rows of the batch.
"""

import abc
from typing import Callable, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.table_optimizer import Scalar

# tf.assign, tf.scatter_sub and the like.
_Write = Callable[..., tf.Tensor]


class DenseRows:
    """The rows of a dense variable, and of its slots, that a step changes.

    The writes of a step are built last, by update(), and wait for all values that the step writes.
    A read of a ref variable shares its buffer, so a write must not overtake it.

    Args:
      indices: [n]. Distinct row numbers; None: all rows.
      use_locking: Whether writes lock. Only matters for ref variables; resource variables always
        lock.
    """

    def __init__(self, indices: Optional[tf.Tensor], use_locking: bool) -> None:
        self._indices = indices
        self._use_locking = use_locking
        self._writes: List[Tuple[_Write, tf.Variable, tf.Tensor]] = []

    @property
    def are_all(self) -> bool:
        """Whether the step changes all rows."""
        return self._indices is None

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """Reads the rows [n, ...] of variable."""
        if self._indices is None:
            return tf.convert_to_tensor(variable)
        return tf.gather(variable, self._indices)

    def write(self, variable: tf.Variable, rows: tf.Tensor) -> None:
        """Makes update() replace the rows of variable by rows [n, ...]."""
        self._writes.append((tf.assign if self.are_all else tf.scatter_update, variable, rows))

    def subtract(self, variable: tf.Variable, rows: tf.Tensor) -> None:
        """Makes update() subtract rows [n, ...] from the rows of variable."""
        self._writes.append((tf.assign_sub if self.are_all else tf.scatter_sub, variable, rows))

    def update(self) -> tf.Operation:
        """Builds the writes of the step."""
        where = () if self._indices is None else (self._indices,)
        with tf.control_dependencies([rows for _, _, rows in self._writes]):
            return tf.group(
                *(
                    write(variable, *where, rows, use_locking=self._use_locking)
                    for write, variable, rows in self._writes
                )
            )


class DenseSteps(abc.ABC):
    """Adds a step for dense variables to a ``tf.compat.v1.train.Optimizer``."""

    _use_locking: bool

    @abc.abstractmethod
    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """Builds the step for some rows of a variable, with rows.write() and rows.subtract().

        Args:
          gradient: [n, ...]. The gradient of the rows.
          variable: A dense variable.
          rows: The rows.
        """

    def _step(
        self, gradient: tf.Tensor, variable: tf.Variable, indices: Optional[tf.Tensor] = None
    ) -> tf.Operation:
        rows = DenseRows(indices, self._use_locking)
        self.dense_step(gradient, variable, rows)
        return rows.update()

    # ---- Methods that tf.compat.v1.train.Optimizer calls, with distinct indices.

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        return self._step(grad, var)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        return self._step(grad, handle)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        return self._step(grad.values, var, grad.indices)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        return self._step(grad, handle, indices)


def adam_moments(
    gradient: tf.Tensor,
    m: tf.Variable,
    v: tf.Variable,
    rows: DenseRows,
    beta1: tf.Tensor,
    beta2: tf.Tensor,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Builds and writes the next moments of Adam for some rows.

    Args:
      gradient: [n, ...].
      m: The first moment.
      v: The second moment.
      rows: The rows that the step changes.
      beta1: A scalar of the gradient's dtype.
      beta2: Likewise.

    Returns:
      The moments, each [n, ...].
    """
    m_rows = rows.read(m) * beta1 + gradient * (1 - beta1)
    v_rows = rows.read(v) * beta2 + tf.square(gradient) * (1 - beta2)
    rows.write(m, m_rows)
    rows.write(v, v_rows)
    return m_rows, v_rows


def adam_step(
    gradient: tf.Tensor,
    m: tf.Variable,
    v: tf.Variable,
    rows: DenseRows,
    hyperparameters: Sequence[Scalar],
    largest: Optional[tf.Variable] = None,
) -> tf.Tensor:
    """Builds the step of Adam for some rows, and writes the moments.

    Args:
      gradient: [n, ...].
      m: The first moment.
      v: The second moment.
      rows: The rows that the step changes.
      hyperparameters: The six values of AdamOptimizer.table_hyperparameters().
      largest: The largest second moment, which replaces the second moment in the step. None: the
        second moment.

    Returns:
      The amount to subtract from the rows, [n, ...].
    """
    rate, beta1, beta2, epsilon, beta1_power, beta2_power = (
        tf.cast(value, gradient.dtype) for value in hyperparameters
    )
    m_rows, v_rows = adam_moments(gradient, m, v, rows, beta1, beta2)
    if largest is not None:
        v_rows = tf.maximum(rows.read(largest), v_rows)
        rows.write(largest, v_rows)
    corrected_rate = rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
    return corrected_rate * m_rows / (tf.sqrt(v_rows) + epsilon)


def per_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Reshapes [n] to [n, 1, ...] with the rank of `like`. Scalars stay scalars."""
    return tf.reshape(values, tf.concat([tf.shape(values), tf.ones_like(tf.shape(like)[1:])], 0))


def root(x: tf.Tensor) -> tf.Tensor:
    """sqrt(x), correctly rounded even if it is used as a divisor.

    Grappler turns a division by Sqrt into a product with Rsqrt, which is an approximation. The
    casts prevent that; the detour over float64 does not change the rounding.
    """
    return tf.cast(tf.sqrt(tf.cast(x, tf.float64)), x.dtype)
