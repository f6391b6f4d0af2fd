"""How tables get into and out of ordinary TensorFlow V2 checkpoints: the graph's part.

Per table and per slot nine tensors, named as DeepRec names them (``var-keys``, ``var-values``, …,
``var/Adagrad-values``, …); a shard is ``var/part_i``. ``var/default_values`` is the bank. A
counting Bloom filter adds ``var-cbf_blocks``, ``var-cbf_counters`` and ``var-cbf_layout``; an
incremental checkpoint ``var-keys_erased``, ``var-delta_of`` and ``var-delta_of_index``. An
unmodified ``tf.compat.v1.train.Saver`` writes and reads them, into any number of shards;
``rec_estimator.Saver``, in saver.py, does it in little memory. While the environment variable
TF_EV_SAVE_FILTERED_FEATURES is False, both leave the tensors of keys that own no row empty.
"""

import contextlib
import contextvars
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops, _tf_private
from rec_estimator.options import CBFFilter, GlobalStepEvict


class ShardExport(NamedTuple):
    """All of a shard as tensors of one instant; shapes as in the TableExport op."""

    keys: tf.Tensor
    freqs: tf.Tensor
    versions: tf.Tensor
    keys_filtered: tf.Tensor
    freqs_filtered: tf.Tensor
    versions_filtered: tf.Tensor
    partition_offset: tf.Tensor
    partition_filter_offset: tf.Tensor
    bank: tf.Tensor
    values: tf.Tensor
    slot_values: List[tf.Tensor]
    bloom_blocks: tf.Tensor
    bloom_counters: tf.Tensor
    bloom_layout: tf.Tensor


# The tensors of a table and of each of its slots that say which keys the rows belong to.
_KEY_TENSORS = (
    "keys",
    "freqs",
    "versions",
    "keys_filtered",
    "freqs_filtered",
    "versions_filtered",
    "partition_offset",
    "partition_filter_offset",
)

# Those of a table with a counting Bloom filter, and the outputs of TableExport that they are.
_BLOOM_TENSORS = {
    "cbf_blocks": "bloom_blocks",
    "cbf_counters": "bloom_counters",
    "cbf_layout": "bloom_layout",
}

# Whether the Saver whose ops are being built in this thread writes tables itself.
_streams: contextvars.ContextVar = contextvars.ContextVar("streams", default=False)


def _slot_attrs(slots: Sequence[Any]) -> Dict[str, List[Any]]:
    return {
        "slot_names": [slot.name for slot in slots],
        "slot_widths": [slot.width for slot in slots],
        "slot_initials": [slot.initial for slot in slots],
    }


def export_shard(shard: Any, slots: Sequence[Any]) -> ShardExport:
    """Copies a shard's rows out.

    Args:
      shard: A TableShard.
      slots: SlotSpecs of the slots to copy.

    Returns:
      Tensors of one instant.
    """
    return ShardExport(
        *_ops.gen.rec_estimator_table_export(
            shard.handle,
            dim=shard.dim,
            num_slots=len(slots),
            bloom_type=_bloom_type(shard),
            **_slot_attrs(slots),
        )
    )


def _bloom_type(shard: Any) -> tf.DType:
    """The least type that holds a cell of the shard's filter: cells count to filter_freq."""
    most = shard.table.filter.filter_freq if _has_bloom_filter(shard) else 0
    return tf.uint8 if most < 2**8 else tf.uint16 if most < 2**16 else tf.uint32


def _has_bloom_filter(shard: Any) -> bool:
    return isinstance(shard.table.filter, CBFFilter)


def build_evictions(shards: Sequence[Any]) -> List[tf.Tensor]:
    """Ops that evict what the tables' rules say, as every full save does first.

    Args:
      shards: The shards that are saved; of a table that is in several, the rule is run once.

    Returns:
      One per table with a rule. A rule by steps needs a global step, and rests in a graph that has
      none, such as one that only predicts.
    """
    has_step = bool(tf.get_collection(tf.GraphKeys.GLOBAL_STEP)) or any(
        variable.op.name == "global_step" for variable in tf.global_variables()
    )
    evictions = []
    for table in dict.fromkeys(shard.table for shard in shards):
        rule = table.ev_option.evict_option
        if rule is None or not rule.is_on:
            continue
        if has_step or not isinstance(rule, GlobalStepEvict):
            evictions.append(table.evict())
    return evictions


def build_restore(
    shard: Any,
    prefix: Any,
    tensor_name: Optional[str] = None,
    slots: Optional[Sequence[Any]] = None,
) -> tf.Operation:
    """Builds the op that replaces a shard's rows by a checkpoint's.

    Args:
      shard: A TableShard.
      prefix: string []. Of the checkpoint.
      tensor_name: Name of the table in the checkpoint. None: as it is called here.
      slots: SlotSpecs of the slots to read; others start fresh. None: the shard's.

    Returns:
      The op.
    """
    with _tf_private.colocate_with(shard.handle):
        return _ops.gen.rec_estimator_table_restore(
            shard.handle,
            prefix,
            shard.table.initial_value,
            tensor_name=tensor_name or shard.table.name,
            part=shard.part,
            num_parts=shard.num_parts,
            key_dtype=shard.table.key_dtype,
            **_slot_attrs(shard.slots if slots is None else slots),
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


class TableSaveable(_tf_private.SaveableObject):
    """What a Saver sees of one shard.

    A Saver asks for ``specs`` once to build its save ops and once to build its restore ops.
    RestoreV2's tensor names are fixed when the graph is built, while the shards of the checkpoint
    are known only when it is read: so a restoring Saver is given the bank alone, and the restore
    op reads the rows from the file itself.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self.op = shard.handle
        # tf.saved_model.load looks this name up among the graph's ops.
        self.name = shard.handle.op.name
        self._save_specs: Dict[Tuple[tf.Graph, str], List[Any]] = {}
        self._evictions: Dict[Tuple[tf.Graph, str], List[tf.Tensor]] = {}

    @property
    def device(self) -> str:
        """Device of the rows."""
        return self._shard.device

    @property
    def shard(self) -> Any:
        """The shard."""
        return self._shard

    @property
    def specs(self) -> List[Any]:
        """SaveSpecs of what a Saver writes or, once it has built that, of what it reads."""
        shard = self._shard
        graph = tf.get_default_graph()
        scope = graph.get_name_scope()
        if _streams.get() or _restore_is_being_built(graph, scope):
            # A stock Saver cannot restore nothing at all, and the bank is in every checkpoint of
            # ours.
            return [self._spec(shard.table.initial_value, _bank_name(shard))]
        key = (graph, scope)
        if key not in self._save_specs:
            self._save_specs[key] = self._build_save_specs()
        return self._save_specs[key]

    def _spec(self, tensor: tf.Tensor, name: str) -> Any:
        return _tf_private.SaveSpec(tensor, "", name, tensor.dtype, self._shard.device)

    def _build_save_specs(self) -> List[Any]:
        shard = self._shard
        # All shards wait for all evictions of the table: each key is in one of them only.
        with tf.control_dependencies(self._evictions_of_save()):
            with _tf_private.colocate_with(shard.handle):
                parts = export_shard(shard, shard.slots)
                parts = parts._replace(
                    keys=tf.cast(parts.keys, shard.table.key_dtype),
                    keys_filtered=tf.cast(parts.keys_filtered, shard.table.key_dtype),
                )
        names = [shard.name] + [f"{shard.name}/{slot.name}" for slot in shard.slots]
        specs = []
        for name, values in zip(names, [parts.values, *parts.slot_values]):
            specs.append(self._spec(values, f"{name}-values"))
            specs.extend(
                self._spec(getattr(parts, tensor), f"{name}-{tensor}") for tensor in _KEY_TENSORS
            )
        if _has_bloom_filter(shard):
            specs.extend(
                self._spec(getattr(parts, output), f"{shard.name}-{tensor}")
                for tensor, output in _BLOOM_TENSORS.items()
            )
        if shard.part == 0:
            specs.append(self._spec(parts.bank, _bank_name(shard)))
        return specs

    def _evictions_of_save(self) -> List[tf.Tensor]:
        """Those of the Saver whose ops are being built, once for all shards of the table."""
        key = (tf.get_default_graph(), tf.get_default_graph().get_name_scope())
        first = self._shard.table.shards[0].saveable
        if key not in first._evictions:
            first._evictions[key] = build_evictions([self._shard])
        return first._evictions[key]

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Optional[Sequence[Any]]
    ) -> tf.Operation:
        """Builds the op that replaces the shard's rows by the checkpoint's."""
        del restored_tensors, restored_shapes  # The op reads the file itself.
        graph = tf.get_default_graph()
        return build_restore(
            self._shard, graph.get_tensor_by_name(f"{graph.get_name_scope()}/Const:0")
        )


def _bank_name(shard: Any) -> str:
    return f"{shard.table.name}/default_values"


def _restore_is_being_built(graph: tf.Graph, scope: str) -> bool:
    """Whether the Saver of this name scope has its save ops, and so builds restore ops now."""

    def exists(op: str) -> bool:
        try:
            graph.get_operation_by_name(f"{scope}/{op}")
        except KeyError:
            return False
        return True

    # A sharded Saver writes one SaveV2 a device, then merges; another one has a single SaveV2.
    return exists("MergeV2Checkpoints") or (exists("SaveV2") and not exists("ShardedFilename"))


class StreamingBuilder(_tf_private.SaverBuilder):
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
        token = _streams.set(True)
        try:
            yield
        finally:
            _streams.reset(token)

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
        with _tf_private.colocate_with(shards[0].handle):
            return _ops.gen.rec_estimator_tables_save(
                [shard.handle for shard in shards],
                prefix,
                self.delta_of,
                tensor_names=[shard.name for shard in shards],
                key_dtypes=[shard.table.key_dtype for shard in shards],
                bank_names=[_bank_name(shard) if shard.part == 0 else "" for shard in shards],
                num_slots=[len(shard.slots) for shard in shards],
                track_changes=self._track_changes,
                **_slot_attrs(slots),
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
                with _tf_private.colocate_with(shard.handle):
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
