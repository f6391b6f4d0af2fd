# SPDX-License-Identifier: Apache-2.0
"""Adds tables to a graph: checks the name and settings of a table, and fills the collections.

Shared by ``get_embedding_variable`` and ``create_table``.
"""

import dataclasses
from typing import Any, Callable, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import variable_store
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table import loaded_tables, placement
from rec_estimator.table.initializer_entries import InitializerEntry, LocalEntry, UnsavedEntry
from rec_estimator.table.shard import KEY_CLASSES
from rec_estimator.table.table import (
    EMBEDDING_VARIABLES,
    EmbeddingTable,
    trainable_members,
)


def refuse_eager_mode(function: str) -> None:
    """Refuses eager mode.

    Args:
      function: The function that the user called.

    Raises:
      ValueError: No graph is being built.
    """
    if tf.executing_eagerly():
        raise ValueError(
            f"{function} must be called while a graph is built, got eager mode; call it in a "
            "model_fn or under `with tf.Graph().as_default():`"
        )


def number_of_shards(partitioner: Optional[Callable[..., Sequence[int]]], dim: int) -> int:
    """The number of shards that a partitioner cuts a table into.

    Args:
      partitioner: A partitioner, as tf.get_variable takes it; None: one shard for each parameter
        server, or one shard without them.
      dim: Number of floats in the value of a row.

    Raises:
      ValueError: The partitioner cuts rows.
    """
    if partitioner is None:
        with tf.init_scope():
            return min(max(len(placement.ps_devices()), 1), KEY_CLASSES)
    # A partitioner needs a fully defined shape. It partitions the key classes, because rows go to
    # shards by key class.
    cuts = list(partitioner(shape=tf.TensorShape([KEY_CLASSES, dim]), dtype=tf.float32))
    if len(cuts) != 2 or cuts[1] != 1 or cuts[0] < 1:
        raise ValueError(
            f"partitioner must cut the first of two axes only, got {cuts}; use "
            "tf.fixed_size_partitioner(n)"
        )
    return int(cuts[0])


def register_table(
    table: EmbeddingTable, collections: Sequence[str], is_saved: bool = True
) -> None:
    """Adds a new table to the collections through which a graph finds, initializes and saves it.

    Args:
      table: A new table.
      collections: Further collections to add the table to.
      is_saved: Whether checkpoints contain the table. If not, every new session initializes it.
    """
    _warn_of_scope_settings(table)
    tf.add_to_collections([EMBEDDING_VARIABLES, *collections], table)
    if table.trainable and state_of().tables_in_trainable_variables:
        for member in trainable_members(table):
            tf.add_to_collection(tf.GraphKeys.TRAINABLE_VARIABLES, member)
    for shard in table.shards:
        state_of().shards[shard.op.name] = shard
        loaded_tables.add_handle(shard.op)
        if is_saved:
            tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, InitializerEntry(shard))
            tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, shard.saveable)
        else:
            tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, UnsavedEntry(shard))
            tf.add_to_collection(tf.GraphKeys.LOCAL_VARIABLES, LocalEntry(shard))


def _warn_of_scope_settings(table: EmbeddingTable) -> None:
    """Says which settings of the variable scope a table does not take.

    Both need the value of the whole variable, which a table does not have. Scripts set them for the
    dense variables of the scope, so they are no error.
    """
    scope = tf.get_variable_scope()
    for setting in ("regularizer", "constraint"):
        value = getattr(scope, setting)
        if value is not None:
            tf.logging.warning(
                "Table %r ignores %s=%r of variable scope %r, which acts on dense variables only.",
                table.name,
                setting,
                value,
                scope.name,
            )


def check_name_is_free(full_name: str) -> None:
    """Refuses the name of a variable.

    Args:
      full_name: The name of the table.

    Raises:
      ValueError: A variable of the default graph has this name.
    """
    is_op = any(variable.op.name == full_name for variable in tf.global_variables())
    if is_op or variable_store.has_variable(tf.get_default_graph(), full_name):
        raise ValueError(
            f"name must not be that of a variable of the graph, got {full_name!r}; the "
            "checkpoint would confuse them"
        )


def check_same_settings(table: EmbeddingTable, **settings: Any) -> None:
    """Refuses to reuse a table with settings that differ from its own.

    Args:
      table: The existing table.
      **settings: Any of dim, key_dtype, num_shards, initializer, ev_option and trainable, and of
        further attributes of the table, such as value_dtype.

    Raises:
      ValueError: A setting differs.
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
        there = present[setting] if setting in present else getattr(table, setting)
        if comparable(setting, there) != comparable(setting, value):
            raise ValueError(
                f"table {table.name!r} must have the settings it was made with, got {setting} = "
                f"{value!r} after {there!r}; give the other table another name"
            )


def comparable(setting: str, value: Any) -> Any:
    """The value by which a setting of tables is compared.

    Two initializers are equal if they do the same, as each call may build its own.

    Args:
      setting: As in check_same_settings.
      value: Its value.
    """
    if setting == "ev_option":
        # The initializer is compared as a setting of its own: another argument may override it.
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
    # Other captured objects, such as arrays, are compared by identity: == may not give a bool.
    simple = (bool, int, float, str, bytes, type(None))
    return (
        value.__code__,
        repr(value.__defaults__),
        [each if isinstance(each, simple) else id(each) for each in captured],
    )
