# SPDX-License-Identifier: Apache-2.0
"""Negatives are recent, of other items than the row's group, and the same for one seed."""

import numpy as np
import pytest

from model_zoo.data.negatives import draw_recent

SEEDED = np.random.default_rng


def random_log(events=500, items=40):
    random = np.random.default_rng(3)
    item = random.integers(0, items, events)
    return item - 7, np.cumsum(random.random(events) < 0.3)


def test_negatives_are_recent_and_of_no_item_of_the_group():
    items, groups = random_log()
    rows = np.arange(100, 500, 3)
    drawn = draw_recent(items, groups, rows, count=4, window=50, random=SEEDED(1))
    assert drawn.shape == (len(rows), 4) and drawn.dtype == np.int64
    for row, negatives in zip(rows, drawn):
        of_group = set(items[groups == groups[row]].tolist())
        for negative in negatives:
            assert row - 50 <= negative < row
            assert items[negative] not in of_group


def test_all_events_of_the_window_are_drawn_alike():
    items, groups = np.arange(1001), np.arange(1001)
    drawn = draw_recent(items, groups, np.full(20_000, 1000), count=1, window=10, random=SEEDED(1))
    counts = np.bincount(drawn[:, 0] - 990, minlength=10)
    assert len(counts) == 10
    # 2000 each, with a standard deviation of 42.
    assert np.abs(counts - 2000).max() < 200


def test_the_seed_decides():
    items, groups = random_log()
    first, same, other = (
        draw_recent(items, groups, np.arange(50, 500), count=2, window=50, random=SEEDED(seed))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, same) and not np.array_equal(first, other)


def test_no_rows_have_no_negatives():
    assert draw_recent(*random_log(), [], count=2, window=5, random=SEEDED(1)).shape == (0, 2)


def test_a_row_without_other_recent_items_is_named():
    with pytest.raises(ValueError, match="before row 2; widen the window"):
        draw_recent(
            np.array([1, 2, 2]), np.array([0, 1, 2]), [2], count=1, window=1, random=SEEDED(1)
        )


@pytest.mark.parametrize("name", ["count", "window"])
def test_no_negatives_and_no_window_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        draw_recent(*random_log(), [9], **{"count": 1, "window": 5, "random": SEEDED(1), name: 0})
