# SPDX-License-Identifier: Apache-2.0
"""Evictions of tables: their ops, and the lines of the log that say what they took."""

from typing import Any, NamedTuple, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs

# A table that loses more than this share of its rows gets a warning.
_MOST = 0.5

_REMEDY = "if the model needs these rows, change the rule"


class Eviction(NamedTuple):
    """The eviction of a table, all shards together.

    Attributes:
      table_name: The name of the table.
      rule: What decides, for messages.
      counts: int64 [3]. Evicts; the numbers of evicted keys, of those among them that had a row,
        and of the table's rows before.
    """

    table_name: str
    rule: Any
    counts: tf.Tensor


def build_eviction(
    table_name: str,
    handles: Sequence[tf.Tensor],
    rule: Any,
    step: Union[int, tf.Variable, tf.Tensor],
    **attrs: Optional[float],
) -> Eviction:
    """Builds the ops of an eviction.

    Args:
      table_name: The name of the table.
      handles: Its shards.
      rule: What decides, for messages.
      step: int64 []. Has the same unit as the versions of the rows.
      **attrs: The attributes of TableEvict that select the keys.
    """
    step = tf.cast(step, tf.int64)
    counts = []
    for handle in handles:
        with graphs.colocate_with(handle):
            counts.append(tf.stack(_ops.gen.rec_estimator_table_evict(handle, step, **attrs)))
    return Eviction(table_name, rule, tf.add_n(counts))


def run_evictions(session: tf.Session, evictions: Sequence[Eviction], caller: str) -> None:
    """Runs evictions and logs what they took; warns of each table that lost most of its rows.

    Args:
      session: The session that holds the tables.
      evictions: The evictions, one for each table.
      caller: Why they run, for the log.
    """
    if not evictions:
        return
    counts = session.run([eviction.counts for eviction in evictions])
    taken = ", ".join(map(_describe, evictions, counts))
    tf.logging.info("%s evicted %s.", caller, taken)
    for (name, rule, _), (_, rows, rows_before) in zip(evictions, counts):
        if rows > _MOST * rows_before:
            tf.logging.warning(
                "%r evicted most of table %r: %s of %s rows; %s.",
                rule,
                name,
                f"{rows:,}",
                f"{rows_before:,}",
                _REMEDY,
            )


def _describe(eviction: Eviction, counts: Sequence[int]) -> str:
    keys, rows, rows_before = counts
    counted = f" and {keys - rows:,} counted keys" if keys > rows else ""
    return f"{rows:,} of {rows_before:,} rows{counted} of table {eviction.table_name!r}"


def logged_in_graph(eviction: Eviction) -> tf.Operation:
    """An op that evicts and then logs what was taken, for a Saver that runs no code of ours."""
    keys, rows, rows_before = tf.unstack(eviction.counts)
    is_most = tf.cast(rows, tf.float64) > _MOST * tf.cast(rows_before, tf.float64)
    rest = f"rows of table {eviction.table_name!r}, counted keys: "
    hint = f". {eviction.rule!r} evicted most of the table; {_REMEDY}"
    parts = ["A save evicted ", rows, " of ", rows_before, f" {rest}", keys - rows]
    line = tf.strings.join(
        [
            *(part if isinstance(part, str) else tf.as_string(part) for part in parts),
            tf.where(is_most, hint, ""),
            ".",
        ]
    )
    return tf.print(line, output_stream=tf.logging.info)
