# SPDX-License-Identifier: Apache-2.0
"""Regularizers of tables: rules by which a training step makes the rows smaller that it updates.

TensorFlow's regularizers are functions of the whole variable. They would visit every row of a table
in every step. The rules here visit the rows that the step updates anyway
(ops/core/math/regularization.h). docs/regularization.md says what each equals with each optimizer.
"""

import dataclasses
import numbers
from typing import Any, Union

import numpy as np


@dataclasses.dataclass(frozen=True)
class L2Regularizer:
    """Adds the gradient of an L2 penalty on the rows of the batch.

    Training equals that with ``loss + scale * tf.nn.l2_loss(rows)``, where ``rows`` has each row to
    which the loss has a gradient once, however often its key occurs in the batch. The loss that is
    reported does not have the penalty. Clipping of gradients comes before it.

    Attributes:
      scale: At least 0. ``tf.contrib.layers.l2_regularizer(scale)`` has the same scale;
        ``tf.keras.regularizers.L2(l2)`` is L2Regularizer(2 * l2).

    Raises:
      TypeError: scale is not a number.
      ValueError: scale is negative or not finite.

    Example:
      >>> table = rec.get_embedding_variable("user", 4, regularizer=rec.L2Regularizer(1e-5))
      >>> table.regularizer
      L2Regularizer(scale=1e-05)
    """

    scale: float

    # The part of its value that a row loses at each step.
    decay_rate = 0.0

    def __post_init__(self) -> None:
        if not 0 <= _as_float32("scale", self.scale) < np.inf:
            raise ValueError(
                f"scale must be a finite number >= 0, got {self.scale!r}; for example 1e-5"
            )

    @property
    def l2_scale(self) -> float:
        """What is added to the gradient of a row, as a multiple of its value."""
        return float(self.scale)


@dataclasses.dataclass(frozen=True)
class LazyDecay:
    """Decays all rows at each global step, each of them when it is trained next.

    A step multiplies the rows that it trains by ``(1 - rate) ** steps`` and then applies the
    optimizer's update. ``steps`` counts the global steps since the row was last trained, including
    this one; it is 1 for a new row. So a row that is trained again gets the value that it would
    have if every step decayed all rows. Until then, lookups, exports and checkpoints have the row
    as its last step left it, without the factor of the steps since.

    For gradient descent with learning rate ``lr``, this is an L2 penalty of
    ``rate / lr * tf.nn.l2_loss(table)`` on all rows; for other optimizers, decoupled weight decay,
    as with AdamWOptimizer. FtrlOptimizer is refused: it computes a value from its slots, so a decay
    would be lost.

    Attributes:
      rate: In [0, 1). The part of its value that a row loses in a step. It does not follow the
        learning rate.

    Raises:
      TypeError: rate is not a number.
      ValueError: rate is out of range.

    Example:
      >>> feature = rec.EmbeddingFeature("user", 16, regularizer=rec.LazyDecay(1e-6))
      >>> feature.ev_option.regularizer
      LazyDecay(rate=1e-06)
    """

    rate: float

    # What is added to the gradient of a row, as a multiple of its value.
    l2_scale = 0.0

    def __post_init__(self) -> None:
        if not 0 <= _as_float32("rate", self.rate) < 1:
            raise ValueError(f"rate must be in [0, 1), got {self.rate!r}; for example 1e-6")

    @property
    def decay_rate(self) -> float:
        """The part of its value that a row loses at each step."""
        return float(self.rate)


# All regularizers; each has l2_scale and decay_rate, attributes of TablesReserve.
Regularizer = Union[L2Regularizer, LazyDecay]


def check_regularizer(value: Any) -> None:
    """Refuses what is not a regularizer of tables.

    Args:
      value: A Regularizer or None.

    Raises:
      TypeError: It is anything else, such as one of TensorFlow's or Keras's regularizers.
    """
    if value is not None and not isinstance(value, (L2Regularizer, LazyDecay)):
        raise TypeError(
            "regularizer must be a rec_estimator.L2Regularizer, a rec_estimator.LazyDecay or None, "
            f"got {value!r}; a function of the whole table would visit every row in every step: "
            "for scale * tf.nn.l2_loss(v) use L2Regularizer(scale), for Keras's L2(l2) "
            "L2Regularizer(2 * l2)"
        )


def _as_float32(name: str, value: Any) -> np.float32:
    """Rounds a number as the kernels do."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}; it is the same in all steps")
    with np.errstate(over="ignore"):
        return np.float32(value)
