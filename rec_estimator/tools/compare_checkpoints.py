# SPDX-License-Identifier: Apache-2.0
"""Compares the tables of two checkpoints, for ``rec-estimator inspect --compare``."""

from typing import Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from rec_estimator.checkpoint.checkpoint_table import CheckpointTable
from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.checkpoint.format.stored_tables import find_tables


class Change(NamedTuple):
    """What has changed in a table from an older to a newer checkpoint.

    Attributes:
      gone: Keys that only the older one has a row of.
      new: Keys that only the newer one has a row of.
      kept: Keys that both have a row of.
      changed: Those of them whose vectors differ.
      norm: L2 norm of the change of all kept vectors together.
      largest: L2 norm of the largest change of one vector.
      key: The key of that vector; None: no vector has changed.
      norm_before, norm_after: L2 norm of all vectors together, in each checkpoint.
    """

    gone: int
    new: int
    kept: int
    changed: int
    norm: float
    largest: float
    key: Optional[int]
    norm_before: float
    norm_after: float


def change_of(older: CheckpointTable, newer: CheckpointTable) -> Change:
    """Compares the rows of a table in two checkpoints.

    Raises:
      ValueError: The vectors have different numbers of floats.
    """
    if older.dim != newer.dim:
        raise ValueError(
            f"table {newer.name!r} must have the same dim in both checkpoints, got "
            f"{older.dim} and {newer.dim}"
        )
    keys, before, after = np.intersect1d(
        older.keys, newer.keys, assume_unique=True, return_indices=True
    )
    differences = newer.values[after].astype(np.float64) - older.values[before]
    norms = np.sqrt(np.einsum("nd,nd->n", differences, differences))
    # NaN is not equal to itself, and counts as changed.
    changed = np.any(newer.values[after] != older.values[before], axis=1)
    at = int(np.argmax(norms)) if changed.any() else None
    return Change(
        len(older) - len(keys),
        len(newer) - len(keys),
        len(keys),
        int(changed.sum()),
        float(np.sqrt(np.sum(np.square(norms)))),
        0.0 if at is None else float(norms[at]),
        None if at is None else int(keys[at]),
        float(np.linalg.norm(older.values.astype(np.float64))),
        float(np.linalg.norm(newer.values.astype(np.float64))),
    )


def compared(older: str, newer: str, names: Sequence[str]) -> List[str]:
    """What has changed between two checkpoints, in lines of text.

    Args:
      older, newer: Prefixes of the checkpoints.
      names: The tables of the newer one to compare.
    """
    before = list(find_tables(Bundle(older)))
    lines = [f"{newer}: changes since {older}"]
    for name in names:
        lines.append("")
        if name not in before:
            lines.append(f"{name}: new")
            continue
        lines += _lines(CheckpointTable(older, name), CheckpointTable(newer, name))
    gone = [name for name in before if name not in find_tables(Bundle(newer))]
    return lines + [line for name in gone for line in ("", f"{name}: gone")]


def _lines(older: CheckpointTable, newer: CheckpointTable) -> Iterator[str]:
    change = change_of(older, newer)
    yield f"{newer.name}: {len(newer):,} rows, {len(older):,} before"
    yield f"  rows gone       {change.gone:,}"
    yield f"  rows new        {change.new:,}"
    yield f"  rows changed    {change.changed:,} of {change.kept:,}"
    largest = "" if change.key is None else f", at most {change.largest:.4g} (key {change.key})"
    yield f"  norm of change  {change.norm:.4g}{largest}"
    yield f"  norm of rows    {change.norm_after:.4g}, {change.norm_before:.4g} before"
