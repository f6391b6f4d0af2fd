# SPDX-License-Identifier: Apache-2.0
"""The catalogue of a data set, and candidates drawn from it for training two towers."""

import dataclasses
from typing import Dict, Iterable, List, Mapping, Tuple

import numpy as np

Columns = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """The distinct items of a data set, in order of their ids.

    Attributes:
      ids: int64 [items].
      columns: What describes an item, [items, …] by name. The ids are one of them.
      counts: int64 [items], how often each is the right one in training.
    """

    ids: np.ndarray
    columns: Columns
    counts: np.ndarray

    @classmethod
    def of(cls, name: str, batches: Iterable[Tuple[Columns, np.ndarray]]) -> "Catalogue":
        """Collects the items of batches. An item is described by the first of its rows.

        Args:
          name: The column of the ids, int64 [B].
          batches: Columns of items, [B, …] by name, and whether each row counts, bool [B].

        Raises:
          ValueError: There is no item.
        """
        numbers: Dict[int, int] = {}  # of each id, in the order in which they were found
        found: List[Columns] = []
        counts = np.zeros(0, np.int64)
        for columns, is_counted in batches:
            ids, first, item = np.unique(columns[name], return_index=True, return_inverse=True)
            known = len(numbers)
            listed = [numbers.setdefault(key, len(numbers)) for key in ids.tolist()]
            number = np.array(listed, np.int64)
            new = first[number >= known]
            found.append({each: values[new] for each, values in columns.items()})
            counts = np.append(counts, np.zeros(len(new), np.int64))
            counts[number] += np.bincount(item[is_counted], minlength=len(ids))
        if not numbers:
            raise ValueError(f"column {name!r} must have an item or more to choose from, got none")
        all_columns = {each: np.concatenate([part[each] for part in found]) for each in found[0]}
        order = np.argsort(all_columns[name])
        sorted_columns = {each: values[order] for each, values in all_columns.items()}
        return cls(sorted_columns[name], sorted_columns, counts[order])

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns int64 [B]: the row of each id, which must be in the catalogue."""
        return np.searchsorted(self.ids, ids)


@dataclasses.dataclass(frozen=True)
class CandidateSampler:
    """Draws the candidates of a training batch: its own items, then some of the catalogue.

    The sampled softmax over them estimates the softmax over the catalogue if the log of how often a
    candidate is drawn is taken from its logit (Yi et al., 2019, Sampling-Bias-Corrected Neural
    Modeling for Large Corpus Item Recommendations, https://doi.org/10.1145/3298689.3346996).
    Candidates beyond those of the batch give items that nobody chooses a place among the negatives
    (Yang et al., 2020, Mixed Negative Sampling, https://doi.org/10.1145/3366424.3386195).

    Attributes:
      catalogue: The items.
      negatives: How many of them are drawn for each batch, with replacement, each as likely.
      seed: The candidates depend on it and on the number of the batch alone.
    """

    catalogue: Catalogue
    negatives: int
    seed: int

    def draw(self, ids: np.ndarray, batch: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the candidates of a batch.

        Args:
          ids: int64 [B], the items of the batch.
          batch: The number of the batch.

        Returns:
          Rows of the catalogue, int64 [B + negatives], and the log of how often each is expected
          among so many draws, float32 [B + negatives].
        """
        items = len(self.catalogue)
        random = np.random.default_rng([self.seed, batch])
        drawn = random.integers(0, items, self.negatives)
        rows = np.concatenate([self.catalogue.rows(ids), drawn])
        counts = self.catalogue.counts
        expected = len(ids) * (counts[rows] / counts.sum()) + self.negatives / items
        return rows, np.log(expected).astype(np.float32)
