# SPDX-License-Identifier: Apache-2.0
"""The catalogue of a data set: its distinct items."""

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
        numbers: Dict[int, int] = {}  # by id, in the order in which they were found
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
            raise ValueError(f"column {name!r} has no item to choose from")
        all_columns = {each: np.concatenate([part[each] for part in found]) for each in found[0]}
        order = np.argsort(all_columns[name])
        sorted_columns = {each: values[order] for each, values in all_columns.items()}
        return cls(sorted_columns[name], sorted_columns, counts[order])

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns int64 [B]: the row of each id, which must be in the catalogue."""
        return np.searchsorted(self.ids, ids)
