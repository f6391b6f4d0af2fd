# SPDX-License-Identifier: Apache-2.0
"""get_embedding_variable: makes a table, or returns the existing one with the same name.

It validates every argument before it adds an op. The table itself is in table/table.py.
"""

import dataclasses
import re
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import warm_start
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.inputs.vector_files import read_vectors
from rec_estimator.options import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    Initializer,
    SameRowInitializer,
    StorageType,
    as_initializer,
)
from rec_estimator.regularizers import Regularizer, check_regularizer
from rec_estimator.table.disk_storage import disk_storage_of
from rec_estimator.table.registration import (
    check_name_is_free,
    check_same_settings,
    number_of_shards,
    refuse_eager_mode,
    register_table,
)
from rec_estimator.table.row_writes import initialize_with_rows
from rec_estimator.table.table import (
    SLOT_DTYPES,
    VALUE_DTYPES,
    EmbeddingTable,
    check_narrow_dim,
    graph_tables,
)

# The names that tf.name_scope accepts: the name of a table is also the name of an op.
NAME_PATTERN = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./>-]*")

# The most elements of a vector. The bank of initial vectors then takes 4 GiB with 1,024 of them.
MAX_DIM = 2**20

# What to do instead of an argument that needs the value of the whole table.
_REMEDIES = {
    "constraint": "bound the rows that a step looks up, with max_norm= of the lookup",
}


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: tf.DType = tf.int64,
    value_dtype: Optional[tf.DType] = None,
    initializer: Optional[Initializer] = None,
    regularizer: Optional[Regularizer] = None,
    trainable: bool = True,
    collections: Optional[Sequence[str]] = None,
    caching_device: None = None,
    partitioner: Optional[Callable[..., Sequence[int]]] = None,
    validate_shape: bool = True,
    custom_getter: None = None,
    constraint: None = None,
    steps_to_live: Optional[int] = None,
    init_data_source: None = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
    slot_dtype: Optional[tf.DType] = None,
) -> EmbeddingTable:
    """Makes an embedding table without a fixed vocabulary, or returns the existing one.

    This is DeepRec's ``tf.get_embedding_variable``; to port a script, change the import. Lookups
    never change a table. The apply of a training step counts the keys of the step's lookups and
    inserts the keys that the filter admits. A key without a row reads its initial vector; with a
    filter it reads ``default_value_no_permission``.

    Args:
      name: Name in the current variable scope. A second call in a graph with the same name and
        settings returns the same table.
      embedding_dim: Number of elements of a vector, at least 1.
      key_dtype: tf.int64, or tf.int32 for a table that takes int32 ids only.
      value_dtype: tf.bfloat16 or tf.float16 store a vector in half the memory; embedding_dim is
        then at most 2,048. Lookups give float32, and a step computes in float32 and rounds the new
        vector at random, so that it is right on average (docs/small_tables.md). None: tf.float32.
      initializer: TensorFlow initializer of the initial vectors, called once with shape
        ``[default_value_dim, embedding_dim]``; ``ev_option.init_option.initializer`` takes
        precedence. None: for an existing table its own; for a new table the initializer of the
        variable scope, or truncated_normal_initializer() with standard deviation 1, as in DeepRec.
        Most models learn better from smaller vectors, such as EmbeddingFeature's. A list, NumPy
        array or tensor [embedding_dim] is the initial vector of every key.
      regularizer: L2Regularizer or LazyDecay, the same as ``ev_option.regularizer``. TensorFlow's
        and Keras's regularizers are refused, as they are functions of the whole table.
      trainable: Whether optimizers update the table by default.
      collections: Additional collections to add the table to.
      caching_device: Must be None.
      partitioner: For example ``tf.fixed_size_partitioner(4)``. It divides the table into 4 shards
        by ``floormod(key, 1000) % 4``; at most 1000 shards are possible. None: the partitioner of
        the variable scope.
      validate_shape: Must be True.
      custom_getter: Must be None.
      constraint: Must be None.
      steps_to_live: DeepRec's older form of ``evict_option=GlobalStepEvict(steps_to_live)``, which
        takes precedence.
      init_data_source: Must be None.
      ev_option: Filter, eviction, checkpoint, storage and initial vectors.
      slot_dtype: tf.bfloat16 stores the slots of optimizers in half the memory and rounds them as
        value_dtype does vectors; embedding_dim is then at most 2,048. A slot of one number per row
        stays float32. AdagradDecayOptimizer, AMSGrad and the centered RMSProp need tf.float32,
        which None stands for.

    Returns:
      The table.

    Raises:
      ValueError: An argument is out of range, eager mode is on, or a table with this name has other
        settings.
      TypeError: An argument has the wrong type.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> rec.embedding_lookup(table, tf.constant([7, -1, 7], tf.int64)).shape.as_list()
      [3, 4]
    """
    embedding_dim = tf.dimension_value(embedding_dim)
    dtypes = {"value_dtype": as_value_dtype(value_dtype), "slot_dtype": as_slot_dtype(slot_dtype)}
    _check_arguments(name, embedding_dim, key_dtype, dtypes)
    _refuse_what_tables_lack(
        caching_device=caching_device,
        validate_shape=validate_shape,
        custom_getter=custom_getter,
        constraint=constraint,
        init_data_source=init_data_source,
    )
    ev_option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(ev_option, EmbeddingVariableOption):
        raise TypeError(
            f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}; for example "
            "EmbeddingVariableOption(filter_option=CounterFilter(3))"
        )
    ev_option = with_steps_to_live(ev_option, steps_to_live)
    ev_option = with_regularizer(ev_option, regularizer)
    _check_storage(name, ev_option)
    refuse_eager_mode("get_embedding_variable")
    scope = tf.get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name
    num_shards = number_of_shards(partitioner or scope.partitioner, embedding_dim)
    initializer = _choose_initializer(
        embedding_dim, ev_option.init.initializer, initializer, scope.initializer
    )
    with tf.init_scope():
        return _find_or_make(
            full_name,
            scope,
            collections or (),
            dim=embedding_dim,
            key_dtype=tf.as_dtype(key_dtype),
            **dtypes,
            num_shards=num_shards,
            initializer=initializer,
            ev_option=ev_option,
            trainable=trainable,
        )


def as_value_dtype(value_dtype: Any) -> tf.DType:
    """Returns the type in which a table stores vectors.

    Args:
      value_dtype: As in get_embedding_variable.

    Raises:
      ValueError: It is another type.
    """
    dtype = tf.float32 if value_dtype is None else tf.as_dtype(value_dtype)
    if dtype not in VALUE_DTYPES:
        raise ValueError(
            f"value_dtype must be float32, bfloat16 or float16, got {dtype.name}; leave it out for "
            "float32"
        )
    return dtype


def as_slot_dtype(slot_dtype: Any) -> tf.DType:
    """Returns the type in which a table stores slots.

    Args:
      slot_dtype: As in get_embedding_variable.

    Raises:
      ValueError: It is another type.
    """
    dtype = tf.float32 if slot_dtype is None else tf.as_dtype(slot_dtype)
    if dtype not in SLOT_DTYPES:
        raise ValueError(
            f"slot_dtype must be float32 or bfloat16, got {dtype.name}; leave it out for float32"
        )
    return dtype


def _check_arguments(name: Any, dim: Any, key_dtype: Any, dtypes: Mapping[str, tf.DType]) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a non-empty string, got {name!r}; name the table")
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"name must be one that TensorFlow accepts for an op, {NAME_PATTERN.pattern}, got "
            f"{name!r}; replace its other characters"
        )
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
        raise ValueError(
            f"embedding_dim must be an integer >= 1, got {dim!r}; it is the length of a vector"
        )
    if dim > MAX_DIM:
        raise ValueError(
            f"embedding_dim must be <= {MAX_DIM}, got {dim}; it is the length of a vector, not the "
            "number of rows"
        )
    if tf.as_dtype(key_dtype) not in (tf.int64, tf.int32):
        raise ValueError(
            f"key_dtype must be int64 or int32, got {tf.as_dtype(key_dtype).name}; hash strings "
            "with tf.strings.to_hash_bucket_fast(values, 2**63 - 1)"
        )
    for setting, dtype in dtypes.items():
        check_narrow_dim("embedding_dim", int(dim), dtype, setting)


def _refuse_what_tables_lack(**arguments: Any) -> None:
    for argument, value in arguments.items():
        expected = True if argument == "validate_shape" else None
        if value is not expected:
            remedy = _REMEDIES.get(argument, "tables do not have it, leave it out")
            raise ValueError(f"{argument} must be {expected}, got {value!r}; {remedy}")


def with_steps_to_live(
    option: EmbeddingVariableOption, steps_to_live: Optional[int]
) -> EmbeddingVariableOption:
    """Adds DeepRec's older argument steps_to_live to an option.

    Args:
      option: The option of a table.
      steps_to_live: None, or the number of steps of a GlobalStepEvict.

    Returns:
      The option with the eviction rule.

    Raises:
      ValueError: steps_to_live is out of range, or the option has another rule.
    """
    if steps_to_live is None:
        return option
    rule, present = GlobalStepEvict(steps_to_live), option.evict_option
    if isinstance(present, GlobalStepEvict):
        tf.logging.warning(
            "evict_option=%r takes precedence over steps_to_live=%r.", present, steps_to_live
        )
        return option
    if present is not None and present.is_on and rule.is_on:
        raise ValueError(
            f"steps_to_live must be None with evict_option={present!r}, got {steps_to_live}; two "
            "rules cannot be enabled at the same time"
        )
    return dataclasses.replace(option, evict_option=rule if rule.is_on else present)


def with_regularizer(
    option: EmbeddingVariableOption, regularizer: Optional[Regularizer]
) -> EmbeddingVariableOption:
    """Returns the option of a table whose regularizer is given beside it.

    Args:
      option: The option.
      regularizer: L2Regularizer, LazyDecay, or None for that of the option.

    Raises:
      TypeError: regularizer is anything else.
      ValueError: The option has another one.
    """
    if regularizer is None or regularizer == option.regularizer:
        return option
    check_regularizer(regularizer)
    if option.regularizer is not None:
        raise ValueError(
            f"regularizer must be given once, got {regularizer!r} as regularizer= and "
            f"{option.regularizer!r} in ev_option="
        )
    return dataclasses.replace(option, regularizer=regularizer)


def _check_storage(name: str, option: EmbeddingVariableOption) -> None:
    kind = option.storage_option.storage_type or StorageType.DEFAULT
    if kind not in (StorageType.DEFAULT, StorageType.DRAM) and not kind.is_on_disk:
        raise ValueError(
            f"storage_type must be DEFAULT, DRAM, DRAM_SSDHASH or SSDHASH, got {kind.name}; there "
            "are no other tiers, leave storage_option out and all rows are in memory"
        )
    with tf.init_scope():
        _check_capacity(name, option)


def _check_capacity(name: str, option: EmbeddingVariableOption) -> None:
    """Refuses a capacity that nothing bounds.

    Args:
      name: The name of the table.
      option: Its options.

    Raises:
      ValueError: The capacity has no max_rows, and the table shares no memory with others.
    """
    if option.capacity is None or option.capacity.max_rows is not None:
        return
    if disk_storage_of(option.storage_option) is not None:
        raise ValueError(
            f"the capacity of table {name!r}, which has a tier on disk, must have max_rows, got "
            "None; rows that do not fit into memory go to the disk"
        )
    if not state_of().shares_table_memory:
        raise ValueError(
            f"the capacity of table {name!r} must have max_rows, got None; give it max_rows, or "
            "give RecEstimator a RunConfig(table_memory_bytes=)"
        )


def _choose_initializer(
    dim: int, *candidates: Optional[Initializer]
) -> Optional[Callable[..., Any]]:
    """The first initializer that is not None, if there is one; a class is instantiated."""
    for candidate in candidates:
        if candidate is None:
            continue
        initializer = as_initializer(candidate)
        if isinstance(initializer, SameRowInitializer) and initializer.dim not in (dim, None):
            raise ValueError(
                f"initializer must be one row of embedding_dim={dim} numbers, got {candidate!r} "
                f"with {initializer.dim}; for one number use tf.constant_initializer(number)"
            )
        return initializer() if isinstance(initializer, type) else initializer
    return None


def _find_or_make(
    full_name: str,
    scope: tf.VariableScope,
    collections: Sequence[str],
    initializer: Optional[Callable[..., Any]],
    **settings: Any,
) -> EmbeddingTable:
    for table in graph_tables():
        if table.name == full_name:
            # As tf.get_variable does: no initializer means that of the table.
            given = {} if initializer is None else {"initializer": initializer}
            check_same_settings(table, **settings, **given)
            return table
    if scope.reuse is True:
        raise ValueError(
            f"name must be that of an existing table, got {full_name!r} under reuse=True; make the "
            "table first, or use reuse=tf.AUTO_REUSE"
        )
    check_name_is_free(full_name)
    initializer = initializer or tf.truncated_normal_initializer()
    table = EmbeddingTable(full_name, initializer=initializer, **settings)
    _log_filter_without_size(table)
    register_table(table, collections)
    warm_start.initialize_as_option_says(table)
    _initialize_from_file(table)
    return table


def _initialize_from_file(table: EmbeddingTable) -> None:
    """Gives a new table the rows of its option ``pretrained``, if it has one."""
    option = table.ev_option.pretrained
    if option is None:
        return
    limits = table.key_dtype

    def read() -> Tuple[np.ndarray, np.ndarray]:
        keys, rows = read_vectors(option.path, option.integer_keys)
        if not limits.min <= keys.min() <= keys.max() <= limits.max:
            raise ValueError(f"keys of {option.path} must be {limits.name}, as the table's are")
        return keys, rows

    with tf.name_scope(None), tf.name_scope(f"{table.name}/pretrained/"):
        keys, rows = tf.numpy_function(read, [], [tf.int64, tf.float32])
        keys.set_shape([None])
        rows.set_shape([None, None])
        initialize_with_rows(table, keys, rows)


def _log_filter_without_size(table: EmbeddingTable) -> None:
    option = table.ev_option.filter_option
    if isinstance(option, CBFFilter) and isinstance(table.filter, CounterFilter):
        tf.logging.warning(
            "Table %r: %r has no max_element_size and behaves like %r.",
            table.name,
            option,
            table.filter,
        )
