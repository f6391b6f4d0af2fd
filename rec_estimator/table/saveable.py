# SPDX-License-Identifier: Apache-2.0
"""The SaveableObject of a shard: its tensors in a TensorFlow V2 checkpoint.

A table and each of its slots have nine tensors, with the names that DeepRec uses: ``var-keys``,
``var-values``, …, ``var/Adagrad-values``, …. A shard is called ``var/part_i``, and the bank
``var/default_values``. A table whose versions are timestamps adds ``var-version_unit``, a filter
with counts of its own the tensors that it names, such as ``var-cbf_blocks``, an export of 8 bits
``var-scale_offset``, and an incremental checkpoint ``var-keys_erased``, ``var-delta_of`` and
``var-delta_of_index``.

An unmodified ``tf.compat.v1.train.Saver`` writes these tensors, and restores them into any number
of shards. ``rec_estimator.Saver`` (checkpoint/saver.py) does the same in little memory. Both leave
the tensors of filtered keys empty while the environment variable TF_EV_SAVE_FILTERED_FEATURES is
False.
"""

import contextlib
import contextvars
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.eviction import Eviction, logged_in_graph
from rec_estimator.table.interfaces import STEPS, SavedShard, SlotSpec


class ShardExport(NamedTuple):
    """The whole content of a shard at one instant. The op TableExport documents the shapes."""

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
    # For older graphs.
    bloom_blocks: tf.Tensor
    bloom_counters: tf.Tensor
    bloom_layout: tf.Tensor
    bloom_generations: tf.Tensor
    # In the order of the filter's sketch_tensors().
    sketch: List[tf.Tensor]


# The tensors of a table, and of each of its slots, that say which key each row belongs to.
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

# The op that stands for a shard in an imported MetaGraph. Its name is the remedy in an error.
# TensorFlow's warm_start, which looks for a tensor of this name, gives it in an error, too.
IMPORTED_NAME = "use_rec_estimator.init_from_checkpoint_or_rec_estimator.Saver.export_meta_graph"

# For TableRestore: keys keep the versions that they have in the checkpoint.
_STORED_VERSION = -2

# Whether the Saver that builds ops in this thread writes tables itself.
_streams: contextvars.ContextVar = contextvars.ContextVar("streams", default=False)


@contextlib.contextmanager
def streaming() -> Iterator[None]:
    """Builds no ops that copy rows. For a Saver that writes tables itself."""
    token = _streams.set(True)
    try:
        yield
    finally:
        _streams.reset(token)


def slot_attributes(slots: Sequence[SlotSpec]) -> Dict[str, List[Any]]:
    """The attributes that describe slots to the ops of a checkpoint."""
    return {
        "slot_names": [slot.name for slot in slots],
        "slot_widths": [slot.width for slot in slots],
        "slot_initials": [slot.initial for slot in slots],
    }


def export_shard(shard: SavedShard, slots: Sequence[SlotSpec]) -> ShardExport:
    """Copies the rows of a shard.

    Args:
      shard: The shard.
      slots: The slots to copy.

    Returns:
      Tensors that belong to one instant.
    """
    return _export_with_unit(shard, slots, tf.float32)[0]


def _export_with_unit(
    shard: SavedShard, slots: Sequence[SlotSpec], value_dtype: tf.DType
) -> Tuple[ShardExport, tf.Tensor]:
    """Copies the rows of a shard, and what their versions count."""
    *rows, version_unit = _ops.gen.rec_estimator_table_export(
        shard.handle,
        dim=shard.dim,
        value_dtype=value_dtype,
        num_slots=len(slots),
        sketch_types=list(_sketch_tensors(shard).values()),
        **slot_attributes(slots),
    )
    return ShardExport(*rows), version_unit


def _sketch_tensors(shard: SavedShard) -> Dict[str, tf.DType]:
    """The tensors of the filter's own counts. A threshold of 1 counts no key without a row."""
    option = shard.table.filter
    return {} if option is None or option.filter_freq < 2 else option.sketch_tensors()


def build_evictions(shards: Sequence[SavedShard]) -> List[Eviction]:
    """Builds the evictions that every full save runs first.

    Args:
      shards: The shards to save. The rules of a table run once, however many shards it has.

    Returns:
      One eviction per table and rule, which is its own or that of its optimizer. In a graph
      without a global step, such as one that only predicts, a rule that needs the global step
      evicts nothing; nor does a TimeEvict in a graph without its time.
    """
    tables = dict.fromkeys(shard.table for shard in shards)
    return [table.eviction(rule) for table in tables for rule in table.rules_at_saves]


def build_restore(
    shard: SavedShard,
    prefix: Union[str, tf.Tensor],
    tensor_name: Optional[str] = None,
    slots: Optional[Sequence[SlotSpec]] = None,
    version: Optional[int] = None,
    warns: bool = False,
    stored_widths: Sequence[int] = (),
) -> tf.Operation:
    """Builds the op that replaces the rows of a shard by those of a checkpoint.

    Args:
      shard: The shard.
      prefix: string []. The prefix of the checkpoint.
      tensor_name: The name of the table in the checkpoint. None: the name of the shard's table.
      slots: The slots to read; all other slots start fresh. None: all slots of the shard.
      version: The version of every key. None: that in the checkpoint, if it counts what the
        table's versions count.
      warns: Whether the op itself logs what is not kept of the checkpoint. Where Python
        knows the checkpoint, checkpoint/restore_warnings.py does so.
      stored_widths: The floats of a row and of each slot in the checkpoint, if they may differ
        from the table's. (): those of the table.

    Returns:
      The op.
    """
    with graphs.colocate_with(shard.handle):
        return _ops.gen.rec_estimator_table_restore(
            shard.handle,
            prefix,
            shard.table.initial_value,
            **_restore_attrs(shard, tensor_name, slots, version),
            warns=warns,
            stored_widths=stored_widths,
        )


def build_check(
    shard: SavedShard,
    prefix: Union[str, tf.Tensor],
    all_keys: Union[bool, tf.Tensor],
    tensor_name: Optional[str] = None,
    slots: Optional[Sequence[SlotSpec]] = None,
) -> tf.Tensor:
    """Builds the op that checks, without a change, whether ``build_restore``'s op can run.

    Args:
      shard, prefix, tensor_name, slots: As in ``build_restore``.
      all_keys: bool []. Whether to check all keys and counts; otherwise the keys are read that may
        not fit into the table.

    Returns:
      string []. A sentence on the counts of a filter that the restore will drop. Empty if none.
    """
    with graphs.colocate_with(shard.handle):
        return _ops.gen.rec_estimator_table_check_restore(
            shard.handle, prefix, all_keys, **_restore_attrs(shard, tensor_name, slots, None)
        )


def _restore_attrs(
    shard: SavedShard,
    tensor_name: Optional[str],
    slots: Optional[Sequence[SlotSpec]],
    version: Optional[int],
) -> Dict[str, Any]:
    return {
        "tensor_name": tensor_name or shard.table.name,
        "part": shard.part,
        "num_parts": shard.num_parts,
        "key_dtype": shard.table.key_dtype,
        "version": _STORED_VERSION if version is None else version,
        **slot_attributes(shard.slots if slots is None else slots),
    }


class _SavedTables:
    """The shards of a Saver that is being built, and what a restore of them waits for.

    A restore reads variables by one op per device. The check of all shards comes first, then these
    ops, then the restores of the shards. So a checkpoint that a table or a variable refuses changes
    nothing.
    """

    def __init__(self) -> None:
        self.shards: Dict[SavedShard, None] = {}  # In order.
        self.losses: List[tf.Tensor] = []  # What the checks return.
        self.check: Optional[tf.Operation] = None
        self._all_read: Optional[tf.Operation] = None
        self._readers = 0

    def build_check(self, all_keys: Union[bool, tf.Tensor]) -> tf.Operation:
        """Returns the check of all shards, built once."""
        if self.check is None:
            prefix = prefix_of_saver()
            self.losses = [build_check(shard, prefix, all_keys) for shard in self.shards]
            self.check = tf.group(self.losses)
        return self.check

    def build_all_read(self) -> tf.Operation:
        """Returns what waits for the check and for all variables that are read by now."""
        check = self.build_check(all_keys=False)
        if self._all_read is None:
            with tf.control_dependencies([check]):
                self._all_read = tf.no_op(name="variables_read")
        while True:
            suffix = f"_{self._readers}" if self._readers else ""
            reader = _op_of_saver(f"RestoreV2{suffix}")
            if reader is None:
                return self._all_read
            self._readers += 1
            if check not in reader.control_inputs:
                graphs.add_control_inputs(reader, [check])
            graphs.add_control_inputs(self._all_read, [reader])


def _tables_of_saver() -> _SavedTables:
    """What the Saver saves whose ops are being built in the current name scope."""
    scope = tf.get_default_graph().get_name_scope()
    return state_of().savers.setdefault(scope, _SavedTables())


def all_read_by_saver() -> tf.Operation:
    """Returns what the restore of an object of the Saver waits for that is being built."""
    return _tables_of_saver().build_all_read()


def spec_in_place_of_variable() -> Optional[Any]:
    """Returns what a stock Saver reads in place of a variable that restores itself.

    It must read at least one tensor on each device. Every checkpoint of ours has the bank of a
    table. None: the Saver is ours, or it builds its save ops, or it has no table.
    """
    if _streams.get() or not _restore_is_being_built():
        return None
    return next((shard.saveable.spec_of_bank() for shard in _tables_of_saver().shards), None)


def check_of_saver(
    shards: Sequence[SavedShard], all_keys: tf.Tensor
) -> Tuple[tf.Operation, List[tf.Tensor]]:
    """Builds the check of the Saver whose restore ops are being built.

    Args:
      shards: All its shards.
      all_keys: As in ``build_check``.

    Returns:
      The check, and what it finds for each shard, as ``build_check`` returns it.
    """
    saved = _tables_of_saver()
    saved.shards = dict.fromkeys(shards)
    return saved.build_check(all_keys), saved.losses


def _op_of_saver(name: str) -> Optional[tf.Operation]:
    """The op of this name of the Saver that is being built; None if it is not there yet."""
    graph = tf.get_default_graph()
    try:
        return graph.get_operation_by_name(f"{graph.get_name_scope()}/{name}")
    except KeyError:
        return None


def prefix_of_saver() -> tf.Tensor:
    """string []. The prefix that the Saver whose ops are being built is fed."""
    graph = tf.get_default_graph()
    return graph.get_tensor_by_name(f"{graph.get_name_scope()}/Const:0")


class TableSaveable(saving.SaveableObject):
    """The object through which a Saver saves and restores one shard.

    A Saver asks for ``specs`` once to build its save ops and once to build its restore ops. The
    tensor names of RestoreV2 are fixed when the graph is built, but the shards of a checkpoint are
    known only when it is read. So a restoring Saver gets the bank alone, and the restore op reads
    the rows from the file itself.
    """

    def __init__(self, shard: SavedShard) -> None:
        self._shard = shard
        self.op = shard.handle
        with graphs.colocate_with(shard.handle), tf.name_scope(f"{shard.handle.op.name}/"):
            imported = tf.no_op(name=IMPORTED_NAME)
        # A MetaGraph writes this name, and an import or tf.saved_model.load looks it up among the
        # graph's ops. If the MetaGraph has no saver_def, import_meta_graph() makes a Saver of the
        # op, and TensorFlow's error has no more than its name.
        self.name = imported.name
        self._save_specs: Dict[Tuple[tf.Graph, str], List[Any]] = {}
        self._evictions: Dict[Tuple[tf.Graph, str], List[tf.Operation]] = {}

    @property
    def device(self) -> str:
        """Device of the rows."""
        return self._shard.device

    @property
    def shard(self) -> SavedShard:
        """The shard."""
        return self._shard

    @property
    def specs(self) -> List[Any]:
        """The SaveSpecs to write. Once a Saver has its save ops, those to read."""
        shard = self._shard
        graph = tf.get_default_graph()
        scope = graph.get_name_scope()
        _tables_of_saver().shards[shard] = None
        if _streams.get() or _restore_is_being_built():
            # A stock Saver must restore at least one tensor. Every checkpoint of ours has the bank.
            return [self.spec_of_bank()]
        key = (graph, scope)
        if key not in self._save_specs:
            self._save_specs[key] = self._build_save_specs()
        return self._save_specs[key]

    def spec_of_bank(self) -> Any:
        """The SaveSpec of the table's bank."""
        return self._spec(self._shard.table.initial_value, bank_name(self._shard))

    def _spec(self, tensor: tf.Tensor, name: str) -> Any:
        return saving.SaveSpec(tensor, "", name, tensor.dtype, self._shard.device)

    def _build_save_specs(self) -> List[Any]:
        shard = self._shard
        # table.evict() evicts from all shards, so each shard waits for the evictions of all.
        with tf.control_dependencies(self._evictions_of_save()):
            with graphs.colocate_with(shard.handle):
                parts, version_unit = _export_with_unit(shard, shard.slots, shard.table.row_dtype)
                parts = parts._replace(
                    keys=tf.cast(parts.keys, shard.table.key_dtype),
                    keys_filtered=tf.cast(parts.keys_filtered, shard.table.key_dtype),
                )
        names = [shard.name] + [f"{shard.name}/{slot.name}" for slot in shard.slots]
        # Exact: the op gives float32 for slots of either type.
        slot_values = [
            tf.cast(values, slot.dtype_in(shard.table))
            for slot, values in zip(shard.slots, parts.slot_values)
        ]
        specs = []
        for name, values in zip(names, [parts.values, *slot_values]):
            specs.append(self._spec(values, f"{name}-values"))
            specs.extend(
                self._spec(getattr(parts, tensor), f"{name}-{tensor}") for tensor in _KEY_TENSORS
            )
        specs.extend(
            self._spec(values, f"{shard.name}-{tensor}")
            for tensor, values in zip(_sketch_tensors(shard), parts.sketch)
        )
        if shard.table.version_unit != STEPS:
            specs.append(self._spec(version_unit, f"{shard.name}-version_unit"))
        if shard.part == 0:
            specs.append(self._spec(parts.bank, bank_name(shard)))
        return specs

    def _evictions_of_save(self) -> List[tf.Operation]:
        """The evictions of the Saver that is being built, once for all shards of the table."""
        key = (tf.get_default_graph(), tf.get_default_graph().get_name_scope())
        first = self._shard.table.shards[0].saveable
        if key not in first._evictions:
            first._evictions[key] = list(map(logged_in_graph, build_evictions([self._shard])))
        return first._evictions[key]

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Optional[Sequence[Any]]
    ) -> tf.Operation:
        """Builds the op that replaces the rows of the shard by those of the checkpoint.

        It waits for the checks of all tables of the Saver. The op reads the file itself.
        """
        del restored_tensors, restored_shapes
        with tf.control_dependencies([all_read_by_saver()]):
            return build_restore(self._shard, prefix_of_saver(), warns=not _streams.get())


def saveable_of(shard: SavedShard) -> Callable[..., TableSaveable]:
    """Returns what gives TensorFlow the saveable of a shard, which is always the same object.

    A Saver that finds it here and in SAVEABLE_OBJECTS saves it once.
    """

    def saveable(name: str = "", **_: Any) -> TableSaveable:
        if ".ATTRIBUTES/" in name:  # In the names of tf.train.Checkpoint and tf.saved_model.save.
            raise ValueError(
                f"table {shard.table.name!r} must be saved and restored with rec_estimator.Saver, "
                "got tf.train.Checkpoint or tf.saved_model.save, which give each tensor a name of "
                "theirs; pass them the variables only"
            )
        return shard.saveable

    return saveable


def bank_name(shard: SavedShard) -> str:
    """The name that the bank of a shard's table has in a checkpoint."""
    return f"{shard.table.name}/default_values"


def _restore_is_being_built() -> bool:
    """Whether the Saver of this name scope has its save ops, and now builds its restore ops."""
    # A sharded Saver has one SaveV2 per device and then merges; any other Saver has one SaveV2.
    return _op_of_saver("MergeV2Checkpoints") is not None or (
        _op_of_saver("SaveV2") is not None and _op_of_saver("ShardedFilename") is None
    )
