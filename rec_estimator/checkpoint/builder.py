# SPDX-License-Identifier: Apache-2.0
"""Builds the ops of ``rec_estimator.Saver``, which write tables slice by slice."""

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving
from rec_estimator.table.saveable import (
    TableSaveable,
    bank_name,
    build_evictions,
    build_restore,
    slot_attrs,
    streaming,
)


def latest_of(path: str) -> Optional[str]:
    """A checkpoint's prefix as it is, a folder's latest one, None of a folder without any."""
    return tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path


def source_of_option(table: Any) -> Optional[Tuple[str, str]]:
    """The checkpoint, and the table's name in it, that its CheckpointOption says; None if none."""
    option = table.ev_option.ckpt
    if option is None or option.ckpt_to_load_from is None:
        return None
    # An empty folder is an error where it is read, not in a graph that resumes from elsewhere.
    prefix = latest_of(option.ckpt_to_load_from) or option.ckpt_to_load_from
    return prefix, option.tensor_name_in_ckpt or table.name


class StreamingBuilder(saving.SaverBuilder):
    """Builds the ops of a Saver that writes tables slice by slice and reads them itself.

    The ops write a whole checkpoint at the prefix they are fed, so that a Saver that TensorFlow
    makes from a MetaGraph of them works. Once built, the attributes tell what else may be run.

    Args:
      track_changes: Whether saves note what changes afterwards, for incremental ones.

    Attributes:
      merge: Makes of the checkpoints ``merge_from``, string [n], the one ``merge_to``, string [].
      delta_of: string [2]. Name and identity of the checkpoint that a save is a delta of; empty by
        default.
      evictions: Ops to run before a full save.
      commits: Ops to run when the files of a save are in place.
      reloads: Ops to run after a restore: of tables that always start from another checkpoint.
      shards: The shards that are saved.
    """

    def __init__(self, *, track_changes: bool = False) -> None:
        super().__init__()
        self._track_changes = track_changes
        self.merge: Optional[tf.Operation] = None
        self.merge_from: Optional[tf.Tensor] = None
        self.merge_to: Optional[tf.Tensor] = None
        self.delta_of: Optional[tf.Tensor] = None
        self.evictions: List[tf.Tensor] = []
        self.commits: List[tf.Operation] = []
        self.reloads: List[tf.Operation] = []
        self.shards: List[Any] = []

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """While the ops are built, tables give no copies of their rows to write."""
        with streaming():
            yield

    def save_op(self, filename_tensor: tf.Tensor, saveables: Sequence[Any]) -> tf.Operation:
        """Builds what writes some saveables: all, or those of a device if the Saver is sharded."""
        shards = [s.shard for s in saveables if isinstance(s, TableSaveable)]
        others = [s for s in saveables if not isinstance(s, TableSaveable)]
        if self.merge is None:
            self._add_ops_beside_saves()
        if not shards:
            return super().save_op(filename_tensor, others)
        prefixes: List[tf.Tensor] = []
        writes: List[tf.Operation] = []
        if others:
            prefixes.append(tf.strings.join([filename_tensor, "_dense"]))
            writes.append(super().save_op(prefixes[-1], others))
        for i, on_device in enumerate(_by_device(shards)):
            prefixes.append(tf.strings.join([filename_tensor, f"_tables{i}"]))
            writes.append(self._save_tables(prefixes[-1], on_device))
        self._add_ops_of_tables(shards)
        with tf.control_dependencies(writes):
            return _merge(tf.stack(prefixes), filename_tensor)

    def _add_ops_beside_saves(self) -> None:
        self.delta_of = tf.placeholder_with_default(["", ""], [2], name="delta_of")
        self.merge_from = tf.placeholder_with_default(
            tf.zeros([0], tf.string), [None], name="merge_from"
        )
        self.merge_to = tf.placeholder_with_default("", [], name="merge_to")
        self.merge = _merge(self.merge_from, self.merge_to)

    def _save_tables(self, prefix: tf.Tensor, shards: Sequence[Any]) -> tf.Operation:
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
                **slot_attrs(slots),
            )

    def _add_ops_of_tables(self, shards: Sequence[Any]) -> None:
        known = {shard.table for shard in self.shards}
        self.evictions += build_evictions([s for s in shards if s.table not in known])
        for shard in shards:
            if (
                shard.table.ev_option.ckpt
                and shard.table.ev_option.ckpt.always_load_from_specific_ckpt
            ):
                self.reloads.append(build_restore(shard, *source_of_option(shard.table), slots=()))
        if self._track_changes:
            for shard in shards:
                with graphs.colocate_with(shard.handle):
                    self.commits.append(_ops.gen.rec_estimator_table_commit_save(shard.handle))
        self.shards += shards

    def bulk_restore(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[Any],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> List[Any]:
        """Asks RestoreV2 for nothing of the tables'."""
        others = [saveable for saveable in saveables if not isinstance(saveable, TableSaveable)]
        restored = iter(
            super().bulk_restore(filename_tensor, others, preferred_shard, restore_sequentially)
            if any(saveable.specs for saveable in others)
            else ()
        )
        return [
            None if isinstance(saveable, TableSaveable) else next(restored)
            for saveable in saveables
            for _ in saveable.specs
        ]


def _by_device(shards: Sequence[Any]) -> List[List[Any]]:
    groups: Dict[str, List[Any]] = {}
    for shard in shards:
        groups.setdefault(shard.device, []).append(shard)
    return list(groups.values())


def _merge(prefixes: tf.Tensor, destination: tf.Tensor) -> tf.Operation:
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=destination, delete_old_dirs=False
        )
