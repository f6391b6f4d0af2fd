# SPDX-License-Identifier: Apache-2.0
"""Candidates are the items of the batch and a draw that the seed decides."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import inputs


def sampler(negatives, seed=3, counts=(6, 3, 1, 0)):
    ids = np.array([10, 20, 30, 40])
    order = [2, 0, 3, 1]  # A catalog need not be sorted.
    return inputs.CandidateSampler(
        {"item": ids[order], "size": ids[order] * 2},
        np.array(counts)[order],
        item="item",
        negatives=negatives,
        seed=seed,
    )


def test_candidates_are_the_batch_in_its_order_and_then_the_draw():
    columns, log_q = sampler(negatives=50).draw(np.array([20, 10, 20]), 0)
    items = columns["item"]
    assert items[:3].tolist() == [20, 10, 20]
    assert items.shape == log_q.shape == (53,) and log_q.dtype == np.float32
    assert set(items[3:].tolist()) == {10, 20, 30, 40}
    assert np.array_equal(columns["size"], items * 2)


def test_log_q_is_the_log_of_how_often_an_item_is_expected():
    # Over many batches of 8 ids, drawn as in training, and 4 negatives.
    random = np.random.default_rng(1)
    made, count, batches = sampler(negatives=4), np.zeros(4), 3000
    expected = np.zeros(4)
    for batch in range(batches):
        columns, log_q = made.draw(random.choice([10, 20, 30], 8, p=[0.6, 0.3, 0.1]), batch)
        rows = columns["item"] // 10 - 1
        np.add.at(count, rows, 1)
        expected[rows] = np.exp(log_q)
    # The standard deviation of a mean is below 0.03.
    np.testing.assert_allclose(count / batches, expected, atol=0.15)
    np.testing.assert_allclose(expected, [5.8, 3.4, 1.8, 1.0], rtol=1e-6)


def test_seed_and_number_of_the_batch_decide_the_draw():
    ids = np.array([10, 20])
    first = sampler(40).draw(ids, 5)[0]["item"]
    assert np.array_equal(first, sampler(40).draw(ids, 5)[0]["item"])
    assert not np.array_equal(first, sampler(40).draw(ids, 6)[0]["item"])
    assert not np.array_equal(first, sampler(40, seed=4).draw(ids, 5)[0]["item"])


def test_without_negatives_the_candidates_are_the_batch():
    columns, log_q = sampler(0).draw(np.array([10, 30]), 0)
    assert columns["item"].tolist() == [10, 30]
    np.testing.assert_allclose(log_q, np.log([1.2, 0.2]), rtol=1e-6)


def test_a_dataset_gets_the_columns_of_candidates_and_the_right_rows():
    rows = tf.data.Dataset.from_tensor_slices({"user": [7, 8, 9], "item": np.array([20, 10, 40])})
    added = sampler(5).add_to(rows.batch(3, drop_remainder=True).repeat(3).skip(1), first=1)
    features, right = tf.data.make_one_shot_iterator(added).get_next()
    assert features["size"].shape == features["item_log_q"].shape == [8]
    with tf.Session() as session:
        values, right = session.run([features, right])
    expected, log_q = sampler(5).draw(np.array([20, 10, 40]), 1)
    assert values["user"].tolist() == [7, 8, 9] and right.tolist() == [0, 1, 2]
    assert np.array_equal(values["size"], expected["size"])
    assert np.array_equal(values["item_log_q"], log_q)


def test_catalogs_and_batches_that_give_no_sample_are_refused():
    ids = np.array([10, 20])
    for arguments, message in [
        ({"item": "id"}, "item must be a column of catalog, got 'id'"),
        ({"counts": [1]}, "one row for each of the 1 counts"),
        ({"catalog": {"item": np.array([5, 5])}}, "catalog must have each item once"),
        ({"negatives": -1}, "negatives must be at least 0, got -1"),
        ({"counts": [0, 0]}, "counts must be at least 0, with one above 0"),
    ]:
        correct = {"catalog": {"item": ids}, "counts": [1, 1], "item": "item", "negatives": 1}
        with pytest.raises(ValueError, match=message):
            inputs.CandidateSampler(**{**correct, **arguments})
    with pytest.raises(ValueError, match="items of a batch must be in the catalog, got 50"):
        sampler(1).draw(np.array([10, 50]), 0)
    with pytest.raises(ValueError, match="counts above 0 without negatives, got 0 for 40"):
        sampler(0).draw(np.array([40]), 0)
