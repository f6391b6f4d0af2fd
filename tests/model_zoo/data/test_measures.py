# SPDX-License-Identifier: Apache-2.0
"""Means and deviations of batches are those of NumPy over all rows."""

import numpy as np
import pytest

from model_zoo.data.measures import Moments


def test_moments_of_batches_are_those_of_all_numbers():
    random = np.random.default_rng(1)
    # A mean far above the deviation: a sum of squares would lose all digits of float32.
    numbers = random.normal(1e6, 2.0, 10_000).astype(np.float32)
    numbers[::7] = np.nan
    moments = Moments()
    for batch in np.split(numbers, [1, 2, 500, 500, 9000]):
        moments.extend(batch)
    wide = numbers[~np.isnan(numbers)].astype(np.float64)
    # Both round at the 16th digit; the deviation is a difference of numbers a million times larger.
    assert moments.result() == pytest.approx((wide.mean(), wide.std()), rel=1e-9)


def test_moments_of_nothing_are_0():
    moments = Moments()
    moments.extend(np.array([np.nan]))
    assert moments.result() == (0.0, 0.0)
