# SPDX-License-Identifier: Apache-2.0
"""Embedding tables: keys to rows, growing as new keys are trained.

Step 2 of the data flow: features name keys, **tables hold their rows**, lookups read them,
optimizers apply gradients. A table is not a ``tf.Variable``: its first dimension is not fixed, and
only an initializer, an apply, an eviction and a restore change it. ``EMBEDDING_VARIABLES`` has the
table; ``TRAINABLE_VARIABLES`` has it too if it is trainable. ``SAVEABLE_OBJECTS`` has one object
per shard to save it, and ``GLOBAL_VARIABLES`` one entry per shard to initialize it.
"""

import zlib
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import dispatch
from rec_estimator.graph_passes.walk import find_global_step
from rec_estimator.options import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    EvictionRule,
    Filter,
)
from rec_estimator.table import placement
from rec_estimator.table.disk_storage import DiskStorage, TierCounts, disk_storage_of
from rec_estimator.table.eviction import Eviction
from rec_estimator.table.eviction_rules import (
    eviction_of,
    make_time,
    rules_at_saves,
    time_rule,
)
from rec_estimator.table.interfaces import SECONDS, STEPS, LogicalTable
from rec_estimator.table.row_dtype import row_dtype_of_export
from rec_estimator.table.row_writes import WritableTable
from rec_estimator.table.saveable import saveable_of
from rec_estimator.table.shard import TableShard, as_keys
from rec_estimator.table.table_reads import TableExport, TableReads
from rec_estimator.table.table_time import time_of_step
from rec_estimator.table.variable_like import VariableLike, VariableName, no_value_error

# The collection of the logical tables of a graph, under the name that DeepRec uses.
EMBEDDING_VARIABLES = "embedding_variables"

# How values and slots may be stored, and the most elements of a vector that is stored in 16 bits or
# has such slots: a step widens rows on the stack of its thread.
VALUE_DTYPES = (tf.float32, tf.bfloat16, tf.float16)
SLOT_DTYPES = (tf.float32, tf.bfloat16)
MAX_NARROW_DIM = 2048

# The version of a key that no step has trained. An eviction by age replaces it by the current step.
NEVER_TRAINED = -1


class EmbeddingTable(WritableTable):
    """A logical table with one shard, or with several shards if ``partitioner=`` was given.

    ``get_embedding_variable`` makes it. ``list(table)`` gives the shards. A table with one shard
    has the attributes of that shard, and ``tf.gradients(loss, table)`` works.

    Attributes:
      name: Full name, including variable scopes. The names of the checkpoint's tensors begin so.
      dim: Number of floats in the value of a row.
      key_dtype: tf.int64 or tf.int32. The type of the ids, and of the keys in a checkpoint.
      value_dtype: tf.float32, tf.bfloat16 or tf.float16, the type in which values are stored.
      row_dtype: value_dtype or, in a graph that is built for an export, that of its rows.
      slot_dtype: tf.float32 or tf.bfloat16, the type of slots of more than one number per row.
      shards: The shards. A key is in shard ``floormod(key, 1000) % len(shards)``.
      initial_value: float32 [default_value_dim, dim]. The bank of initial vectors.
      ev_option: All other settings of the table.
      regularizer: That of ev_option, or None.
      trainable: Whether optimizers update the table without being given it in var_list.
      is_on_ps: Whether the shards are on parameter servers.
    """

    # Whether checkpoints contain the table.
    is_save = True
    # The most rows that the table may have; 0: as many as fit into memory.
    max_rows = 0
    # Keys whose rows training does not change.
    padding_keys: Tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        key_dtype: tf.DType,
        num_shards: int,
        initializer: Callable[..., tf.Tensor],
        ev_option: EmbeddingVariableOption,
        trainable: bool,
        value_dtype: tf.DType = tf.float32,
        slot_dtype: tf.DType = tf.float32,
    ) -> None:
        self.name = VariableName(name)
        self.dim = dim
        self.key_dtype = key_dtype
        self.value_dtype, self.slot_dtype = value_dtype, slot_dtype
        self.row_dtype = row_dtype_of_export() or value_dtype
        check_narrow_dim("dim", dim, self.row_dtype, setting="row_dtype")
        self.ev_option = ev_option
        self.regularizer = ev_option.regularizer
        # What full saves evict besides, because of the optimizer.
        self.rule_of_optimizer: Optional[EvictionRule] = None
        self.trainable = trainable
        self.initializer_of_rows = initializer
        shards_before = sum(len(table.shards) for table in graph_tables())
        devices = placement.shard_devices(num_shards, shards_before)
        self.is_on_ps = bool(placement.ps_devices())
        self.initial_value = self._make_bank(initializer, devices[0])
        self.shards: List[TableShard] = [
            TableShard(self, i, num_shards, device) for i, device in enumerate(devices)
        ]
        self._reads = TableReads(name, self.shards)
        make_time(self)  # Here, so that a Saver that is built next has it.
        with tf.name_scope(None):
            # A MetaGraph writes a member of a collection as the name of an op. With several shards,
            # this is the op with the table's name.
            self.initializer: tf.Operation = (
                self.shards[0].initializer
                if num_shards == 1
                else tf.group([shard.initializer for shard in self.shards], name=name)
            )

    def _make_bank(self, initializer: Callable[..., tf.Tensor], device: str) -> tf.Tensor:
        shape = [self.ev_option.init.default_value_dim, self.dim]
        with tf.name_scope(None), tf.name_scope(f"{self.name}/default_values/"), tf.device(device):
            bank = tf.convert_to_tensor(self._initial_vectors(initializer, shape))
        if bank.dtype != tf.float32 or bank.shape.as_list() != shape:
            raise ValueError(
                f"initializer of table {self.name!r} must give float32 {shape}, got "
                f"{bank.dtype.name} {bank.shape}; the shape is [default_value_dim, dim]"
            )
        return bank

    def _initial_vectors(
        self, initializer: Callable[..., tf.Tensor], shape: List[int]
    ) -> tf.Tensor:
        return initializer(shape, dtype=tf.float32)

    def handle_attrs(self, part: int, num_parts: int) -> Dict[str, Any]:
        """The attributes of the op that makes the handle of shard ``part`` of ``num_parts``."""
        attrs = {"dim": self.dim, "version_unit": self.version_unit, **_row_attrs(self)}
        if self.filter is not None:
            # The filter of every shard has the size for the whole table.
            attrs.update(self.filter.handle_attrs())
        capacity, storage = self.ev_option.capacity, self.disk_storage
        attrs.update(capacity.handle_attrs(part, num_parts) if capacity else {})
        attrs.update(storage.handle_attrs(num_parts) if storage else {})
        return attrs

    @property
    def disk_storage(self) -> Optional[DiskStorage]:
        """Where the rows are that are not in memory; None: all are in memory."""
        return disk_storage_of(self.ev_option.storage_option)

    @property
    def version_unit(self) -> str:
        """What versions count: STEPS or SECONDS; "": as in the restored checkpoint."""
        return STEPS if time_rule(self) is None else SECONDS

    def version_of_step(self, global_step: tf.Tensor) -> tf.Tensor:
        """The version that a step gives to the rows that it trains.

        Args:
          global_step: int64 []. The global step before its increment; -1 if there is none.

        Returns:
          int64 []. The global step or, with TimeEvict, the time of the step.

        Raises:
          ValueError: The table has TimeEvict, and the batch lacks its timestamp.
        """
        rule = time_rule(self)
        return global_step if rule is None else time_of_step(rule, self.name)

    @property
    def version_after_reset(self) -> int:
        """The version of keys that forget when they were trained; see init_from_checkpoint.

        0, as in DeepRec. -1 if GlobalStepEvict or LazyDecay would take the difference to a global
        step that may have begun elsewhere; the first eviction or step replaces it by the step. With
        TimeEvict, too.
        """
        is_used = needs_global_step(self) and find_global_step() is not None
        return NEVER_TRAINED if is_used or decays(self) or time_rule(self) is not None else 0

    def __iter__(self) -> Iterator[TableShard]:
        return iter(self.shards)

    def _only_shard(self, what: str) -> TableShard:
        if len(self.shards) > 1:
            raise ValueError(
                f"table must have one shard to have {what}, got {self.name!r} with "
                f"{len(self.shards)}; use list(table)"
            )
        return self.shards[0]

    @property
    def handle(self) -> tf.Tensor:
        """resource []. The handle of the only shard."""
        return self._only_shard("a handle").handle

    @property
    def op(self) -> tf.Operation:
        """The op that makes the handle of the only shard."""
        return self._only_shard("an op").op

    @property
    def device(self) -> str:
        """The device of the only shard."""
        return self._only_shard("a device").device

    @property
    def graph(self) -> tf.Graph:
        """The graph of the table."""
        return self.shards[0].graph

    @property
    def shape(self) -> tf.TensorShape:
        """[dim], as in DeepRec. The number of rows is not static."""
        return tf.TensorShape([self.dim])

    def get_shape(self) -> tf.TensorShape:
        """[dim], as of a variable."""
        return self.shape

    @property
    def filter(self) -> Optional[Filter]:
        """The filter; None if there is none or its filter_freq is 0.

        A CBFFilter without a size counts exactly, so the property returns a CounterFilter for it.
        """
        option = self.ev_option.filter_option
        if option is None or option.filter_freq == 0:
            return None
        if isinstance(option, CBFFilter) and not option.has_size:
            return CounterFilter(option.filter_freq)
        return option

    def _gather_saveables_for_checkpoint(self) -> Dict[str, Any]:
        shards = self.shards if self.is_save else []
        return {f"rows_{shard.part}": saveable_of(shard) for shard in shards}

    def size(self) -> tf.Tensor:
        """int64 []. The number of keys that own a row."""
        return self._reads.sum_of_stat("size")

    def total_count(self) -> tf.Tensor:
        """int32 [2]. DeepRec's older name of ``get_dynamic_shape()``."""
        return self.get_dynamic_shape()

    def get_dynamic_shape(self) -> tf.Tensor:
        """The number of keys and dim, as DeepRec counts them.

        Returns:
          int32 [2]. First the number of keys that own a row or that a filter counts; ``size()``
          counts only the former. A Bloom filter does not know how many keys it has counted, so
          those are not included. 2**31 - 1 stands for more keys.
        """
        return self.dynamic_shape(range(len(self.shards)))

    def dynamic_shape(self, parts: Sequence[int]) -> tf.Tensor:
        """int32 [2]. The number of keys in some shards, and dim, as ``get_dynamic_shape()``."""
        return self._reads.dynamic_shape(parts)

    def capacity(self) -> tf.Tensor:
        """int64 []. The number of keys that fit before a stripe grows."""
        return self._reads.sum_of_stat("capacity")

    def memory_bytes(self) -> tf.Tensor:
        """int64 []. The bytes that are allocated for keys and rows, without those of files."""
        return self._reads.sum_of_stat("memory_bytes")

    def tier_counts(self) -> TierCounts:
        """How many rows are in memory and on disk, and what the disk has done.

        Waits for the compaction that is due, so that equal steps give equal counts.

        Returns:
          TierCounts of int64 []. If the table has no tier on disk, all but memory_rows are 0.

        Example:
          >>> table = rec.get_embedding_variable("user", embedding_dim=4)
          >>> table.tier_counts().misses.dtype
          tf.int64
        """
        return self._reads.tier_counts()

    def get_frequency(self, keys: Any) -> tf.Tensor:
        """How often each key was trained, including the steps before a filter admitted it.

        Args:
          keys: int64 or int32, any shape.

        Returns:
          int64, the shape of keys. 0 for an unknown key, which stays unknown. For a key that a
          Bloom filter has not admitted, an estimate that is never below the count and rarely above.
        """
        return self._reads.frequencies(as_keys(self, keys, "keys"))

    def get_version(self, keys: Any) -> tf.Tensor:
        """The global step at which each key was last trained.

        Args:
          keys: int64 or int32, any shape.

        Returns:
          int64, the shape of keys. -1 for an unknown key and for a key that was never trained.
        """
        return self._reads.versions(as_keys(self, keys, "keys"))

    def evict(self) -> tf.Tensor:
        """Evicts the keys that ``ev_option.evict_option`` selects, as every full save does.

        If an evicted key is trained again, it starts from count 0, its initial vector and fresh
        slots.

        Returns:
          int64 []. The number of evicted keys, including keys that a filter only counted.

        Raises:
          ValueError: The table has no eviction rule; or it has GlobalStepEvict, and the graph has
            no global step.

        Example:
          >>> option = rec.EmbeddingVariableOption(evict_option=rec.L2WeightEvict(0.5))
          >>> rec.get_embedding_variable("user", 4, ev_option=option).evict().dtype
          tf.int64
        """
        return self.eviction().counts[0]

    @property
    def rules_at_saves(self) -> Sequence[EvictionRule]:
        """The rules by which full saves evict: its own and that of its optimizer."""
        return rules_at_saves(self)

    def eviction(self, rule: Optional[EvictionRule] = None) -> Eviction:
        """The ops of ``evict()``, which also say how many rows were taken; or those of a rule."""
        return eviction_of(self, rule)

    def export(self) -> TableExport:
        """Reads all rows, one shard after the other. The rows of a shard belong to one instant.

        Returns:
          A TableExport of tensors.
        """
        return self._reads.export()

    def __repr__(self) -> str:
        return (
            f"<rec_estimator.EmbeddingTable {self.name!r} dim={self.dim} shards={len(self.shards)}>"
        )


def _refuse_conversion(
    value: Any, dtype: Any = None, name: Optional[str] = None, as_ref: bool = False
) -> NoReturn:
    del dtype, name, as_ref
    raise no_value_error(value, "converted to a tensor")


for _kind in (EmbeddingTable, TableShard):
    tf.register_tensor_conversion_function(_kind, _refuse_conversion)
dispatch.explain_failed_calls(
    (EmbeddingTable, TableShard), lambda table: no_value_error(table, "converted to a tensor")
)


def _row_attrs(table: EmbeddingTable) -> Dict[str, Any]:
    """The attributes of a handle that say how rows are stored, and what is read in place of one."""
    dtypes = {"value_dtype": table.row_dtype, "slot_dtype": table.slot_dtype}
    attrs: Dict[str, Any] = {key: dtype for key, dtype in dtypes.items() if dtype != tf.float32}
    if attrs:
        # All shards, in all graphs, round with the random bits of one table.
        attrs["rounding_seed"] = zlib.crc32(table.name.encode())
    attrs["default_value"] = table.ev_option.init.default_value_no_permission
    return attrs


def check_narrow_dim(
    argument: str, dim: int, dtype: tf.DType, setting: str = "value_dtype"
) -> None:
    """Refuses vectors that are too long for values or slots of 16 or 8 bits.

    Args:
      argument: The caller's name for dim.
      dim: Number of elements of a vector.
      dtype: One of VALUE_DTYPES or of ROW_DTYPES.
      setting: The caller's name for dtype.

    Raises:
      ValueError: dim is too large for this type.
    """
    if dtype != tf.float32 and dim > MAX_NARROW_DIM:
        raise ValueError(
            f"{argument} must be <= {MAX_NARROW_DIM} with {setting}={dtype.name}, got "
            f"{dim}; leave {setting} out"
        )


def graph_tables(graph: Optional[tf.Graph] = None) -> List[EmbeddingTable]:
    """The tables of a graph, in the order in which they were made.

    Args:
      graph: The default graph if None.
    """
    tables = (graph or tf.get_default_graph()).get_collection(EMBEDDING_VARIABLES)
    # A graph that was imported from a MetaGraph has ops there instead.
    return [table for table in tables if isinstance(table, EmbeddingTable)]


def trainable_members(table: EmbeddingTable) -> List[Union[EmbeddingTable, TableShard]]:
    """What TRAINABLE_VARIABLES holds of a table: the table, or its shards if it has several."""
    return [table] if len(table.shards) == 1 else list(table.shards)


def dense_variables(scope: Optional[str] = None) -> List[tf.Variable]:
    """The members of TRAINABLE_VARIABLES that are not tables, in the default graph.

    Args:
      scope: As of ``tf.trainable_variables``.
    """
    return [v for v in tf.trainable_variables(scope) if not isinstance(v, VariableLike)]


def needs_global_step(table: LogicalTable) -> bool:
    """Whether a table evicts or has a regularizer by the global step."""
    rule, capacity = table.ev_option.evict_option, table.ev_option.capacity
    evicts = rule is not None and rule.is_on and rule.needs_global_step
    evicts = evicts or (capacity is not None and capacity.needs_global_step)
    return evicts or decays(table)


def decays(table: LogicalTable) -> bool:
    """Whether the rows of a table decay with the global step."""
    regularizer = table.ev_option.regularizer
    return regularizer is not None and regularizer.decay_rate > 0
