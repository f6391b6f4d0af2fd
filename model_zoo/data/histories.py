# SPDX-License-Identifier: Apache-2.0
"""Histories from a log of events: for each event, what its user did before."""

from typing import Dict, Optional

import numpy as np

from model_zoo.data.column import PADDING


class HistoryBuilder:
    """Builds the history of each event of a log, which arrives in batches.

    The history of an event holds the items of the user's earlier events, most recent first. It
    never holds the event itself, a later one, or one of the same group (an invoice, a page): a run
    of events of one user, without others of his in between, that have equal `groups`.

    It holds at most 2 * max_length items per user, however long the log is.

    Args:
      max_length: The most items of a history.

    Raises:
      ValueError: max_length is below 1.

    Example:
      >>> builder = HistoryBuilder(max_length=3)
      >>> builder.extend(users=[7, 7, 8], items=[1, 2, 3], times=[0, 1, 1]).tolist()
      [[-1, -1, -1], [1, -1, -1], [-1, -1, -1]]
      >>> builder.extend(users=[7, 8], items=[4, 5], times=[2, 2]).tolist()
      [[2, 1, -1], [3, -1, -1]]
    """

    def __init__(self, max_length: int) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self._length = max_length
        self._slots: Dict[int, int] = {}  # the row of each user in the arrays below
        # The latest items of a user, most recent last: max_length of earlier groups, then those of
        # the running group. The front is padded.
        self._items = np.empty((0, 2 * max_length), np.int64)
        self._running = np.empty(0, np.int64)  # how many of them the running group has
        self._group = np.empty(0, np.int64)
        self._time = np.empty(0, np.float64)

    def extend(
        self,
        users: np.ndarray,
        items: np.ndarray,
        times: np.ndarray,
        *,
        kept: Optional[np.ndarray] = None,
        groups: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        """Appends a batch of events to the log and returns their histories.

        Args:
          users: int64 [n].
          items: int64 [n]. Events of the item -1, which is padding, enter no history.
          times: Numbers [n] that do not decrease from an event of a user to the next.
          kept: bool [n], whether the event enters later histories, such as label == 1. None: all.
          groups: int64 [n]. None: the times; events of a user at one time are a group.

        Returns:
          int64 [n, max_length], padded with -1.

        Raises:
          ValueError: The lengths differ, or a time decreases. The log is as it was.
        """
        users, items = np.asarray(users, np.int64), np.asarray(items, np.int64)
        times = np.asarray(times, np.float64)
        groups = times.view(np.int64) if groups is None else np.asarray(groups, np.int64)
        kept = np.ones(len(users), bool) if kept is None else np.asarray(kept, bool)
        lengths = sorted({len(each) for each in (users, items, times, groups, kept)})
        if len(lengths) > 1:
            raise ValueError(f"columns of events must have one length, got lengths {lengths}")

        order = np.argsort(users, kind="stable")
        users, items, times, groups = users[order], items[order], times[order], groups[order]
        is_first = _differs_from_last(users)
        first, user = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        slots = self._slots_of(users[first])
        kept = kept[order] & (items != PADDING)
        self._check_times(times, order, first, slots)

        # The line has the items of each user: those of earlier batches, then those of this one.
        carried = 2 * self._length
        place = carried * (user + 1) + np.cumsum(kept) - kept  # in the line, of each event
        line = np.empty(carried * len(first) + np.count_nonzero(kept), np.int64)
        line[place[first][:, None] - 1 - np.arange(carried)] = self._items[slots, ::-1]
        line[place[kept]] = items[kept]

        # The history of an event ends where its group begins.
        begins = is_first | _differs_from_last(groups)
        begin = np.maximum.accumulate(np.where(begins, np.arange(len(groups)), 0))
        earlier = np.where(groups[first] == self._group[slots], self._running[slots], 0)
        end = place[begin] - np.where(begin == first[user], earlier[user], 0)
        histories = np.empty((len(users), self._length), np.int64)
        histories[order] = line[end[:, None] - 1 - np.arange(self._length)]

        last = np.append(first[1:], len(users))[: len(first)] - 1
        self._keep_latest(slots, line, end[last], (place + kept)[last])
        self._group[slots], self._time[slots] = groups[last], times[last]
        return histories

    def _slots_of(self, users: np.ndarray) -> np.ndarray:
        """Returns the row of each user; new users get new rows."""
        slots = self._slots
        found = np.array([slots.setdefault(user, len(slots)) for user in users.tolist()], np.int64)
        more = len(slots) - len(self._time)
        if more > 0:
            more = max(more, len(self._time))  # doubled, so that growth costs little per user
            padding = np.full((more, 2 * self._length), PADDING, np.int64)
            self._items = np.concatenate([self._items, padding])
            self._running = np.append(self._running, np.zeros(more, np.int64))
            self._group = np.append(self._group, np.zeros(more, np.int64))
            self._time = np.append(self._time, np.full(more, -np.inf))
        return found

    def _check_times(
        self, times: np.ndarray, order: np.ndarray, first: np.ndarray, slots: np.ndarray
    ) -> None:
        before = np.append(-np.inf, times[:-1])[: len(times)]
        before[first] = self._time[slots]
        late = np.flatnonzero(~(times >= before))  # so that NaN is refused, too
        if len(late):
            raise ValueError(
                f"times of a user must not decrease, got {times[late[0]]:.17g} after "
                f"{before[late[0]]:.17g} in row {order[late[0]]} of the batch; sort the log by time"
            )

    def _keep_latest(
        self, slots: np.ndarray, line: np.ndarray, begin: np.ndarray, end: np.ndarray
    ) -> None:
        """Stores max_length items before, and up to max_length of, the groups [begin, end)."""
        running = np.minimum(end - begin, self._length)[:, None]
        back = np.arange(2 * self._length)  # 0 is the latest
        source = np.where(
            back < running, end[:, None] - 1 - back, begin[:, None] - 1 - back + running
        )
        # What lies further back than any history reaches may be of another user.
        latest = np.where(back < running + self._length, line[np.maximum(source, 0)], PADDING)
        self._items[slots] = latest[:, ::-1]
        self._running[slots] = running[:, 0]


def _differs_from_last(values: np.ndarray) -> np.ndarray:
    """Returns bool [n], whether each value is the first or another than the one before it."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]
