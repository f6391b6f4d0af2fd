"""What the pass did: how much it moved, and what stopped it elsewhere."""

import collections
import dataclasses
import math
from typing import List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.sizes import Size, Sizes

_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul")


@dataclasses.dataclass(frozen=True)
class OpRecord:
    """One op that depends on users.

    Attributes:
      op: It.
      is_moved: Whether it runs on a row per user.
      dims: The shape of its first output.
      reason: What stopped it; "": nothing.
      share: Which part of it still runs for each candidate, from 0 to 1.
    """

    op: tf.Operation
    is_moved: bool
    dims: Sizes
    reason: str = ""
    share: float = 1.0


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
      flops_before: Of the model as written, of the ops that depend on users. Sizes that only a
        request tells, but for the numbers of rows, count as 1; what is inside of functions, as
        the rounds of a tf.while_loop (v2) are, is not counted.
      flops_after: Of the same ops compressed.
    """

    users: int
    items: int
    moved: Tuple[str, ...]
    split: Tuple[str, ...]
    left: Tuple[Tuple[str, str, str], ...]
    flops_before: int
    flops_after: int

    def __str__(self) -> str:
        reasons = collections.Counter(f"{kind} {reason}" for _, kind, reason in self.left)
        lines = [
            f"Sample-aware compression: {len(self.moved)} ops moved to the users' rows, "
            f"{len(self.split)} split, {len(self.left)} left; for {self.users} user(s) with "
            f"{self.items} candidates {self.flops_before:,} FLOPs become {self.flops_after:,}"
        ]
        lines += [f"  left: {count} x {reason}" for reason, count in sorted(reasons.items())]
        return "\n".join(lines)


def report(records: Sequence[OpRecord], users: int, items: int) -> CompressionReport:
    """Sums up what the pass noted."""
    before = after = 0
    for record in records:
        before += _flops(record, items)
        if record.is_moved:
            after += _flops(record, users)
        else:
            share = record.share
            after += math.ceil(_flops(record, items) * share)
            after += math.ceil(_flops(record, users) * (1 - share))
    is_split: List[OpRecord] = [r for r in records if not r.is_moved and not r.reason]
    return CompressionReport(
        users,
        items,
        tuple(record.op.name for record in records if record.is_moved),
        tuple(record.op.name for record in is_split),
        tuple((r.op.name, r.op.type, r.reason) for r in records if r.reason),
        before,
        after,
    )


def _flops(record: OpRecord, rows: int) -> int:
    if record.dims is None:
        return 0
    count = math.prod(_size(size, rows) for size in record.dims)
    if record.op.type in _PRODUCTS:
        flip = "transpose_a" if record.op.type == "MatMul" else "adj_x"
        inner = record.op.inputs[0].shape[-2 if record.op.get_attr(flip) else -1]
        count *= 2 * (tf.compat.dimension_value(inner) or 1)
    return count


def _size(size: Optional[Size], rows: int) -> int:
    if size is None:
        return 1
    return size.factor * (rows if size.is_batch else 1)
