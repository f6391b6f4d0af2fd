# SPDX-License-Identifier: Apache-2.0
"""What a data set is to a model: keys by column, labels, and what is known of each column."""

import dataclasses
import hashlib
from typing import Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

HISTORY_LENGTH = 20  # keys, most recent first
PADDING = -1  # in columns of several keys; no row of a table belongs to it

Columns = Dict[str, np.ndarray]


class DataUnavailableError(RuntimeError):
    """The data set is not here and could not be fetched; the text says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Column:
    """What a model must know about one feature.

    Attributes:
      name: Of the feature.
      side: Whom the keys describe: "user", "item" or "context" (the moment of the request).
      table: The column whose keys these are too, and so whose rows they share. None: its own.
      max_length: Keys per example. 1: int64 [n]; more: int64 [n, max_length], padded with -1.
    """

    name: str
    side: str
    table: Optional[str] = None
    max_length: int = 1

    def __post_init__(self) -> None:
        if self.side not in ("user", "item", "context"):
            raise ValueError(f"side must be user, item or context, got {self.side!r}")
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")


@dataclasses.dataclass(frozen=True)
class Task:
    """A binary task: will this user like (buy, click) this item now?

    Attributes:
      name: Of the data set.
      columns: One per feature. Every task has "user", "item" and "history", the items this user
        liked before, most recent first.
      train: int64 keys by column name, rows in time order.
      train_labels: float32 [n], 0 or 1.
      test: As train; no row is earlier than the same user's training rows.
      test_labels: As train_labels.
      item_names: What to print for an item's key; empty where the key is all there is.
      attainable_auc: Test AUC of a model that knows the true probabilities. None: nobody knows.
      credit: Whose data it is; to be shown to the user.
    """

    name: str
    columns: Tuple[Column, ...]
    train: Columns
    train_labels: np.ndarray
    test: Columns
    test_labels: np.ndarray
    item_names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    attainable_auc: Optional[float] = None
    credit: str = ""

    def item_name(self, key: int) -> str:
        """What to print for an item."""
        return self.item_names.get(int(key), f"item {key}")


def exact_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The area under the ROC curve, from ranks: no thresholds, ties count one half.

    Args:
      labels: [n], 0 or 1, both present.
      scores: [n]. Only their order matters.

    Raises:
      ValueError: The lengths differ, or all labels are equal.

    Example:
      >>> exact_auc(np.array([0, 1, 0, 1]), np.array([0.1, 0.3, 0.3, 0.9]))
      0.875
    """
    labels, scores = np.ravel(labels), np.ravel(scores)
    if labels.shape != scores.shape:
        raise ValueError(
            f"labels and scores must be of one length, got {len(labels)}, {len(scores)}"
        )
    positives = int(np.sum(labels > 0.5))
    negatives = len(labels) - positives
    if not positives or not negatives:
        raise ValueError(f"labels must hold both 0 and 1, got {positives} ones of {len(labels)}")
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2.0  # from 1; equal scores share their mean
    rank_sum = float(np.sum(mean_ranks[group][labels > 0.5]))
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def hash_key(value: str) -> int:
    """A key in [0, 2**63) for a string value, the same on every machine and in every run.

    Example:
      >>> hash_key("technician") == hash_key("technician") != hash_key("writer")
      True
    """
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little") >> 1


def to_arrays(table: Mapping[str, Sequence], columns: Sequence[Column]) -> Columns:
    """int64 [n] or [n, max_length] per column, short rows padded."""
    arrays = {}
    for column in columns:
        values = table[column.name]
        if column.max_length == 1:
            arrays[column.name] = np.asarray(values, np.int64)
            continue
        padded = np.full((len(values), column.max_length), PADDING, np.int64)
        for row, keys in enumerate(values):
            padded[row, : len(keys)] = keys
        arrays[column.name] = padded
    return arrays
