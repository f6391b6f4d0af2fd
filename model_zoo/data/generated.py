# SPDX-License-Identifier: Apache-2.0
"""A checkerboard of tastes, made on the spot: for tests, and where there is no network."""

import collections
from typing import Dict, List

import numpy as np

from model_zoo.data.task import HISTORY_LENGTH, Column, Task, exact_auc, to_arrays


def generate(
    *,
    rows: int = 60_000,
    users: int = 1_500,
    items: int = 800,
    agreement: float = 0.85,
    seed: int = 1,
) -> Task:
    """A checkerboard: users and items have one of two tastes, and a user likes what has their own.

    Neither the user nor the item tells anything alone, so a linear model scores AUC 0.5; the
    history gives the user's taste away. Users and items are drawn with p(rank k) ~ (k + q)^-s, s =
    1.097, q = 20.98, as fitted to field C7 of the Criteo Kaggle click log. Keys are random int64,
    as ids are.

    Args:
      rows: In all; the last 20 % are the test.
      users: How many there are.
      items: How many there are.
      agreement: Probability, above 0.5 and below 1, of a like where tastes agree and of none where
        they do not.
      seed: Of everything.

    Raises:
      ValueError: An argument out of range.
    """
    for name, value, least in (("rows", rows, 10), ("users", users, 2), ("items", items, 2)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if not 0.5 < agreement < 1.0:
        raise ValueError(f"agreement must be above 0.5 and below 1, got {agreement}")
    random = np.random.default_rng(seed)
    keys = random.choice(2**62, size=users + items, replace=False).astype(np.int64)
    taste = random.integers(0, 2, size=users + items)
    taste[[0, users]], taste[[1, users + 1]] = 0, 1  # both tastes on both sides, however few
    user = random.choice(users, size=rows, p=_zipf(users))
    item = users + random.choice(items, size=rows, p=_zipf(items))
    probability = np.where(taste[user] == taste[item], agreement, 1.0 - agreement)
    labels = (random.random(rows) < probability).astype(np.float32)

    history: List[List[int]] = []
    liked: Dict[int, List[int]] = collections.defaultdict(list)
    for who, what, label in zip(user, item, labels):
        history.append(liked[who][: -HISTORY_LENGTH - 1 : -1])
        if label:
            liked[who].append(int(keys[what]))
    columns = (
        Column("user", "user"),
        Column("hour", "context"),
        Column("item", "item"),
        Column("history", "user", table="item", max_length=HISTORY_LENGTH),
    )
    hour = random.integers(0, 24, size=rows)  # tells nothing
    table = {"user": keys[user], "hour": hour, "item": keys[item], "history": history}
    arrays = to_arrays(table, columns)
    split = rows - rows // 5
    return Task(
        name="generated",
        columns=columns,
        train={name: array[:split] for name, array in arrays.items()},
        train_labels=labels[:split],
        test={name: array[split:] for name, array in arrays.items()},
        test_labels=labels[split:],
        attainable_auc=exact_auc(labels[split:], probability[split:]),
        credit="Generated: nobody's data.",
    )


def _zipf(count: int) -> np.ndarray:
    weights = (np.arange(1, count + 1) + 20.98) ** -1.097
    return weights / weights.sum()
