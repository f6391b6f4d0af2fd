# SPDX-License-Identifier: Apache-2.0
"""rec_estimator.Saver: saves and restores variables and tables of any size.

The Saver decides when to write a full checkpoint, a delta or nothing, and which checkpoints to
keep. builder.py builds its ops, pending.py places its files, and deltas.py reads which deltas build
on which checkpoint.
"""

import os
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from rec_estimator._tensorflow import saving
from rec_estimator.checkpoint import builder, deltas, files, paths, sparse_folders
from rec_estimator.checkpoint import var_list as var_lists
from rec_estimator.checkpoint.atomic_checkpoint import AtomicCheckpoint
from rec_estimator.checkpoint.files import is_same_path
from rec_estimator.checkpoint.format.bundle import Compare, Index
from rec_estimator.graph_passes.walk import find_global_step
from rec_estimator.table.interfaces import SavedShard
from rec_estimator.table.untrained_tables import warn_of_untrained_tables

# What a range of bytes is compared by, as the index has it.
_RANGE = ("offset", "size", "crc32c")

_LOGGED_SECONDS = 1.0  # Saves that take longer are logged.


class _Saved(NamedTuple):
    """A checkpoint that this process wrote or restored."""

    prefix: str
    signature: Optional[files.Signature]
    identity: Optional[str] = None  # Of its index, for deltas; None if it was restored.

    def is_unchanged(self) -> bool:
        """Returns whether the checkpoint is still there and was not overwritten."""
        return self.signature is not None and files.signature_of(self.prefix) == self.signature


class _Chain(NamedTuple):
    """The checkpoints that the next delta of a session builds on."""

    owner: "Saver"  # Which wrote them.
    saved: Tuple[_Saved, ...]  # A full checkpoint, then deltas.


class _Current(NamedTuple):
    """A checkpoint that equals what a session holds at a step."""

    session: "weakref.ref[tf.Session]"
    saved: _Saved
    step: int


# Each session has at most one chain, because its tables note the changes since one save only. Any
# other Saver starts with a full checkpoint.
_chains: "weakref.WeakKeyDictionary[tf.Session, _Chain]" = weakref.WeakKeyDictionary()


class Saver(tf.train.Saver):
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

    A stock Saver reads and writes the same checkpoints, with three limits: it copies the tables in
    memory; it does not accept tables in ``var_list``; and it needs the tensor
    ``<table>/default_values``, which DeepRec does not write.

    Args:
      var_list: List of variables, tables and SaveableObjects; a shard stands for its whole table.
        Or a dict from names to variables, without tables. None: everything in the graph.
      incremental: Whether ``save()`` writes deltas.
      incremental_save_restore: DeepRec's argument. True: ``save()`` writes full checkpoints, and
        deltas with ``full=False``, as IncrementalSaverHook passes it.
      max_deltas: The largest number of deltas after a full checkpoint, at least 1.
      sparse_folders: Whether to write the ``sparse-`` folders. They double the disk space and the
        bytes written for these tables.
      **kwargs: Arguments of ``tf.compat.v1.train.Saver``.

    Raises:
      TypeError: A dict in ``var_list`` contains a table.
      ValueError: ``max_deltas`` is below 1, or a table comes from an imported MetaGraph. Also
        raises whatever ``tf.compat.v1.train.Saver`` raises.

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
        **kwargs: Any,
    ) -> None:
        if isinstance(var_list, (list, tuple, set)):
            var_list = list(
                dict.fromkeys(part for item in var_list for part in var_lists.as_saveables(item))
            )
        elif isinstance(var_list, dict):
            for name, value in var_list.items():
                if hasattr(getattr(value, "table", value), "shards"):
                    raise TypeError(
                        f"var_list must be a list to save tables, got {value!r} as {name!r} in a "
                        "dict; a table keeps its name"
                    )
        if max_deltas < 1:
            raise ValueError(
                f"max_deltas must be >= 1, got {max_deltas}; incremental=False writes full "
                "checkpoints only"
            )
        self._given = var_list
        self._incremental = incremental or incremental_save_restore
        self._full_unless_asked = incremental_save_restore
        self._max_deltas = max_deltas
        self._writes_folders = sparse_folders
        self._pads_step = kwargs.get("pad_step_number", False)
        self._writes_relative_paths = kwargs.get("save_relative_paths", False)
        self._reshapes = kwargs.get("reshape", False)
        self._has_ops = False
        self._records: List[Tuple[str, float]] = []  # prefix, seconds since 1970
        self._deltas = deltas.Deltas()
        self._current: Optional[_Current] = None
        self._builder_of_ops = kwargs.setdefault(
            "builder", builder.StreamingBuilder(track_changes=self._incremental)
        )
        super().__init__(var_list, **kwargs)

    def build(self) -> None:
        """Adds the ops to the graph, after construction with ``defer_build=True``."""
        if self.saver_def is None:
            var_lists.check_not_imported(self._given)
        super().build()
        self._has_ops = True
        if self.saver_def is not None:
            hours = self.saver_def.keep_checkpoint_every_n_hours
            self._next_kept_time = time.time() + hours * 3600

    @property
    def is_incremental(self) -> bool:
        """Whether ``save()`` can write deltas."""
        return self._incremental

    @property
    def last_checkpoints(self) -> List[str]:
        """Prefixes of the checkpoints that were not deleted, from oldest to newest."""
        return [prefix for prefix, _ in self._records]

    def set_last_checkpoints(self, last_checkpoints: List[str]) -> None:
        """Sets the list of old checkpoints; this Saver never deletes them."""
        self.set_last_checkpoints_with_time([(prefix, np.inf) for prefix in last_checkpoints])

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: List[Tuple[str, float]]
    ) -> None:
        """Sets the list of old checkpoints and their times, in seconds since 1970."""
        self._records = list(last_checkpoints_with_time)

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
          save_debug_info: Whether to write the graph's debug info beside the MetaGraph.
          full: Only for incremental Savers. True forces a full checkpoint. False writes a delta
            where one is possible. None: True with ``incremental_save_restore``, else False.

        Returns:
          The prefix of the checkpoint. None if the Saver has nothing to save.

        Raises:
          TypeError: ``sess`` is not a session.
          ValueError: ``save_path`` is empty, ends in "/" or is a folder; or ``latest_filename`` is
            invalid; or ``full`` is False and the Saver is not incremental. Nothing was written.
          RuntimeError: ``build()`` was not called.
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
        latest_filename = latest_filename or "checkpoint"
        paths.check_save_path(tf.compat.as_str(save_path))
        prefix = self._prefix(sess, tf.compat.as_str(save_path), global_step)
        paths.check_save_prefix(prefix)
        paths.check_latest_filename(latest_filename, prefix)
        warn_of_untrained_tables(sess.graph)
        is_empty = self.saver_def is None
        with paths.failing_for_good(prefix, sess, tf.errors.ResourceExhaustedError):
            with paths.explaining(prefix):
                if not is_empty:
                    self._save_variables(sess, prefix, global_step is not None, full)
                    if write_state:
                        self._write_state(prefix, latest_filename, meta_graph_suffix)
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
          tf.errors.NotFoundError: The checkpoint is a delta and a parent checkpoint is missing.
          tf.errors.DataLossError: The checkpoint is damaged, or it is a delta and a parent
            checkpoint was overwritten. Nothing has changed: all checksums are compared first if a
            table of the session is initialized. If none is, as when a training resumes, damage
            within a tensor of more than 64 KiB may be found late: then some variables and tables
            are restored, and the others are as they were.
          tf.errors.InvalidArgumentError: A variable has another shape in it. Nothing has changed.
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
                index = deltas.check_chain(prefix, self._compare_in(sess))
                if self._ops is not None and not self._reshapes:
                    var_lists.check_shapes(index, self._ops.shapes)
            _chains.pop(sess, None)
            self._current = None
            super().restore(sess, save_path)
            if not self._has_ops:
                return
            if self._ops is not None:
                sess.run(self._ops.reloads)
            step = find_global_step(sess.graph)
            if index is None or step is None:
                return
            number = index.read_integer(step.op.name)
            if number is not None:
                self._current = _Current(weakref.ref(sess), _Saved(prefix, signature), number)

    def export_meta_graph(
        self,
        filename: Optional[str] = None,
        collection_list: Optional[List[str]] = None,
        *args: Any,
        **kwargs: Any,
    ) -> tf.MetaGraphDef:
        """Returns the MetaGraph as TensorFlow's Saver does, without collections of tables alone.

        Args:
          filename: Path of the file to write. None: none.
          collection_list: Names of collections. None: all that hold more than tables.
          *args, **kwargs: As in ``tf.compat.v1.train.Saver.export_meta_graph``.
        """
        if collection_list is None:
            collection_list = var_lists.exported_collections(tf.get_default_graph())
        return super().export_meta_graph(filename, collection_list, *args, **kwargs)

    def _compare_in(self, session: tf.Session) -> Optional[Compare]:
        """Returns how to compare all checksums; None if no table has anything to lose.

        Tables and variables are restored at the same time, so that damage found on the way would
        leave tables of two checkpoints. The files are then read twice.
        """
        ops = self._ops
        if ops is None or not ops.ready or not any(session.run(ops.ready)):
            return None

        def compare(path: str, entries: Sequence[BundleEntryProto]) -> Sequence[bool]:
            numbers = [[getattr(e, name) for e in entries] for name in _RANGE]
            return session.run(ops.matches, dict(zip(ops.ranges, [path, *numbers])))

        return compare

    def _prefix(
        self,
        session: tf.Session,
        save_path: str,
        global_step: Union[int, str, tf.Tensor, None],
    ) -> str:
        if global_step is None:
            return save_path
        if isinstance(global_step, np.ndarray) and global_step.shape:
            # A hook passes what the variable holds: a restore may have given it this shape.
            raise ValueError(
                f"global_step must be an integer of shape [], got an array of shape "
                f"{list(global_step.shape)}; restore a checkpoint that is whole"
            )
        if not isinstance(global_step, (int, np.integer)):
            global_step = tf.train.global_step(session, global_step)
        return f"{save_path}-{int(global_step):0{8 if self._pads_step else 1}d}"

    def _save_variables(self, session: tf.Session, prefix: str, has_step: bool, full: bool) -> None:
        """Writes a checkpoint at `prefix`, unless it already holds the session's state."""
        step = _step_of(session)
        is_current = has_step and step is not None and self._is_current(session, prefix, step)
        if is_current and (not full or self._deltas.parent_of(prefix) is None):
            tf.logging.info("%s has step %d already and is not written again.", prefix, step)
            self._write_missing_folder(prefix)
            return
        begun = time.monotonic()
        chain = () if full else self._chain_before(session, prefix)
        try:
            identity = self._write(session, prefix, chain)
        except tf.errors.FailedPreconditionError:
            # An initializer or another Saver's restore replaced a table's rows. The table no longer
            # knows its changes, so that only a full checkpoint is right.
            if not chain:
                raise
            chain = ()
            identity = self._write(session, prefix, chain)
        saved = _Saved(prefix, files.signature_of(prefix), identity)
        if self._incremental and self._ops is not None and self._shards:
            session.run(self._ops.commits)
            _chains[session] = _Chain(self, (*chain, saved))
        self._current = None if step is None else _Current(weakref.ref(session), saved, step)
        _log(prefix, time.monotonic() - begun, self._shards)

    @property
    def _ops(self) -> Optional[builder.StreamingBuilder]:
        """The ops of our builder; None if a ``builder`` or ``saver_def`` argument replaced it."""
        ops = self._builder_of_ops
        return ops if isinstance(ops, builder.StreamingBuilder) and ops.merge is not None else None

    @property
    def _shards(self) -> List[SavedShard]:
        """The shards that our ops save."""
        return [] if self._ops is None else self._ops.shards

    def _is_current(self, session: tf.Session, prefix: str, step: int) -> bool:
        """Returns whether the checkpoint at `prefix` holds the session's state at `step`."""
        current = self._current
        return (
            current is not None
            # Otherwise different states have the same step.
            and _counts_steps(session.graph)
            and current.session() is session
            and current.step == step
            and is_same_path(current.saved.prefix, prefix)
            and current.saved.is_unchanged()
            and self._can_be_restored(prefix)
        )

    def _can_be_restored(self, prefix: str) -> bool:
        try:
            deltas.check_parents(prefix)
        except (tf.errors.OpError, OSError, ValueError) as error:
            tf.logging.warning("%s is written again: %s", prefix, error)
            return False
        return True

    def _chain_before(self, session: tf.Session, prefix: str) -> Tuple[_Saved, ...]:
        """Returns the chain that a delta at `prefix` continues; () if the save must be full."""
        chain = _chains.get(session)
        if (
            chain is None
            or chain.owner is not self
            or len(chain.saved) > self._max_deltas
            or any(is_same_path(saved.prefix, prefix) for saved in chain.saved)
            or not is_same_path(os.path.dirname(chain.saved[-1].prefix), os.path.dirname(prefix))
            or not all(saved.is_unchanged() for saved in chain.saved)
        ):
            return ()
        return chain.saved

    def _write(self, session: tf.Session, prefix: str, chain: Sequence[_Saved]) -> Optional[str]:
        """Writes a full checkpoint, or a delta of the last of `chain`; returns its identity."""
        feeds: Dict[tf.Tensor, List[Optional[str]]] = {}
        if self._ops is not None:
            if chain:
                parent = chain[-1]
                feeds[self._ops.delta_of] = [os.path.basename(parent.prefix), parent.identity]
            else:
                # Tables evict before full saves only.
                session.run(self._ops.evictions)
        return self._write_files(session, prefix, feeds, is_full=not chain)

    def _write_files(
        self,
        session: tf.Session,
        prefix: str,
        feeds: Dict[tf.Tensor, List[Optional[str]]],
        is_full: bool,
    ) -> Optional[str]:
        ops = self._ops
        if ops is None or not files.is_local(prefix):
            self._run(session, prefix, feeds)
            return files.identity_of(prefix)
        tables = self._tables_with_folders() if is_full else ()
        with AtomicCheckpoint(prefix) as pending:
            self._run(session, pending.prefix, feeds)
            if tables:
                sparse_folders.write(pending.prefix, pending.sparse_folder, tables)
            # Last before placing, so that a save that fails earlier loses nothing.
            self._remove_deltas_of(prefix)
            identity = pending.place(
                lambda prefixes, merged: session.run(
                    ops.merge, {ops.merge_from: prefixes, ops.merge_to: merged}
                )
            )
        if tables:
            sparse_folders.remember(files.sparse_folder_of(prefix))
        return identity

    def _tables_with_folders(self) -> List[sparse_folders.FolderTable]:
        return sparse_folders.tables_with_folders(self._shards) if self._writes_folders else []

    def _write_missing_folder(self, prefix: str) -> None:
        """Writes the folder of an existing checkpoint, if a kill or a stock Saver left none."""
        tables = self._tables_with_folders()
        if not tables or not files.is_local(prefix) or self._deltas.parent_of(prefix):
            return
        folder = files.sparse_folder_of(prefix)
        if not os.path.isdir(folder):
            with AtomicCheckpoint(prefix) as pending:
                sparse_folders.write(prefix, pending.sparse_folder, tables)
                files.replace_folder(pending.sparse_folder, folder)
        sparse_folders.remember(folder)

    def _run(
        self, session: tf.Session, prefix: str, feeds: Dict[tf.Tensor, List[Optional[str]]]
    ) -> None:
        session.run(
            self.saver_def.save_tensor_name, {self.saver_def.filename_tensor_name: prefix, **feeds}
        )

    def _remove_deltas_of(self, prefix: str) -> None:
        """Removes the deltas of the checkpoint at `prefix`, which is about to be replaced.

        Such deltas exist if training was restarted from an earlier checkpoint.
        """
        if files.signature_of(prefix) is None:
            return
        lost = self._deltas.family_of(prefix).dependents_of(prefix)
        if not lost:
            return

        def is_lost(path: str) -> bool:
            return any(is_same_path(path, other) for other in lost)

        self._records = [record for record in self._records if not is_lost(record[0])]
        folder = os.path.dirname(prefix)
        state = tf.train.get_checkpoint_state(folder or ".")
        if state is not None and is_lost(state.model_checkpoint_path):
            # First, so that the state never names a removed checkpoint.
            self._record(folder, prefix, "checkpoint")
        for path in lost:
            tf.logging.warning(
                "%s is removed: it is a delta of %s, which is overwritten now.", path, prefix
            )
            files.remove(path)

    def _write_state(self, prefix: str, latest_filename: str, meta_graph_suffix: str) -> None:
        """Writes the checkpoint state, then deletes the checkpoints beyond max_to_keep."""
        most = self.saver_def.max_to_keep
        gone: List[str] = []
        if most:
            self._records = [r for r in self._records if not is_same_path(r[0], prefix)]
            self._records.append((prefix, time.time()))
            gone = self._drop_records(most)
        self._record(os.path.dirname(prefix), prefix, latest_filename)
        for path in gone:
            try:
                files.remove(path, meta_graph_suffix)
            except (OSError, tf.errors.OpError) as error:
                tf.logging.warning("%s could not be removed: %s", path, error)

    def _drop_records(self, most: int) -> List[str]:
        """Drops old records that no delta needs; returns the prefixes to delete."""
        old, kept = self._records[:-most], self._records[-most:]
        if not old:
            return []
        gone: List[str] = []
        families: Dict[str, deltas.Family] = {}
        # Newest first: once a delta goes, its parent may go, too.
        for prefix, written in reversed(old):
            folder = os.path.dirname(prefix)
            family = families.get(folder) or self._deltas.family_of(prefix)
            if family.dependents_of(prefix):
                kept.insert(0, (prefix, written))
            elif written > self._next_kept_time:
                hours = self.saver_def.keep_checkpoint_every_n_hours
                self._next_kept_time += hours * 3600
            else:
                gone.append(prefix)
                family = family.without(prefix)
            families[folder] = family
        self._records = kept
        return gone

    def _record(self, folder: str, prefix: str, latest_filename: str) -> None:
        saving.write_checkpoint_state(
            save_dir=folder,
            model_checkpoint_path=prefix,
            all_model_checkpoint_paths=self.last_checkpoints,
            latest_filename=latest_filename,
            save_relative_paths=self._writes_relative_paths,
        )


def _step_of(session: tf.Session) -> Optional[int]:
    """Returns the session's global step, None if there is none or it is not initialized."""
    step = find_global_step(session.graph)
    if step is None:
        return None
    try:
        return tf.train.global_step(session, step)
    except tf.errors.FailedPreconditionError:
        return None


def _counts_steps(graph: tf.Graph) -> bool:
    """Returns whether an op of the graph increments the global step."""
    step = find_global_step(graph)
    if step is None:
        return False
    handle = step.op.outputs[0]
    return any(op.type.startswith("AssignAdd") for op in handle.consumers())


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
