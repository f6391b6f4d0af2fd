# SPDX-License-Identifier: Apache-2.0
"""`make test` drops combinations of parameters, but no value of a parameter."""

import itertools

from covering_values import covering


def product(*counts):
    """All combinations of parameters with so many values."""
    return [set(enumerate(each)) for each in itertools.product(*map(range, counts))]


def test_every_value_occurs_and_there_are_as_many_combinations_as_values_of_one_parameter():
    for counts in ((1,), (4,), (2, 3), (5, 5), (3, 1, 4)):
        combinations = product(*counts)
        chosen = [combinations[number] for number in covering(combinations)]
        assert set().union(*chosen) == set().union(*combinations)
        assert len(chosen) == max(counts)


def test_cases_of_a_single_parameter_all_stay_in_their_order():
    assert covering(product(7)) == list(range(7))
