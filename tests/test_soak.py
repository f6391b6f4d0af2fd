# SPDX-License-Identifier: Apache-2.0
"""Short forms of benchmarks/soak.py: tables under churn stay as large as their live keys."""

import subprocess
import sys

import pytest

from benchmarks import soak


@pytest.fixture
def short_lives(monkeypatch):
    for name, value in {"NEW_KEYS": 60, "STEPS_TO_LIVE": 50, "FULL_SAVE": 25, "DELTA": 5}.items():
        monkeypatch.setattr(soak, name, value)


@pytest.mark.long
@pytest.mark.parametrize("case", soak.CASES)
def test_entries_and_checkpoints_stay_level_under_churn(tmp_path, short_lives, case):
    readings = soak.train(case, 600, str(tmp_path))
    found = soak.judge(readings, 600)
    # The memory of this process depends on other tests.
    del found["deviation of resident"]
    assert max(found.values()) <= soak.LIMIT, (found, readings)
    # Keys without a row: those that occurred once, and evicted keys that cells still count. By
    # values those of three generations, each of half a lifetime and the steps to the next eviction.
    filtered = readings["entries"][-1] - readings["rows"][-1]
    assert filtered <= 60 * 50 * (3 if case == "bloom-values" else 1)


def test_a_result_keeps_some_readings_and_the_last_one():
    readings = {"step": list(range(250, 100_250, 250)), "rows": list(range(400))}
    kept = soak.thinned(readings)
    assert kept == {"step": list(range(2000, 102_000, 2000)), "rows": list(range(7, 400, 8))}
    assert soak.thinned(kept) == kept


@pytest.mark.slow
@pytest.mark.parametrize("case", ["none-steps", "bloom-steps", "bloom-values"])
def test_resident_set_stays_level_under_churn(case):
    command = [sys.executable, "-m", "benchmarks.soak", "--steps", "4000", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
