# SPDX-License-Identifier: Apache-2.0
"""Schema files: what they may say, and errors with the file, the key and the nearest name."""

import pytest

from model_zoo.data.schema import Condition, EventLog, Split, read_schema

SHOP = """
name: shop
files: {train: "train/*.csv", test: test.csv}
format: csv
columns:
  user: {role: user}
  item: {role: item}
  price: {role: item, kind: number, transform: log}
  tags: {role: item, separator: "|", max_length: 5}
  history: {role: history, table: item, separator: " ", max_length: 20}
labels: {like: "rating >= 4", love: "rating == 5"}
split: {by: time, column: timestamp, validation: 0.1}
"""


def read(folder, *changes):
    text = SHOP
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "shop.yaml").write_text(text)
    return read_schema(folder / "shop.yaml")


def test_a_schema_says_what_files_columns_and_labels_are(tmp_path):
    schema = read(tmp_path)
    assert (schema.name, schema.files["test"]) == ("shop", ("test.csv",))
    assert [column.role for column in schema.columns] == ["user", "item", "item", "item", "history"]
    assert schema.columns[2].kind == "number" and schema.fields[2].transform == "log"
    assert (schema.columns[3].max_length, schema.fields[3].separator) == (5, "|")
    assert schema.labels["love"] == Condition("rating", "==", 5.0)
    assert schema.split == Split("time", "timestamp", validation=0.1)


def test_what_is_short_may_be_said_shortly(tmp_path):
    files = ('{train: "train/*.csv", test: test.csv}', "all.csv")
    schema = read(tmp_path, files, ('{like: "rating >= 4", love: "rating == 5"}', "[buy, click]"))
    assert schema.files == {"all": ("all.csv",)}
    assert schema.labels == {"buy": Condition("buy"), "click": Condition("click")}


def test_a_history_may_come_from_the_log(tmp_path):
    log = 'max_length: 20, from: {user: user, time: timestamp, where: "rating >= 4"}}'
    schema = read(tmp_path, ('separator: " ", max_length: 20}', log))
    assert schema.fields[4].log == EventLog("user", "timestamp", Condition("rating", ">=", 4.0))


def test_dates_of_a_split_may_be_written_as_dates(tmp_path):
    split = ("validation: 0.1", "validation: 2011-10-01")
    assert read(tmp_path, split).split.validation == "2011-10-01"


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("click", Condition("click")),
        ("hours-per-week>=40", Condition("hours-per-week", ">=", 40.0)),
        ("s == sold", Condition("s", "==", "sold")),
        ("income == ' >50K'", Condition("income", "==", " >50K")),
        ('zip != "04109"', Condition("zip", "!=", "04109")),
    ],
)
def test_a_condition_compares_a_column_with_a_constant(text, condition):
    assert Condition.parse(text) == condition


@pytest.mark.parametrize("text", ["", "rating =< 4", "rating >", "rating > high", "a = 1", "> 4"])
def test_another_condition_is_refused(text):
    with pytest.raises(ValueError, match="a comparison"):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "columns:",
            "colums:",
            "names in the file must be among .* got 'colums'; did you mean 'co",
        ),
        ("transform: log", "transfrom: log", "names in columns.price .* did you mean 'transform'"),
        ("transform: log", "transform: lgo", "columns.price.transform .*'lgo'; did you mean 'log'"),
        (
            "kind: number, ",
            "",
            "columns.price.transform must be left out of ids, got 'log'; set ki",
        ),
        ("role: user", "rol: user", "names in columns.user must be .* did you mean 'role'"),
        ("role: user", "role: usr", "columns.user.role must be among .*'usr'; did you mean 'user'"),
        ("{role: user}", "user", "columns.user must be a mapping of names to values, got 'user'"),
        (
            "max_length: 5",
            "max_length: many",
            "columns.tags.max_length must be an integer, got 'ma",
        ),
        (", max_length: 5", "", "columns.tags.max_length must be given if a value has several ids"),
        (
            "table: item",
            "table: itm",
            "table of column 'history' must be .* got 'itm'; there are u",
        ),
        ("table: item, ", "", "columns.history: a history of column 'history' must be ids of the"),
        (
            "format: csv",
            "format: cvs",
            "format must be among csv, .* got 'cvs'; did you mean 'csv'",
        ),
        (
            "format: csv",
            "format: {name: csv, header: false}",
            "format.names must be given for file",
        ),
        (
            "rating >= 4",
            "rating => 4",
            "labels.like must be a column or a comparison such as 'rati",
        ),
        (
            "user: {",
            "no: {",
            "columns must be a mapping whose names are text, got False; put it in",
        ),
        ("by: time", "by: tme", "split.by must be among time, .* got 'tme'; did you mean 'time'"),
        ("validation: 0.1", "validation: soon", "split.validation must be .* or a time, got"),
        ("validation: 0.1", "test: 0.1", "split.test must be left out if files has test, got 0.1"),
        (
            "{role: user}",
            "{role: user, type: int, default: x}",
            "columns.user.default must be an ",
        ),
        ("name: shop", "name: [", "must be YAML, got"),
        ('"|"', "1", "columns.tags.separator must be text, got 1"),
        ("like:", "user:", "columns and labels must have names of their own, got 'user' twice"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=f"shop.yaml.*{message}"):
        read(tmp_path, (old, new))


def test_files_that_nothing_divides_are_refused(tmp_path):
    with pytest.raises(ValueError, match="split must be given if files are not divided into parts"):
        read(
            tmp_path,
            ('{train: "train/*.csv", test: test.csv}', "all.csv"),
            ("split: {by: time, column: timestamp, validation: 0.1}", ""),
        )


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="gone.yaml must be a readable file, got No such file"):
        read_schema(tmp_path / "gone.yaml")
