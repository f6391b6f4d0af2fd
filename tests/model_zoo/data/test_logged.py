# SPDX-License-Identifier: Apache-2.0
"""Schemas whose rows follow from earlier ones, against loops over the whole log."""

import csv

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo import data
from model_zoo.data import logged

SCHEMA = """
files: {files}
format: csv
columns:
  user: {{role: user}}
  item: {{role: item, type: int, names: title}}
  tags: {{role: item, separator: "|", max_length: 2}}
  price: {{role: item, kind: number}}
{histories}
labels: {{like: "rating >= 3", love: "rating == 5"}}
{more}
"""
BY_TIME = "split: {by: time, column: t, validation: 0.2, test: 0.2}"


def ratings(count=120):
    """Ratings in no order of time, of which several have one time."""
    random = np.random.default_rng(1)
    for number in random.permutation(count):
        item = int(random.integers(10, 30))
        yield {
            "user": f"u{random.integers(0, 5)}",
            "item": item,
            "title": f"Film {item}",
            "tags": f"a{item % 3}|b{item % 4}",
            "price": item / 2,
            "rating": int(random.integers(1, 6)),
            "t": number // 2,
            "basket": number // 4,
        }


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def history(name, options):
    """The line of a history in a schema."""
    log = f"from: {{user: user, time: t, {options}}}"
    return f"  {name}: {{role: history, table: item, max_length: 3, {log}}}"


def load(tmp_path, options="group: item", more=BY_TIME, files="log.csv", histories=None):
    write(tmp_path / "log.csv", list(ratings()))
    lines = histories or history("history", options)
    schema = SCHEMA.format(histories=lines, more=more, files=files)
    (tmp_path / "shop.yaml").write_text(schema)
    return data.load(tmp_path / "shop.yaml", cache_dir=tmp_path / "cache")


def in_order(rows):
    return sorted(rows, key=lambda row: row["t"])  # stable, as is the order of the data set


def histories(rows, group, is_kept):
    """The histories of rows in order of time, by a loop."""
    found = []
    for at, row in enumerate(rows):
        mine = [each for each in rows[:at] if each["user"] == row["user"]]
        while mine and mine[-1][group] == row[group]:
            mine.pop()
        items = [each["item"] for each in reversed(mine) if is_kept(each)][:3]
        found.append(items + [-1] * (3 - len(items)))
    return found


def joined(data_set, name, is_label=False):
    parts = [data_set.in_memory(part) for part in data.PARTS if data_set.rows(part)]
    return np.concatenate([(p.labels if is_label else p.features)[name] for p in parts]).tolist()


KINDS_OF_HISTORIES = {
    "liked": ("where: rating >= 3", "t", lambda row: row["rating"] >= 3),
    "liked_by_label": ("where: like == 1", "t", lambda row: row["rating"] >= 3),
    "loved": ("where: love", "t", lambda row: row["rating"] == 5),
    "of_baskets": ("group: basket", "basket", lambda row: True),
    "history": ("group: item", "item", lambda row: True),
}


@pytest.mark.long
def test_histories_are_those_of_a_loop_over_all_parts(tmp_path):
    rows = in_order(ratings())
    lines = [history(name, options) for name, (options, _, _) in KINDS_OF_HISTORIES.items()]
    found = load(tmp_path, histories="\n".join(lines))
    for name, (_, group, is_kept) in KINDS_OF_HISTORIES.items():
        assert joined(found, name) == histories(rows, group, is_kept), name
    assert joined(found, "item") == [row["item"] for row in rows]
    assert joined(found, "like", is_label=True) == [float(row["rating"] >= 3) for row in rows]
    assert joined(found, "love", is_label=True) == [float(row["rating"] == 5) for row in rows]


@pytest.mark.long
def test_times_divide_the_parts_and_rows_before_from_are_in_histories_only(tmp_path):
    found = load(
        tmp_path,
        "group: item",
        "split: {by: time, column: t, from: 20, validation: 40, test: 50}",
    )
    rows = in_order(ratings())
    shown = [at for at, row in enumerate(rows) if row["t"] >= 20]
    assert joined(found, "item") == [rows[at]["item"] for at in shown]
    all_histories = histories(rows, "item", lambda row: True)
    assert joined(found, "history") == [all_histories[at] for at in shown]
    counts = [sum(low <= row["t"] < high for row in rows) for low, high in ((20, 40), (40, 50))]
    assert [found.rows(part) for part in data.PARTS] == [*counts, len(shown) - sum(counts)]


@pytest.mark.long
def test_each_user_has_a_split_of_his_own(tmp_path):
    found = load(
        tmp_path, more="split: {by: time, column: t, each: user, validation: 0.1, test: 0.2}"
    )
    rows = in_order(ratings())
    expected = {part: [] for part in data.PARTS}
    for at, row in enumerate(rows):
        mine = [other for other, each in enumerate(rows) if each["user"] == row["user"]]
        after = len(mine) - 1 - mine.index(at)
        test, validation = round(0.2 * len(mine)), round(0.1 * len(mine))
        part = "test" if after < test else "validation" if after < test + validation else "train"
        expected[part].append(row["item"])
    for part, items in expected.items():
        assert found.in_memory(part).features["item"].tolist() == items


@pytest.mark.long
def test_negatives_are_recent_items_with_all_their_columns(tmp_path):
    found = load(
        tmp_path,
        "group: basket",
        BY_TIME + "\nnegatives: {count: 2, window: 30, group: basket, seed: 3}",
    )
    rows = in_order(ratings())
    assert sum(found.rows(part) for part in data.PARTS) == 3 * (len(rows) - 30)
    items = np.reshape(joined(found, "item"), (-1, 3))
    likes = np.reshape(joined(found, "like", is_label=True), (-1, 3))
    assert np.array_equal(likes[:, 0], [float(row["rating"] >= 3) for row in rows[30:]])
    assert likes[:, 1:].max() == 0
    for at, (item, *negatives) in enumerate(items.tolist(), 30):
        assert item == rows[at]["item"]
        basket = {row["item"] for row in rows if row["basket"] == rows[at]["basket"]}
        assert set(negatives) <= {row["item"] for row in rows[at - 30 : at]} - basket
    assert np.allclose(joined(found, "price"), items.ravel() / 2)
    of_item = dict(zip(items.ravel().tolist(), joined(found, "tags")))
    assert joined(found, "tags") == [of_item[item] for item in items.ravel().tolist()]


@pytest.mark.long
def test_parts_may_be_files_and_histories_go_on_from_one_to_the_next(tmp_path):
    rows = in_order(ratings())
    for name, part in (("a", rows[:80]), ("b", rows[80:])):
        write(tmp_path / f"{name}.csv", part)
    found = load(tmp_path, "group: item", "", "{train: a.csv, test: b.csv}")
    assert (found.rows("train"), found.rows("validation"), found.rows("test")) == (80, 0, 40)
    assert joined(found, "history") == histories(rows, "item", lambda row: True)


@pytest.mark.long
def test_a_fraction_of_the_training_file_may_be_the_validation_part(tmp_path):
    rows = in_order(ratings())
    for name, part in (("a", rows[:80]), ("b", rows[80:])):
        write(tmp_path / f"{name}.csv", part)
    split = "split: {by: fraction, validation: 0.3}"
    found = load(tmp_path, "group: item", split, "{train: a.csv, test: b.csv}")
    assert found.rows("train") + found.rows("validation") == 80 and found.rows("test") == 40
    assert 5 < found.rows("validation") < 50


@pytest.mark.long
def test_items_have_names_and_batches_come_from_memory(tmp_path):
    found = load(tmp_path)
    assert found.item_name(12) == "Film 12" and found.item_name(99) == "item 99"
    dataset = found.input_fn("train", 8, seed=1)()
    with tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        session.run(iterator.initializer)
        features, labels = session.run(following)
    assert features["history"].shape == (8, 3) and set(labels) == {"like", "love"}


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ("group: invoice", BY_TIME, "column 'invoice' must be one that .*log.csv has"),
        ("where: rate > 3", BY_TIME, "column 'rate' must be one that .*log.csv has"),
        ("grup: t", BY_TIME, "did you mean 'group'"),
        ("group: t", BY_TIME + "\nnegatives: {counts: 2}", "did you mean 'count'"),
        ("group: t", BY_TIME + "\nnegatives: {window: 500}", "must have a train part"),
        ("group: t", "split: {by: time, each: usr, test: 0.1}", "column 'usr' must be one"),
    ],
)
def test_what_the_files_lack_is_refused_by_name(tmp_path, options, more, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, options, more).rows("train")


def test_a_log_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(logged, "_memory_bytes", lambda: 4000)
    found = load(tmp_path)
    with pytest.raises(ValueError, match="shop.yaml: files must have at most 0.0 GiB, a quarter"):
        found.rows("train")
