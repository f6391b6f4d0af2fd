# SPDX-License-Identifier: Apache-2.0
"""The rows of predictions are found again in the files they come from."""

import csv
import gzip
import io

import numpy as np
import pytest

from model_zoo import __main__ as command
from model_zoo import data
from model_zoo.runner import predictions

HEADER = ["user", "song title", "day", "liked"]
COLUMNS = """
columns:
  user: {role: user}
  song: {role: item, source: song title}
"""
HISTORY = "  history: {role: history, table: song, from: {user: user, time: day}, max_length: 2}\n"
LABELS = "labels: {like: liked, dislike: liked == 0}\n"
SPLITS = {
    "fraction": "split: {by: fraction, test: 0.4}\n",
    "time": "split: {by: time, column: day, test: 0.4}\n",
    "each": "split: {by: time, column: day, test: 0.4, each: user}\n",
}


def songs(count, seed=1):
    """Rows of a log, whose days are in no order."""
    random = np.random.default_rng(seed)
    users = [f"u{random.integers(4)}" for _ in range(count)]
    titles = [f"The {random.integers(9)}, again" for _ in range(count)]
    days = random.permutation(count).tolist()
    return [list(map(str, row)) for row in zip(users, titles, days, random.integers(0, 2, count))]


def write(path, rows, opened=open):
    with opened(path, "wt", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *rows[:3], [], *rows[3:]])


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The rows of files by path and line; makes a data set of them."""
    monkeypatch.chdir(tmp_path)
    lines = {}
    for name, opened, seed in (("a.csv", open, 1), ("b.csv.gz", gzip.open, 2)):
        write(name, songs(30, seed), opened)
        with opened(name, "rt") as file:
            for number, line in enumerate(file, 1):
                lines[name, number] = next(csv.reader([line]), None)
    return lines


def loaded(tmp_path, files, *parts):
    (tmp_path / "songs.yaml").write_text("".join([f"files: {files}\nformat: csv", *parts]))
    return data.load("songs.yaml", cache_dir=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("history", ["", HISTORY], ids=["no history", "history"])
def test_rows_are_those_of_their_lines(log, tmp_path, split, history):
    songs = loaded(tmp_path, "[a.csv, b.csv.gz]", COLUMNS, history, LABELS, SPLITS[split])
    found = [
        (part, row) for part in ("train", "test") for row in predictions.rows_of(songs, part, 7)
    ]
    assert len(found) == 60 and len({(row["file"], row["line"]) for _, row in found}) == 60
    assert {part for part, _ in found} == {"train", "test"}
    for _, row in found:
        user, song, _, liked = log[row["file"], row["line"]]
        assert (row["user"], row["song"]) == (user, song)
        assert (row["like"], row["dislike"]) == (int(liked), 1 - int(liked))


def test_parts_may_have_files_of_their_own(log, tmp_path):
    files = "{train: a.csv, test: b.csv.gz}"
    songs = loaded(tmp_path, files, COLUMNS, HISTORY, LABELS)
    for part, name in (("train", "a.csv"), ("test", "b.csv.gz")):
        rows = list(predictions.rows_of(songs, part, 7))
        assert len(rows) == 30 and {row["file"] for row in rows} == {name}
        assert all(log[name, row["line"]][1] == row["song"] for row in rows)


@pytest.mark.long
def test_a_negative_has_the_line_of_its_row_and_an_item_of_its_own(log, tmp_path):
    negatives = "negatives: {count: 1, window: 5}\n"
    songs = loaded(tmp_path, "a.csv", COLUMNS, LABELS, SPLITS["time"], negatives)
    rows = list(predictions.rows_of(songs, "train", 7))
    assert rows
    titles = {row[1] for row in log.values() if row}
    for positive, negative in zip(rows[::2], rows[1::2]):
        assert positive["line"] == negative["line"] and negative["like"] == 0
        assert positive["song"] == log["a.csv", positive["line"]][1]
        assert negative["song"] in titles - {positive["song"]}


def test_integers_stay_as_they_are_and_rows_of_no_file_are_numbered():
    clicks = data.generate_clicks(rows=100)
    rows = list(predictions.rows_of(clicks, "test", 7))
    assert [row["row"] for row in rows] == list(range(1, 21))
    assert [row["user"] for row in rows] == clicks.in_memory("test").features["user"].tolist()
    assert set(rows[0]) == {"row", "user", "item", "like", "love"}


@pytest.mark.long
def test_two_towers_predict_the_best_items_of_rows_with_the_label(log, tmp_path, capsys):
    loaded(tmp_path, "[a.csv, b.csv.gz]", COLUMNS, LABELS, SPLITS["fraction"])
    flags = ["--data", "songs.yaml", "--model_dir", "model", "--batch_size", "8", "--epochs", "1"]
    flags += ["--set", f"data.cache_dir={tmp_path}"]
    assert command.main(["train", "dssm", *flags, "--set", "params.negatives=2"]) == 0
    capsys.readouterr()
    assert command.main(["predict", "--model_dir", "model", "--k", "3"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    heads = ["best_1", "best_2", "best_3", "score_1", "score_2", "score_3"]
    assert rows and list(rows[0]) == ["file", "line", "user", "song", "like", "dislike", *heads]
    titles = {row[1] for row in log.values() if row}
    for row in rows:
        user, song, _, liked = log[row["file"], int(row["line"])]
        assert (user, song, liked) == (row["user"], row["song"], "1")
        assert len({row[name] for name in heads[:3]} & titles) == 3
        scores = [float(row[name]) for name in heads[3:]]
        assert scores == sorted(scores, reverse=True)
    assert command.main(["predict", "--model_dir", "model", "--k", "0"]) == 1
    assert "k must be at least 1, got 0" in capsys.readouterr().err
