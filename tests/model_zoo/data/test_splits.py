# SPDX-License-Identifier: Apache-2.0
"""Parts: each row is of one of them, always the same; validation is the end of training."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo.data import splits
from model_zoo.data.dataset import PARTS
from model_zoo.data.schema import Split
from model_zoo.data.splits import TimeSample, row_filter, time_limits


def chosen(split, values, limits=None, parts=PARTS):
    """{part: bool [n]} of some values or locations."""
    with tf.Session() as session:
        values = tf.constant(values)
        filters = {part: row_filter(split, part, (), limits or {}) for part in parts}
        return session.run({part: each.chooses(values) for part, each in filters.items()})


@pytest.mark.parametrize("column", [None, "user"])
def test_fractions_divide_rows_by_hash_and_the_seed_changes_them(column):
    values = np.arange(20_000) if column is None else [f"u{i}" for i in range(20_000)]
    split = Split("fraction", column, validation=0.1, test=0.3, seed=1)
    parts = chosen(split, values)
    assert np.array_equal(sum(parts[part].astype(int) for part in PARTS), np.ones(20_000))
    # Four standard deviations of a binomial variable.
    for part, share in (("train", 0.6), ("validation", 0.1), ("test", 0.3)):
        assert abs(parts[part].mean() - share) < 4 * np.sqrt(share * (1 - share) / 20_000)
    again = chosen(split, values)
    other = chosen(Split("fraction", column, validation=0.1, test=0.3, seed=2), values)
    assert np.array_equal(parts["test"], again["test"])
    assert 0.35 < np.mean(parts["test"] != other["test"]) < 0.5  # 2 * 0.3 * 0.7 are 0.42


@pytest.mark.parametrize(
    "split",
    [
        Split("fraction", validation=0.2, test=0.3, seed=1),
        Split("time", validation=0.2, test=0.3),
        Split("column", "c", values={"train": ("a", "b"), "validation": ("c",), "test": ("d",)}),
    ],
    ids=lambda split: split.by,
)
def test_validation_rows_may_become_training_rows(split):
    values = list("abcdabcdac") if split.by == "column" else np.arange(10)

    def divided(split, parts):
        limits = time_limits(split, np.arange(10.0)) if split.by == "time" else None
        return chosen(split, values, limits, parts)

    before, whole = divided(split, PARTS), divided(split.without_validation(), ("train", "test"))
    assert np.array_equal(whole["train"], before["train"] | before["validation"])
    assert np.array_equal(whole["test"], before["test"]) and before["validation"].any()


def test_a_column_may_name_the_parts():
    split = Split("column", "part", values={"train": ("a", "b"), "validation": ("c",), "test": ()})
    parts = chosen(split, ["b", "c", "d", "a"])
    assert parts["train"].tolist() == [True, False, False, True]
    assert parts["validation"].tolist() == [False, True, False, False]
    assert not parts["test"].any()


def test_times_divide_rows_and_each_row_is_of_one_part():
    split = Split("time", "t", validation=0.25, test=0.25)
    times = np.array([4.0, 1, 1, 2, 3, 3, 3, 5])
    limits = time_limits(split, np.sort(times))
    assert limits == {"validation": 3.0, "test": 4.0}
    parts = chosen(split, times, limits)
    assert parts["train"].tolist() == [t < 3 for t in times]
    assert parts["validation"].tolist() == [t == 3 for t in times]
    assert parts["test"].tolist() == [t >= 4 for t in times]


@pytest.mark.parametrize(
    ("validation", "test", "limits"),
    [
        (0.0, 0.2, (8, 8)),
        (0.2, 0.0, (8, np.inf)),
        ("3", "7", (3, 7)),
        (0.2, "7", (5, 7)),
        ("9", "7", (7, 7)),  # what is test is not validation
    ],
)
def test_limits_may_be_times_or_fractions(validation, test, limits):
    found = time_limits(Split("time", validation=validation, test=test), np.arange(10.0))
    assert (found["validation"], found["test"]) == limits


def test_limits_may_be_dates():
    times = np.array([20111030000000.0, 20111101000000.0, 20111101082600.0])
    found = time_limits(Split("time", test="2011-11-01"), times)
    assert found["test"] == 20111101000000.0


def test_a_split_that_leaves_no_rows_for_training_is_refused():
    with pytest.raises(ValueError, match="split must leave rows for training, got none before 0"):
        time_limits(Split("time", test="0"), np.arange(10.0))


def test_many_times_are_sampled_the_same_in_each_run(monkeypatch):
    monkeypatch.setattr(splits, "_SAMPLE", 1000)
    samples = []
    for _ in range(2):
        sample = TimeSample()
        for start in range(0, 100_000, 500):
            sample.extend(np.arange(start, start + 500.0))
        samples.append(sample.sorted())
    assert sample.count == 100_000 and len(samples[0]) == 1000
    assert np.array_equal(*samples)
    # The median of 1000 draws from [0, 1] has a standard deviation of 0.016.
    assert abs(samples[0][500] / 100_000 - 0.5) < 0.07
