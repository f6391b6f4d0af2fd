# SPDX-License-Identifier: Apache-2.0
"""Exact AUC in NumPy; rec_estimator.metrics has it for evaluation."""

import numpy as np


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
