# SPDX-License-Identifier: Apache-2.0
"""Decides which checkpoints of a Saver are kept, deletes the others, and writes the state file."""

import contextlib
import math
import os
import time
from typing import Callable, Dict, Iterator, List, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import saving
from rec_estimator.checkpoint import deltas, files
from rec_estimator.checkpoint.files import is_same_path
from rec_estimator.checkpoint.removal import Removal, remove

# The name of the state file, if the user gives none.
STATE_FILE = "checkpoint"

# The prefix of a checkpoint, and when it was written, in seconds since 1970.
Record = Tuple[str, float]


class StateFile:
    """The file of a folder that names its latest checkpoint and those that are kept.

    Args:
      writes_relative_paths: Whether prefixes in it are relative to the folder.
    """

    def __init__(self, writes_relative_paths: bool = False) -> None:
        self._writes_relative_paths = writes_relative_paths

    def write(self, latest: str, kept: List[str], filename: str = STATE_FILE) -> None:
        """Writes the file into the folder of the latest checkpoint.

        Args:
          latest: Prefix of the latest checkpoint.
          kept: Prefixes of the checkpoints that are kept, from oldest to newest.
          filename: Name of the file.
        """
        saving.write_checkpoint_state(
            save_dir=os.path.dirname(latest),
            model_checkpoint_path=latest,
            all_model_checkpoint_paths=kept,
            latest_filename=filename,
            save_relative_paths=self._writes_relative_paths,
        )


class Retention:
    """The checkpoints that a Saver has written and not deleted, from oldest to newest.

    ``max_to_keep`` does not delete a checkpoint that a kept delta needs.

    Args:
      known_deltas: Finds the parents of deltas.
      state_file: Where the kept checkpoints are listed.
    """

    def __init__(self, known_deltas: deltas.Deltas, state_file: StateFile) -> None:
        self.records: List[Record] = []
        self._deltas = known_deltas
        self._state_file = state_file
        self._next_kept_time = math.inf

    @property
    def prefixes(self) -> List[str]:
        """Prefixes of the checkpoints."""
        return [prefix for prefix, _ in self.records]

    def start(self, saver_def: tf.train.SaverDef) -> None:
        """Starts the time after which a checkpoint is kept for good."""
        self._next_kept_time = time.time() + _seconds_between_kept(saver_def)

    def add(
        self, prefix: str, saver_def: tf.train.SaverDef, state_filename: str, meta_suffix: str
    ) -> None:
        """Adds a new checkpoint, writes the state file, and deletes what is not kept any more.

        Args:
          prefix: Prefix of the checkpoint.
          saver_def: How many checkpoints are kept, and how often one is kept for good.
          state_filename: Name of the state file.
          meta_suffix: Suffix of the MetaGraphs that are deleted with their checkpoints.
        """
        gone: List[str] = []
        if saver_def.max_to_keep:
            self._drop(lambda path: is_same_path(path, prefix))
            self.records.append((prefix, time.time()))
            gone = self._drop_oldest(saver_def)
        with contextlib.ExitStack() as stack:
            # Their folders come first: if this process is killed once the state file is written,
            # the next save removes the checkpoints.
            removals: Dict[str, Removal] = {}
            for path in gone:
                with _warning_of(path):
                    removals[path] = stack.enter_context(Removal(path, meta_suffix, state_filename))
            self._state_file.write(prefix, self.prefixes, state_filename)
            for path, removal in removals.items():
                # A state file may name any path; but folders are only removed where ours are.
                is_beside = is_same_path(os.path.dirname(path), os.path.dirname(prefix))
                with _warning_of(path):
                    removal.run(removes_sparse_folder=is_beside)

    def remove_deltas_of(self, prefix: str) -> None:
        """Removes the deltas of the checkpoint at ``prefix``, which is about to be replaced.

        Such deltas exist if training was restarted from an earlier checkpoint.
        """
        if files.signature_of(prefix) is None:
            return
        lost = self._deltas.family_of(prefix).dependents_of(prefix)
        if not lost:
            return

        def is_lost(path: str) -> bool:
            return any(is_same_path(path, other) for other in lost)

        self._drop(is_lost)
        state = tf.train.get_checkpoint_state(os.path.dirname(prefix) or ".")
        if state is not None and is_lost(state.model_checkpoint_path):
            # First, so that the state file never names a removed checkpoint.
            self._state_file.write(prefix, self.prefixes)
        for path in lost:
            tf.logging.warning(
                "%s is removed: it is a delta of %s, which is overwritten now.", path, prefix
            )
            remove(path)

    def _drop(self, is_dropped: Callable[[str], bool]) -> None:
        self.records = [record for record in self.records if not is_dropped(record[0])]

    def _drop_oldest(self, saver_def: tf.train.SaverDef) -> List[str]:
        """Drops old records that no delta needs; returns the prefixes to delete."""
        most = saver_def.max_to_keep
        old, kept = self.records[:-most], self.records[-most:]
        gone: List[str] = []
        families: Dict[str, deltas.Family] = {}
        # Newest first: once a delta goes, its parent may go, too.
        for prefix, written in reversed(old):
            folder = os.path.dirname(prefix)
            family = families.get(folder) or self._deltas.family_of(prefix)
            if family.dependents_of(prefix):
                kept.insert(0, (prefix, written))
            elif written > self._next_kept_time:
                self._next_kept_time += _seconds_between_kept(saver_def)
            else:
                gone.append(prefix)
                family = family.without(prefix)
            families[folder] = family
        self.records = kept
        return gone


@contextlib.contextmanager
def _warning_of(path: str) -> Iterator[None]:
    """Makes an error of the file system a warning that names the checkpoint."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        tf.logging.warning("%s could not be removed: %s", path, error)


def _seconds_between_kept(saver_def: tf.train.SaverDef) -> float:
    return saver_def.keep_checkpoint_every_n_hours * 3600
