# SPDX-License-Identifier: Apache-2.0
"""rec_estimator.Saver: checkpoints of tables of any size that a crash cannot spoil.

checkpoint.py builds its ops, checkpoint_files.py puts its files into place; here is when it writes
what, and what it keeps.
"""

import os
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import saving
from rec_estimator.checkpoint import builder, sparse_folders
from rec_estimator.checkpoint import files as checkpoint_files
from rec_estimator.checkpoint.files import Deltas, Family, PendingCheckpoint, Signature, is_one_path

_LOGGED_SECONDS = 1.0  # a save that takes longer gets a line in the log


class _Saved(NamedTuple):
    """A checkpoint as this process left it or found it."""

    prefix: str
    signature: Signature
    identity: Optional[str] = None  # By which a delta knows it; None: it was found.

    def is_there(self) -> bool:
        return checkpoint_files.signature_of(self.prefix) == self.signature


class _Chain(NamedTuple):
    """What a session's tables have noted their changes since."""

    owner: Any  # The Saver that wrote it.
    saved: Tuple[_Saved, ...]  # A full save and the deltas after it.


class _Held(NamedTuple):
    """A checkpoint that has what a session's variables hold at a step."""

    session: Any  # weakref
    saved: _Saved
    step: int


# Per session one chain: tables note their changes since one save. A Saver that did not write the
# last one begins with a full save.
_chains: "weakref.WeakKeyDictionary[Any, _Chain]" = weakref.WeakKeyDictionary()


class Saver(tf.train.Saver):
    """``tf.compat.v1.train.Saver`` for tables: in little memory, safe from crashes, incremental.

    * Saving and restoring need at most 64 MiB and 1 % of the table's memory.
    * A process that is killed while it saves leaves the last checkpoint whole, also where it was
      writing over it; the next save to that folder removes what is left of the killed one. (For
      local files. With ``gs://`` and the like files are written in place, as TensorFlow does it.)
    * A prefix that holds the graph's global step already, because this Saver wrote or restored it,
      is not written again.
    * Tables that have an eviction rule evict before each full save.
    * ``incremental=True``: the first save of a session, and the first after a restore, is full;
      later ones are deltas: the keys that were touched or evicted since the last save, and all
      other variables whole. A delta is restored like any checkpoint, by any Saver. ``max_to_keep``
      does not delete what a kept delta needs.

    * Beside each full checkpoint ``<base>-<step>`` of tables of ``create_table``, on a local disk,
      there is a folder ``sparse-<base>-<step>`` with their keys, vectors and slots as plain arrays
      (sparse_folders.py), deleted with it.

    A stock Saver reads and writes the same checkpoints, except for what follows: it copies the
    tables, it does not know the table object (leave ``var_list`` out), and it wants the tensor
    ``<table>/default_values``, which DeepRec does not write.

    Args:
      var_list: Variables, tables, SaveableObjects; a shard stands for its table. A dict of names
        takes variables only. None: everything in the graph.
      incremental: Whether ``save()`` writes deltas.
      max_deltas: So many deltas, at least 1, follow each other; the next save is full.
      sparse_folders: Whether to leave those folders, which take as much disk space and writing
        again as the tables in the checkpoint.
      **kwargs: As of ``tf.compat.v1.train.Saver``.

    Raises:
      TypeError: A table in a dict.
      ValueError: max_deltas is below 1, or tables are of an imported MetaGraph, or as TensorFlow.

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
        max_deltas: int = 20,
        sparse_folders: bool = True,
        **kwargs: Any,
    ) -> None:
        if isinstance(var_list, (list, tuple, set)):
            var_list = list(
                dict.fromkeys(part for item in var_list for part in _as_saveables(item))
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
        self._incremental = incremental
        self._max_deltas = max_deltas
        self._leaves_folders = sparse_folders
        self._pads_step = kwargs.get("pad_step_number", False)
        self._writes_relative_paths = kwargs.get("save_relative_paths", False)
        self._has_ops = False
        self._records: List[Tuple[str, float]] = []  # prefix, seconds since 1970
        self._deltas = Deltas()
        self._held: Optional[_Held] = None
        self._ops = kwargs.setdefault(
            "builder", builder.StreamingBuilder(track_changes=incremental)
        )
        super().__init__(var_list, **kwargs)

    def build(self) -> None:
        """Adds the ops to the graph, where ``defer_build=True`` left it for later."""
        if self.saver_def is None:
            _check_not_imported(self._given)
        super().build()
        self._has_ops = True
        if self.saver_def is not None:
            hours = self.saver_def.keep_checkpoint_every_n_hours
            self._next_kept_time = time.time() + hours * 3600

    @property
    def is_incremental(self) -> bool:
        """Whether it can write deltas."""
        return self._incremental

    @property
    def last_checkpoints(self) -> List[str]:
        """Prefixes of the checkpoints not yet deleted, from oldest to newest."""
        return [prefix for prefix, _ in self._records]

    def set_last_checkpoints(self, last_checkpoints: List[str]) -> None:
        """Sets the list of old checkpoints, which are then never deleted."""
        self.set_last_checkpoints_with_time([(prefix, np.inf) for prefix in last_checkpoints])

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: List[Tuple[str, float]]
    ) -> None:
        """Sets the list of old checkpoints and when they were written, in seconds since 1970."""
        self._records = list(last_checkpoints_with_time)

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
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
          latest_filename: Name of the file with the checkpoint state. None: "checkpoint".
          meta_graph_suffix: Of the MetaGraph's file.
          write_meta_graph: Whether to write the MetaGraph.
          write_state: Whether to write the checkpoint state, and delete what max_to_keep lets go.
          strip_default_attrs: Of the MetaGraph's nodes.
          save_debug_info: Whether to write the graph's debug info beside the MetaGraph.
          full: Of an incremental Saver. True: not a delta. False or None: a delta if one can be
            written.

        Returns:
          The checkpoint's prefix; None from a Saver of nothing.

        Raises:
          TypeError: sess is no session.
          ValueError: A bad latest_filename, or full=False of a Saver that is not incremental.
          RuntimeError: The Saver's ops were not built.
          OSError, tf.errors.OpError: The file system does not take it. Nothing is left of the save;
            what was there is whole.
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
        latest_filename = latest_filename or "checkpoint"
        prefix = self._prefix(sess, tf.compat.as_str(save_path), global_step)
        _check_latest_filename(latest_filename, prefix)
        is_empty = self.saver_def is None
        if not is_empty:
            self._save_variables(sess, prefix, global_step is not None, bool(full))
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

    def restore(self, sess: Any, save_path: str) -> None:
        """Restores variables and tables; the tables lose what they held.

        Args:
          sess: The session to restore into.
          save_path: Prefix of a checkpoint.

        Raises:
          ValueError: save_path is no checkpoint.
          tf.errors.NotFoundError: It is a delta, and a checkpoint that it builds on is gone.
          tf.errors.DataLossError: Or is another one than it was.
        """
        if self._is_streaming() and self._ops.shards and save_path is not None:
            # TensorFlow restores variables and tables at once: before any of it is changed.
            checkpoint_files.check_parents(tf.compat.as_str(save_path))
        _chains.pop(sess, None)
        self._held = None
        super().restore(sess, save_path)
        if self.saver_def is None or not self._has_ops:
            return
        if self._is_streaming():
            sess.run(self._ops.reloads)
        prefix = tf.compat.as_str(save_path)
        signature = checkpoint_files.signature_of(prefix)
        step = _step_variable(sess.graph)
        if signature is None or step is None:
            return
        reader = tf.train.NewCheckpointReader(prefix)
        if reader.has_tensor(step.op.name):
            number = int(reader.get_tensor(step.op.name))
            self._held = _Held(weakref.ref(sess), _Saved(prefix, signature), number)

    def _prefix(self, session: Any, save_path: str, global_step: Any) -> str:
        if global_step is None:
            return save_path
        if not isinstance(global_step, (int, np.integer)):
            global_step = tf.train.global_step(session, global_step)
        return f"{save_path}-{int(global_step):0{8 if self._pads_step else 1}d}"

    def _save_variables(self, session: Any, prefix: str, has_step: bool, full: bool) -> None:
        """Makes `prefix` a checkpoint of what the session holds."""
        step = _step_of(session)
        is_there = has_step and step is not None and self._holds(session, prefix, step)
        if is_there and (not full or self._deltas.parent_of(prefix) is None):
            tf.logging.info("%s has step %d already and is not written again.", prefix, step)
            self._leave_missing_folder(prefix)
            return
        begun = time.monotonic()
        chain = () if full else self._chain_before(session, prefix)
        try:
            identity = self._write(session, prefix, chain)
        except tf.errors.FailedPreconditionError:
            # A table was emptied meanwhile, by an initializer or another Saver's restore: it has
            # noted nothing, and only a full save is right.
            if not chain:
                raise
            chain = ()
            identity = self._write(session, prefix, chain)
        saved = _Saved(prefix, checkpoint_files.signature_of(prefix), identity)
        if self._incremental and self._is_streaming() and self._ops.shards:
            session.run(self._ops.commits)
            _chains[session] = _Chain(self, (*chain, saved))
        self._held = None if step is None else _Held(weakref.ref(session), saved, step)
        _log(prefix, time.monotonic() - begun, self._ops.shards if self._is_streaming() else ())

    def _is_streaming(self) -> bool:
        """Whether the ops are ours, and not those of a builder or SaverDef that was given."""
        return isinstance(self._ops, builder.StreamingBuilder) and self._ops.merge is not None

    def _holds(self, session: Any, prefix: str, step: int) -> bool:
        held = self._held
        return (
            held is not None
            and held.session() is session
            and held.step == step
            and is_one_path(held.saved.prefix, prefix)
            # What is trained without counting steps differs under one step.
            and _counts_steps(session.graph)
            and held.saved.is_there()
            and self._can_be_restored(prefix)
        )

    def _can_be_restored(self, prefix: str) -> bool:
        try:
            checkpoint_files.check_parents(prefix)
        except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
            tf.logging.warning("%s is written again: %s", prefix, error.message)
            return False
        return True

    def _chain_before(self, session: Any, prefix: str) -> Tuple[_Saved, ...]:
        """The chain that a delta `prefix` can be added to; () if it must be full."""
        chain = _chains.get(session)
        if (
            chain is None
            or chain.owner is not self
            or len(chain.saved) > self._max_deltas
            or any(is_one_path(saved.prefix, prefix) for saved in chain.saved)
            or not is_one_path(os.path.dirname(chain.saved[-1].prefix), os.path.dirname(prefix))
            or not all(saved.is_there() for saved in chain.saved)
        ):
            return ()
        return chain.saved

    def _write(self, session: Any, prefix: str, chain: Sequence[_Saved]) -> Optional[str]:
        """Writes a full checkpoint, or the delta of the end of `chain`; returns its identity."""
        feeds: Dict[Any, Any] = {}
        if self._is_streaming():
            if chain:
                parent = chain[-1]
                feeds[self._ops.delta_of] = [os.path.basename(parent.prefix), parent.identity]
            else:
                # Before what the old file holds is lost, and each delta stays what it was.
                session.run(self._ops.evictions)
        with checkpoint_files.explaining(prefix):
            return self._write_files(session, prefix, feeds, is_full=not chain)

    def _write_files(
        self, session: Any, prefix: str, feeds: Dict[Any, Any], is_full: bool
    ) -> Optional[str]:
        if not self._is_streaming() or not checkpoint_files.is_local(prefix):
            self._run(session, prefix, feeds)
            return checkpoint_files.identity_of(prefix)
        tables = self._tables_with_folders() if is_full else ()
        with PendingCheckpoint(prefix) as pending:
            self._run(session, pending.prefix, feeds)
            if tables:
                sparse_folders.write(pending.prefix, pending.sparse_folder, tables)
            # As late as can be: a save that fails until here has lost nothing.
            self._forget_deltas_of(prefix)
            identity = pending.place(
                lambda prefixes, merged: session.run(
                    self._ops.merge, {self._ops.merge_from: prefixes, self._ops.merge_to: merged}
                )
            )
        if tables:
            sparse_folders.remember(checkpoint_files.sparse_folder_of(prefix))
        return identity

    def _tables_with_folders(self) -> List[Any]:
        if not self._leaves_folders or not self._is_streaming():
            return []
        return sparse_folders.tables_with_folders(self._ops.shards)

    def _leave_missing_folder(self, prefix: str) -> None:
        """Leaves the folder of a checkpoint that is there, if a kill or a stock Saver left none."""
        tables = self._tables_with_folders()
        if not tables or not checkpoint_files.is_local(prefix) or self._deltas.parent_of(prefix):
            return
        folder = checkpoint_files.sparse_folder_of(prefix)
        if not os.path.isdir(folder):
            with PendingCheckpoint(prefix) as pending:
                sparse_folders.write(prefix, pending.sparse_folder, tables)
                checkpoint_files.place_folder(pending.sparse_folder, folder)
        sparse_folders.remember(folder)

    def _run(self, session: Any, prefix: str, feeds: Dict[Any, Any]) -> None:
        session.run(
            self.saver_def.save_tensor_name, {self.saver_def.filename_tensor_name: prefix, **feeds}
        )

    def _forget_deltas_of(self, prefix: str) -> None:
        """Removes the deltas that need a checkpoint which is about to be another one.

        They are of a run that went on from it and was then given up for an earlier checkpoint.
        """
        if checkpoint_files.signature_of(prefix) is None:
            return
        lost = self._deltas.family_of(prefix).dependents_of(prefix)
        if not lost:
            return

        def is_lost(path: str) -> bool:
            return any(is_one_path(path, other) for other in lost)

        self._records = [record for record in self._records if not is_lost(record[0])]
        folder = os.path.dirname(prefix)
        state = tf.train.get_checkpoint_state(folder or ".")
        if state is not None and is_lost(state.model_checkpoint_path):
            # Whatever happens next, the state names a whole checkpoint.
            self._record(folder, prefix, "checkpoint")
        for path in lost:
            tf.logging.warning("%s is removed: it is a delta of %s, now rewritten.", path, prefix)
            checkpoint_files.remove(path)

    def _write_state(self, prefix: str, latest_filename: str, meta_graph_suffix: str) -> None:
        """Writes the checkpoint state and deletes the checkpoints that max_to_keep lets go."""
        most = self.saver_def.max_to_keep
        gone: List[str] = []
        if most:
            self._records = [r for r in self._records if not is_one_path(r[0], prefix)]
            self._records.append((prefix, time.time()))
            gone = self._let_go(most)
        self._record(os.path.dirname(prefix), prefix, latest_filename)
        for path in gone:
            try:
                checkpoint_files.remove(path, meta_graph_suffix)
            except tf.errors.OpError as error:
                tf.logging.warning("%s could not be removed: %s", path, error)

    def _let_go(self, most: int) -> List[str]:
        """Takes the records of checkpoints that nothing needs off the list; those to delete."""
        old, kept = self._records[:-most], self._records[-most:]
        if not old:
            return []
        gone: List[str] = []
        families: Dict[str, Family] = {}
        # The newest first: a delta that goes may have been the last to need its parent.
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


def _as_saveables(item: Any) -> List[Any]:
    # A shard stands for its table: a part alone could not be restored.
    table = getattr(item, "table", item)
    if hasattr(table, "shards"):
        return [shard.saveable for shard in table.shards]
    return [item]


def _check_not_imported(var_list: Any) -> None:
    """Refuses the ops that an imported MetaGraph has in place of saveable tables."""
    items = tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS) if var_list is None else var_list
    for item in items:
        if isinstance(item, tf.Operation):
            raise ValueError(
                f"var_list must be variables and tables that this program made, got op "
                f"{item.name!r} of an imported MetaGraph; save and restore with the Saver that "
                "tf.compat.v1.train.import_meta_graph() returned, or build the model anew"
            )


def _check_latest_filename(latest_filename: str, prefix: str) -> None:
    if os.path.basename(latest_filename) != latest_filename:
        raise ValueError(
            f"latest_filename must be a name without a folder, got {latest_filename!r}; the file "
            "is beside the checkpoint"
        )
    if os.path.basename(prefix) == latest_filename:
        raise ValueError(
            f"latest_filename must differ from the checkpoint's name, got {latest_filename!r} for "
            f"{prefix!r}; save to another name"
        )


def _step_variable(graph: tf.Graph) -> Optional[tf.Variable]:
    steps = graph.get_collection(tf.GraphKeys.GLOBAL_STEP)
    return steps[0] if steps else None


def _step_of(session: Any) -> Optional[int]:
    """The session's global step, None if it has none."""
    step = _step_variable(session.graph)
    if step is None:
        return None
    try:
        return tf.train.global_step(session, step)
    except tf.errors.FailedPreconditionError:  # not initialized
        return None


def _counts_steps(graph: tf.Graph) -> bool:
    """Whether an op of the graph adds to the global step."""
    step = _step_variable(graph)
    if step is None:
        return False
    handle = step.op.outputs[0]
    return any(op.type.startswith("AssignAdd") for op in handle.consumers())


def _log(prefix: str, seconds: float, shards: Sequence[Any]) -> None:
    if seconds < _LOGGED_SECONDS:
        return
    shapes = tf.train.NewCheckpointReader(prefix).get_variable_to_shape_map()
    rows = sum(shapes.get(f"{shard.name}-keys", [0])[0] for shard in shards)
    size = checkpoint_files.size_of(prefix)
    tf.logging.info(
        "Saved %s: %d rows, %.1f MB in %.1f s, %.0f MB/s.",
        prefix,
        rows,
        size / 1e6,
        seconds,
        size / 1e6 / seconds,
    )
