"""How tables get into and out of ordinary TensorFlow V2 checkpoints.

Per table and per slot nine tensors, named as DeepRec names them (``var-keys``, ``var-values``, …,
``var/Adagrad-values``, …); a shard is ``var/part_i``. ``var/default_values`` is the bank. An
unmodified ``tf.compat.v1.train.Saver`` writes and reads them, into any number of shards.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops, _tf_private


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
            shard.handle, dim=shard.dim, num_slots=len(slots), **_slot_attrs(slots)
        )
    )


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

    @property
    def device(self) -> str:
        """Device of the rows."""
        return self._shard.device

    @property
    def specs(self) -> List[Any]:
        """SaveSpecs of what a Saver writes or, once it has built that, of what it reads."""
        shard = self._shard
        graph = tf.get_default_graph()
        scope = graph.get_name_scope()
        if _restore_is_being_built(graph, scope):
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
        with _tf_private.colocate_with(shard.handle):
            parts = export_shard(shard, shard.slots)
        names = [shard.name] + [f"{shard.name}/{slot.name}" for slot in shard.slots]
        specs = []
        for name, values in zip(names, [parts.values, *parts.slot_values]):
            specs.append(self._spec(values, f"{name}-values"))
            specs.extend(
                self._spec(getattr(parts, tensor), f"{name}-{tensor}") for tensor in _KEY_TENSORS
            )
        if shard.part == 0:
            specs.append(self._spec(parts.bank, _bank_name(shard)))
        return specs

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Optional[Sequence[Any]]
    ) -> tf.Operation:
        """Builds the op that replaces the shard's rows by the checkpoint's."""
        del restored_tensors, restored_shapes  # The op reads the file itself.
        shard = self._shard
        graph = tf.get_default_graph()
        prefix = graph.get_tensor_by_name(f"{graph.get_name_scope()}/Const:0")
        with _tf_private.colocate_with(shard.handle):
            return _ops.gen.rec_estimator_table_restore(
                shard.handle,
                prefix,
                shard.table.initial_value,
                tensor_name=shard.table.name,
                part=shard.part,
                num_parts=shard.num_parts,
                **_slot_attrs(shard.slots),
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


class _SaverBuilder(_tf_private.BulkSaverBuilder):
    """Restores tables without asking RestoreV2 for anything of theirs."""

    def bulk_restore(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[Any],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> List[Any]:
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


class Saver(tf.train.Saver):
    """``tf.compat.v1.train.Saver`` that takes tables in ``var_list`` and reads DeepRec's files.

    A stock Saver works too, except for what follows: it does not know the table object (leave
    ``var_list`` out), and it wants the tensor ``<table>/default_values``, which DeepRec does not
    write.

    Args:
      var_list: Variables, tables, SaveableObjects; a shard stands for its table. A dict of names
        takes variables only. None: everything in the graph.
      **kwargs: As of ``tf.compat.v1.train.Saver``.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> saver = rec.Saver([table])
    """

    def __init__(self, var_list: Any = None, **kwargs: Any) -> None:
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
        kwargs.setdefault("builder", _SaverBuilder())
        super().__init__(var_list, **kwargs)


def _as_saveables(item: Any) -> List[Any]:
    # A shard stands for its table: a part alone could not be restored.
    table = getattr(item, "table", item)
    if hasattr(table, "shards"):
        return [shard.saveable for shard in table.shards]
    return [item]
