# SPDX-License-Identifier: Apache-2.0
"""EvictHook: takes rows away while training goes on, by the data's own clock.

Beside the data flow, step 4. A key goes when the greatest timestamp that its table has seen is
``eviction_threshold`` seconds or more beyond that of the batch that trained it last.

Source: Rec SDK TensorFlow, ``mx_rec.core.feature_process.EvictHook``.
"""

import time
from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int
from rec_estimator.rec_sdk.create_table import SparseTable
from rec_estimator.table.table import graph_tables


class EvictHook(tf.train.SessionRunHook):
    """Evicts from the tables of ``create_table`` keys that were not trained for long, now and then.

    Takes part in training only, and only tables whose lookups have an ``eviction_threshold``: the
    batch must have a timestamp then. What goes starts from count 0, its initial vector and fresh
    slots when it comes back.

    Args:
      evict_enable: False: do nothing.
      evict_time_interval: Seconds by the clock on the wall between two evictions, from 1.
      evict_step_interval: Steps between two evictions, from 1: at the global steps that are
        multiples of it. None: by time only.

    Raises:
      ValueError: An argument of another type or out of its range; when training begins, steps are
        to be counted in a graph without a global step.

    Example:
      >>> hook = rec.EvictHook(evict_enable=True, evict_step_interval=1000)
      >>> # estimator.train(input_fn, hooks=[hook])
    """

    def __init__(
        self,
        evict_enable: bool = False,
        evict_time_interval: int = 24 * 60 * 60,
        evict_step_interval: Optional[int] = None,
    ) -> None:
        check_bool("evict_enable", evict_enable)
        check_int("evict_time_interval", evict_time_interval, 1)
        if evict_step_interval is not None:
            check_int("evict_step_interval", evict_step_interval, 1)
        self._is_enabled = evict_enable
        self._seconds = evict_time_interval
        self._steps = evict_step_interval
        # By graph: train_and_evaluate in one process evaluates in the middle of its training loop.
        self._evictions: Dict[tf.Graph, Dict[str, tf.Tensor]] = {}

    def begin(self) -> None:
        """Builds the evictions; called by TensorFlow when the graph is complete."""
        if not self._is_enabled:
            return
        tables = [table for table in graph_tables() if _is_evicted_from(table)]
        if not tables:
            tf.logging.warning(
                "EvictHook: no table is trained here that has an eviction_threshold."
            )
            return
        if self._steps is not None:
            self._global_step = tf.train.get_global_step()
            if self._global_step is None:
                raise ValueError(
                    "the graph must have a global step for EvictHook(evict_step_interval=), got "
                    "none; call tf.train.get_or_create_global_step()"
                )
        self._evictions[tf.get_default_graph()] = {
            table.table_name: table.evict() for table in tables
        }

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Counts time and steps from here on; called again when a lost session was replaced."""
        del coord
        if session.graph in self._evictions:
            self._evicted_at = time.monotonic()
            self._evicted_step = self._step(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Evicts if it is time."""
        del run_values
        session = run_context.session
        evictions = self._evictions.get(session.graph)
        if evictions is None:
            return
        step = self._step(session)
        # Of a loop in the graph, which makes several steps at once, each step may be the one.
        is_at_step = self._steps is not None and (
            step // self._steps > self._evicted_step // self._steps
        )
        if is_at_step or time.monotonic() - self._evicted_at > self._seconds:
            self._evicted_at, self._evicted_step = time.monotonic(), step
            for name, count in session.run(evictions).items():
                tf.logging.info("EvictHook: %d keys of table %r went.", count, name)

    def end(self, session: tf.Session) -> None:
        """Forgets the graph."""
        self._evictions.pop(session.graph, None)

    def _step(self, session: tf.Session) -> int:
        return 0 if self._steps is None else int(session.run(self._global_step))


def _is_evicted_from(table: Any) -> bool:
    return (
        isinstance(table, SparseTable)
        and table.thresholds is not None
        and bool(table.thresholds.eviction_threshold)
        and any(shard.updated_by is not None for shard in table)
    )
