# SPDX-License-Identifier: Apache-2.0
"""Builds the ops of ``rec_estimator.Saver``, which write and read tables slice by slice."""

import contextlib
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving
from rec_estimator.checkpoint.format.bundle import Compare
from rec_estimator.checkpoint.saved_rows import build_reports
from rec_estimator.checkpoint.var_list import SavedVariable, whole_shape
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.eviction import Eviction
from rec_estimator.table.interfaces import LogicalTable, SavedShard
from rec_estimator.table.optional_variable import OptionalVariable
from rec_estimator.table.saveable import (
    TableSaveable,
    bank_name,
    build_check,
    build_evictions,
    build_restore,
    check_of_saver,
    slot_attributes,
    streaming,
)

# What a range of bytes is compared by, as the index has it.
_RANGE = ("offset", "size", "crc32c")


# What a Saver does not read for.
_READ_THEMSELVES = (TableSaveable, OptionalVariable)


def latest_of(path: str) -> Optional[str]:
    """Returns the latest checkpoint of a folder, None if it has none; a prefix as it is."""
    return tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path


def source_of_option(table: LogicalTable) -> Optional[Tuple[str, str]]:
    """Returns the checkpoint that a table's CheckpointOption names, and the table's name in it."""
    option = table.ev_option.ckpt
    if option is None or option.ckpt_to_load_from is None:
        return None
    # An empty folder is an error only when it is read: a resumed run does not read it.
    prefix = latest_of(option.ckpt_to_load_from) or option.ckpt_to_load_from
    return prefix, option.tensor_name_in_ckpt or table.name


class Reload(NamedTuple):
    """The ops that load a shard from the checkpoint of its CheckpointOption, and that check it."""

    shard: SavedShard
    check: tf.Tensor
    restore: tf.Operation


class StreamingBuilder(saving.SaverBuilder):
    """Builds ops that write tables slice by slice, and that restore tables without RestoreV2.

    The save op writes a complete checkpoint at the prefix that it is fed. So it also works in a
    Saver that TensorFlow makes from an imported MetaGraph. The attributes are set when the ops are
    built.

    Args:
      track_changes: Whether tables note the changes after a save, for incremental saves.
      refuses_non_finite: Whether a save fails if a row has a NaN or an infinite float.

    Attributes:
      merge: Merges the checkpoints ``merge_from``, string [n], into ``merge_to``, string [].
      delta_of: string [2]. Name and identity of the parent of a delta; empty for a full save.
      evictions: To run before a full save.
      commits: Ops to run after the files of a save were placed.
      reports: What the last save found in each shard, as ``build_reports`` reads it.
      reloads: What to load after a restore, for shards that always load another checkpoint.
      shards: The shards that are saved.
      check: Checks that all tables can be restored from the prefix ``prefix``.
      losses: string []. What a restore will drop of each shard, as the check finds.
      all_keys: bool []. Whether the checks read all keys.
      ready: bool [] for each shard. Whether it is initialized.
      ranges: The inputs of ``matches``: a path, and offset, size and checksum of ranges of bytes.
      matches: bool [n]. Which of the ranges have their checksums.
      variables: {name: shape and type} of the variables, as the checkpoint must have them.
    """

    def __init__(self, *, track_changes: bool = False, refuses_non_finite: bool = False) -> None:
        super().__init__()
        self._track_changes = track_changes
        self._refuses_non_finite = refuses_non_finite
        self.merge: Optional[tf.Operation] = None
        self.merge_from: Optional[tf.Tensor] = None
        self.merge_to: Optional[tf.Tensor] = None
        self.delta_of: Optional[tf.Tensor] = None
        self.evictions: List[Eviction] = []
        self.commits: List[tf.Operation] = []
        self.reports: Dict[SavedShard, List[tf.Tensor]] = {}
        self.reloads: List[Reload] = []
        self.shards: List[SavedShard] = []
        self.ready: List[tf.Tensor] = []
        self.ranges: List[tf.Tensor] = []
        self.matches: Optional[tf.Tensor] = None
        self.prefix: Optional[tf.Tensor] = None
        self.all_keys: Optional[tf.Tensor] = None
        self.check: Optional[tf.Operation] = None
        self.losses: List[tf.Tensor] = []
        self.variables: Dict[str, SavedVariable] = {}

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Keeps tables, while the ops are built, from exporting their rows as tensors."""
        with streaming():
            yield

    def save_op(
        self, filename_tensor: tf.Tensor, saveables: Sequence[saving.SaveableObject]
    ) -> tf.Operation:
        """Builds the op that writes some saveables: all, or those of one device if sharded."""
        shards = [s.shard for s in saveables if isinstance(s, TableSaveable)]
        others = [s for s in saveables if not isinstance(s, TableSaveable)]
        if self.merge is None:
            self._add_ops_beside_saves()
        if not shards:
            return self._save_variables(filename_tensor, others)
        prefixes: List[tf.Tensor] = []
        writes: List[tf.Operation] = []
        if others:
            prefixes.append(tf.strings.join([filename_tensor, "_dense"]))
            writes.append(self._save_variables(prefixes[-1], others))
        for i, on_device in enumerate(_by_device(shards)):
            prefixes.append(tf.strings.join([filename_tensor, f"_tables{i}"]))
            writes.append(self._save_tables(prefixes[-1], on_device))
        self._add_ops_of_tables(shards)
        with tf.control_dependencies(writes):
            return _merge(tf.stack(prefixes), filename_tensor)

    def _save_variables(
        self, prefix: tf.Tensor, saveables: Sequence[saving.SaveableObject]
    ) -> tf.Operation:
        save = super().save_op(prefix, saveables)
        if save.type == "SaveV2":
            specs = [(saveable, spec) for saveable in saveables for spec in saveable.specs]
            # Behind the prefix, the names and the slices.
            for (saveable, spec), tensor in zip(specs, save.inputs[3:]):
                shape = whole_shape(spec.slice_spec, tensor)
                is_optional = isinstance(saveable, OptionalVariable)
                dtype = tensor.dtype.base_dtype
                self.variables[spec.name] = SavedVariable(shape, dtype, is_optional)
        return save

    def _add_ops_beside_saves(self) -> None:
        self.delta_of = tf.placeholder_with_default(["", ""], [2], name="delta_of")
        self.merge_from = tf.placeholder_with_default(
            tf.zeros([0], tf.string), [None], name="merge_from"
        )
        self.merge_to = tf.placeholder_with_default("", [], name="merge_to")
        self.merge = _merge(self.merge_from, self.merge_to)
        self.all_keys = tf.placeholder_with_default(False, [], name="all_keys")
        self.ranges = [
            tf.placeholder_with_default("", [], name="checked_path"),
            *(
                tf.placeholder_with_default(tf.zeros([0], tf.int64), [None], name=f"checked_{name}")
                for name in ("offsets", "sizes", "checksums")
            ),
        ]
        with tf.device("/device:CPU:0"):
            self.matches = _ops.gen.rec_estimator_checkpoint_ranges_match(*self.ranges)

    def _save_tables(self, prefix: tf.Tensor, shards: Sequence[SavedShard]) -> tf.Operation:
        slots = [slot for shard in shards for slot in shard.slots]
        with graphs.colocate_with(shards[0].handle):
            return _ops.gen.rec_estimator_tables_save(
                [shard.handle for shard in shards],
                prefix,
                self.delta_of,
                tensor_names=[shard.name for shard in shards],
                key_dtypes=[shard.table.key_dtype for shard in shards],
                bank_names=[bank_name(shard) if shard.part == 0 else "" for shard in shards],
                num_slots=[len(shard.slots) for shard in shards],
                track_changes=self._track_changes,
                refuses_non_finite=self._refuses_non_finite,
                **slot_attributes(slots),
            )

    def _add_ops_of_tables(self, shards: Sequence[SavedShard]) -> None:
        known = {shard.table for shard in self.shards}
        self.evictions += build_evictions([s for s in shards if s.table not in known])
        for shard in shards:
            option = shard.table.ev_option.ckpt
            source = source_of_option(shard.table)
            if option and source and option.always_load_from_specific_ckpt:
                prefix, name = source
                self.reloads.append(
                    Reload(
                        shard,
                        build_check(shard, prefix, self.all_keys, name, slots=()),
                        build_restore(shard, prefix, name, slots=()),
                    )
                )
        for shard in shards:
            with graphs.colocate_with(shard.handle):
                self.ready.append(_ops.gen.rec_estimator_table_is_initialized(shard.handle))
        if self._track_changes:
            for shard in shards:
                with graphs.colocate_with(shard.handle):
                    self.commits.append(_ops.gen.rec_estimator_table_commit_save(shard.handle))
        self.reports.update(build_reports(shards))
        self.shards += shards

    def reloads_in(self, graph: tf.Graph) -> List[Reload]:
        """Returns what to load after a restore into a graph, for tables that it trains.

        A graph that evaluates, predicts or exports reads what was trained. Only when the graph is
        complete is it known which tables it trains.
        """
        if not state_of(graph).trains:
            return []
        return [reload for reload in self.reloads if reload.shard.updated_by is not None]

    def has_rows(self, session: tf.Session) -> bool:
        """Returns whether a table of a session has anything to lose."""
        return bool(self.ready) and any(session.run(self.ready))

    def compare_in(self, session: tf.Session) -> Compare:
        """Returns how a session compares all checksums.

        Tables and variables are restored at the same time, so that damage found on the way would
        leave tables of two checkpoints. The files are then read twice.
        """

        def compare(path: str, entries: Sequence[BundleEntryProto]) -> Sequence[bool]:
            numbers = [[getattr(entry, name) for entry in entries] for name in _RANGE]
            return session.run(self.matches, dict(zip(self.ranges, [path, *numbers])))

        return compare

    def check_tables(self, session: tf.Session, prefix: str, all_keys: bool) -> None:
        """Checks that all tables of a session can be restored; warns of counts that are lost."""
        if self.check is not None:
            checks = [*self.losses, *(reload.check for reload in self.reloads_in(session.graph))]
            losses = session.run(checks, {self.prefix: prefix, self.all_keys: all_keys})
            for loss in filter(None, dict.fromkeys(losses)):
                tf.logging.warning("%s", loss.decode())

    def bulk_restore(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[saving.SaveableObject],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> List[Optional[tf.Tensor]]:
        """Reads variables with RestoreV2, except what reads the file itself."""
        others = [saveable for saveable in saveables if not isinstance(saveable, _READ_THEMSELVES)]
        restored: Iterator[tf.Tensor] = iter(())
        with tf.control_dependencies(self._build_check(filename_tensor)):
            if any(saveable.specs for saveable in others):
                restored = iter(
                    super().bulk_restore(
                        filename_tensor, others, preferred_shard, restore_sequentially
                    )
                )
        return [
            None if isinstance(saveable, _READ_THEMSELVES) else next(restored)
            for saveable in saveables
            for _ in saveable.specs
        ]

    def _build_check(self, prefix: tf.Tensor) -> List[tf.Operation]:
        """Builds the check, once; returns what a restore of variables waits for."""
        if self.shards and self.check is None:
            self.prefix = prefix
            self.check, self.losses = check_of_saver(self.shards, self.all_keys)
        return [] if self.check is None else [self.check]


def _by_device(shards: Sequence[SavedShard]) -> List[List[SavedShard]]:
    groups: Dict[str, List[SavedShard]] = {}
    for shard in shards:
        groups.setdefault(shard.device, []).append(shard)
    return list(groups.values())


def _merge(prefixes: tf.Tensor, destination: tf.Tensor) -> tf.Operation:
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=destination, delete_old_dirs=False
        )
