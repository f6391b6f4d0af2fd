"""What a Saver sees of a table: the tensors of one shard in a TensorFlow V2 checkpoint.

Per table and per slot nine tensors, named as DeepRec names them (``var-keys``, ``var-values``, …,
``var/Adagrad-values``, …); a shard is ``var/part_i``. ``var/default_values`` is the bank. A
counting Bloom filter adds ``var-cbf_blocks``, ``var-cbf_counters`` and ``var-cbf_layout``; an
incremental checkpoint ``var-keys_erased``, ``var-delta_of`` and ``var-delta_of_index``. An
unmodified ``tf.compat.v1.train.Saver`` writes and reads them, into any number of shards;
``rec_estimator.Saver`` does it in little memory (checkpoint/saver.py). While the environment
variable TF_EV_SAVE_FILTERED_FEATURES is False, both leave the tensors of keys that own no row
empty.
"""

import contextlib
import contextvars
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving
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


@contextlib.contextmanager
def streaming() -> Iterator[None]:
    """While a Saver that writes tables itself builds its ops: no copies of rows are built."""
    token = _streams.set(True)
    try:
        yield
    finally:
        _streams.reset(token)


def slot_attrs(slots: Sequence[Any]) -> Dict[str, List[Any]]:
    """Attributes by which the ops of a checkpoint know a table's slots."""
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
            **slot_attrs(slots),
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
    with graphs.colocate_with(shard.handle):
        return _ops.gen.rec_estimator_table_restore(
            shard.handle,
            prefix,
            shard.table.initial_value,
            tensor_name=tensor_name or shard.table.name,
            part=shard.part,
            num_parts=shard.num_parts,
            key_dtype=shard.table.key_dtype,
            **slot_attrs(shard.slots if slots is None else slots),
        )


class TableSaveable(saving.SaveableObject):
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
            return [self._spec(shard.table.initial_value, bank_name(shard))]
        key = (graph, scope)
        if key not in self._save_specs:
            self._save_specs[key] = self._build_save_specs()
        return self._save_specs[key]

    def _spec(self, tensor: tf.Tensor, name: str) -> Any:
        return saving.SaveSpec(tensor, "", name, tensor.dtype, self._shard.device)

    def _build_save_specs(self) -> List[Any]:
        shard = self._shard
        # All shards wait for all evictions of the table: each key is in one of them only.
        with tf.control_dependencies(self._evictions_of_save()):
            with graphs.colocate_with(shard.handle):
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
            specs.append(self._spec(parts.bank, bank_name(shard)))
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


def bank_name(shard: Any) -> str:
    """Name of the table's bank of initial vectors in a checkpoint."""
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
