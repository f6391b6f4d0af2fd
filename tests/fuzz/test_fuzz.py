# SPDX-License-Identifier: Apache-2.0
"""A part of each campaign, every day; `make fuzz` runs the whole ones."""

import pytest
from fuzz import campaign
from fuzz.fuzz_calls import VALID_CALLS, op_names
from fuzz.targets import SHARES

from rec_estimator import _ops

SEEDS = 24
# The seeds of a slow target. Fewer may all be refused.
FEWEST = 5


@pytest.mark.long
@pytest.mark.parametrize("target", sorted(SHARES))
def test_no_hostile_input_breaks_the_process_or_is_silently_accepted(target):
    count = max(FEWEST, round(SEEDS * min(1, SHARES[target])))
    report = campaign.try_seeds(target, 0, count)
    assert not report.failures, "\n".join(map(str, report.failures))
    assert sum(report.outcomes.values()) == count
    assert report.outcomes["refused"] > 0, "nothing was refused: is anything damaged?"
    assert len(report.outcomes) > 1, "everything was refused: is anything reached?"


def test_every_op_has_a_valid_call_to_start_from():
    assert op_names(_ops.gen) == sorted(VALID_CALLS)
