"""get_embedding_variable: makes a table, or finds the one of that name.

Step 2 of the data flow, its door: all that a user says about a table is checked here, before
anything of it is in the graph. table.py has the table itself.
"""

import dataclasses
import re
from typing import Any, Callable, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import warm_start
from rec_estimator.options import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    L2WeightEvict,
    StorageType,
)
from rec_estimator.table import BUCKETS, EMBEDDING_VARIABLES, EmbeddingTable, graph_tables
from rec_estimator.table_shard import InitializerEntry, LocalEntry, UnsavedEntry

# What tf.name_scope takes: a table's name is the name of an op too.
NAME_PATTERN = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./>-]*")


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
    table; a training step's apply counts the keys of its lookups and inserts those that the filter
    admits. A key without a row reads its initial vector, or with a filter
    ``default_value_no_permission``.

    Args:
      name: Name under the current variable scopes. The same name and settings again in one graph
        give the same table.
      embedding_dim: Elements of a row's value, at least 1.
      key_dtype: tf.int64, or tf.int32 for a table that takes int32 ids only.
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
      steps_to_live: An older way to say ``evict_option=GlobalStepEvict(steps_to_live)``, which goes
        before it.
      init_data_source: Must be None.
      ev_option: Filter, eviction, checkpoint, storage and initial vectors.

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
    ev_option = with_steps_to_live(ev_option, steps_to_live)
    _check_storage(ev_option)
    refuse_eager_mode("get_embedding_variable")
    scope = tf.get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name
    num_shards = number_of_shards(partitioner or scope.partitioner, embedding_dim)
    initializer = _choose_initializer(ev_option.init.initializer, initializer, scope.initializer)
    with tf.init_scope():
        return _find_or_make(
            full_name,
            scope,
            collections or (),
            dim=embedding_dim,
            key_dtype=tf.as_dtype(key_dtype),
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


def with_steps_to_live(
    option: EmbeddingVariableOption, steps_to_live: Optional[int]
) -> EmbeddingVariableOption:
    """The option with DeepRec's older argument in it.

    Args:
      option: Of the table.
      steps_to_live: None, or that of a GlobalStepEvict.

    Raises:
      ValueError: steps_to_live is out of range, or the option evicts by values.
    """
    if steps_to_live is None:
        return option
    rule, present = GlobalStepEvict(steps_to_live), option.evict_option
    if isinstance(present, GlobalStepEvict):
        tf.logging.warning("evict_option=%r goes before steps_to_live=%r.", present, steps_to_live)
        return option
    if isinstance(present, L2WeightEvict) and present.is_on and rule.is_on:
        raise ValueError(
            f"steps_to_live must be None with evict_option={present!r}, got {steps_to_live}; step "
            "and L2 eviction cannot be enabled at the same time"
        )
    return dataclasses.replace(option, evict_option=rule if rule.is_on else present)


def _check_storage(option: EmbeddingVariableOption) -> None:
    kind = option.storage_option.storage_type
    if kind not in (None, StorageType.DEFAULT, StorageType.DRAM):
        raise ValueError(
            f"storage_type must be DEFAULT or DRAM, got {kind.name}; rows live in memory, other "
            "tiers are refused"
        )


def refuse_eager_mode(function: str) -> None:
    """Refuses what is possible in a graph only.

    Args:
      function: What the user called.

    Raises:
      ValueError: No graph is being built.
    """
    if tf.executing_eagerly():
        raise ValueError(
            f"{function} must be called while a graph is built, got eager mode; call it in a "
            "model_fn or under `with tf.Graph().as_default():`"
        )


def number_of_shards(partitioner: Any, dim: int) -> int:
    """How many shards a partitioner cuts a table into.

    Args:
      partitioner: As of tf.get_variable; None: one shard.
      dim: Elements of a row's value.

    Raises:
      ValueError: It cuts rows.
    """
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
            check_same_settings(table, **settings)
            return table
    if scope.reuse is True:
        raise ValueError(
            f"name must be that of a table made before, got {full_name!r} under reuse=True; make "
            "the table first, or use reuse=tf.AUTO_REUSE"
        )
    check_name_is_free(full_name)
    table = EmbeddingTable(full_name, **settings)
    _log_filter_without_size(table)
    register_table(table, collections)
    warm_start.initialize_as_option_says(table)
    return table


def register_table(
    table: EmbeddingTable, collections: Sequence[str], is_saved: bool = True
) -> None:
    """Lets the graph know a table: what looks for tables, initializes them and saves them.

    Args:
      table: A new table.
      collections: Further collections to add it to.
      is_saved: Whether checkpoints have it. If not, every session that begins draws it anew.
    """
    tf.add_to_collections([EMBEDDING_VARIABLES, *collections], table)
    for shard in table.shards:
        if is_saved:
            tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, InitializerEntry(shard))
            tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, shard.saveable)
        else:
            tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, UnsavedEntry(shard))
            tf.add_to_collection(tf.GraphKeys.LOCAL_VARIABLES, LocalEntry(shard))


def _log_filter_without_size(table: EmbeddingTable) -> None:
    option = table.ev_option.filter_option
    if isinstance(option, CBFFilter) and isinstance(table.filter, CounterFilter):
        tf.logging.warning(
            "Table %r: %r has no max_element_size and behaves as %r.",
            table.name,
            option,
            table.filter,
        )


def check_name_is_free(full_name: str) -> None:
    """Refuses a table's name that a variable has.

    Args:
      full_name: Of the table.

    Raises:
      ValueError: A variable of the default graph has it.
    """
    for variable in tf.global_variables():
        if variable.op.name == full_name:
            raise ValueError(
                f"name must not be that of a variable of the graph, got {full_name!r}; the "
                "checkpoint would confuse them"
            )


def check_same_settings(table: EmbeddingTable, **settings: Any) -> None:
    """Refuses to take a table for one of other settings; initializers are compared by what they do.

    Args:
      table: What is there.
      **settings: Among dim, key_dtype, num_shards, initializer, ev_option and trainable.

    Raises:
      ValueError: One of the settings is another one.
    """
    present = {
        "dim": table.dim,
        "key_dtype": table.key_dtype,
        "num_shards": len(table.shards),
        "initializer": table.initializer_of_rows,
        "ev_option": table.ev_option,
        "trainable": table.trainable,
    }
    for setting, value in settings.items():
        # What a kind of table of its own is made with is an attribute of it.
        there = present[setting] if setting in present else getattr(table, setting)
        if _identity(setting, there) != _identity(setting, value):
            raise ValueError(
                f"table {table.name!r} must have the settings it was made with, got {setting} = "
                f"{value!r} after {there!r}; give the other table another name"
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
