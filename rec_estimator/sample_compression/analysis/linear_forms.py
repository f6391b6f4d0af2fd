# SPDX-License-Identifier: Apache-2.0
"""Forms: how a tensor on the candidates' side is computed, as the linear split needs to know."""

import dataclasses
from typing import Callable, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis.values import DenseValue, Form, Value


@dataclasses.dataclass(frozen=True)
class Concatenation(Form):
    """A concatenation along the last axis."""

    parts: Tuple[Value, ...]


@dataclasses.dataclass(frozen=True)
class SignedSum(Form):
    """A sum or difference of tensors that broadcast and have equal last axes.

    Attributes:
      terms: The sign, 1 or -1, and the tensor of each term.
    """

    terms: Tuple[Tuple[int, Value], ...]


@dataclasses.dataclass(frozen=True)
class Product(Form):
    """The product of a tensor of users and one of candidates, element by element."""

    user: Value
    item: DenseValue


@dataclasses.dataclass(frozen=True)
class Broadcast(Form):
    """A tensor that is broadcast along axes of size 1, but not along the last axis."""

    source: DenseValue


@dataclasses.dataclass(frozen=True)
class Flattened(Form):
    """A tensor whose axes are merged, except the last one."""

    source: DenseValue


@dataclasses.dataclass(frozen=True)
class SplitSum(Form):
    """A tensor of candidates plus one of users, [B, ...] of the same rank, that broadcasts.

    Attributes:
      user: The tensor of users; None: there is none.
      add: Builds the sum for any `user`.
    """

    user: Optional[Value]
    add: Callable[[Optional[Value]], tf.Tensor]
