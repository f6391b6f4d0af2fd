# SPDX-License-Identifier: Apache-2.0
"""The report of the pass: the ops that it moved, those that it left and why, the work saved."""

import dataclasses
import math
from typing import Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis.sizes import Shape
from rec_estimator.sample_compression.report.flops import flops, has_rounds


@dataclasses.dataclass(frozen=True)
class OpRecord:
    """One op that depends on users or candidates.

    Attributes:
      op: The op.
      is_moved: Whether it runs on one row per user.
      dims: The shape of its first output.
      reason: Why it stays with the candidates. "": it was moved, or nothing could be moved.
      share: The part of it that still runs for each candidate, from 0 to 1.
      is_split: Whether a part of it runs on one row per user.
    """

    op: tf.Operation
    is_moved: bool
    dims: Shape
    reason: str = ""
    share: float = 1.0
    is_split: bool = False


@dataclasses.dataclass(frozen=True)
class CompressionReport:
    """What compression does for a request.

    Attributes:
      users: B.
      items: N.
      moved: Names of the ops that run on one row per user.
      split: Names of the ops of which a part runs on one row per user.
      left: (name, type, reason) of the ops that take tensors of users and still run for each
        candidate.
      flops_before: Those of the ops of the original model that depend on the request. Other
        unknown sizes than the numbers of rows count as 1, and of a loop one round counts.
      flops_after: Those of the same ops after the pass, including ops that a split makes unused.
      loops: Names of the loops of which one round is counted.
    """

    users: int
    items: int
    moved: Tuple[str, ...]
    split: Tuple[str, ...]
    left: Tuple[Tuple[str, str, str], ...]
    flops_before: int
    flops_after: int
    loops: Tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"Sample-aware compression: {len(self.moved)} ops moved to the users' rows, "
            f"{len(self.split)} split, {len(self.left)} left; for {self.users} user(s) with "
            f"{self.items} candidates {self.flops_before:,} FLOPs become {self.flops_after:,}"
        ]
        if self.loops:
            lines.append(f"  of loops one round is counted: {_some(self.loops)}")
        reasons: Dict[str, List[str]] = {}
        for name, kind, reason in self.left:
            reasons.setdefault(f"{kind} {reason}", []).append(name)
        lines += [
            f"  left: {len(names)} x {reason}: {_some(names)}"
            for reason, names in sorted(reasons.items())
        ]
        return "\n".join(lines)


def _some(names: Sequence[str]) -> str:
    """The first names, by which a reader finds the place in the model."""
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


def report(records: Sequence[OpRecord], users: int, items: int) -> CompressionReport:
    """The report of the pass for a request of that size."""
    before = after = 0
    for record in records:
        for_items = flops(record.op, record.dims, items)
        share = 0.0 if record.is_moved else record.share
        before += for_items
        after += math.ceil(for_items * share)
        if share < 1:
            after += math.ceil(flops(record.op, record.dims, users) * (1 - share))
    return CompressionReport(
        users,
        items,
        tuple(record.op.name for record in records if record.is_moved),
        tuple(record.op.name for record in records if record.is_split),
        tuple((r.op.name, r.op.type, r.reason) for r in records if r.reason),
        before,
        after,
        tuple(record.op.name for record in records if has_rounds(record.op)),
    )
