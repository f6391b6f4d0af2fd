# SPDX-License-Identifier: Apache-2.0
"""Constants of Rec SDK."""

import pytest

import rec_estimator as rec


class UseMode(rec.BaseEnum):
    TRAIN = "train"
    PREDICT = "predict"


def test_a_member_is_found_by_its_value_or_by_a_member_that_has_it():
    assert UseMode.mapping("predict") is UseMode.PREDICT
    assert UseMode.mapping(UseMode.TRAIN) is UseMode.TRAIN


@pytest.mark.parametrize("key", ["TRAIN", None, rec.CacheModeEnum.DDR])
def test_a_value_without_a_member_is_an_error_that_names_the_values(key):
    with pytest.raises(KeyError, match=r"one of \['train', 'predict'\], the values of UseMode"):
        UseMode.mapping(key)


def test_cache_modes_have_the_values_of_rec_sdk():
    assert [mode.value for mode in rec.CacheModeEnum] == ["HBM", "DDR", "SSD"]


@pytest.mark.parametrize("name", [name for name in rec.__all__ if name.startswith("ASCEND_")])
def test_names_of_collections_are_their_own_values(name):
    assert getattr(rec, name) == name
