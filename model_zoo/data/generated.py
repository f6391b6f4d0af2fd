# SPDX-License-Identifier: Apache-2.0
"""A generated data set, for tests and for machines without a network."""

import collections
from typing import Dict, List

import numpy as np

from model_zoo.data.column import PADDING, Column
from model_zoo.data.dataset import MemoryDataSet, Rows
from model_zoo.data.exact_auc import exact_auc

HISTORY_LENGTH = 20  # keys, most recent first


def generate_clicks(
    *,
    rows: int = 60_000,
    users: int = 1_500,
    items: int = 800,
    agreement: float = 0.85,
    seed: int = 1,
) -> MemoryDataSet:
    """Generates clicks: users and items have one of two tastes, and a user likes the same taste.

    The label depends on the pair of user and item, so user and item alone tell nothing of it. The
    history shows the taste of the user. Users and items are drawn with p(rank k) ~ (k + q)^-s, s =
    1.097, q = 20.98, fitted to field C7 of the Criteo Kaggle click log. Keys are random int64.

    The number "discount" of the item, normal with deviation 1, is added to the log odds of `like`.
    `love` is a `like` of an item of the same taste in two of three cases, so each love is a like.
    The last 20 % of the rows are the test part, the 10 % before them the validation part.

    Args:
      rows: Number of rows.
      users: Number of users.
      items: Number of items.
      agreement: Probability, above 0.5 and below 1, of a like for equal tastes, and of no like for
        different ones, at a discount of 0.
      seed: Seed of all random numbers.

    Raises:
      ValueError: An argument is out of range.
    """
    _check_sizes(rows, users, items, agreement)
    random = np.random.default_rng(seed)
    keys = random.choice(2**62, size=users + items, replace=False).astype(np.int64)
    taste = random.integers(0, 2, size=users + items)
    taste[[0, users]], taste[[1, users + 1]] = 0, 1  # at least one user and one item of each taste
    user = random.choice(users, size=rows, p=_zipf(users))
    item = users + random.choice(items, size=rows, p=_zipf(items))
    discount = random.standard_normal(rows).astype(np.float32)
    agrees = taste[user] == taste[item]
    odds = np.where(agrees, 1.0, -1.0) * np.log(agreement / (1.0 - agreement)) + discount
    probability = 1.0 / (1.0 + np.exp(-odds))
    like = random.random(rows) < probability
    love = like & agrees & (random.random(rows) < 2 / 3)
    columns = (
        Column("user", "user"),
        Column("hour", "context"),
        Column("item", "item"),
        Column("discount", "item", kind="number"),
        Column("history", "history", table="item", max_length=HISTORY_LENGTH),
    )
    features = {
        "user": keys[user],
        "hour": random.integers(0, 24, size=rows),  # independent of the labels
        "item": keys[item],
        "discount": discount,
        "history": _liked_before(keys[user], keys[item], like),
    }
    labels = {"like": like.astype(np.float32), "love": love.astype(np.float32)}
    every = Rows(features, labels)
    test = rows - rows // 5
    validation = test - rows // 10
    return MemoryDataSet(
        "generated",
        columns,
        {
            "train": every[:validation],
            "validation": every[validation:test],
            "test": every[test:],
        },
        credit="Generated: nobody's data.",
        attainable_auc=exact_auc(like[test:], probability[test:]),
    )


def _check_sizes(rows: int, users: int, items: int, agreement: float) -> None:
    for name, value, least in (("rows", rows, 10), ("users", users, 2), ("items", items, 2)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if not 0.5 < agreement < 1.0:
        raise ValueError(f"agreement must be above 0.5 and below 1, got {agreement}")


def _liked_before(user: np.ndarray, item: np.ndarray, like: np.ndarray) -> np.ndarray:
    """int64 [n, HISTORY_LENGTH]: the items that the user of each row liked in earlier rows."""
    history = np.full((len(user), HISTORY_LENGTH), PADDING, np.int64)
    liked: Dict[int, List[int]] = collections.defaultdict(list)
    for row, (who, what, is_liked) in enumerate(zip(user, item, like)):
        recent = liked[who][: -HISTORY_LENGTH - 1 : -1]
        history[row, : len(recent)] = recent
        if is_liked:
            liked[who].append(what)
    return history


def _zipf(count: int) -> np.ndarray:
    weights = (np.arange(1, count + 1) + 20.98) ** -1.097
    return weights / weights.sum()
