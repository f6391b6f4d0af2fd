# SPDX-License-Identifier: Apache-2.0
"""The view of a data set for two towers: rows of label 1, candidates, and the right one."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo.data import Column, MemoryDataSet, RetrievalDataSet, Rows

COLUMNS = (
    Column("user", "user"),
    Column("hour", "context"),
    Column("brand", "item"),
    Column("item", "item"),
    Column("tags", "item", max_length=2),
    Column("price", "item", kind="number"),
    Column("history", "history", table="item", max_length=3),
)
ITEMS = 12


def rows_of(part, count):
    """Rows in which everything follows from user and item, so that a test can check it."""
    random = np.random.default_rng(len(part))
    user, item = random.integers(0, 9, count), random.integers(100, 100 + ITEMS, count)
    features = {
        "user": user,
        "hour": user + 1,
        "brand": item // 3,
        "item": item,
        "tags": np.stack([item, np.full(count, -1)], axis=1),
        "price": item / 2,
        "history": np.stack([user, user + 1, user + 2], axis=1),
    }
    labels = {"buy": item % 2 * 1.0, "bulk": user % 2 * 1.0}
    return Rows(features, labels)


PARTS = {"train": rows_of("train", 200), "validation": rows_of("validation", 40)}


@pytest.fixture
def view():
    return RetrievalDataSet(MemoryDataSet("shop", COLUMNS, PARTS, credit="Ours"), negatives=5)


def test_training_rows_without_a_right_one_are_refused_by_the_name_of_the_label():
    rows = PARTS["train"]
    labels = {**rows.labels, "buy": 0.0 * rows.labels["buy"]}
    view = RetrievalDataSet(MemoryDataSet("shop", COLUMNS, {"train": Rows(rows.features, labels)}))
    with pytest.raises(ValueError, match="shop must have training rows whose label 'buy' is 1"):
        view.input_fn("train", 8, seed=1)


def batches(input_fn):
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(input_fn())
        following = iterator.get_next()
        session.run(iterator.initializer)
        found = []
        while True:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                return found


def positives(part):
    chosen = PARTS[part].labels["buy"] == 1
    return {name: array[chosen] for name, array in PARTS[part].features.items()}


def check_columns(features):
    """Each side agrees with itself."""
    item, user = features["item"], features["user"]
    assert np.array_equal(features["brand"], item // 3)
    assert np.array_equal(features["tags"], np.stack([item, np.full(len(item), -1)], axis=1))
    assert np.array_equal(features["price"], (item / 2).astype(np.float32))
    assert np.array_equal(features["hour"], user + 1)
    assert np.array_equal(features["history"], np.stack([user, user + 1, user + 2], axis=1))


def test_the_view_keeps_what_describes_the_data_set(view):
    assert (view.name, view.columns, view.labels) == ("shop", COLUMNS, ("item_row",))
    assert view.credit == "Ours" and view.item_name(7) == "item 7"
    assert view.count_training_rows() == len(positives("train")["user"])
    assert view.rows("train") is None and view.rows("test") == 0


def test_training_rows_in_order_are_those_of_label_1(view):
    found = batches(view.input_fn("train", 16))
    expected = positives("train")
    users = np.concatenate([features["user"] for features, _ in found])
    items = np.concatenate([features["item"][labels] for features, labels in found])
    assert np.array_equal(users, expected["user"]) and np.array_equal(items, expected["item"])
    for features, labels in found:
        check_columns(features)
        assert labels.dtype == np.int64 and np.array_equal(labels, np.arange(len(labels)))
        assert len(features["item"]) == len(features["item_log_q"]) == len(labels) + 5


@pytest.mark.long
def test_shuffled_batches_are_full_and_the_same_for_one_seed(view):
    first, same, other = (batches(view.input_fn("train", 16, seed=s, epochs=2)) for s in (1, 1, 2))
    assert {len(features["user"]) for features, _ in first} == {16}
    assert {len(features["item"]) for features, _ in first} == {21}
    for (features, _), (again, _) in zip(first, same):
        assert all(np.array_equal(features[name], again[name]) for name in features)
    assert not np.array_equal(first[0][0]["user"], other[0][0]["user"])
    assert not np.array_equal(first[0][0]["item"][16:], first[1][0]["item"][16:])


@pytest.mark.long
def test_a_resumed_run_goes_on_with_the_same_users_and_candidates(view):
    everything = batches(view.input_fn("train", 16, seed=1, epochs=2))
    rest = batches(view.input_fn("train", 16, seed=1, epochs=2, skip=3))
    assert len(rest) == len(everything) - 3
    for (features, labels), (again, labels_again) in zip(everything[3:], rest):
        assert all(np.array_equal(features[name], again[name]) for name in features)
        assert np.array_equal(labels, labels_again)


def test_log_q_counts_the_right_items_of_training_only(view):
    items = positives("train")["item"]
    (features, _), *_ = batches(view.input_fn("train", 16, seed=1))
    for item, log_q in zip(features["item"], features["item_log_q"]):
        expected = 16 * np.mean(items == item) + 5 / len(view.catalogue)
        assert log_q == pytest.approx(np.log(expected), rel=1e-6)


@pytest.mark.long
def test_candidates_of_an_evaluation_are_the_items_of_all_parts(view):
    ids = sorted({item for rows in PARTS.values() for item in rows.features["item"].tolist()})
    found = batches(view.input_fn("validation", 8))
    expected = positives("validation")
    items = np.concatenate([features["item"][labels] for features, labels in found])
    users = np.concatenate([features["user"] for features, _ in found])
    assert np.array_equal(items, expected["item"]) and np.array_equal(users, expected["user"])
    for features, labels in found:
        check_columns(features)
        assert features["item"].tolist() == ids and labels.dtype == np.int64
        assert "item_log_q" not in features


def test_batches_have_static_shapes(view):
    features, labels = view.input_fn("train", 16, seed=1)().element_spec
    assert labels.shape == [16] and features["user"].shape == [16]
    assert features["tags"].shape == [21, 2] and features["item_log_q"].shape == [21]
    features, labels = view.input_fn("validation", 8)().element_spec
    assert labels.shape.as_list() == [None] and features["history"].shape.as_list() == [None, 3]
    assert features["tags"].shape == [len(view.catalogue), 2]


@pytest.mark.long
def test_a_data_set_of_one_label_has_the_same_view():
    parts = {name: Rows(rows.features, {"buy": rows.labels["buy"]}) for name, rows in PARTS.items()}
    one = RetrievalDataSet(MemoryDataSet("shop", COLUMNS, parts), negatives=5)
    two = RetrievalDataSet(MemoryDataSet("shop", COLUMNS, PARTS), negatives=5)
    (first, _), (second, _) = (batches(each.input_fn("train", 16))[0] for each in (one, two))
    assert np.array_equal(first["item"], second["item"])


def test_the_item_is_the_column_of_the_history_or_else_the_first_of_items():
    assert RetrievalDataSet(MemoryDataSet("shop", COLUMNS, PARTS)).catalogue.ids.min() == 100
    without = RetrievalDataSet(MemoryDataSet("shop", COLUMNS[:-1], PARTS))
    assert without.catalogue.ids.min() == 100 // 3  # brands


def test_data_without_items_and_negative_numbers_are_refused():
    data = MemoryDataSet("shop", COLUMNS[:2], PARTS)
    with pytest.raises(ValueError, match="shop must have an id column of the item, got us"):
        RetrievalDataSet(data)
    with pytest.raises(ValueError, match="negatives must be at least 0, got -1"):
        RetrievalDataSet(MemoryDataSet("shop", COLUMNS, PARTS), negatives=-1)
