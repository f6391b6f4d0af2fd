# SPDX-License-Identifier: Apache-2.0
"""Tests of benchmarks/soak_online.py: it finds what it looks for. A short form finds nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import soak_online
from benchmarks.soak_online import ALWAYS, CYCLE, DIM, LIVE_STEPS, ONCE

STEPS = 1000


def trained(steps):
    """How often keys of all kinds were trained, counted step by step."""
    keys = np.array([ALWAYS, 0, 255, 256, CYCLE - 1, ONCE, ONCE + 300, ONCE + 700, ONCE + 999])
    keys = np.append(keys, ONCE + 1000)
    times = dict.fromkeys(keys.tolist(), 0)
    for step in range(steps):
        positions = np.arange(step * soak_online.A_STEP, (step + 1) * soak_online.A_STEP)
        for key in [ALWAYS, ONCE + step, *(positions % CYCLE).tolist()]:
            times[key] = times.get(key, 0) + 1
    return keys, np.array([times[key] for key in keys.tolist()])


@pytest.mark.parametrize("steps", [0, 1, 79, STEPS])
def test_the_expected_rows_are_those_of_all_steps_counted(steps):
    keys, times = trained(steps)
    times[(keys >= ONCE) & (keys < ONCE + steps - LIVE_STEPS)] = 0  # Evicted.
    np.testing.assert_array_equal(soak_online.trained_times(keys, steps), times)


def rows_of(keys, steps):
    return np.repeat(-soak_online.trained_times(keys, steps)[:, np.newaxis], DIM, 1).astype("f4")


def test_rows_of_one_step_are_right_and_those_of_two_steps_are_found():
    keys, _ = trained(STEPS)
    rows = rows_of(keys, STEPS)
    assert soak_online.wrong_rows(keys, rows) is None
    for wrong in range(1, len(keys)):
        mixed = rows.copy()
        mixed[wrong, 3] -= 1
        assert f"key {keys[wrong]} has" in soak_online.wrong_rows(keys, mixed)
    mixed = rows_of(keys, STEPS + 1)
    mixed[0] = rows[0]
    assert "1 rows are not those of step 1000" in soak_online.wrong_rows(keys, mixed)
    assert "no step has the row" in soak_online.wrong_rows(keys, rows + 0.5)


def test_a_key_may_be_evicted_a_step_earlier_or_later_but_never_in_half():
    keys = np.array([ALWAYS, ONCE + STEPS - LIVE_STEPS])
    rows = np.repeat([[-STEPS], [0]], DIM, 1).astype("f4")
    assert soak_online.wrong_rows(keys, rows) is None
    rows[1] = -1
    assert soak_online.wrong_rows(keys, rows) is None
    rows[1, 5] = 0
    assert soak_online.wrong_rows(keys, rows) is not None


@pytest.mark.slow
def test_no_answer_is_wrong_while_processes_are_killed(tmp_path):
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.soak_online", "--minutes", "0.5"]
    done = subprocess.run(
        [*command, "--output", str(output)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text())
    assert found["kills"] and found["answers"] > 100
