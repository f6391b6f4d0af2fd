# SPDX-License-Identifier: Apache-2.0
"""rec_estimator.Saver: saves and restores variables and tables of any size.

builder.py        builds its ops
saved_rows.py     says what a save found in the rows
saved_state.py    knows whether a checkpoint must be written at all
delta_chain.py    decides whether a delta is possible, and of which checkpoint
writer.py         writes the files; atomic_checkpoint.py places them
retention.py      decides which checkpoints are kept, and writes the state file
deltas.py         reads which deltas build on which checkpoint
"""

import time
from typing import Any, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import saving
from rec_estimator.checkpoint import builder, deltas, files, paths, restore_warnings
from rec_estimator.checkpoint import var_list as var_lists
from rec_estimator.checkpoint.delta_chain import DeltaChain, SavedCheckpoint, forget_chain
from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.checkpoint.retention import STATE_FILE, Retention, StateFile
from rec_estimator.checkpoint.saved_rows import RowReports
from rec_estimator.checkpoint.saved_state import SavedState, step_of
from rec_estimator.checkpoint.saver_lists import SaverLists
from rec_estimator.checkpoint.writer import CheckpointWriter
from rec_estimator.graph_passes.walk import find_global_step
from rec_estimator.table.interfaces import SavedShard
from rec_estimator.table.untrained_tables import warn_of_untrained_tables

_LOGGED_SECONDS = 1.0  # Saves that take longer are logged.


class Saver(SaverLists):
    """``tf.compat.v1.train.Saver`` for variables and tables.

    * A save or restore needs at most 64 MiB plus 1 % of the table's memory.
    * If the process is killed during a save, the last checkpoint stays whole. The next save to that
      folder removes the leftovers. This holds for local files; on file systems such as ``gs://``,
      files are written in place, as by TensorFlow.
    * If this Saver wrote or restored a checkpoint of the current global step at the same prefix,
      ``save`` does not write it again.
    * Tables with an eviction rule evict before each full save.
    * With ``incremental=True``, the first save of a session and the first save after a restore are
      full. Later saves are deltas: they hold the keys that changed or were evicted since the last
      save, and all variables. Any Saver can restore a delta. ``max_to_keep`` does not delete
      checkpoints that a kept delta needs.
    * For tables of ``create_table``, each full checkpoint ``<base>-<step>`` on a local disk has a
      folder ``sparse-<base>-<step>`` with the keys, vectors and slots as plain arrays, which is
      deleted with it.

    A stock Saver reads and writes the same checkpoints, with two limits: it copies the tables in
    memory, and it needs the tensor ``<table>/default_values``, which DeepRec does not write.

    Args:
      var_list: List of variables, tables and SaveableObjects; a shard stands for its whole table.
        Or a dict from names to variables, without tables. None: everything in the graph.
      incremental: Whether ``save()`` writes deltas.
      incremental_save_restore: DeepRec's argument. True: ``save()`` writes full checkpoints, and
        deltas with ``full=False``, as IncrementalSaverHook passes it.
      max_deltas: The largest number of deltas after a full checkpoint, at least 1.
      sparse_folders: Whether to write the ``sparse-`` folders. They double the disk space and the
        bytes written for these tables.
      non_finite_rows: What a save does if a row has a NaN or an infinite float in its value or a
        slot. ``"warn"`` writes the checkpoint and logs table, key and step; ``"refuse"`` writes
        none, logs an error and lets training go on; ``"stop"`` writes none and raises the error.
      **kwargs: Arguments of ``tf.compat.v1.train.Saver``.

    Raises:
      TypeError: A dict in ``var_list`` has a table under another name.
      ValueError: ``max_deltas`` is below 1, ``non_finite_rows`` is another word, or a table comes
        from an imported MetaGraph. Also raises whatever ``tf.compat.v1.train.Saver`` raises.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> saver = rec.Saver([table], incremental=True)
      >>> with tf.Session() as session:
      ...     session.run(tf.global_variables_initializer())
      ...     full = saver.save(session, "model", global_step=1)
      ...     delta = saver.save(session, "model", global_step=2)
      ...     saver.restore(session, delta)
      >>> saver.last_checkpoints
      ['model-1', 'model-2']
    """

    def __init__(
        self,
        var_list: Any = None,
        *,
        incremental: bool = False,
        incremental_save_restore: bool = False,
        max_deltas: int = 20,
        sparse_folders: bool = True,
        non_finite_rows: str = "warn",
        **kwargs: Any,
    ) -> None:
        var_list = var_lists.with_saveables(var_list)
        if max_deltas < 1:
            raise ValueError(
                f"max_deltas must be >= 1, got {max_deltas}; incremental=False writes full "
                "checkpoints only"
            )
        self._given = var_list
        self._incremental = incremental or incremental_save_restore
        self._full_unless_asked = incremental_save_restore
        self._writes_folders = sparse_folders
        self._pads_step = kwargs.get("pad_step_number", False)
        self._reshapes = kwargs.get("reshape", False)
        self._has_ops = False
        self._deltas = deltas.Deltas()
        self._chain = DeltaChain(max_deltas)
        self._saved_state = SavedState()
        self.row_reports = RowReports(non_finite_rows)
        state_file = StateFile(kwargs.get("save_relative_paths", False))
        self._retention = Retention(self._deltas, state_file)
        self._builder_of_ops = kwargs.setdefault(
            "builder",
            builder.StreamingBuilder(
                track_changes=self._incremental, refuses_non_finite=self.row_reports.refuses
            ),
        )
        super().__init__(var_list, **kwargs)

    def build(self) -> None:
        """Adds the ops to the graph, after construction with ``defer_build=True``."""
        if self.saver_def is None:
            var_lists.check_not_imported(self._given)
        super().build()
        self._has_ops = True
        if self.saver_def is not None:
            self._retention.start(self.saver_def)

    def allow_deltas(self, count: int) -> None:
        """Raises ``max_deltas`` to ``count`` if it is lower."""
        self._chain.max_deltas = max(self._chain.max_deltas, count)

    @property
    def is_incremental(self) -> bool:
        """Whether ``save()`` can write deltas."""
        return self._incremental

    def save(
        self,
        sess: tf.Session,
        save_path: str,
        global_step: Union[int, str, tf.Tensor, None] = None,
        latest_filename: Optional[str] = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
        *,
        full: Optional[bool] = None,
    ) -> Optional[str]:
        """Saves variables and tables.

        Args:
          sess: The session that holds them.
          save_path: Prefix of the checkpoint's files.
          global_step: Number to append to the prefix: an integer, a tensor or a tensor's name.
          latest_filename: Name of the checkpoint state file. None: "checkpoint".
          meta_graph_suffix: Suffix of the MetaGraph's file.
          write_meta_graph: Whether to write the MetaGraph.
          write_state: Whether to update the checkpoint state file and to delete the checkpoints
            beyond ``max_to_keep``.
          strip_default_attrs: Whether to remove default-valued attributes from the MetaGraph.
          save_debug_info: Whether to write the graph's debug info next to the MetaGraph.
          full: Only for incremental Savers. True forces a full checkpoint. False writes a delta
            where one is possible. None: True with ``incremental_save_restore``, else False.

        Returns:
          The prefix of the checkpoint. None if the Saver has nothing to save, or refuses to save
          rows that are not finite.

        Raises:
          TypeError: ``sess`` is not a session.
          ValueError: ``save_path`` is empty, ends in "/" or is a folder; or ``latest_filename`` is
            invalid; or ``full`` is False and the Saver is not incremental. Nothing was written.
          RuntimeError: ``build()`` was not called.
          tf.errors.DataLossError: A row is not finite, with ``non_finite_rows="stop"``.
          OSError, tf.errors.OpError: The file system failed. The previous checkpoint is whole and
            nothing of the new one is left.
        """
        if not self._has_ops and self.saver_def is None:
            raise RuntimeError("build() must be called before save() with defer_build=True")
        if not isinstance(sess, saving.SessionInterface):
            raise TypeError(f"sess must be a Session, got {sess!r}")
        if full is False and not self._incremental:
            raise ValueError(
                "full must be None or True with incremental=False, got False; make the Saver with "
                "incremental=True"
            )
        full = self._full_unless_asked if full is None else full
        latest_filename = latest_filename or STATE_FILE
        save_path = tf.compat.as_str(save_path)
        paths.check_save_path(save_path)
        prefix = paths.prefix_of_step(sess, save_path, global_step, 8 if self._pads_step else 1)
        paths.check_save_prefix(prefix)
        paths.check_latest_filename(latest_filename, prefix)
        warn_of_untrained_tables(sess.graph)
        is_empty = self.saver_def is None
        with paths.failing_for_good(prefix, sess, tf.errors.ResourceExhaustedError):
            with paths.explaining(prefix):
                if not is_empty:
                    try:
                        is_new = self._save_variables(sess, prefix, global_step is not None, full)
                    except tf.errors.DataLossError as error:
                        if self.row_reports.passes_over(error, prefix):
                            return None
                        raise
                    if write_state:
                        self._retention.add(
                            prefix, self.saver_def, latest_filename, meta_graph_suffix
                        )
                    if is_new and self._ops is not None:
                        self.row_reports.tell(sess, prefix, self._ops.reports)
                if write_meta_graph:
                    with sess.graph.as_default():
                        self.export_meta_graph(
                            f"{prefix}.{meta_graph_suffix}",
                            strip_default_attrs=strip_default_attrs,
                            save_debug_info=save_debug_info,
                        )
        return None if is_empty else prefix

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores variables and tables; replaces all rows of the tables.

        Args:
          sess: The session to restore into.
          save_path: Prefix of a checkpoint, as ``save()`` returned it.

        Raises:
          ValueError: ``save_path`` is not the prefix of a checkpoint.
          tf.errors.NotFoundError: A variable or table is not in the checkpoint, or the checkpoint
            is a delta and a parent is missing. Nothing has changed.
          tf.errors.DataLossError: The checkpoint is damaged, or it is a delta and a parent
            checkpoint was overwritten. Nothing has changed: all checksums are compared first if a
            table of the session is initialized. If none is, as when a training resumes, damage
            within a tensor of more than 64 KiB may be found late: then some variables and tables
            are restored, and the others are as they were.
          tf.errors.InvalidArgumentError: A variable has another shape or type in it, a table
            another dimension, or a key does not fit into the type of a table's keys. Nothing has
            changed.
          tf.errors.ResourceExhaustedError: It has more rows than a table may have. Nothing has
            changed.
        """
        if self.saver_def is None or save_path is None:
            super().restore(sess, save_path)
            return
        prefix = tf.compat.as_str(save_path)
        paths.check_restore_path(prefix)
        signature = files.signature_of(prefix)
        with paths.failing_for_good(prefix, sess, tf.errors.DataLossError):
            index = None
            if signature is not None:  # Otherwise it is of TensorFlow's V1 format.
                index = _check(sess, prefix, self._ops, self._reshapes)
            forget_chain(sess)
            self._saved_state.forget()
            super().restore(sess, save_path)
            if not self._has_ops:
                return
            if self._ops is not None:
                if index is not None:
                    restore_warnings.warn_of_shards(index, self._ops.shards)
                sess.run([reload.restore for reload in self._ops.reloads_in(sess.graph)])
            step = find_global_step(sess.graph)
            if index is None or step is None:
                return
            number = index.read_integer(step.op.name)
            self._saved_state.record(sess, number, SavedCheckpoint(prefix, signature))

    @property
    def _ops(self) -> Optional[builder.StreamingBuilder]:
        """The ops of our builder; None if a ``builder`` or ``saver_def`` argument replaced it."""
        ops = self._builder_of_ops
        return ops if isinstance(ops, builder.StreamingBuilder) and ops.merge is not None else None

    def _save_variables(self, session: tf.Session, prefix: str, has_step: bool, full: bool) -> bool:
        """Writes a checkpoint at `prefix`, unless it already holds the session's state.

        Returns:
          Whether it was written.
        """
        ops = self._ops
        writer = CheckpointWriter(self.saver_def, ops, self._writes_folders)
        step = step_of(session)
        if has_step and step is not None and self._saved_state.is_at(prefix, session, step):
            is_delta = self._deltas.parent_of(prefix) is not None
            if not (full and is_delta):
                tf.logging.info("%s has step %d already and is not written again.", prefix, step)
                if not is_delta:
                    writer.write_missing_folder(prefix)
                return False
        begun = time.monotonic()
        chain = () if full else self._chain.before(session, prefix)

        def write(parent: Optional[SavedCheckpoint]) -> SavedCheckpoint:
            # A save that fails before the files are complete loses no deltas.
            return writer.write(
                session, prefix, parent, lambda: self._retention.remove_deltas_of(prefix)
            )

        try:
            saved = write(chain[-1] if chain else None)
        except tf.errors.FailedPreconditionError:
            # An initializer or another Saver's restore replaced a table's rows. The table no longer
            # knows its changes, so that only a full checkpoint is right.
            if not chain:
                raise
            chain = ()
            saved = write(None)
        if self._incremental and ops is not None and ops.shards:
            session.run(ops.commits)
            self._chain.replace(session, (*chain, saved))
        self._saved_state.record(session, step, saved)
        _log(prefix, time.monotonic() - begun, [] if ops is None else ops.shards)
        return True


def _check(
    session: tf.Session, prefix: str, ops: Optional[builder.StreamingBuilder], any_shape: bool
) -> Index:
    """Checks a checkpoint, and that all of it can be restored; returns its index."""
    if ops is None:
        return deltas.check_chain(prefix)
    has_rows = ops.has_rows(session)
    index = deltas.check_chain(prefix, ops.compare_in(session) if has_rows else None)
    var_lists.check_variables(index, ops.variables, session.graph, any_shape)
    ops.check_tables(session, prefix, all_keys=has_rows)
    return index


def _log(prefix: str, seconds: float, shards: Sequence[SavedShard]) -> None:
    if seconds < _LOGGED_SECONDS:
        return
    index = Index(prefix)
    names = [name for name in (f"{shard.name}-keys" for shard in shards) if name in index.names]
    rows = sum(index.tensor(name).shape[0] for name in names)
    size = files.size_of(prefix)
    tf.logging.info(
        "Saved %s: %d rows, %.1f MB in %.1f s, %.0f MB/s.",
        prefix,
        rows,
        size / 1e6,
        seconds,
        size / 1e6 / seconds,
    )
