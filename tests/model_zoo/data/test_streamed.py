# SPDX-License-Identifier: Apache-2.0
"""Streamed data sets: parts, order, resuming, and errors with file and line."""

import json

import pytest
import tensorflow.compat.v1 as tf
from streamed_rows import batches, load, rows

from model_zoo import data
from model_zoo.data import pipeline, streamed

SCHEMA = """
    files: "part-*.csv"
    format: csv
    columns:
      user: {role: user}
      number: {role: item, type: int}
    labels: click
    split: SPLIT
"""
HEADER = "user,number,time,click\n"


def numbers(lines):
    """A file with rows of these numbers; the user is the number modulo 5, the time its tenth."""
    return HEADER + "".join(f"u{i % 5},{i},{i // 10},{i % 2}\n" for i in lines)


def shop(folder, split="{by: fraction, validation: 0.2, test: 0.3}", files=None):
    files = files or {"part-1__csv": numbers(range(60)), "part-2__csv": numbers(range(60, 100))}
    return load(folder, SCHEMA.replace("SPLIT", split), **files)


@pytest.mark.long
def test_the_same_seed_gives_the_same_rows_and_another_epoch_another_order(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "SHUFFLED_ROWS", 16)  # so that there are several buffers
    dataset = shop(tmp_path, '{by: column, column: click, train: ["0", "1"]}')

    def read(**arguments):
        found = batches(dataset, batch_size=30, **arguments)
        return [features["number"].tolist() for features, _ in found]

    first = read(seed=7, epochs=2)
    # The last, smaller batch of each epoch is dropped.
    assert [len(batch) for batch in first] == [30] * 6
    assert first[:3] != first[3:]
    for epoch in (first[:3], first[3:]):
        assert len({number for batch in epoch for number in batch}) == 90
    assert read(seed=7, epochs=2, skip=2) == first[2:]
    assert read(seed=8) != first[:3]
    # Without a seed, it is kept.
    assert read(epochs=2) == 2 * [list(range(i, min(i + 30, 100))) for i in (0, 30, 60, 90)]


@pytest.mark.long
def test_validation_files_may_become_training_files(tmp_path):
    schema = SCHEMA.replace('"part-*.csv"', "{train: a.csv, validation: b.csv}")
    files = {"a__csv": numbers(range(5)), "b__csv": numbers(range(5, 9))}
    whole = load(tmp_path, schema.replace("    split: SPLIT\n", ""), **files).without_validation()
    assert rows(whole)["number"].tolist() == list(range(9)) and whole.rows("validation") == 0


@pytest.mark.long
def test_a_split_by_time_keeps_the_rows_of_one_time_together(tmp_path):
    dataset = shop(tmp_path, "{by: time, column: time, validation: 0.15, test: 0.25}")
    assert rows(dataset)["number"].tolist() == list(range(50))
    assert rows(dataset, "validation")["number"].tolist() == list(range(50, 70))
    assert rows(dataset, "test")["number"].tolist() == list(range(70, 100))


@pytest.mark.long
def test_validation_comes_out_of_the_training_files_and_test_files_stay_whole(tmp_path):
    schema = SCHEMA.replace('"part-*.csv"', "{train: part-1.csv, test: part-2.csv}")
    schema = schema.replace("SPLIT", "{by: time, column: time, validation: 0.5}")
    files = {"part-1__csv": numbers(range(60)), "part-2__csv": numbers(range(60, 100))}
    dataset = load(tmp_path, schema, **files)
    assert rows(dataset, "validation")["number"].tolist() == list(range(30, 60))
    assert rows(dataset, "test")["number"].tolist() == list(range(60, 100))


@pytest.mark.long
def test_what_is_measured_is_kept_until_the_files_change(tmp_path):
    rows(shop(tmp_path, "{by: time, column: time, test: 0.5}"))
    (kept,) = (tmp_path / "cache" / "measures").glob("*.json")
    assert json.loads(kept.read_text())["time_limits"] == {"validation": 5.0, "test": 5.0}
    kept.write_text(kept.read_text().replace("5.0", "2.0"))
    again = data.load(tmp_path / "schema.yaml", cache_dir=tmp_path / "cache")
    assert len(rows(again)["number"]) == 20
    with open(tmp_path / "part-2.csv", "a") as file:
        file.write("u1,100,10,1\n")
    changed = data.load(tmp_path / "schema.yaml", cache_dir=tmp_path / "cache")
    assert len(rows(changed)["number"]) == 50


@pytest.mark.long
def test_means_and_deviations_are_those_of_the_training_rows(tmp_path):
    schema = """
        files: a.csv
        format: csv
        columns: {x: {role: item, kind: number, transform: standard}}
        labels: click
        split: {by: time, test: 0.5}
    """
    dataset = load(tmp_path, schema, a__csv="x,click\n1,0\n3,1\n,1\n100,0\n200,0\n300,1\n")
    assert rows(dataset)["x"].tolist() == [-1, 1, 0]
    assert rows(dataset, "test")["x"].tolist() == [98, 198, 298]


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("u1,,1,1", "line 42: column 'number' must not be missing; correct it, or set"),
        ("u1,1,1,2", "line 42: column 'click' must be 0 or 1 to be a label, got '2'"),
        ("u1,1,1,1,9", "line 42: row must have 4 fields, got 5 in 'u1,1,1,1,9'"),
        ('u1,"1', "; a line break, even in quotes, ends a row"),
        ("u1,1,soon,1", "line 42: column 'time' must be a number or a date like 2011"),
        ('5" disc,1,1,1', "line 42: row must be CSV with quotes around whole fields only, and"),
        ('"a "b" c",1,1,1', "line 42: row must be CSV with quotes around whole fields only"),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path, line, message):
    text = HEADER + 20 * 'u1,1,0,1\n"u ""1"", a",1,0,1\n' + f"{line}\nu1,1,0,1\n"
    dataset = shop(tmp_path, "{by: time, column: time, test: 5}", {"part-1__csv": text})
    with pytest.raises(tf.errors.InvalidArgumentError, match="part-1.csv, line 42: ") as error:
        rows(dataset)
    assert message in str(error.value)


@pytest.mark.long
def test_rows_of_small_files_are_counted_and_checked_before_a_training(tmp_path, monkeypatch):
    dataset = shop(tmp_path, "{by: column, column: click, train: '0', test: '1'}")
    assert [dataset.rows(part) for part in data.PARTS] == [50, 0, 50]
    (tmp_path / "bad").mkdir()
    files = {"part-1__csv": f"{numbers(range(60))}u1,x,1,1\n"}  # in the test part
    bad = shop(tmp_path / "bad", "{by: column, column: click, train: '0', test: '1'}", files)
    with pytest.raises(tf.errors.InvalidArgumentError, match="line 62: column 'number' must be"):
        bad.rows("train")
    monkeypatch.setattr(streamed, "_SMALL_BYTES", 0)
    assert bad.rows("train") is None and bad.count_training_rows() == 30


@pytest.mark.long
def test_the_first_row_that_is_out_of_order_is_named(tmp_path):
    split = "{by: time, column: time, validation: 0.15, test: 0.25}"
    assert shop(tmp_path, split).late_row() == ""
    files = {"part-1__csv": numbers([*range(60), 70, 50]), "part-2__csv": numbers(range(60, 90))}
    found = shop(tmp_path, split, files).late_row()
    assert found == f"{tmp_path}/part-1.csv, line 63: column 'time'"
    files = {"part-1__csv": numbers(range(60)), "part-2__csv": numbers(range(40, 90))}
    assert "part-2.csv, line 2: " in shop(tmp_path, split, files).late_row()


@pytest.mark.long
def test_files_without_rows_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"schema.yaml: files must match a file with a header, go"):
        rows(shop(tmp_path, files={"part-1__csv": ""}))
    with pytest.raises(tf.errors.InvalidArgumentError, match="files must have rows for train, got"):
        rows(shop(tmp_path, files={"part-1__csv": HEADER}))


def test_a_file_of_the_test_rows_that_is_not_there_ends_no_training(tmp_path):
    schema = SCHEMA.replace('"part-*.csv"', "{train: part-1.csv, test: gone.csv}")
    schema = schema.replace("SPLIT", "{by: fraction, validation: 0.5}")
    dataset = load(tmp_path, schema, **{"part-1__csv": numbers(range(9))})
    with pytest.raises(ValueError, match="schema.yaml: files.test must match a file, got '.*gone"):
        dataset.input_fn("train", 4)


@pytest.mark.long
def test_too_few_rows_for_a_batch_are_an_error_and_not_an_endless_loop(tmp_path):
    dataset = shop(tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be 1000 rows or more for a ba"):
        batches(dataset, batch_size=1000, seed=1, epochs=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("part-*.csv", "gone-*.csv"), "schema.yaml: files must match a file, got"),
        (
            ("role: item, type", "role: item, source: gone, type"),
            "'gone' must be one that .*1.csv has",
        ),
        (
            ("type: int", "max_length: 3"),
            "'number' must have lists in the files if and",
        ),
    ],
)
def test_a_schema_that_does_not_fit_its_files_is_refused(tmp_path, change, message):
    schema = SCHEMA.replace("SPLIT", "{by: fraction, test: 0.5}").replace(*change)
    dataset = load(tmp_path, schema, **{"part-1__csv": numbers(range(9))})
    with pytest.raises(ValueError, match=message):
        rows(dataset)


def test_a_part_that_there_is_not_has_no_rows(tmp_path):
    dataset = shop(tmp_path, "{by: fraction, test: 0.5}")
    assert dataset.rows("validation") == 0
    with pytest.raises(ValueError, match="schema.yaml has, got 'validation'; add it to files or"):
        dataset.input_fn("validation", 4)
