# SPDX-License-Identifier: Apache-2.0
"""rec-estimator inspect --compare: rows gone, new and changed, and the norm of the change."""

import numpy as np
import pytest

from rec_estimator.checkpoint.checkpoint_table import CheckpointTable
from rec_estimator.tools.compare_checkpoints import change_of
from rec_estimator.tools.inspect_checkpoint import main


@pytest.fixture
def two(tmp_path, write_checkpoint, table_tensors):
    """Prefixes of two checkpoints. Keys 0 to 9 are in both, and only two rows differ."""
    older = table_tensors("user", np.arange(12), [])
    newer = table_tensors("user", np.r_[np.arange(10), 20:25], [])
    newer["user-values"][:10] = older["user-values"][:10]
    newer["user-values"][3] += np.float32([3, 0, 0, 0])
    newer["user-values"][7] += np.float32([0, 4, 0, 0])
    older.update(table_tensors("gone", [1], []))
    newer.update(table_tensors("came", [1], []))
    return [
        write_checkpoint(tmp_path / name, tensors)
        for name, tensors in (("older", older), ("newer", newer))
    ]


def test_rows_are_compared_by_key(two):
    older, newer = (CheckpointTable(prefix, "user") for prefix in two)
    change = change_of(older, newer)
    assert change[:4] == (2, 5, 10, 2)
    assert change.key == 7
    np.testing.assert_allclose(change.norm, 5, rtol=1e-6)  # The sums are rounded to float32.
    np.testing.assert_allclose(change.largest, 4, rtol=1e-6)
    np.testing.assert_allclose(change.norm_after, np.linalg.norm(newer.values), rtol=1e-6)
    same = change_of(older, older)
    assert same[:7] == (0, 0, 12, 0, 0.0, 0.0, None)


def test_a_row_that_became_nan_has_changed(two):
    older, newer = (CheckpointTable(prefix, "user") for prefix in two)
    newer.values = newer.values.copy()
    newer.values[2, 1] = np.nan
    change = change_of(older, newer)
    assert change.changed == 3 and np.isnan(change.norm) and change.key == 2


def test_the_command_prints_the_changes_of_each_table(two, capsys):
    older, newer = two
    assert main([newer, "--compare", older]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{newer}: changes since {older}"
    assert "came: new" in lines and "gone: gone" in lines
    start = lines.index("user: 15 rows, 12 before")
    assert lines[start + 1 : start + 5] == [
        "  rows gone       2",
        "  rows new        5",
        "  rows changed    2 of 10",
        "  norm of change  5, at most 4 (key 7)",
    ]
    assert main([newer, "--compare", older, "--table", "user"]) == 0
    assert "came" not in capsys.readouterr().out


def test_another_dim_and_a_missing_checkpoint_are_errors(
    two, tmp_path, write_checkpoint, table_tensors, capsys
):
    wide = write_checkpoint(tmp_path / "wide", table_tensors("user", [1], [], dim=5))
    assert main([two[1], "--compare", wide, "--table", "user"]) == 2
    assert "table 'user' must have the same dim in both checkpoints, got 5 and 4" in (
        capsys.readouterr().err
    )
    assert main([two[1], "--compare", str(tmp_path / "none")]) == 2


def test_ages_are_counted_from_the_newest_row(tmp_path, write_checkpoint, table_tensors, capsys):
    tensors = table_tensors("user", np.arange(6), [])
    tensors["user-versions"][:] = [-1, 100, 100, 99, 97, 40]
    assert main([write_checkpoint(tmp_path / "m", tensors)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("  age of rows")
    found = [line.split()[:2] for line in lines[start + 1 :]]
    assert found[:3] == [["0", "2"], ["1", "1"], ["2-3", "1"]] and found[-1] == ["32-63", "1"]
