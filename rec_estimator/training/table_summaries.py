# SPDX-License-Identifier: Apache-2.0
"""TableSummaryHook: the counts of tables in TensorBoard and in the log. docs/monitoring.md."""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import format_bytes
from rec_estimator.checkpoint.saved_rows import SavedRows
from rec_estimator.checkpoint.saver import Saver
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.activity import TableActivity, build_activity, sum_of
from rec_estimator.table.table import graph_tables

# Tables that a line of the log names: those with the most new rows.
_NAMED = 3

_TOTAL = "total"


class TableSummaryHook(tf.train.SessionRunHook):
    """Writes what happens to the tables to TensorBoard, and logs a line at each save.

    RecEstimator adds it unless ``RunConfig(table_summaries=False)``. The kernels count anyway, so
    a step costs one Python call; every ``every_steps`` steps the counts are read. At each save by a
    ``rec_estimator.Saver``, the hook logs a line such as

        model.ckpt-3000: 2 tables, 812,345 rows (+12,031, 44 evicted), 345,678 filtered keys,
        104.5 MB, 4.0 new rows a step, 97.1 % of ids found; new rows: item 9,002, user 3,029;
        largest norm 12.31, key 7 of 'item'

    TensorBoard gets these scalars of each ``tables/<name>/`` and of ``tables/total/``:

    * ``rows``, ``filtered_keys``, ``bytes``: as they are.
    * ``admitted_since_save``, ``evicted_since_save``: rows. Erased rows count as evicted.
    * ``new_rows_per_step``, ``found_share``: since the last summary. The latter is the share of the
      ids of training steps whose key had a row before the step.
    * ``disk_rows``, ``disk_hits``, ``disk_misses``: of tables with a tier on disk. Hits and misses
      are keys of training steps since the last summary.
    * ``largest_norm``: at saves, of the rows that the save wrote.

    Args:
      output_dir: Folder of TensorBoard's files. None: only lines of the log.
      every_steps: Steps between two summaries, above 0.

    Raises:
      ValueError: every_steps is not above 0.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> step = tf.train.get_or_create_global_step()
      >>> train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
      >>> with rec.MonitoredTrainingSession(
      ...     checkpoint_dir="model", hooks=[rec.TableSummaryHook("model")]) as session:
      ...     _ = session.run(train_op)
    """

    def __init__(self, output_dir: Optional[str] = None, *, every_steps: int = 100) -> None:
        if not every_steps > 0:
            raise ValueError(
                f"every_steps must be above 0, got {every_steps}; to write no summaries, omit the "
                "hook"
            )
        self._output_dir = output_dir
        self._every_steps = every_steps
        self._writer: Optional[tf.summary.FileWriter] = None
        # Readings of the session; None: it has not begun.
        self._at_save: Optional[_Reading] = None
        self._at_summary: Optional[_Reading] = None
        self._runs = 0

    def begin(self) -> None:
        """Adds the reads to the graph; called by TensorFlow when the graph is complete."""
        self._at_save = None
        self._tables = _Tables()
        if self._output_dir is not None:
            self._writer = tf.summary.FileWriterCache.get(self._output_dir)
        for saver in tf.get_collection(tf.GraphKeys.SAVERS):
            if isinstance(saver, Saver):
                saver.row_reports.add_listener(self._after_save)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Starts to count; called again after a lost session was replaced."""
        del coord
        self._steps_per_run = state_of(session.graph).steps_per_run
        self._at_save = self._at_summary = self._tables.read(session)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Writes a summary if one is due."""
        del run_values
        self._runs += self._steps_per_run
        if self._runs >= self._every_steps:
            self._runs = 0
            self._write(self._tables.read(run_context.session), {})

    def _after_save(self, session: tf.Session, prefix: str, rows: Mapping[str, SavedRows]) -> None:
        now = self._tables.read(session)
        if self._at_save is None:  # The first save comes before after_create_session.
            self._at_save = self._at_summary = now
        tf.logging.info("%s: %s.", prefix.rpartition("/")[2], _line(self._at_save, now, rows))
        self._write(now, rows)
        self._at_save = now

    def _write(self, now: "_Reading", rows: Mapping[str, SavedRows]) -> None:
        assert self._at_save is not None and self._at_summary is not None
        if self._writer is not None:
            summary = tf.Summary()
            for name, value in _scalars(self._at_save, self._at_summary, now, rows).items():
                summary.value.add(tag=f"tables/{name}", simple_value=value)
            self._writer.add_summary(summary, now.step)
            self._writer.flush()
        self._at_summary = now


class _Reading(NamedTuple):
    """The counts of all tables at a step."""

    step: int
    tables: Dict[str, TableActivity]

    @property
    def total(self) -> TableActivity:
        return sum_of(list(self.tables.values()))

    def with_total(self) -> Dict[str, TableActivity]:
        """The counts of each table, and of all of them if there are several."""
        return self.tables if len(self.tables) == 1 else {**self.tables, _TOTAL: self.total}


class _Tables:
    """The reads of all tables of the default graph."""

    def __init__(self) -> None:
        tables = graph_tables()
        self._names = [str(table.name) for table in tables]
        self._counts = [build_activity(table) for table in tables]
        self._step = tf.train.get_global_step()

    def read(self, session: tf.Session) -> _Reading:
        fetched = session.run([self._counts, [] if self._step is None else self._step])
        counts: Sequence[np.ndarray] = fetched[0]
        step = int(fetched[1]) if self._step is not None else 0
        return _Reading(
            step,
            {name: TableActivity(*each.tolist()) for name, each in zip(self._names, counts)},
        )


def _scalars(
    at_save: _Reading, before: _Reading, now: _Reading, rows: Mapping[str, SavedRows]
) -> Dict[str, float]:
    """The scalars of a summary, by their names behind ``tables/``."""
    scalars: Dict[str, float] = {}
    saved, then = at_save.with_total(), before.with_total()
    steps = max(now.step - before.step, 1)
    for name, table in now.with_total().items():
        since = table.minus(then[name])
        values: Dict[str, float] = {
            "rows": table.rows,
            "filtered_keys": table.filtered_keys,
            "bytes": table.memory_bytes,
            "admitted_since_save": table.admitted_since(saved[name]),
            "evicted_since_save": table.removed_since(saved[name]),
            "new_rows_per_step": table.admitted_since(then[name]) / steps,
        }
        if since.looked_up:
            values["found_share"] = since.found / since.looked_up
        if table.disk_rows or table.hits or table.misses:
            values.update(disk_rows=table.disk_rows, disk_hits=since.hits, disk_misses=since.misses)
        if name in rows and rows[name].largest:
            values["largest_norm"] = rows[name].largest[0][0]
        scalars.update((f"{name}/{each}", value) for each, value in values.items())
    return scalars


def _line(before: _Reading, now: _Reading, rows: Mapping[str, SavedRows]) -> str:
    """What happened to the tables between two saves."""
    if not now.tables:
        return "no tables"
    total, since = now.total, now.total.minus(before.total)
    new = {name: each.admitted_since(before.tables[name]) for name, each in now.tables.items()}
    admitted, steps = sum(new.values()), now.step - before.step
    parts = [
        f"{len(new):,} table{'s' if len(new) > 1 else ''}",
        f"{total.rows:,} rows (+{admitted:,}, {since.removed_rows:,} evicted)",
        f"{total.filtered_keys:,} filtered keys",
        format_bytes(total.memory_bytes),
    ]
    if steps > 0:
        parts.append(f"{admitted / steps:,.1f} new rows a step")
    if since.looked_up:
        parts.append(f"{since.found / since.looked_up:.1%} of ids found".replace("%", " %"))
    if since.hits + since.misses:
        parts.append(f"{since.hits:,} disk hits and {since.misses:,} misses")
    most = sorted(filter(new.get, new), key=lambda name: -new[name])
    sentences: List[str] = [", ".join(parts)]
    if most and len(new) > 1:
        named = ", ".join(f"{name} {new[name]:,}" for name in most[:_NAMED])
        sentences.append(f"new rows: {named}{', …' if len(most) > _NAMED else ''}")
    norms = [(*each.largest[0], name) for name, each in rows.items() if each.largest]
    if norms:
        norm, key, name = max(norms)
        sentences.append(f"largest norm {norm:.4g}, key {key} of {name!r}")
    return "; ".join(sentences)
