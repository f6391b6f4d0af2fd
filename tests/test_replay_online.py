# SPDX-License-Identifier: Apache-2.0
"""Tests of benchmarks/replay_online.py: each server answers with the model of its time."""

import numpy as np
import pytest

from benchmarks import replay_online
from benchmarks.replay_online import DAY, MINUTE, WEEK
from model_zoo import data as zoo_data
from model_zoo.runner import config as zoo_config


def some_rows(count):
    rng = np.random.default_rng(1)
    features = {"user": rng.integers(0, 9, count), "item": rng.integers(0, 9, count)}
    features["history"] = rng.integers(0, 9, (count, 3))
    return zoo_data.Rows(features, {"buy": np.resize(np.float32([1, 0]), count)})


def test_rows_are_cut_into_windows_of_five_minutes():
    times = MINUTE * np.array([0, 4, 5, 5, 31])
    windows = replay_online.windows_of(some_rows(5), times)
    assert [(each.begin // MINUTE, len(each.rows)) for each in windows] == [(0, 2), (5, 2), (30, 1)]


def test_auc_is_of_all_answers_and_of_each_week():
    windows = replay_online.windows_of(some_rows(8), np.arange(4).repeat(2) * WEEK // 2)
    answers = {"right": np.resize([0.9, 0.1], 8), "late": np.float32([0, 1, 0, 1, 1, 0, 1, 0])}
    found = replay_online.aucs(windows, answers)
    assert found["auc"] == {"right": 1.0, "late": 0.5}
    assert found["weekly_auc"] == {"right": [1.0, 1.0], "late": [0.0, 1.0]}


@pytest.mark.long
def test_each_server_answers_with_the_model_of_its_time(tmp_path, resource_variables):
    columns = (
        zoo_data.Column("user", "user"),
        zoo_data.Column("item", "item"),
        zoo_data.Column("history", "history", table="item", max_length=3),
    )
    data = zoo_data.MemoryDataSet("shop", columns, {"train": some_rows(64)})
    times = DAY + MINUTE * np.array([0, 5, 10, 60, 65, 24 * 60, 24 * 60 + 5])
    same = some_rows(4)  # In each window, so that answers differ by the model alone.
    windows = [replay_online.Window(int(time), same) for time in times]
    never = replay_online.NEVER
    config = zoo_config.Config().replace(
        model="din",
        train__batch_size=16,
        train__epochs=1,
        train__save_steps=never,
        train__incremental_steps=never,
    )
    answers = replay_online.replay(str(tmp_path), data, windows, config, factor=1.0)
    fresh, hour, day, base = (each.reshape(7, 4) for each in answers.values())
    assert len(np.unique(fresh[:, 0])) == 7
    # The windows whose model each server has.
    for found, windows_of_models in ((hour, [0, 0, 0, 3, 3, 5, 5]), (day, [0, 0, 0, 0, 0, 5, 5])):
        np.testing.assert_array_equal(found, fresh[windows_of_models])
    np.testing.assert_array_equal(base, fresh[[0] * 7])
