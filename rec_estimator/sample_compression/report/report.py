# SPDX-License-Identifier: Apache-2.0
"""What the pass did: how much it moved, and what stopped it elsewhere."""

import dataclasses
import math
from typing import Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis.sizes import Sizes
from rec_estimator.sample_compression.report.flops import flops, has_rounds


@dataclasses.dataclass(frozen=True)
class OpRecord:
    """One op that depends on users or candidates.

    Attributes:
      op: It.
      is_moved: Whether it runs on a row per user.
      dims: The shape of its first output.
      reason: What stopped it; "": nothing.
      share: Which part of it still runs for each candidate, from 0 to 1.
      is_split: Whether a part of it runs on a row per user.
    """

    op: tf.Operation
    is_moved: bool
    dims: Sizes
    reason: str = ""
    share: float = 1.0
    is_split: bool = False


@dataclasses.dataclass(frozen=True)
class CompressionReport:
    """What compression does for a request.

    Attributes:
      users: B.
      items: N.
      moved: Names of the ops that run on a row per user.
      split: Names of the ops of which a part does.
      left: (name, type, what stopped it) of those that take something of users and run for each
        candidate.
      flops_before: Of the model as written, of the ops that depend on users or candidates. Sizes
        that only a request tells, but for the numbers of rows, count as 1, and so do the rounds of
        a loop.
      flops_after: Of the same ops compressed; also of those that algebra makes needless.
      loops: Names of loops of which one round is counted.
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
    """The first names, so that a reader finds the place in the model."""
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


def report(records: Sequence[OpRecord], users: int, items: int) -> CompressionReport:
    """Sums up what the pass noted."""
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
