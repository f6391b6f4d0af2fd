# SPDX-License-Identifier: Apache-2.0
"""Histories built in batches equal those that a loop over the whole log finds."""

import numpy as np
import pytest

from model_zoo.data.histories import HistoryBuilder


def found_by_a_loop(users, items, groups, kept, length):
    """The histories, by looking at all earlier events of each event."""
    rows = []
    for event, user in enumerate(users):
        mine = [other for other in range(event) if users[other] == user]
        while mine and groups[mine[-1]] == groups[event]:
            mine.pop()
        history = [items[other] for other in reversed(mine) if kept[other] and items[other] != -1]
        rows.append((history + [-1] * length)[:length])
    return rows


def random_log(seed, events=400):
    random = np.random.default_rng(seed)
    users = random.integers(-3, 9, events) * 2**60
    items = random.integers(-1, 50, events)
    times = np.cumsum(random.integers(0, 2, events)) * 1e9
    groups = np.cumsum(random.random(events) < 0.2)
    return users, items, times, groups, random.random(events) < 0.7


@pytest.mark.each_value
@pytest.mark.parametrize("batch", [1, 7, 64, 400])
@pytest.mark.parametrize("length", [1, 4, 30])
@pytest.mark.parametrize("seed", [1, 2])
def test_batches_of_any_size_give_the_histories_of_the_whole_log(seed, length, batch):
    users, items, times, groups, kept = random_log(seed)
    by_group, by_time = HistoryBuilder(length), HistoryBuilder(length)
    found = {"group": [], "time": []}
    for start in range(0, len(users), batch):
        part = slice(start, start + batch)
        log = users[part], items[part], times[part]
        found["group"] += by_group.extend(*log, kept=kept[part], groups=groups[part]).tolist()
        found["time"] += by_time.extend(*log).tolist()
    assert found["group"] == found_by_a_loop(users, items, groups, kept, length)
    everything = np.ones(len(users), bool)
    assert found["time"] == found_by_a_loop(users, items, times, everything, length)


def test_a_group_longer_than_a_history_leaves_the_history_before_it():
    builder = HistoryBuilder(2)
    builder.extend([5, 5], [1, 2], [0, 1])
    for item in range(10, 20):  # one group over ten batches
        assert builder.extend([5], [item], [2]).tolist() == [[2, 1]]
    assert builder.extend([5], [3], [3]).tolist() == [[19, 18]]


def test_memory_depends_on_the_number_of_users_only():
    builder = HistoryBuilder(4)
    for start in range(0, 10_000, 1000):
        times = np.arange(start, start + 1000)
        builder.extend(times % 3, times, times)
    assert builder._items.shape[0] <= 4


def test_an_empty_batch_changes_nothing():
    builder = HistoryBuilder(2)
    builder.extend([5], [1], [0])
    assert builder.extend([], [], []).shape == (0, 2)
    assert builder.extend([5], [2], [1]).tolist() == [[1, -1]]


@pytest.mark.parametrize("time", [1.0, float("nan")])
def test_a_time_that_decreases_is_refused_with_its_row_and_changes_nothing(time):
    builder = HistoryBuilder(2)
    builder.extend([5], [1], [2])
    with pytest.raises(
        ValueError, match="times of a user must not decrease, .* row 1 of the batch"
    ):
        builder.extend([6, 5], [7, 7], [1, time])
    assert builder.extend([5, 6], [2, 2], [2, 0]).tolist() == [[-1, -1], [-1, -1]]
    assert builder.extend([5], [3], [3]).tolist() == [[2, 1]]


def test_logs_sorted_by_user_need_no_order_between_users():
    builder = HistoryBuilder(2)
    assert builder.extend([1, 1, 2, 2], [1, 2, 3, 4], [8, 9, 1, 2]).tolist() == [
        [-1, -1],
        [1, -1],
        [-1, -1],
        [3, -1],
    ]


def test_columns_of_several_lengths_are_refused():
    with pytest.raises(ValueError, match=r"must have one length, got lengths \[1, 2\]"):
        HistoryBuilder(2).extend([1, 2], [1], [1, 2])


def test_a_history_of_no_length_is_refused():
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        HistoryBuilder(0)
