# SPDX-License-Identifier: Apache-2.0
"""What the targets compare with: right results pass, and each kind of wrong one is found."""

import numpy as np
import pytest
from fuzz import call_results, fuzz_indexes
from fuzz.fuzz_calls import VALID_CALLS

from rec_estimator.checkpoint.format.index_file import DamagedIndexError


def check(output, **changed):
    """Checks a result of RepeatRowsGrad, whose gradients [4, 3] are those of two users."""
    arguments = {**VALID_CALLS["repeat_rows_grad"], **changed}
    return call_results.check("repeat_rows_grad", arguments, output, None)


def right():
    grads = VALID_CALLS["repeat_rows_grad"]["grads"]
    return np.stack([grads[0], grads[1:].sum(axis=0)])


def test_a_right_result_passes():
    assert check(right())


@pytest.mark.parametrize("wrong", [right() + 1e-3, right()[::-1], right()[:1], right() * np.nan])
def test_a_wrong_result_is_found(wrong):
    with pytest.raises(AssertionError, match="repeat_rows_grad returned"):
        check(wrong)


@pytest.mark.parametrize("splits", [[0, 7, 4], [0, -1, 4], [1, 1, 4], [], [[0, 1, 4]]])
def test_a_result_for_forbidden_arguments_is_found(splits):
    with pytest.raises(AssertionError, match="must refuse"):
        check(right(), row_splits=np.array(splits, np.int32))


@pytest.mark.parametrize("number", [np.nan, np.inf, 3e38, 1e-45])
def test_numbers_that_depend_on_the_order_of_operations_are_not_compared(number):
    grads = VALID_CALLS["repeat_rows_grad"]["grads"].copy()
    grads[0] = number
    assert not check(right(), grads=grads)


def test_an_index_that_is_read_in_another_way_is_found(monkeypatch):
    parse = fuzz_indexes.parse_index

    def parse_on(data):
        """Takes what lies behind the end of an entry for a part of it."""
        try:
            yield from parse(data)
        except DamagedIndexError as error:
            if "does not fit" not in str(error):
                raise

    monkeypatch.setattr(fuzz_indexes, "parse_index", parse_on)
    target, found = fuzz_indexes.Target(None), 0
    for seed in range(100):
        try:
            target.run(seed)
        except AssertionError:
            found += 1
    assert found > 0
