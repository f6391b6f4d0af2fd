# SPDX-License-Identifier: Apache-2.0
"""EvictHook: evicts keys during training, by the timestamps of the data.

Evictions run between steps. A table evicts a key when the greatest timestamp of its training
batches is at least ``eviction_threshold`` seconds above the timestamp of the last batch that
trained the key.

Source: Rec SDK TensorFlow, ``mx_rec.core.feature_process.EvictHook``.
"""

import time
from typing import Dict, List, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.eviction import Eviction, run_evictions
from rec_estimator.table.interfaces import SECONDS
from rec_estimator.table.table import EmbeddingTable, graph_tables


class EvictHook(tf.train.SessionRunHook):
    """Evicts keys that were not trained for some time, between saves as well.

    It acts in training only, in a cluster only in the chief, and only on two kinds of tables: those
    with a TimeEvict, and those of ``create_table`` whose lookups have an ``eviction_threshold`` and
    whose batches have a timestamp. An evicted key that comes back starts from count 0, its initial
    vector and fresh slots.

    Args:
      evict_enable: False: do nothing.
      evict_time_interval: Seconds of the clock between two evictions, from 1.
      evict_step_interval: Steps between two evictions, from 1: evict when the global step is a
        multiple of it. None: evict by time only.

    Raises:
      ValueError: An argument has a wrong type or is out of range. When training begins: the graph
        has no global step, and evict_step_interval is given.

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
        # By graph, because train_and_evaluate in one process evaluates inside the training loop.
        self._evictions: Dict[tf.Graph, List[Eviction]] = {}

    def begin(self) -> None:
        """Builds the eviction ops. TensorFlow calls this when the graph is complete."""
        if not self._is_enabled or not state_of().is_chief:
            return
        tables = _evicting_tables()
        if not tables:
            tf.logging.warning(
                "EvictHook: this graph trains no table with an eviction_threshold or TimeEvict."
            )
            return
        if self._steps is not None:
            self._global_step = tf.train.get_global_step()
            if self._global_step is None:
                raise ValueError(
                    "the graph has no global step, which EvictHook(evict_step_interval=) needs; "
                    "call tf.train.get_or_create_global_step()"
                )
        self._evictions[tf.get_default_graph()] = [table.eviction() for table in tables]

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Starts to count time and steps. TensorFlow calls this for every new session."""
        del coord
        if session.graph in self._evictions:
            self._evicted_at = time.monotonic()
            self._evicted_step = self._step(session)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Evicts if an interval is over. TensorFlow calls this after each run."""
        del run_values
        session = run_context.session
        evictions = self._evictions.get(session.graph)
        if evictions is None:
            return
        step = self._step(session)
        # A run may make several steps: see iterations_per_loop.
        is_at_step = self._steps is not None and (
            step // self._steps > self._evicted_step // self._steps
        )
        if is_at_step or time.monotonic() - self._evicted_at > self._seconds:
            self._evicted_at, self._evicted_step = time.monotonic(), step
            run_evictions(session, evictions, "EvictHook")

    def end(self, session: tf.Session) -> None:
        """Drops the eviction ops of the graph. TensorFlow calls this at the end of the session."""
        self._evictions.pop(session.graph, None)

    def _step(self, session: tf.Session) -> int:
        return 0 if self._steps is None else int(session.run(self._global_step))


def _evicting_tables() -> List[EmbeddingTable]:
    """The tables that the default graph trains and evicts from by time."""
    return [
        table
        for table in graph_tables()
        if table.version_unit == SECONDS and any(shard.updated_by is not None for shard in table)
    ]
