# SPDX-License-Identifier: Apache-2.0
"""What a rule that TensorFlow lacks needs to train dense variables: rows to read and to write.

A rule is written once, in dense_step(), over the rows that a step changes: all rows of a variable
whose gradient is a tensor, the rows of the batch where it is tf.IndexedSlices.
"""

import abc
from typing import Any, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf


class DenseRows:
    """The rows of a dense variable, and of its slots, that a step changes.

    Args:
      indices: [n], distinct. None: all rows.
      use_locking: Whether writes lock, which variables that are no resources do only if asked.
    """

    def __init__(self, indices: Optional[tf.Tensor], use_locking: bool) -> None:
        self._indices = indices
        self._use_locking: Any = use_locking

    @property
    def are_all(self) -> bool:
        """Whether these are all rows."""
        return self._indices is None

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """[n, ...] or, of all rows, the value of variable."""
        if self._indices is None:
            return tf.convert_to_tensor(variable)
        return tf.gather(variable, self._indices)

    def write(self, variable: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
        """Replaces the rows by [n, ...]."""
        if self._indices is None:
            return tf.assign(variable, rows, use_locking=self._use_locking)
        return tf.scatter_update(variable, self._indices, rows, use_locking=self._use_locking)

    def subtract(self, variable: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
        """Subtracts [n, ...] from the rows."""
        if self._indices is None:
            return tf.assign_sub(variable, rows, use_locking=self._use_locking)
        return tf.scatter_sub(variable, self._indices, rows, use_locking=self._use_locking)


class DenseSteps(abc.ABC):
    """Gives the ``tf.compat.v1.train.Optimizer`` it is mixed into a step for dense variables."""

    _use_locking: bool

    @abc.abstractmethod
    def dense_step(
        self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows
    ) -> List[tf.Tensor]:
        """Builds the step of some rows of variable.

        Args:
          gradient: [n, ...], of the rows.
          variable: A dense variable.
          rows: Those that the step changes.

        Returns:
          What has to run.
        """

    def _step(
        self, gradient: tf.Tensor, variable: tf.Variable, indices: Optional[tf.Tensor] = None
    ) -> tf.Operation:
        rows = DenseRows(indices, self._use_locking)
        return tf.group(*self.dense_step(gradient, variable, rows))

    # ---- What tf.compat.v1.train.Optimizer calls; the indices it gives are distinct.

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


def adam_step(
    gradient: tf.Tensor,
    m: tf.Variable,
    v: tf.Variable,
    rows: DenseRows,
    hyperparameters: Sequence[Any],
) -> Tuple[tf.Tensor, List[tf.Tensor]]:
    """Adam's step of some rows.

    Args:
      gradient: [n, ...].
      m: The first moment.
      v: The second moment.
      rows: Those that move.
      hyperparameters: Adam's six, in the order of AdamOptimizer.table_hyperparameters().

    Returns:
      What to subtract from the rows, [n, ...], and what writes the moments.
    """
    rate, beta1, beta2, epsilon, beta1_power, beta2_power = (
        tf.cast(value, gradient.dtype) for value in hyperparameters
    )
    m_rows = rows.read(m) * beta1 + gradient * (1 - beta1)
    v_rows = rows.read(v) * beta2 + tf.square(gradient) * (1 - beta2)
    corrected_rate = rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
    step = corrected_rate * m_rows / (tf.sqrt(v_rows) + epsilon)
    return step, [rows.write(m, m_rows), rows.write(v, v_rows)]


def per_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """[n] as [n, 1, ...], of the rank of like; scalars stay scalars."""
    return tf.reshape(values, tf.concat([tf.shape(values), tf.ones_like(tf.shape(like)[1:])], 0))


def root(x: tf.Tensor) -> tf.Tensor:
    """sqrt(x), rounded correctly also where something is divided by it.

    Grappler turns a division by Sqrt into a product with Rsqrt, which is an approximation. It does
    not see through the casts, and the way over float64 rounds like a direct one.
    """
    return tf.cast(tf.sqrt(tf.cast(x, tf.float64)), x.dtype)
