# SPDX-License-Identifier: Apache-2.0
"""Rounds in the order of time: which order is refused, and how long a window is."""

import pytest
from streamed_rows import load

from model_zoo import data
from model_zoo.runner import config, record, rounds, stop_signals

SCHEMA = """
files: clicks.csv
format: csv
columns: {user: {role: user}, item: {role: item}}
labels: click
split: {by: time, column: time, test: 0.2}
"""


def rounds_of(dataset, folder, **settings):
    run = config.Config(model_dir=str(folder / "model"))
    run = run.replace(train__order="time", train__batch_size=8, **settings)
    kept = record.Record(run.model_dir, run)
    return rounds.Rounds(run, dataset, kept, stop_signals.StopAtSignals(), print)


@pytest.mark.long
def test_a_window_of_a_streamed_file_is_a_twentieth_of_its_rows(tmp_path):
    lines = [f"u{i % 7},i{i % 11},{i},{i % 2}\n" for i in range(500)]
    header = "user,item,time,click\n"
    dataset = load(tmp_path, SCHEMA, clicks__csv=header + "".join(lines))
    assert rounds_of(dataset, tmp_path)._every == 3  # 400 rows are 50 steps
    assert rounds_of(dataset, tmp_path, validation__every_steps=9)._every == 9

    lines[70], lines[71] = lines[71], lines[70]
    shuffled = load(tmp_path, SCHEMA, clicks__csv=header + "".join(lines))
    with pytest.raises(ValueError, match="clicks.csv, line 73: column 'time' must not decrease"):
        rounds_of(shuffled, tmp_path)


def test_rows_in_memory_are_in_their_order(tmp_path):
    clicks = data.generate_clicks(rows=1000)
    assert rounds_of(clicks, tmp_path)._every == -(-clicks.rows("train") // 160)
    assert rounds_of(data.RetrievalDataSet(clicks), tmp_path)._every > 0
