# SPDX-License-Identifier: Apache-2.0
"""Turns a log of events into rows to train on: histories, and negatives where it has none."""

import dataclasses
from typing import Callable, Dict, Mapping, Optional, Sequence

import numpy as np

from model_zoo.data.histories import HistoryBuilder
from model_zoo.data.negatives import draw_recent

Columns = Dict[str, np.ndarray]
Condition = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class History:
    """How a history is built from a log.

    Attributes:
      name: The column of the history.
      user: The column of the users.
      item: The column of the items.
      time: The column of the times, in whose order the log is.
      max_length: The most items of a history.
      group: The column whose equal values are one moment, such as an invoice. None: the time.
      where: Which events enter histories: bool [n] from the columns. None: all.
    """

    name: str
    user: str
    item: str
    time: str
    max_length: int
    group: Optional[str] = None
    where: Optional[Condition] = None


@dataclasses.dataclass(frozen=True)
class Drawing:
    """How negatives are drawn from a log.

    Attributes:
      item: The column of the items.
      columns: The columns of a negative that come from the event it was drawn from, the item among
        them. The others are those of its positive.
      labels: The labels, which are 0 in a negative.
      group: The column of what belongs together, such as an invoice: no item of it is a negative.
      count: Negatives per event.
      window: Negatives are drawn from this number of events before.
      seed: The same seed gives the same negatives.
    """

    item: str
    columns: Sequence[str]
    labels: Sequence[str]
    group: str
    count: int
    window: int
    seed: int


class RowBuilder:
    """Builds the rows to train on from a log that arrives in blocks, in order of time.

    Blocks need not end where groups do, but no negative knows what of its group is in later blocks.

    Args:
      histories: The histories to build.
      negatives: The negatives to draw. None: the log has its own.

    Example:
      >>> builder = RowBuilder([History("history", "user", "item", "time", max_length=2)])
      >>> builder.extend({"user": [7, 7], "item": [1, 2], "time": [0, 1]})["history"].tolist()
      [[-1, -1], [1, -1]]
    """

    def __init__(
        self, histories: Sequence[History] = (), negatives: Optional[Drawing] = None
    ) -> None:
        self._histories = [(each, HistoryBuilder(each.max_length)) for each in histories]
        self._negatives = negatives
        self._random = np.random.default_rng(negatives.seed if negatives else 0)
        self._recent: Columns = {}  # what the next block draws from

    def extend(
        self, block: Mapping[str, np.ndarray], shown: Optional[np.ndarray] = None
    ) -> Columns:
        """Appends a block of events; returns its rows.

        Args:
          block: The columns of n events, [n, …] by name.
          shown: bool [n], which events become rows. The others are only in histories and among the
            events that negatives are drawn from. None: all.

        Returns:
          The columns of the block and the histories, one row per event shown. With negatives, those
          of an event follow it; the first `window` events of the log are not shown.
        """
        columns = {name: np.asarray(values) for name, values in block.items()}
        rows = len(next(iter(columns.values())))
        for each, builder in self._histories:
            columns[each.name] = builder.extend(
                columns[each.user],
                columns[each.item],
                columns[each.time],
                kept=None if each.where is None else each.where(columns),
                groups=None if each.group is None else columns[each.group],
            )
        chosen = np.arange(rows) if shown is None else np.flatnonzero(shown)
        if self._negatives is None:
            return {name: values[chosen] for name, values in columns.items()}
        return self._with_negatives(self._negatives, columns, chosen)

    def _with_negatives(self, settings: Drawing, columns: Columns, chosen: np.ndarray) -> Columns:
        """The chosen rows, each followed by its negatives."""
        names = {settings.group, settings.item, *settings.columns}
        drawable = {name: columns[name] for name in names}
        if self._recent:
            drawable = {
                name: np.concatenate([self._recent[name], values])
                for name, values in drawable.items()
            }
        before = len(drawable[settings.item]) - len(columns[settings.item])
        chosen = chosen[chosen + before >= settings.window]
        drawn = draw_recent(
            drawable[settings.item],
            drawable[settings.group],
            chosen + before,
            count=settings.count,
            window=settings.window,
            random=self._random,
        )
        self._recent = {name: values[-settings.window :] for name, values in drawable.items()}

        width = 1 + settings.count
        rows = {name: np.repeat(values[chosen], width, axis=0) for name, values in columns.items()}
        is_negative = np.arange(len(chosen) * width) % width > 0
        for name in settings.columns:
            rows[name][is_negative] = drawable[name][drawn.ravel()]
        for name in settings.labels:
            rows[name][is_negative] = 0
        return rows
