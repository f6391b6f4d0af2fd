# SPDX-License-Identifier: Apache-2.0
"""Writes one checkpoint of a session: its files, and its tables as plain arrays."""

import os
from typing import Callable, Dict, List, Optional

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import builder, files, folder_export, sparse_folders
from rec_estimator.checkpoint.atomic_checkpoint import AtomicCheckpoint
from rec_estimator.checkpoint.delta_chain import SavedCheckpoint
from rec_estimator.table.eviction import run_evictions

_Feeds = Dict[tf.Tensor, List[Optional[str]]]


class CheckpointWriter:
    """Writes checkpoints with the ops of a Saver.

    Args:
      saver_def: The names of the ops that write.
      ops: The further ops of our builder; None if TensorFlow's builder built the Saver.
      writes_folders: Whether to write the folders of sparse_folders.py.
    """

    def __init__(
        self,
        saver_def: tf.train.SaverDef,
        ops: Optional[builder.StreamingBuilder],
        writes_folders: bool,
    ) -> None:
        self._saver_def = saver_def
        self._ops = ops
        self._folder_tables: List[sparse_folders.FolderTable] = []
        if ops is not None and writes_folders:
            self._folder_tables = sparse_folders.tables_with_folders(ops.shards)

    def write(
        self,
        session: tf.Session,
        prefix: str,
        parent: Optional[SavedCheckpoint],
        before_replacing: Callable[[], None],
    ) -> SavedCheckpoint:
        """Writes a checkpoint. After an error, the previous one at ``prefix`` is whole.

        Args:
          session: The session to save.
          prefix: Prefix of the checkpoint.
          parent: Writes a delta of this checkpoint. None: writes a full checkpoint.
          before_replacing: Called when all files are written, before they replace those at
            ``prefix``. Not called where files are written in place.
        """
        feeds: _Feeds = {}
        ops = self._ops
        if ops is not None and parent is not None:
            feeds[ops.delta_of] = [os.path.basename(parent.prefix), parent.identity]
        elif ops is not None:
            # Tables evict before full saves only.
            run_evictions(session, ops.evictions, f"The save of {prefix}")
        if ops is None or not files.is_local(prefix):
            self._run(session, prefix, feeds)
            identity = files.identity_of(prefix)
        else:
            tables = self._folder_tables if parent is None else []
            identity = self._write_atomically(session, prefix, feeds, tables, before_replacing)
        return SavedCheckpoint(prefix, files.signature_of(prefix), identity)

    def _write_atomically(
        self,
        session: tf.Session,
        prefix: str,
        feeds: _Feeds,
        tables: List[sparse_folders.FolderTable],
        before_replacing: Callable[[], None],
    ) -> str:
        ops = self._ops
        assert ops is not None

        def merge(prefixes: List[str], merged: str) -> None:
            session.run(ops.merge, {ops.merge_from: prefixes, ops.merge_to: merged})

        with AtomicCheckpoint(prefix) as checkpoint:
            self._run(session, checkpoint.prefix, feeds)
            if tables:
                sparse_folders.write(checkpoint.prefix, checkpoint.sparse_folder, tables)
            before_replacing()
            identity = checkpoint.place(merge)
        if tables:
            folder_export.remember(files.sparse_folder_of(prefix))
        return identity

    def write_missing_folder(self, prefix: str) -> None:
        """Writes the folder of a full checkpoint, if a kill or a stock Saver left none."""
        if not self._folder_tables or not files.is_local(prefix):
            return
        folder = files.sparse_folder_of(prefix)
        if not os.path.isdir(folder):
            with AtomicCheckpoint(prefix) as checkpoint:
                sparse_folders.write(prefix, checkpoint.sparse_folder, self._folder_tables)
                files.replace_folder(checkpoint.sparse_folder, folder)
        folder_export.remember(folder)

    def _run(self, session: tf.Session, prefix: str, feeds: _Feeds) -> None:
        names = self._saver_def
        session.run(names.save_tensor_name, {names.filename_tensor_name: prefix, **feeds})
