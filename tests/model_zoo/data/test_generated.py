# SPDX-License-Identifier: Apache-2.0
"""The generated data set has the structure that it promises."""

import numpy as np
import pytest

from model_zoo import data


def test_each_love_is_a_like_and_the_parts_follow_each_other():
    made = data.generate_clicks(rows=1000)
    assert [made.rows(part) for part in data.PARTS] == [700, 100, 200]
    labels = made.in_memory("train").labels
    assert 0.2 < labels["love"].mean() < labels["like"].mean() < 0.6
    assert not np.any(labels["love"] > labels["like"])


def test_the_attainable_auc_is_that_of_the_true_odds():
    # Without the discount it would be 0.85, see the next test; the discount adds to it.
    assert 0.86 < data.generate_clicks(agreement=0.85).attainable_auc < 0.9


def test_neither_user_nor_item_alone_tells_anything():
    made = data.generate_clicks()
    train, test = made.in_memory("train"), made.in_memory("test")
    for name in ("user", "item"):
        keys, index = np.unique(train.features[name], return_inverse=True)
        likes = np.bincount(index, train.labels["like"]) / np.bincount(index)
        rate = dict(zip(keys.tolist(), likes.tolist()))
        scores = np.array([rate.get(key, 0.5) for key in test.features[name].tolist()])
        # A seed's draw may give one taste more items than the other, so not exactly 0.5.
        assert data.exact_auc(test.labels["like"], scores) < 0.62


def test_the_history_holds_likes_of_the_same_user_only():
    train = data.generate_clicks(rows=2000, users=10, items=20).in_memory("train")
    liked = {}
    for row, (user, item) in enumerate(zip(train.features["user"], train.features["item"])):
        past = liked.setdefault(int(user), [])
        expected = past[::-1][:20]
        assert train.features["history"][row].tolist() == expected + [-1] * (20 - len(expected))
        if train.labels["like"][row]:
            past.append(int(item))


@pytest.mark.parametrize(
    "arguments", [{"rows": 9}, {"users": 1}, {"items": 0}, {"agreement": 0.5}, {"agreement": 1.0}]
)
def test_what_makes_no_data_set_is_refused(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} must be"):
        data.generate_clicks(**arguments)
