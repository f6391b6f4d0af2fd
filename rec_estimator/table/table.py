# SPDX-License-Identifier: Apache-2.0
"""Embedding tables: keys to rows, growing as new keys are trained.

Step 2 of the data flow: features name keys, **tables hold their rows**, lookups read them,
optimizers apply gradients. A table is not a ``tf.Variable``: its first dimension is not fixed, and
only an initializer, an apply, an eviction and a restore change it. ``EMBEDDING_VARIABLES`` has the
table; ``TRAINABLE_VARIABLES`` has it too if it is trainable. ``SAVEABLE_OBJECTS`` has one object
per shard to save it, and ``GLOBAL_VARIABLES`` one entry per shard to initialize it.
"""

import dataclasses
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
from rec_estimator.table.eviction import Eviction, build_eviction
from rec_estimator.table.interfaces import STEPS, LogicalTable
from rec_estimator.table.row_writes import assign_rows, erase_rows
from rec_estimator.table.saveable import saveable_of
from rec_estimator.table.shard import TableShard
from rec_estimator.table.table_reads import TableExport, TableReads
from rec_estimator.table.variable_like import VariableLike, VariableName, no_value_error

# The collection of the logical tables of a graph, under the name that DeepRec uses.
EMBEDDING_VARIABLES = "embedding_variables"

# The version of a row in a graph without a global step.
NO_GLOBAL_STEP = -1

# The version of a key that no step has trained. An eviction by age replaces it by the current step.
NEVER_TRAINED = -1


class EmbeddingTable(VariableLike):
    """A logical table with one shard, or with several shards if ``partitioner=`` was given.

    ``get_embedding_variable`` makes it. ``list(table)`` gives the shards. A table with one shard
    has the attributes of that shard, and ``tf.gradients(loss, table)`` works.

    Attributes:
      name: Full name, including variable scopes. The names of the checkpoint's tensors begin so.
      dim: Number of floats in the value of a row.
      key_dtype: tf.int64 or tf.int32. The type of the ids, and of the keys in a checkpoint.
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
    ) -> None:
        self.name = VariableName(name)
        self.dim = dim
        self.key_dtype = key_dtype
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
        with tf.name_scope(None):
            # A MetaGraph writes a member of a collection as the name of an op. With several shards,
            # this is the op with the table's name.
            self.initializer: tf.Operation = (
                self.shards[0].initializer
                if num_shards == 1
                else tf.group([shard.initializer for shard in self.shards], name=name)
            )

    def set_initializer(self) -> None:
        """Makes the initializer that of the shards, after they got others."""
        with tf.name_scope(None):
            initializers = [shard.initializer for shard in self.shards]
            self.initializer = initializers[0] if len(initializers) == 1 else tf.group(initializers)

    def _make_bank(self, initializer: Callable[..., tf.Tensor], device: str) -> tf.Tensor:
        shape = [self.ev_option.init.default_value_dim, self.dim]
        with tf.name_scope(None), tf.name_scope(f"{self.name}/default_values/"):
            with tf.device(device):
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

    def handle_attrs(self, num_shards: int) -> Dict[str, Any]:
        """The attributes of the op that makes the handle of a shard.

        Args:
          num_shards: The number of shards of the table.
        """
        attrs: Dict[str, Any] = {"dim": self.dim, "version_unit": self.version_unit}
        attrs["default_value"] = self.ev_option.init.default_value_no_permission
        option = self.filter
        if option is not None:
            # The filter of every shard has the size for the whole table.
            attrs.update(option.handle_attrs())
        if self.disk_storage is not None:
            attrs.update(self.disk_storage.handle_attrs(num_shards))
        return attrs

    @property
    def disk_storage(self) -> Optional[DiskStorage]:
        """Where the rows are that are not in memory; None: all are in memory."""
        return disk_storage_of(self.ev_option.storage_option)

    @property
    def version_unit(self) -> str:
        """What versions count: STEPS or SECONDS; "": as in the restored checkpoint."""
        return STEPS

    def version_of_step(self, global_step: tf.Tensor) -> tf.Tensor:
        """The version that a step gives to the rows that it trains.

        Args:
          global_step: int64 []. The global step before its increment; -1 if there is none.
        """
        return global_step

    def version_of_write(self) -> tf.Tensor:
        """int64 []. The version of rows that are written outside of training."""
        step = find_global_step()
        return tf.constant(NO_GLOBAL_STEP, tf.int64) if step is None else tf.cast(step, tf.int64)

    @property
    def version_after_reset(self) -> int:
        """The version of keys that forget when they were trained; see init_from_checkpoint.

        0, as in DeepRec. -1 if GlobalStepEvict or LazyDecay would take the difference to a global
        step that may have begun elsewhere; the first eviction or step replaces it by the step.
        """
        is_used = needs_global_step(self) and find_global_step() is not None
        return NEVER_TRAINED if is_used or decays(self) else 0

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
        if not self.is_save:
            return {}
        return {f"rows_{shard.part}": saveable_of(shard) for shard in self.shards}

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

    def assign(
        self, keys: Any, rows: Any = None, counts: Any = None, name: Optional[str] = None
    ) -> tf.Operation:
        """Writes rows, such as vectors that another program has trained.

        A key owns a row afterwards, whatever the filter. The slots of these rows start fresh. Their
        version is the global step, -1 if the graph has none yet. The next delta has them. A lookup
        reads a shard before all of it or after all of it; control dependencies say which.

        Args:
          keys: int64 or int32 [n], distinct.
          rows: float32 [n, dim], finite.
          counts: int64 [n], from 0: how often each key has occurred. None: a key keeps its count,
            or gets the filter's threshold if that is greater.
          name: Op name.

        Returns:
          The op that writes.

        Raises:
          ValueError: A static shape does not fit.
          TypeError: keys have another type, or rows are missing, as in tf.assign(table, value).
          tf.errors.InvalidArgumentError: When the op runs: a shape does not fit, a key is given
            twice or is padding, a value is not finite, or a count is negative. Nothing has changed.
          tf.errors.ResourceExhaustedError: When the op runs: a shard would exceed its row limit or
            has no memory. That shard has not changed.

        Example:
          >>> table = rec.get_embedding_variable("user", embedding_dim=2)
          >>> assign = table.assign(tf.constant([7], tf.int64), [[0.5, -1.0]])
          >>> with tf.Session() as session:
          ...     session.run(tf.global_variables_initializer())
          ...     session.run(assign)
          ...     session.run(table.export().values).tolist()
          [[0.5, -1.0]]
        """
        if rows is None:
            raise TypeError(
                f"rows of table {self.name!r} must be given; call table.assign(keys, rows)"
            )
        with tf.name_scope(name, f"{self.name}/assign"):
            keys = as_keys(self, keys, "keys")
            return assign_rows(self, keys, rows, counts, self.version_of_write())

    def erase(self, keys: Any, name: Optional[str] = None) -> tf.Tensor:
        """Takes away the rows, slots and counts of keys, as an eviction does.

        A key that is trained again starts from count 0, its initial vector and fresh slots. A
        Bloom filter keeps what it has counted of a key that never owned a row.

        Args:
          keys: int64 or int32, any shape. Repeats and keys without a row are allowed.
          name: Op name.

        Returns:
          int64 []. The number of keys that had a row.

        Raises:
          TypeError: keys have another type.

        Example:
          >>> table = rec.get_embedding_variable("user", embedding_dim=2)
          >>> table.erase(tf.constant([7, 8], tf.int64)).dtype
          tf.int64
        """
        with tf.name_scope(name, f"{self.name}/erase"):
            return erase_rows(self, as_keys(self, keys, "keys"), self.version_of_write())

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

    def eviction(self, rule: Optional[EvictionRule] = None) -> Eviction:
        """The ops of ``evict()``, which also say how many rows were taken; or those of a rule."""
        rule = rule or self.ev_option.evict_option or self.rule_of_optimizer
        if rule is None or not rule.is_on:
            raise ValueError(
                f"evict_option of table {self.name!r} must be a rule that evicts, got {rule!r}; "
                "for example GlobalStepEvict(steps_to_live=4000)"
            )
        # With any rule, a filter forgets the counts of the keys that occurred least recently.
        uses_step = rule.needs_global_step or self.filter is not None
        step = find_global_step() if uses_step else None
        if step is None and rule.needs_global_step:
            raise ValueError(
                f"the graph must have a global step, by which table {self.name!r} evicts, got "
                "none; call tf.train.get_or_create_global_step() before"
            )
        step = NO_GLOBAL_STEP if step is None else step
        handles = [shard.handle for shard in self.shards]
        return build_eviction(self.name, handles, rule, step, **dataclasses.asdict(rule))

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
    """Whether a table has an eviction rule or a regularizer that needs the global step."""
    rule = table.ev_option.evict_option
    evicts = rule is not None and rule.is_on and rule.needs_global_step
    return evicts or decays(table)


def decays(table: LogicalTable) -> bool:
    """Whether the rows of a table decay with the global step."""
    regularizer = table.ev_option.regularizer
    return regularizer is not None and regularizer.decay_rate > 0


def as_keys(table: LogicalTable, ids: Any, argument: str) -> tf.Tensor:
    """Converts ids to the keys that the ops of a table take.

    Args:
      table: The table.
      ids: int32 of any shape; also int64 if that is the key_dtype of the table.
      argument: The caller's name for ids, for error messages.

    Returns:
      int64, the shape of ids.

    Raises:
      TypeError: ids have another type.
    """
    keys = tf.convert_to_tensor(ids, name="ids")
    if keys.dtype == tf.int64 and table.key_dtype == tf.int32:
        raise TypeError(
            f"{argument} must be int32, the key_dtype of table {table.name!r}, got int64; make "
            "the table with key_dtype=tf.int64"
        )
    if keys.dtype == tf.int32:
        return tf.cast(keys, tf.int64)
    if keys.dtype != tf.int64:
        remedy = (
            "hash strings with tf.strings.to_hash_bucket_fast(values, 2**63 - 1)"
            if keys.dtype == tf.string
            else "cast them, if they are whole numbers"
        )
        raise TypeError(f"{argument} must be int64 or int32, got {keys.dtype.name}; {remedy}")
    return keys
