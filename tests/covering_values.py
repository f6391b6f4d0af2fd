# SPDX-License-Identifier: Apache-2.0
"""Chooses few combinations of parameters, in which each value of each parameter occurs."""


def covering(combinations):
    """Returns the numbers of combinations that hold all values which any of them holds.

    The next one is always the one with the most values that are still missing, the first of equal
    ones, so that all processes of a run choose alike.

    Args:
      combinations: A set of values for each combination.

    >>> covering([{"a", 1}, {"a", 2}, {"b", 1}, {"b", 2}])
    [0, 3]
    """
    missing = set().union(*combinations)
    chosen = []
    while missing:
        best = max(range(len(combinations)), key=lambda each: len(combinations[each] & missing))
        missing -= combinations[best]
        chosen.append(best)
    return chosen
