# SPDX-License-Identifier: Apache-2.0
"""create_table: Rec SDK's entry point to tables. It checks arguments, and finds or makes a table.

Step 2 of the data flow, as scripts for Rec SDK write it. sparse_table.py has the table itself.

Source: Rec SDK TensorFlow, ``mx_rec.core.embedding.create_table``.
"""

import os
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int, check_text, refuse_keras
from rec_estimator._tensorflow import initializers
from rec_estimator.options import EmbeddingVariableOption, EvictionRule
from rec_estimator.rec_sdk import runtime
from rec_estimator.rec_sdk.sparse_table import SparseTable
from rec_estimator.regularizers import Regularizer
from rec_estimator.table.registration import (
    check_name_is_free,
    check_same_settings,
    number_of_shards,
    refuse_eager_mode,
    register_table,
)
from rec_estimator.table.table import SLOT_DTYPES, VALUE_DTYPES, check_narrow_dim, graph_tables

# Rec SDK's limits.
_MAX_DIM = 8192
_MAX_ROWS = 10**9
_MAX_NAME = 100
_MAX_INIT_PARAM = 10.0
_NAME_PATTERN = re.compile(r"[0-9A-Za-z_.]+")
_GRADIENT_OPS = ("sum_gradients", "sum_gradients_and_div_by_ranksize")


def create_table(
    key_dtype: tf.DType,
    dim: Union[int, tf.TensorShape],
    name: str,
    emb_initializer: Callable[..., tf.Tensor],
    device_vocabulary_size: int = 1,
    host_vocabulary_size: int = 0,
    ssd_vocabulary_size: int = 0,
    ssd_data_path: Sequence[str] = (os.curdir,),
    is_save: bool = True,
    is_dp: bool = False,
    init_param: float = 1.0,
    all2all_gradients_op: str = "sum_gradients",
    enable_merge: bool = False,
    padding_keys: Optional[Union[int, Sequence[int]]] = None,
    padding_keys_mask: bool = False,
    padding_keys_len: Optional[int] = None,
    value_dtype: tf.DType = tf.float32,
    shard_num: int = 1,
    fusion_optimizer_var: bool = True,
    hashtable_threshold: int = 0,
    regularizer: Optional[Regularizer] = None,
    slot_dtype: tf.DType = tf.float32,
    evict_option: Optional[EvictionRule] = None,
) -> SparseTable:
    """Makes a table for ``sparse_lookup``, or returns the existing one of that name.

    The same call in the graphs of training, evaluation and prediction names the same tensors of a
    checkpoint. Variable scopes do not change the name. Key -1 is padding: it reads the default
    value, and is neither stored nor counted.

    Args:
      key_dtype: tf.int64 or tf.int32. The table has int64 keys, and takes ids of both types.
      dim: Number of elements of a row's value, in [1, 8192]: an int, or a tf.TensorShape of rank 1.
      name: 1 to 100 letters, digits, "_" and ".". Each "." is removed, with a warning.
      emb_initializer: An instance of a TensorFlow initializer, of version 1 or 2.
      device_vocabulary_size: In [1, 1e9]. The table may have at most this many rows plus
        host_vocabulary_size and ssd_vocabulary_size; ``init(use_dynamic_expansion=True)`` removes
        the limit and keeps all rows in memory.
      host_vocabulary_size: In [0, 1e9]. More rows; they are in the same memory.
      ssd_vocabulary_size: In [0, 1e9]. More rows; they are in files (docs/storage.md). A size above
        0 needs a host_vocabulary_size.
      ssd_data_path: Folders for these files, on the machine on which the table is, filled one after
        the other. Missing folders are created with the table. Without effect if
        ssd_vocabulary_size is 0.
      is_save: Whether checkpoints contain the table. False: each session initializes it.
      is_dp: Without effect in one process.
      init_param: In [-10, 10]. Factor of every initial vector.
      all2all_gradients_op: "sum_gradients" or "sum_gradients_and_div_by_ranksize", which are the
        same in one process.
      enable_merge: Without effect. True requires dynamic expansion.
      padding_keys: Keys whose values training does not change; it does update their slots.
      padding_keys_mask: Must be True with padding_keys, and False without.
      padding_keys_len: Must be an int with padding_keys, and None without. Without effect.
      value_dtype: tf.float32; tf.bfloat16 or tf.float16 as in get_embedding_variable, which Rec SDK
        does not have. ``dim`` is then at most 2,048.
      shard_num: In [1, 8192]. Without effect.
      fusion_optimizer_var: Without effect.
      hashtable_threshold: In [0, 2**31 - 1]. Without effect.
      regularizer: L2Regularizer or LazyDecay; not in Rec SDK. LazyDecay cannot be combined with an
        eviction_threshold or TimeEvict, with which the versions of rows are timestamps.
      slot_dtype: tf.float32, or tf.bfloat16 as in get_embedding_variable; not in Rec SDK. ``dim``
        is then at most 2,048.
      evict_option: GlobalStepEvict, TimeEvict or L2WeightEvict as in EmbeddingVariableOption, by
        which full saves evict; not in Rec SDK. Lookups must then have no eviction_threshold.

    Returns:
      The table.

    Raises:
      ValueError: An argument has a wrong type or value; TensorFlow runs eagerly; the graph has a
        table of that name with other settings.
      TypeError: padding_keys is neither an int nor a list of them, or regularizer or evict_option
        is anything else.
      RuntimeError: enable_merge without dynamic expansion, or is_dp with padding_keys.

    Example:
      >>> table = rec.create_table(
      ...     key_dtype=tf.int64, dim=tf.TensorShape([4]), name="user_table",
      ...     emb_initializer=tf.truncated_normal_initializer(), device_vocabulary_size=1000)
      >>> table.table_name, table.emb_size, table.max_rows
      ('user_table', 4, 1000)
    """
    sizes = (device_vocabulary_size, host_vocabulary_size, ssd_vocabulary_size)
    _check_types(key_dtype, value_dtype, slot_dtype, emb_initializer)
    dim = _checked_dim(dim, value_dtype, slot_dtype)
    name = _checked_name(name)
    _check_init_param(init_param)
    flags = {"is_save": is_save, "is_dp": is_dp, "enable_merge": enable_merge}
    for flag, value in {**flags, "fusion_optimizer_var": fusion_optimizer_var}.items():
        check_bool(flag, value)
    check_int("shard_num", shard_num, 1, 8192)
    check_int("hashtable_threshold", hashtable_threshold, 0)
    _check_gradients_op(all2all_gradients_op)
    _check_enable_merge(enable_merge)
    _check_sizes(sizes, ssd_data_path)
    padding = _checked_padding_keys(padding_keys, padding_keys_mask, padding_keys_len)
    _check_padding_of_dp(name, padding, is_dp)
    refuse_eager_mode("create_table")
    settings: Dict[str, Any] = dict(
        # int32 keys are widened. Rec SDK's ids are always int64.
        key_dtype=tf.int64,
        dim=dim,
        num_shards=number_of_shards(tf.get_variable_scope().partitioner, dim),
        initializer=emb_initializer,
        init_param=init_param,
        is_save=is_save,
        sizes=sizes,
        padding_keys=tuple(sorted(set(padding))),
        ssd_data_path=tuple(ssd_data_path),
        ev_option=EmbeddingVariableOption(regularizer=regularizer, evict_option=evict_option),
        value_dtype=value_dtype,
        slot_dtype=slot_dtype,
    )
    with tf.init_scope():
        table = _existing_table(name, settings)
        if table is None:
            check_name_is_free(name)
            table = SparseTable(name, is_dp=is_dp, **settings)
            register_table(table, [runtime.hashtable_collection()], is_saved=is_save)
        return table


def _existing_table(name: str, settings: Dict[str, Any]) -> Optional[SparseTable]:
    """The table of this name; None if the graph has none. Refuses other settings."""
    for table in graph_tables():
        if table.name != name:
            continue
        if not isinstance(table, SparseTable):
            raise ValueError(
                f"name must not be that of a table of get_embedding_variable, got {name!r}; give "
                "one of the two another name"
            )
        if not table.ssd_vocabulary_size:
            # Then the folders have no effect.
            settings = {**settings, "ssd_data_path": table.ssd_data_path}
        check_same_settings(table, **settings)
        return table
    return None


def _check_padding_of_dp(name: str, padding: Sequence[int], is_dp: bool) -> None:
    if padding and is_dp:
        raise RuntimeError(
            f"is_dp must be False with padding_keys, got True for table {name!r}; leave one out"
        )


def _check_types(
    key_dtype: object, value_dtype: object, slot_dtype: object, initializer: object
) -> None:
    for name, value, allowed in (
        ("key_dtype", key_dtype, (tf.int64, tf.int32)),
        ("value_dtype", value_dtype, VALUE_DTYPES),
        ("slot_dtype", slot_dtype, SLOT_DTYPES),
    ):
        # tf.as_dtype would raise TypeError for a name that is not a type.
        if value not in allowed:
            names = " or ".join(f"tf.{dtype.name}" for dtype in allowed)
            raise ValueError(f"{name} must be {names}, got {value!r}; give one of these")
    refuse_keras(
        "emb_initializer", initializer, "for example tf.compat.v1.truncated_normal_initializer()"
    )
    if not isinstance(initializer, initializers.INITIALIZERS):
        raise ValueError(
            "emb_initializer must be an instance of a TensorFlow initializer, got "
            f"{initializer!r}; for example tf.compat.v1.truncated_normal_initializer()"
        )


def _checked_dim(
    dim: Union[int, tf.TensorShape], value_dtype: tf.DType, slot_dtype: tf.DType
) -> int:
    if isinstance(dim, tf.TensorShape):
        if dim.rank != 1 or dim.as_list() == [None]:
            raise ValueError(f"dim can only be one dim shape, got {dim}; give tf.TensorShape([8])")
        (dim,) = dim.as_list()
    dim = getattr(dim, "value", dim)  # tf.Dimension
    check_int("dim", dim, 1, _MAX_DIM)
    check_narrow_dim("dim", dim, value_dtype)
    check_narrow_dim("dim", dim, slot_dtype, setting="slot_dtype")
    return dim


def _checked_name(name: str) -> str:
    check_text("name", name, _MAX_NAME)
    if not _NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"name must consist of letters, digits, '_' and '.', got {name!r}; give another name"
        )
    kept = name.replace(".", "")
    if not kept:
        raise ValueError(
            f"name must have a letter, a digit or '_', got {name!r}; give another name"
        )
    if kept != name:
        tf.logging.warning("create_table: the name %r becomes %r.", name, kept)
    return kept


def _check_init_param(value: object) -> None:
    # The comparison also refuses NaN.
    if not isinstance(value, float) or not -_MAX_INIT_PARAM <= value <= _MAX_INIT_PARAM:
        raise ValueError(
            f"init_param must be a float in [{-_MAX_INIT_PARAM:g}, {_MAX_INIT_PARAM:g}], got "
            f"{value!r}; write 1.0 for 1"
        )


def _check_gradients_op(value: object) -> None:
    if value not in _GRADIENT_OPS:
        raise ValueError(
            f"all2all_gradients_op should be one of {', '.join(_GRADIENT_OPS)}, got {value!r}; in "
            "one process both do the same"
        )


def _check_enable_merge(value: bool) -> None:
    if value and not runtime.get_use_dynamic_expansion():
        raise RuntimeError(
            "enable_merge requires dynamic expansion mode, got True without it; call "
            "init(use_dynamic_expansion=True) first"
        )


def _check_sizes(sizes: Sequence[int], paths: Sequence[str]) -> None:
    device, host, ssd = sizes
    check_int("device_vocabulary_size", device, 1, _MAX_ROWS)
    check_int("host_vocabulary_size", host, 0, _MAX_ROWS)
    check_int("ssd_vocabulary_size", ssd, 0, _MAX_ROWS)
    if ssd and not host:
        raise ValueError(
            f"ssd_vocabulary_size must be 0 without a host_vocabulary_size, got {ssd}; rows in "
            "memory come before those on SSD, give both"
        )
    if (
        not isinstance(paths, (list, tuple))
        or not paths
        or not all(isinstance(path, str) and path and "\0" not in path for path in paths)
    ):
        raise ValueError(
            "ssd_data_path must be a list of at least one string, none empty or with a NUL, got "
            f"{paths!r}; give the folders of the SSD tier"
        )


def _checked_padding_keys(
    keys: Optional[Union[int, Sequence[int]]], mask: bool, length: Optional[int]
) -> List[int]:
    check_bool("padding_keys_mask", mask)
    if length is not None:
        check_int("padding_keys_len", length, 0)
    if keys is None:
        if mask or length is not None:
            raise ValueError(
                "padding_keys must be given with padding_keys_mask=True and padding_keys_len, got "
                f"None with {mask!r} and {length!r}; give the keys, or leave all three out"
            )
        return []
    keys = [keys] if isinstance(keys, int) else keys
    if not isinstance(keys, list) or not all(
        isinstance(key, int) and not isinstance(key, bool) for key in keys
    ):
        raise TypeError(
            f"padding_keys must be an integer or a list of integers, got {keys!r}; give keys of "
            "the table"
        )
    if not keys or not all(-(2**63) <= key < 2**63 for key in keys):
        raise ValueError(
            f"padding_keys must be at least one int64, got {keys!r}; give keys of the table"
        )
    if not mask or length is None:
        raise ValueError(
            "padding_keys_mask and padding_keys_len must be True and an integer with padding_keys, "
            f"got {mask!r} and {length!r}; give both"
        )
    return keys
