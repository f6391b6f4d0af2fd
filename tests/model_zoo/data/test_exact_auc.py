# SPDX-License-Identifier: Apache-2.0
"""Exact AUC is the share of pairs in the right order."""

import numpy as np
import pytest

from model_zoo import data


def test_exact_auc_counts_pairs():
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 60)
    scores = random.integers(0, 9, 60)  # many ties
    ones, zeros = scores[labels == 1], scores[labels == 0]
    pairs = np.mean(np.sign(ones[:, None] - zeros[None, :]) / 2 + 0.5)
    assert data.exact_auc(labels, scores) == pytest.approx(pairs, abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [([1, 1], [0.1, 0.2], "hold both 0 and 1"), ([0, 1], [0.1], "of one length")],
)
def test_exact_auc_refuses_what_has_no_auc(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        data.exact_auc(np.array(labels), np.array(scores))
