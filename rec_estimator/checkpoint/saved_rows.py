# SPDX-License-Identifier: Apache-2.0
"""What a save finds in the rows that it writes: their largest norms, and NaN and Inf.

The save op looks while it copies the rows, which costs little more than the copy.
"""

from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.table.interfaces import SavedShard

# What a Saver does about a row with a NaN or an infinite float.
NON_FINITE_POLICIES = ("warn", "refuse", "stop")

# Begins what the save op says if it refuses such a row.
_RULE = "must be finite to be saved"

_REMEDY = (
    "restore a checkpoint from before that step, and lower the learning rate or clip gradients; "
    "non_finite_rows='refuse' or 'stop' keeps such rows out of checkpoints"
)


class SavedRows(NamedTuple):
    """What a save found in the rows of a table that it wrote.

    Attributes:
      largest: (norm, key) of the rows with the largest L2 norms of values, at most five, in
        descending order.
      non_finite: The number of rows with a NaN or an infinite float in the value or a slot.
      first: One of them in words; empty if there is none.
    """

    largest: Tuple[Tuple[float, int], ...] = ()
    non_finite: int = 0
    first: str = ""

    def merged(self, other: "SavedRows") -> "SavedRows":
        """The same of two shards of a table."""
        largest = sorted({*self.largest, *other.largest}, key=lambda row: (-row[0], row[1]))
        return SavedRows(
            tuple(largest[:5]), self.non_finite + other.non_finite, self.first or other.first
        )


# Called after a save with the session, the prefix and what was found by table.
Listener = Callable[[tf.Session, str, Mapping[str, SavedRows]], None]


class RowReports:
    """Reads what a save found, and does what a Saver was told to do about it.

    Args:
      policy: One of NON_FINITE_POLICIES.

    Raises:
      ValueError: policy has another value.
    """

    def __init__(self, policy: str) -> None:
        self._policy = check_policy(policy)
        self._listeners: List[Listener] = []

    def add_listener(self, listener: Listener) -> None:
        """Adds a function that is called after each save with the session and the prefix.

        Its third argument says, by table, what was found.
        """
        self._listeners.append(listener)

    def tell(
        self, session: tf.Session, prefix: str, reports: Dict[SavedShard, List[tf.Tensor]]
    ) -> None:
        """Warns of rows that are not finite, and calls the listeners.

        Args:
          session: The session that was saved.
          prefix: Prefix of the checkpoint.
          reports: What ``build_reports`` has built.
        """
        rows = _read(session, reports)
        for name, found in rows.items():
            if found.non_finite:
                tf.logging.warning(
                    "Table %r has %s rows that are not finite, such as %s; %s.",
                    name,
                    f"{found.non_finite:,}",
                    found.first,
                    _REMEDY,
                )
        for listener in self._listeners:
            listener(session, prefix, rows)

    @property
    def refuses(self) -> bool:
        """Whether a save with a row that is not finite must fail."""
        return self._policy != "warn"

    def passes_over(self, error: tf.errors.DataLossError, prefix: str) -> bool:
        """Whether training goes on after a failed save; logs why it failed."""
        if self._policy != "refuse" or _RULE not in error.message:
            return False
        tf.logging.error("%s was not saved: %s", prefix, error.message)
        return True


def check_policy(policy: str) -> str:
    """Checks and returns a policy of rows that are not finite."""
    if policy not in NON_FINITE_POLICIES:
        raise ValueError(
            f"non_finite_rows must be one of {', '.join(map(repr, NON_FINITE_POLICIES))}, got "
            f"{policy!r}; 'warn' saves such rows"
        )
    return policy


def build_reports(shards: Sequence[SavedShard]) -> Dict[SavedShard, List[tf.Tensor]]:
    """Builds the reads of what the last save found in each shard."""
    reports = {}
    for shard in shards:
        with graphs.colocate_with(shard.handle):
            reports[shard] = list(_ops.gen.rec_estimator_table_saved_rows(shard.handle))
    return reports


def _read(session: tf.Session, reports: Dict[SavedShard, List[tf.Tensor]]) -> Dict[str, SavedRows]:
    """What the last save of a session found, by table."""
    found: Dict[str, SavedRows] = {}
    values = session.run(list(reports.values())) if reports else []
    for shard, (norms, keys, non_finite, first) in zip(reports, values):
        largest = tuple(zip(norms.tolist(), keys.tolist()))
        rows = SavedRows(largest, int(non_finite), first.decode())
        name = shard.table.name
        found[name] = found[name].merged(rows) if name in found else rows
    return found
