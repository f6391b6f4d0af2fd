# SPDX-License-Identifier: Apache-2.0
"""A task: keys by column, labels, and a description of each column. DataSet takes its place."""

import dataclasses
import hashlib
from typing import Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from model_zoo.data.column import PADDING, Column

HISTORY_LENGTH = 20  # keys, most recent first

Columns = Dict[str, np.ndarray]


class DataUnavailableError(RuntimeError):
    """The data set is absent and the download failed. The message has the reason and the remedy."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A binary task: whether a user likes (buys, clicks) an item now.

    Attributes:
      name: Name of the data set.
      columns: One per feature. Every task has "user", "item" and "history", the items this user
        liked before, most recent first.
      train: int64 keys by column name, rows in order of time.
      train_labels: float32 [n], 0 or 1.
      test: As train; no row is earlier than the training rows of the same user.
      test_labels: As train_labels.
      item_names: Names of items by key, for output; may be empty.
      attainable_auc: Test AUC of a model that knows the true probabilities. None: unknown.
      credit: The owner and the license of the data, to be shown to the user.

    Raises:
      ValueError: A label is neither 0 nor 1.
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

    def __post_init__(self) -> None:
        for name in ("train_labels", "test_labels"):
            labels = getattr(self, name)
            others = labels[(labels != 0) & (labels != 1)]
            if len(others):
                raise ValueError(
                    f"{name} of {self.name} must be 0 or 1, got {others[0]:g}; convert them, for "
                    "example with labels > threshold"
                )

    def item_name(self, key: int) -> str:
        """Returns the name of an item, for output."""
        return self.item_names.get(int(key), f"item {key}")


def exact_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the area under the ROC curve, computed from ranks; a tie counts one half.

    Args:
      labels: [n], 0 or 1, both present.
      scores: [n]. Only their order counts.

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
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2.0  # from 1; equal scores get their mean rank
    rank_sum = float(np.sum(mean_ranks[group][labels > 0.5]))
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def hash_key(value: str) -> int:
    """Returns a key in [0, 2**63) for a string, the same on every machine and in every run.

    Example:
      >>> hash_key("technician") == hash_key("technician") != hash_key("writer")
      True
    """
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little") >> 1


def to_arrays(table: Mapping[str, Sequence], columns: Sequence[Column]) -> Columns:
    """Returns int64 [n] or [n, max_length] per column, padded with -1."""
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
