# SPDX-License-Identifier: Apache-2.0
"""Negatives for data that only say what happened: other items of the same time."""

import numpy as np

_MOST_DRAWS = 1000  # for one negative; a log of many groups needs a few


def draw_recent(
    items: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    *,
    count: int,
    window: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Draws negatives for rows of a log: events shortly before, of items not in the row's group.

    An item is drawn as often as it occurs in the window, so its popularity alone does not tell
    negatives from positives.

    Args:
      items: int64 [n], in order of time.
      groups: int64 [n], what belongs together, such as an invoice. No item of it is a negative.
      rows: int64 [m], the rows that get negatives. The first row of the log draws itself.
      count: Negatives per row.
      window: A row draws from this number of events before it.
      random: The source of the draws.

    Returns:
      int64 [m, count]: the row of the log that each negative is taken from.

    Raises:
      ValueError: count or window is below 1, or all recent items are in the row's group.

    Example:
      >>> items, invoices = np.array([3, 4, 4]), np.array([0, 1, 2])
      >>> draw_recent(
      ...     items, invoices, [2], count=2, window=2, random=np.random.default_rng(1)).tolist()
      [[0, 0]]
    """
    for name, value in (("count", count), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    _, item = np.unique(items, return_inverse=True)
    _, group = np.unique(groups, return_inverse=True)
    item_count = int(item.max(initial=0)) + 1
    in_group = np.unique(group * item_count + item)
    rows = np.asarray(rows, np.int64)
    drawn = np.empty((len(rows), count), np.int64)
    for column in range(count):
        left = np.arange(len(rows))  # those whose draw was in their group
        for _ in range(_MOST_DRAWS):
            row = rows[left]
            drawn[left, column] = random.integers(np.maximum(row - window, 0), np.maximum(row, 1))
            chosen = item[drawn[left, column]]
            left = left[np.isin(group[row] * item_count + chosen, in_group)]
            if not len(left):
                break
        else:
            raise ValueError(
                f"no item outside of the row's group was found in {_MOST_DRAWS} "
                f"draws from the {window} events before row {rows[left[0]]}; widen the window or "
                "begin at a later row"
            )
    return drawn
