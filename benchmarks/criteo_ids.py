# SPDX-License-Identifier: Apache-2.0
"""Generates ids with the frequencies of Criteo's click logs.

Each field has a Zipf-Mandelbrot law, p(k-th most frequent id) ~ (k + q)^-s for k = 1..n, fitted to
the counts of Criteo Kaggle (45.8 M rows). Fields with few ids have no fit; they are drawn with
s = 1.1 and q = 1.
"""

import dataclasses
from typing import Dict, Tuple

import numpy as np

# Ranks that are drawn from exact probabilities; beyond, from the integral of the law.
_EXACT_RANKS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Field:
    """One field: the law of its ids, and the share of examples that have an id.

    Attributes:
      ids: Number of distinct ids, n.
      s: Exponent of the law, not 1.
      q: Shift of the law.
      filled: Share of examples with an id; the others have id 0.
    """

    ids: int
    s: float = 1.1
    q: float = 1.0
    filled: float = 1.0

    def ranks(self, shape: Tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Draws ranks, int64 in [0, ids); 0 is the most frequent id."""
        head = min(self.ids, _EXACT_RANKS)
        cumulative = np.cumsum((np.arange(1, head + 1) + self.q) ** -self.s)
        # The mass of the ranks above head, by the integral of the law.
        low, high = (x + self.q + 0.5 for x in (head, self.ids))
        power = 1.0 - self.s
        tail = (high**power - low**power) / power
        drawn = rng.random(shape) * (cumulative[-1] + tail)
        ranks = np.searchsorted(cumulative, drawn)
        beyond = drawn > cumulative[-1]
        mass = drawn[beyond] - cumulative[-1]
        far = (low**power + power * mass) ** (1.0 / power)
        ranks[beyond] = np.clip(far - self.q - 0.5, head, self.ids - 1).astype(np.int64)
        ranks[rng.random(shape) >= self.filled] = 0
        return np.minimum(ranks, self.ids - 1).astype(np.int64)


FIELDS: Dict[str, Field] = {
    "C1": Field(1460, 1.953, 0.27),
    "C2": Field(583),
    "C3": Field(6_421_652_078, 1.077, 1.2, 0.967),
    "C4": Field(6_446_884, 1.158, 2.0, 0.967),
    "C5": Field(305),
    "C6": Field(24),
    "C7": Field(12_517, 1.097, 20.98),
    "C8": Field(633),
    "C9": Field(3),
    "C10": Field(94_334, 1.344, 3.67),
    "C11": Field(5683, 1.176, 13.13),
    "C12": Field(1_363_342_897, 1.087, 1.41, 0.967),
    "C13": Field(3194, 1.185, 12.31),
    "C14": Field(27),
    "C15": Field(14_992, 1.409, 24.75),
    "C16": Field(135_619_015, 1.114, 2.08, 0.967),
    "C17": Field(10),
    "C18": Field(5652, 1.514, 10.76),
    "C19": Field(2173, 1.334, 0.0, 0.547),
    "C20": Field(4, filled=0.55),
    "C21": Field(477_279_708, 1.097, 1.65, 0.967),
    "C22": Field(18, filled=0.24),
    "C23": Field(15),
    "C24": Field(316_422, 1.342, 5.6, 0.967),
    "C25": Field(105, filled=0.55),
    "C26": Field(145_861, 1.304, 5.55, 0.547),
}


def scattered(ranks: np.ndarray) -> np.ndarray:
    """Distinct keys for distinct ranks, spread over all of int64, as hashed strings are."""
    return (ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def rows(field: Field, limit: int) -> int:
    """Rows of a table for the ids of a field, which are hashed into at most `limit` buckets."""
    return min(field.ids, limit)


def draw(shape: Tuple[int, ...], limit: int, seed: int = 0) -> Dict[str, np.ndarray]:
    """Draws ids of all fields.

    Args:
      shape: The shape of each field's ids.
      limit: The most buckets of a field. A tf.Variable needs a row for each.
      seed: Seed of the generator.

    Returns:
      int64 `shape` by field, in [0, rows(field, limit)). Ids that are next to each other in
      frequency are scattered over the table.

    Example:
      >>> draw((2, 3), limit=1000)["C6"].shape
      (2, 3)
    """
    rng = np.random.default_rng(seed)
    ids = {}
    for name, field in FIELDS.items():
        buckets = rows(field, limit)
        permutation = rng.permutation(buckets)
        ids[name] = permutation[field.ranks(shape, rng) % buckets]
    return ids
