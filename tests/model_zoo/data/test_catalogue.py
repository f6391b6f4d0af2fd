# SPDX-License-Identifier: Apache-2.0
"""Catalogues list each item once; candidates are the batch and a draw that the seed decides."""

import numpy as np
import pytest

from model_zoo.data.catalogue import CandidateSampler, Catalogue


def batches_of(ids, is_counted, size):
    """Batches of items whose price and tags follow from the id."""
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        columns = {"item": part, "price": part / 2, "tags": np.stack([part, part + 1], axis=1)}
        yield columns, is_counted[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_each_item_is_listed_once_with_its_columns_and_its_count(size):
    random = np.random.default_rng(1)
    ids, is_counted = random.integers(-20, 20, 100), random.random(100) < 0.5
    catalogue = Catalogue.of("item", batches_of(ids, is_counted, size))
    assert catalogue.ids.tolist() == sorted(set(ids.tolist()))
    assert catalogue.counts.tolist() == [np.sum(is_counted & (ids == key)) for key in catalogue.ids]
    assert np.array_equal(catalogue.columns["item"], catalogue.ids)
    assert np.array_equal(catalogue.columns["price"], catalogue.ids / 2)
    assert np.array_equal(catalogue.columns["tags"][:, 1], catalogue.ids + 1)
    assert np.array_equal(catalogue.ids[catalogue.rows(ids)], ids)


def test_an_item_keeps_the_columns_of_its_first_row():
    batches = [({"item": np.array([5, 5]), "price": np.array([p, p + 1])}, []) for p in (1, 3)]
    catalogue = Catalogue.of("item", [(columns, np.zeros(2, bool)) for columns, _ in batches])
    assert catalogue.columns["price"].tolist() == [1]


def test_a_catalogue_of_nothing_is_refused():
    with pytest.raises(ValueError, match="column 'item' must have an item or more"):
        Catalogue.of("item", [])


def sampler(negatives, seed=3, counts=(6, 3, 1, 0)):
    ids = np.array([10, 20, 30, 40])
    return CandidateSampler(Catalogue(ids, {"item": ids}, np.array(counts)), negatives, seed)


def test_candidates_are_the_batch_in_its_order_and_then_the_draw():
    rows, log_q = sampler(negatives=50).draw(np.array([20, 10, 20]), 0)
    assert rows[:3].tolist() == [1, 0, 1]
    assert rows.shape == log_q.shape == (53,) and log_q.dtype == np.float32
    assert set(rows[3:].tolist()) == {0, 1, 2, 3}


def test_log_q_is_the_log_of_how_often_an_item_is_expected():
    # Over many batches of 8 ids, drawn as in training, and 4 negatives.
    random = np.random.default_rng(1)
    made, count, batches = sampler(negatives=4), np.zeros(4), 3000
    expected = np.zeros(4)
    for batch in range(batches):
        rows, log_q = made.draw(random.choice([10, 20, 30], 8, p=[0.6, 0.3, 0.1]), batch)
        np.add.at(count, rows, 1)
        expected[rows] = np.exp(log_q)
    # The standard deviation of a mean is below 0.03.
    np.testing.assert_allclose(count / batches, expected, atol=0.15)
    np.testing.assert_allclose(expected, [5.8, 3.4, 1.8, 1.0], rtol=1e-6)


def test_seed_and_number_of_the_batch_decide_the_draw():
    ids = np.array([10, 20])
    first = sampler(40).draw(ids, 5)[0]
    assert np.array_equal(first, sampler(40).draw(ids, 5)[0])
    assert not np.array_equal(first, sampler(40).draw(ids, 6)[0])
    assert not np.array_equal(first, sampler(40, seed=4).draw(ids, 5)[0])


def test_without_negatives_the_candidates_are_the_batch():
    rows, log_q = sampler(0).draw(np.array([10, 30]), 0)
    assert rows.tolist() == [0, 2]
    np.testing.assert_allclose(log_q, np.log([1.2, 0.2]), rtol=1e-6)
