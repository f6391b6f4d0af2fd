# SPDX-License-Identifier: Apache-2.0
"""Where rows are in files: for users who join predictions with what they have."""

from typing import List, Tuple

import numpy as np

from model_zoo.data.readers import Source

Place = Tuple[str, str, int]


def places_of(source: Source, locations: np.ndarray) -> List[Place]:
    """Returns the file of each row, what is counted in it, and the number.

    Args:
      source: The files.
      locations: int64 [n] of rows of the files, in any order.
    """
    order = np.argsort(locations)
    found: List[Place] = [("", "", 0)] * len(locations)
    for row, place in zip(order.tolist(), _places_of_sorted(source, locations[order])):
        found[row] = place
    return found


def _places_of_sorted(source: Source, locations: np.ndarray) -> List[Place]:
    """Locations count the rows of a file, so its first and its last row tell all between them."""
    if not len(locations):
        return []
    first, last = (_parsed(source.place(int(locations[at]))) for at in (0, -1))
    if first[:2] == last[:2]:
        return [(*first[:2], first[2] + int(each)) for each in locations - locations[0]]
    middle = len(locations) // 2
    return [
        *_places_of_sorted(source, locations[:middle]),
        *_places_of_sorted(source, locations[middle:]),
    ]


def _parsed(place: str) -> Place:
    """Splits what Source.place returns, such as "clicks.csv, line 3"."""
    file, _, rest = place.rpartition(", ")
    unit, _, number = rest.partition(" ")
    return file, unit, int(number)
