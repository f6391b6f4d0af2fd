# SPDX-License-Identifier: Apache-2.0
"""What the algebra remembers of how a tensor on the candidates' side is made: its form."""

import dataclasses
from typing import Callable, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis.values import Value


@dataclasses.dataclass(frozen=True)
class Parts:
    """A concatenation along the last axis."""

    parts: Tuple[Value, ...]


@dataclasses.dataclass(frozen=True)
class Signed:
    """A sum or difference of tensors that broadcast, their last axes equal."""

    terms: Tuple[Tuple[int, Value], ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """A user's tensor times a candidate's, element by element."""

    user: Value
    item: Value


@dataclasses.dataclass(frozen=True)
class Spread:
    """A tensor broadcast along axes where it has size 1, not the last one."""

    source: Value


@dataclasses.dataclass(frozen=True)
class Flat:
    """A tensor whose axes but the last one are merged."""

    source: Value


@dataclasses.dataclass(frozen=True)
class Sum:
    """A tensor of candidates plus one of users, [B, ...] of the same rank, that broadcasts.

    Attributes:
      user: What is added, None: nothing.
      add: Computes the sum for any such `user`.
    """

    user: Optional[Value]
    add: Callable[[Optional[Value]], tf.Tensor]
