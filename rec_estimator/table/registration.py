"""Adds tables to a graph: checks of a new table's name and settings, and its collections.

Shared by ``get_embedding_variable`` and ``create_table``.
"""

import dataclasses
from typing import Any, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.table.shard import InitializerEntry, LocalEntry, UnsavedEntry
from rec_estimator.table.table import BUCKETS, EMBEDDING_VARIABLES, EmbeddingTable


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
