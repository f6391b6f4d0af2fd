# SPDX-License-Identifier: Apache-2.0
"""A campaign finds each kind of failure and attributes it to its seed."""

import pytest
from fuzz import campaign

SECONDS, MEMORY = 5, 100 << 20


def failures(first, count):
    report = campaign.try_seeds("planted", first, count, SECONDS, MEMORY)
    assert sum(report.outcomes.values()) == count
    assert report.outcomes["failed"] == len(report.failures)
    return {failure.seed: failure.what for failure in report.failures}


@pytest.mark.long
def test_each_kind_of_failure_is_found_and_the_seeds_after_it_are_tried():
    found = failures(0, 6)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert "ended with -6" in found[0]
    assert "no answer within 5 s" in found[1]
    assert "memory grew by" in found[2]
    assert "accepted silently" in found[3]
    assert "KeyError" in found[4]


def test_memory_that_is_never_freed_is_found():
    (what,) = failures(6, 4).values()
    assert "memory grew by" in what


def test_a_failure_says_how_to_try_it_again():
    text = str(campaign.Failure("requests", 17, "it died", 10))
    assert "campaign.py requests --first 17 --count 1\n" in text
    assert "campaign.py requests --first 10 --count 8" in text


def test_a_target_that_cannot_start_is_reported_once():
    report = campaign.try_seeds("unknown", 0, 100)
    (failure,) = report.failures
    assert "the target cannot start" in failure.what and "fuzz_unknown" in failure.what


def test_the_command_tries_seeds_and_fails_if_one_failed(capsys, monkeypatch):
    monkeypatch.setattr(campaign, "CHUNK", 2)
    assert campaign.run({"planted": 3}, 3) == 1
    printed = capsys.readouterr().out
    assert "planted, seed 3: " in printed and "planted, seed 4: " in printed
    assert "planted: 3 of 3: 2 failed, 1 refused" in printed


def test_the_command_names_the_targets(capsys):
    with pytest.raises(SystemExit):
        campaign.main(["nothing"])
    assert "calls, checkpoints" in capsys.readouterr().err
