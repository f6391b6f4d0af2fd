# SPDX-License-Identifier: Apache-2.0
"""The interface through which a graph pass learns what lookups and optimizers build."""

from typing import Any, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf


class GraphObserver:
    """The events of a graph that a pass may handle. Every method does nothing unless overridden.

    The methods are called in the order in which they are defined. optimizer_ops_built is called
    after the gradients of lookups, and once more after the updates.
    """

    def features_looked_up(self, inputs: Any, outputs: Any, keys: Any) -> None:
        """A feature was looked up by many ops, which together work row by row.

        Args:
          inputs: Tensors, SparseTensors and RaggedTensors with rows on axis 0.
          outputs: Tensors with the same rows on axis 0. Row i depends on row i of the inputs only.
          keys: The SparseTensor or RaggedTensor with those rows that the lookup reads.
        """

    def before_gradients(self, loss: Any, grad_loss: Any) -> Tuple[Any, Any]:
        """An optimizer is about to build gradients.

        Args:
          loss: The tensor to minimize.
          grad_loss: The gradient of the loss itself; None: ones.

        Returns:
          The loss and its gradient to use instead.
        """
        return loss, grad_loss

    def lookup_gradient_built(self, keys: tf.Tensor, slices: tf.IndexedSlices) -> None:
        """The gradient of a lookup was built.

        Args:
          keys: int64, any shape. The keys that the lookup reads.
          slices: The gradient, one slice per key.
        """

    def gradients_built(self, gradients: Sequence[Any]) -> None:
        """An optimizer has built the gradients of its variables.

        Args:
          gradients: One for each variable: tf.Tensor, tf.IndexedSlices or None.
        """

    def before_updates(self) -> None:
        """An optimizer is about to apply gradients.

        Raises:
          ValueError: The pass refuses an op that was built on the gradients.
        """

    def counted_keys(
        self, gradient_keys: Optional[tf.Tensor], others: List[tf.Tensor]
    ) -> List[tf.Tensor]:
        """Which keys an update counts besides those of the gradient.

        Args:
          gradient_keys: int64 [n]. The keys of the gradient of a shard; None: it has no gradient.
          others: int64 vectors. The keys of the other lookups of the shard that train.

        Returns:
          int64 vectors to count instead of `others`.
        """
        del gradient_keys
        return others

    def optimizer_ops_built(self, ops: Sequence[tf.Operation]) -> None:
        """An optimizer has built ops to compute or to apply gradients.

        Args:
          ops: The ops, in the order in which they were built.
        """
