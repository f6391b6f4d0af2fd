# SPDX-License-Identifier: Apache-2.0
"""Catalogues list each item once."""

import numpy as np
import pytest

from model_zoo.data.catalogue import Catalogue


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
    with pytest.raises(ValueError, match="column 'item' has no item to choose from"):
        Catalogue.of("item", [])
