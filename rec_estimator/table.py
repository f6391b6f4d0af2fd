"""Embedding tables: keys to rows, growing as new keys are trained.

Step 2 of the data flow: features name keys, **tables hold their rows**, lookups read them,
optimizers apply gradients. A table is not a ``tf.Variable``: it has no fixed first dimension, it
is in the collections ``EMBEDDING_VARIABLES`` and ``SAVEABLE_OBJECTS`` only, and nothing but an
optimizer's apply and a restore changes it.
"""

import dataclasses
import re
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
)

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import _ops, _tf_private, checkpoint
from rec_estimator.options import EmbeddingVariableOption
from rec_estimator.table_shard import InitializerEntry, TableShard

# Collection of the logical tables of a graph, under DeepRec's name.
EMBEDDING_VARIABLES = "embedding_variables"

# What tf.name_scope takes: a table's name is the name of an op too.
NAME_PATTERN = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./>-]*")

# Keys are spread over shards and checkpoint offsets by floormod(key, BUCKETS), as in DeepRec.
BUCKETS = 1000


class TableExport(NamedTuple):
    """The rows of a table as tensors of one instant, by floormod(key, 1000), then key."""

    keys: tf.Tensor  # int64 [n]
    values: tf.Tensor  # float32 [n, dim]
    versions: tf.Tensor  # int64 [n]
    freqs: tf.Tensor  # int64 [n]


class EmbeddingTable:
    """A logical table: one shard, or several with ``partitioner=``.

    Made by ``get_embedding_variable``. ``list(table)`` gives the shards. With one shard the table
    has the shard's attributes itself, and ``tf.gradients(loss, table)`` works.

    Attributes:
      name: Full name, variable scopes included; the checkpoint's tensors begin with it.
      dim: Elements of a row's value.
      shards: The parts, keys spread by ``floormod(key, 1000) % len(shards)``.
      initial_value: float32 [default_value_dim, dim]. The bank of initial vectors.
      trainable: Whether optimizers update the table unasked.
    """

    _should_act_as_resource_variable = True

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        num_shards: int,
        initializer: Callable[..., Any],
        ev_option: EmbeddingVariableOption,
        trainable: bool,
    ) -> None:
        self.name = name
        self.dim = dim
        self.ev_option = ev_option
        self.trainable = trainable
        self.initializer_of_rows = initializer
        self.initial_value = self._make_bank(initializer)
        self.shards: List[TableShard] = [TableShard(self, i, num_shards) for i in range(num_shards)]
        with tf.name_scope(None):
            # With several shards this op also gives collections of the graph a node by the table's
            # name, which is how a MetaGraph writes them.
            self.initializer: tf.Operation = (
                self.shards[0].initializer
                if num_shards == 1
                else tf.group([shard.initializer for shard in self.shards], name=name)
            )

    def _make_bank(self, initializer: Callable[..., Any]) -> tf.Tensor:
        shape = [self.ev_option.init.default_value_dim, self.dim]
        with tf.name_scope(None), tf.name_scope(f"{self.name}/default_values/"):
            with tf.device("/device:CPU:0"):
                bank = tf.convert_to_tensor(initializer(shape, dtype=tf.float32))
        if bank.dtype != tf.float32 or bank.shape.as_list() != shape:
            raise ValueError(
                f"initializer of table {self.name!r} must give float32 {shape}, got "
                f"{bank.dtype.name} {bank.shape}; rows are [default_value_dim, dim]"
            )
        return bank

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
        """Resource handle [] of the only shard."""
        return self._only_shard("a handle").handle

    @property
    def op(self) -> tf.Operation:
        """The op of the only shard's handle."""
        return self._only_shard("an op").op

    @property
    def device(self) -> str:
        """Device of the only shard."""
        return self._only_shard("a device").device

    @property
    def graph(self) -> tf.Graph:
        """The graph the table was made in."""
        return self.shards[0].graph

    @property
    def dtype(self) -> tf.DType:
        """Type of the values: float32."""
        return tf.float32

    @property
    def shape(self) -> tf.TensorShape:
        """[dim], as DeepRec has it: the number of rows is not static."""
        return tf.TensorShape([self.dim])

    def _sum_of_stat(self, output: str) -> tf.Tensor:
        stats = []
        for shard in self.shards:
            with _tf_private.colocate_with(shard.handle):
                stats.append(getattr(_ops.gen.rec_estimator_table_stats(shard.handle), output))
        return tf.add_n(stats)

    def size(self) -> tf.Tensor:
        """Number of keys that own a row, int64 []."""
        return self._sum_of_stat("size")

    def total_count(self) -> tf.Tensor:
        """Number of keys that own a row or are counted by a filter, int64 []."""
        return self._sum_of_stat("total_count")

    def capacity(self) -> tf.Tensor:
        """Number of keys that fit before some internal shard grows, int64 []."""
        return self._sum_of_stat("capacity")

    def memory_bytes(self) -> tf.Tensor:
        """Bytes allocated for keys and rows, int64 []."""
        return self._sum_of_stat("memory_bytes")

    def get_dynamic_shape(self) -> tf.Tensor:
        """[size, dim] now, int32 [2]."""
        return tf.stack([tf.cast(self.size(), tf.int32), tf.constant(self.dim, tf.int32)])

    def get_frequency(self, keys: Any) -> tf.Tensor:
        """How often each key was trained.

        Args:
          keys: int64, any shape.

        Returns:
          int64, the shape of keys; 0 for a key the table does not know, which stays unknown.
        """
        keys = tf.convert_to_tensor(keys, tf.int64)
        counts = []
        for shard in self.shards:
            with _tf_private.colocate_with(shard.handle):
                counts.append(_ops.gen.rec_estimator_table_frequencies(shard.handle, keys))
        return tf.add_n(counts)

    def get_version(self, keys: Any) -> tf.Tensor:
        """The global step at which each key was last trained.

        Args:
          keys: int64, any shape.

        Returns:
          int64, the shape of keys; -1 for a key the table does not know and for one never trained.
        """
        keys = tf.convert_to_tensor(keys, tf.int64)
        versions = []
        for shard in self.shards:
            with _tf_private.colocate_with(shard.handle):
                versions.append(_ops.gen.rec_estimator_table_versions(shard.handle, keys))
        return tf.reduce_max(tf.stack(versions), axis=0)

    def export(self) -> TableExport:
        """All rows, shard after shard, each shard of one instant.

        Returns:
          A TableExport of tensors.
        """
        parts = []
        for shard in self.shards:
            with _tf_private.colocate_with(shard.handle):
                parts.append(checkpoint.export_shard(shard, slots=()))
        return TableExport(
            *(
                tf.concat([getattr(part, field) for part in parts], axis=0)
                for field in TableExport._fields
            )
        )

    def __repr__(self) -> str:
        return (
            f"<rec_estimator.EmbeddingTable {self.name!r} dim={self.dim} shards={len(self.shards)}>"
        )


def _refuse_conversion(
    value: Any, dtype: Any = None, name: Optional[str] = None, as_ref: bool = False
) -> NoReturn:
    del dtype, name, as_ref
    raise TypeError(
        f"a tensor must be given, got table {value.name!r}, which has no value as a whole; read "
        "rows with rec_estimator.embedding_lookup(table, ids), all of them with table.export()"
    )


for _kind in (EmbeddingTable, TableShard):
    tf.register_tensor_conversion_function(_kind, _refuse_conversion)


def graph_tables(graph: Optional[tf.Graph] = None) -> List[EmbeddingTable]:
    """The tables of a graph, in the order they were made.

    Args:
      graph: The default graph if None.
    """
    tables = (graph or tf.get_default_graph()).get_collection(EMBEDDING_VARIABLES)
    # A graph read from a MetaGraph has plain ops there instead.
    return [table for table in tables if isinstance(table, EmbeddingTable)]


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: tf.DType = tf.int64,
    value_dtype: Optional[tf.DType] = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Optional[Sequence[str]] = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    custom_getter: Any = None,
    constraint: Any = None,
    steps_to_live: Optional[int] = None,
    init_data_source: Any = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
) -> EmbeddingTable:
    """Makes an embedding table without a fixed vocabulary, or finds the one of that name.

    DeepRec's ``tf.get_embedding_variable``: scripts change the import. Lookups never change a
    table; a training step's apply inserts the keys of its lookups. A key without a row reads its
    initial vector.

    Args:
      name: Name under the current variable scopes. The same name and settings again in one graph
        give the same table.
      embedding_dim: Elements of a row's value, at least 1.
      key_dtype: tf.int64 or tf.int32; keys are stored as int64.
      value_dtype: tf.float32 or None.
      initializer: TensorFlow initializer of the initial vectors, called once with shape
        ``[default_value_dim, embedding_dim]``; ``ev_option.init_option.initializer`` goes before
        it. None: the variable scope's, then truncated_normal_initializer().
      regularizer: Must be None: a table has no dense tensor to regularize.
      trainable: Whether optimizers update the table unasked.
      collections: Further collections to add the table to.
      caching_device: Must be None.
      partitioner: For example ``tf.fixed_size_partitioner(4)``: cuts the table into that many
        shards by ``floormod(key, 1000) % 4``, at most 1000. None: the variable scope's.
      validate_shape: Must be True.
      custom_getter: Must be None.
      constraint: Must be None.
      steps_to_live: Must be None.
      init_data_source: Must be None.
      ev_option: Everything else about the table.

    Returns:
      The table.

    Raises:
      ValueError: A bad argument, eager mode, or a table of that name with other settings.
      TypeError: An argument of the wrong type.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> rec.embedding_lookup(table, tf.constant([7, -1, 7], tf.int64)).shape
      TensorShape([3, 4])
    """
    _check_arguments(name, embedding_dim, key_dtype, value_dtype)
    for argument, value, expected in (
        ("regularizer", regularizer, None),
        ("caching_device", caching_device, None),
        ("validate_shape", validate_shape, True),
        ("custom_getter", custom_getter, None),
        ("constraint", constraint, None),
        ("steps_to_live", steps_to_live, None),
        ("init_data_source", init_data_source, None),
    ):
        if value is not expected:
            raise ValueError(
                f"{argument} must be {expected}, got {value!r}; a table grows by rows and has no "
                "use for it"
            )
    ev_option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(ev_option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    if tf.executing_eagerly():
        raise ValueError(
            "get_embedding_variable must be called while a graph is built, got eager mode; call it "
            "in a model_fn or under `with tf.Graph().as_default():`"
        )
    scope = tf.get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name
    num_shards = _number_of_shards(partitioner or scope.partitioner, embedding_dim)
    initializer = _choose_initializer(ev_option.init.initializer, initializer, scope.initializer)
    with tf.init_scope():
        return _find_or_make(
            full_name,
            scope,
            collections or (),
            dim=embedding_dim,
            num_shards=num_shards,
            initializer=initializer,
            ev_option=ev_option,
            trainable=trainable,
        )


def _check_arguments(name: Any, dim: Any, key_dtype: Any, value_dtype: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a non-empty string, got {name!r}")
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"name must be one that TensorFlow takes for an op, {NAME_PATTERN.pattern}, got "
            f"{name!r}"
        )
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
        raise ValueError(f"embedding_dim must be an integer >= 1, got {dim!r}")
    if tf.as_dtype(key_dtype) not in (tf.int64, tf.int32):
        raise ValueError(
            f"key_dtype must be int64 or int32, got {tf.as_dtype(key_dtype).name}; hash strings "
            "with tf.strings.to_hash_bucket_fast(values, 2**63 - 1)"
        )
    if value_dtype is not None and tf.as_dtype(value_dtype) != tf.float32:
        raise ValueError(f"value_dtype must be float32, got {tf.as_dtype(value_dtype).name}")


def _number_of_shards(partitioner: Any, dim: int) -> int:
    if partitioner is None:
        return 1
    # Partitioners want a whole shape; rows move between shards by bucket, so buckets are the rows.
    cuts = list(partitioner(shape=tf.TensorShape([BUCKETS, dim]), dtype=tf.float32))
    if len(cuts) != 2 or cuts[1] != 1 or cuts[0] < 1:
        raise ValueError(
            f"partitioner must cut the first of two axes only, got {cuts}; use "
            "tf.fixed_size_partitioner(n)"
        )
    return int(cuts[0])


def _choose_initializer(*candidates: Any) -> Callable[..., Any]:
    for initializer in candidates:
        if initializer is None:
            continue
        if not callable(initializer):
            raise TypeError(
                "initializer must be a TensorFlow initializer or a function of shape and dtype, "
                f"got {initializer!r}; for given values use tf.constant_initializer(values)"
            )
        return initializer() if isinstance(initializer, type) else initializer
    return tf.truncated_normal_initializer()


def _find_or_make(
    full_name: str, scope: Any, collections: Sequence[str], **settings: Any
) -> EmbeddingTable:
    for table in graph_tables():
        if table.name == full_name:
            _check_same_settings(table, **settings)
            return table
    if scope.reuse is True:
        raise ValueError(
            f"name must be that of a table made before, got {full_name!r} under reuse=True; make "
            "the table first, or use reuse=tf.AUTO_REUSE"
        )
    _check_name_is_free(full_name)
    table = EmbeddingTable(full_name, **settings)
    tf.add_to_collections([EMBEDDING_VARIABLES, *collections], table)
    for shard in table.shards:
        tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, InitializerEntry(shard))
        tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, shard.saveable)
    return table


def _check_name_is_free(full_name: str) -> None:
    for variable in tf.global_variables():
        if variable.op.name == full_name:
            raise ValueError(
                f"name must not be that of a variable of the graph, got {full_name!r}; the "
                "checkpoint would confuse them"
            )


def _check_same_settings(table: EmbeddingTable, **settings: Any) -> None:
    present = {
        "dim": table.dim,
        "num_shards": len(table.shards),
        "initializer": table.initializer_of_rows,
        "ev_option": table.ev_option,
        "trainable": table.trainable,
    }
    for setting, value in settings.items():
        if _identity(setting, present[setting]) != _identity(setting, value):
            raise ValueError(
                f"table {table.name!r} must have the settings it was made with, got {setting} = "
                f"{value!r} after {present[setting]!r}; give the other table another name"
            )


def _identity(setting: str, value: Any) -> Any:
    """What two settings are compared by: initializers by what they do, not by object."""
    if setting == "ev_option":
        # The initializer is compared on its own, after precedence.
        init = value.init_option
        value = dataclasses.replace(value, init_option=dataclasses.replace(init, initializer=None))
        return value
    if setting != "initializer":
        return value
    if hasattr(value, "get_config"):
        return type(value).__name__, repr(sorted(value.get_config().items(), key=lambda kv: kv[0]))
    if not hasattr(value, "__code__"):
        return value
    captured = [cell.cell_contents for cell in value.__closure__ or ()]
    # Numbers and names are compared by value, all else by identity: an array has no one truth.
    simple = (bool, int, float, str, bytes, type(None))
    return (
        value.__code__,
        repr(value.__defaults__),
        [each if isinstance(each, simple) else id(each) for each in captured],
    )
