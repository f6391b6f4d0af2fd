# SPDX-License-Identifier: Apache-2.0
"""Rows of a log: histories over all blocks, and negatives that are whole items of other groups."""

import numpy as np
import pytest

from model_zoo.data.event_log import Drawing, History, RowBuilder


def purchases(events=600):
    """Invoices of a few lines each; brand and price follow from the item."""
    random = np.random.default_rng(1)
    invoice = np.cumsum(random.random(events) < 0.3)
    item = random.integers(0, 30, events)
    return {
        "user": invoice % 7,
        "item": item,
        "brand": item // 3,
        "price": (item / 2).astype(np.float32),
        "invoice": invoice,
        "time": np.arange(events),
        "buy": np.ones(events, np.float32),
        "bulk": random.integers(0, 2, events).astype(np.float32),
    }


BOUGHT = History("history", "user", "item", "time", max_length=4, group="invoice")
DRAWN = Drawing(
    item="item",
    columns=("item", "brand", "price"),
    labels=("buy", "bulk"),
    group="invoice",
    count=2,
    window=50,
    seed=1,
)


def rows_in_blocks(log, columns, size, shown=None):
    parts = []
    for start in range(0, len(columns["item"]), size):
        block = {name: values[start : start + size] for name, values in columns.items()}
        parts.append(log.extend(block, None if shown is None else shown[start : start + size]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_without_negatives_the_rows_are_the_events_shown():
    columns, shown = purchases(), np.arange(600) % 3 == 1
    rows = RowBuilder().extend(columns, shown)
    assert all(np.array_equal(rows[name], values[shown]) for name, values in columns.items())


@pytest.mark.parametrize("size", [40, 250, 600])
def test_blocks_of_any_size_give_the_histories_of_the_whole_log(size):
    columns = purchases()
    whole = RowBuilder([BOUGHT]).extend(columns)["history"]
    assert np.array_equal(rows_in_blocks(RowBuilder([BOUGHT]), columns, size)["history"], whole)
    for row, history in enumerate(whole):
        same_user = columns["user"][:row] == columns["user"][row]
        earlier = same_user & (columns["invoice"][:row] < columns["invoice"][row])
        expected = columns["item"][:row][earlier][::-1][:4].tolist()
        assert history.tolist() == expected + [-1] * (4 - len(expected))


def test_a_history_may_be_of_some_events_only_and_of_all_that_are_not_shown():
    columns = purchases()
    bulk = History(
        "history", "user", "item", "time", 600, "invoice", where=lambda each: each["bulk"] == 1
    )
    rows = RowBuilder([bulk]).extend(columns, np.arange(600) == 599)
    of_user = (columns["user"] == columns["user"][599]) & (columns["bulk"] == 1)
    earlier = of_user & (columns["invoice"] < columns["invoice"][599])
    found = rows["history"][0]
    assert found[found >= 0].tolist() == columns["item"][earlier][::-1].tolist()


@pytest.mark.parametrize("size", [30, 200, 600])
def test_an_event_is_followed_by_negatives_of_recent_items_of_other_invoices(size):
    columns = purchases()
    shown = np.arange(600) % 2 == 0
    rows = rows_in_blocks(RowBuilder([BOUGHT], DRAWN), columns, size, shown)
    events = np.flatnonzero(shown & (np.arange(600) >= 50))  # the first 50 are the window
    assert rows["buy"].tolist() == [1, 0, 0] * len(events)
    assert rows["bulk"].reshape(-1, 3)[:, 1:].max() == 0
    for name in ("user", "history", "invoice", "time"):
        assert np.array_equal(rows[name][0::3], rows[name][1::3])
        assert np.array_equal(rows[name][0::3], rows[name][2::3])
    assert np.array_equal(rows["time"][::3], events)
    assert np.array_equal(rows["brand"], rows["item"] // 3)
    assert np.array_equal(rows["price"], (rows["item"] / 2).astype(np.float32))
    for event, items in zip(events, rows["item"].reshape(-1, 3)):
        assert items[0] == columns["item"][event]
        recent = set(columns["item"][event - 50 : event].tolist())
        before_or_in_block = slice(0, (event // size + 1) * size)
        in_invoice = columns["invoice"][before_or_in_block] == columns["invoice"][event]
        of_invoice = set(columns["item"][before_or_in_block][in_invoice].tolist())
        assert set(items[1:].tolist()) <= recent - of_invoice


def test_the_seed_decides_the_negatives():
    columns = purchases()
    first, same = (RowBuilder([], DRAWN).extend(columns)["item"] for _ in range(2))
    assert np.array_equal(first, same)


def test_a_log_shorter_than_the_window_has_no_rows():
    assert len(RowBuilder([], DRAWN).extend(purchases(50))["item"]) == 0
