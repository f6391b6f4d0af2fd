# SPDX-License-Identifier: Apache-2.0
"""Columns, and data sets in memory."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from streamed_rows import batches

from model_zoo.data import Column, MemoryDataSet, Rows

COLUMNS = (
    Column("item", "item"),
    Column("price", "item", kind="number"),
    Column("history", "history", table="item", max_length=2),
)


def make(count):
    features = {
        "item": np.arange(count),
        "price": np.arange(count) / 2,
        "history": np.stack([np.arange(count), np.full(count, -1)], axis=1),
    }
    return Rows(features, {"like": np.arange(count) % 2, "love": np.zeros(count)})


def shop(**parts):
    return MemoryDataSet("shop", COLUMNS, {"train": make(10), **parts}, item_names={3: "tea"})


def items(found):
    return [features["item"].tolist() for features, _ in found]


def test_rows_come_in_their_order_without_a_seed_and_all_of_them():
    found = batches(shop(), batch_size=4, epochs=2)
    assert items(found) == 2 * [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    features, labels = found[1]
    assert features["price"].dtype == np.float32 and features["price"].tolist() == [2, 2.5, 3, 3.5]
    assert features["history"].tolist() == [[4, -1], [5, -1], [6, -1], [7, -1]]
    assert labels["like"].dtype == np.float32 and labels["like"].tolist() == [0, 1, 0, 1]


def test_a_seed_shuffles_each_epoch_anew_and_a_resumed_run_goes_on():
    found = items(batches(shop(), batch_size=3, seed=5, epochs=4))
    assert found == items(batches(shop(), batch_size=3, seed=5, epochs=4))
    assert found != items(batches(shop(), batch_size=3, seed=6, epochs=4))
    epochs = np.reshape(found, [4, 9]).tolist()  # each drops one row
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    for skip in (1, 5, 12, 20):
        rest = batches(shop(), batch_size=3, seed=5, epochs=4, skip=skip)
        assert items(rest) == found[skip:]


def test_sizes_of_training_batches_are_static():
    with tf.Graph().as_default():
        features, labels = shop().input_fn("train", 3, seed=1, epochs=None)().element_spec
        assert features["history"].shape.as_list() == [3, 2]
        assert labels["like"].shape.as_list() == [3]
        features, _ = shop().input_fn("train", 3)().element_spec
        assert features["history"].shape.as_list() == [None, 2]


def test_the_receiver_has_a_placeholder_per_column():
    with tf.Graph().as_default():
        found = shop().receiver_fn()().features
    assert {name: each.shape.as_list() for name, each in found.items()} == {
        "item": [None],
        "price": [None],
        "history": [None, 2],
    }
    assert [each.dtype for each in found.values()] == [tf.int64, tf.float32, tf.int64]


def test_a_part_that_there_is_not_has_no_rows():
    dataset = shop(test=make(2))
    assert [dataset.rows(part) for part in ("train", "validation", "test")] == [10, 0, 2]
    with pytest.raises(ValueError, match="part must be one that shop has, train, test, got 'valid"):
        dataset.input_fn("validation", 1)


def test_validation_rows_may_become_training_rows():
    dataset = shop(validation=make(3), test=make(2)).without_validation()
    assert [dataset.rows(part) for part in ("train", "validation", "test")] == [13, 0, 2]
    assert items(batches(dataset, batch_size=13)) == [[*range(10), *range(3)]]
    assert shop().without_validation().rows("train") == 10


def test_items_have_names():
    assert (shop().item_name(3), shop().item_name(4)) == ("tea", "item 4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"part": "tset"}, "part must be one of train, validation, test, got 'tset'"),
        ({"batch_size": 0}, "batch_size must be an integer from 1 on, got 0"),
        ({"batch_size": 11, "seed": 1}, "batch_size must be at most the 10 rows of train of shop"),
        ({"seed": -1}, "seed must be an integer from 0 on, got -1"),
        ({"epochs": 0}, "epochs must be an integer from 1 on, got 0"),
        ({"skip": -1}, "skip must be an integer from 0 on, got -1"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        shop().input_fn(**{"part": "train", "batch_size": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "both"}, "role of column 'x' must be one of user, item, context, history, got"),
        ({"kind": "text"}, "kind of column 'x' must be one of id, number, got 'text'"),
        ({"max_length": 0}, "max_length of column 'x' must be at least 1, got 0"),
        ({"kind": "number", "max_length": 2}, "a number of column 'x' must be one value without"),
        ({"role": "history"}, "a history of column 'x' must be ids of the table of a column"),
        ({"name": "a b"}, "name of a column must be letters, digits, '_', '-' and '.', got 'a b'"),
    ],
)
def test_a_column_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Column(**{"name": "x", "role": "item", **arguments})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((*COLUMNS, COLUMNS[0]), "columns and labels must have names of their own, got 'item' twi"),
        ((Column("like", "item"),), "columns and labels must have names of their own, got 'like'"),
        (
            COLUMNS[1:],
            "table of column 'history' must be an id column .* got 'item'; there are",
        ),
        ((Column("x", "item"),), "train of shop must have a column 'x'"),
        (
            (Column("item", "item", max_length=2),),
            "column 'item' must have the shape .10, 2. in",
        ),
    ],
)
def test_columns_and_rows_that_do_not_go_together_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        MemoryDataSet("shop", columns, {"train": make(10)})
