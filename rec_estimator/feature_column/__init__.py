# SPDX-License-Identifier: Apache-2.0
"""Feature columns that read embedding tables; they can be mixed with TensorFlow's own.

    columns = [
        tf.feature_column.numeric_column("price"),
        feature_column.embedding_column(
            feature_column.categorical_column_with_embedding("user"), dimension=16),
    ]
    net = tf.compat.v1.feature_column.input_layer(features, columns)

The functions have DeepRec's names. A categorical column produces keys without a vocabulary. An
embedding column looks the keys up in a table, whose name is the one that TensorFlow gives the
variable of such a column: ``<variable scope>/<column>_embedding/embedding_weights``. In dense ids,
-1 and "" are padding; in sparse ids, every value is a key.
"""

import dataclasses
import numbers
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import feature_columns
from rec_estimator.embedding_variable import (
    as_slot_dtype,
    as_value_dtype,
    with_regularizer,
    with_steps_to_live,
)
from rec_estimator.feature_column.columns import (
    COMBINERS,
    CategoricalColumn,
    EmbeddedCategoricalColumn,
    EmbeddingColumn,
    has_keys,
    source_of,
)
from rec_estimator.feature_column.linear import linear_model
from rec_estimator.features import check_name
from rec_estimator.options import EmbeddingVariableOption
from rec_estimator.regularizers import Regularizer
from rec_estimator.table.shard import KEY_CLASSES

__all__ = [
    "EmbeddedCategoricalColumn",
    "EmbeddingColumn",
    "categorical_column_with_embedding",
    "embedding_column",
    "linear_model",
    "sequence_categorical_column_with_embedding",
    "shared_embedding_columns",
    "sparse_column_with_embedding",
    "sparse_column_wth_embedding",
    "weighted_categorical_column",
]

# What tf.as_dtype accepts.
_DType = Union[tf.DType, type, str]


def categorical_column_with_embedding(
    key: str,
    dtype: _DType = tf.string,
    partition_num: Optional[int] = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
    value_dtype: Optional[tf.DType] = None,
    slot_dtype: Optional[tf.DType] = None,
    regularizer: Optional[Regularizer] = None,
) -> EmbeddedCategoricalColumn:
    """Makes a column whose ids are keys of a table; it needs no vocabulary.

    This is DeepRec's ``tf.feature_column.categorical_column_with_embedding``. Pass the column to
    ``embedding_column`` or ``shared_embedding_columns`` of this module.

    Args:
      key: Name of the feature in the batch and in a tf.Example.
      dtype: tf.int64 or tf.int32 for ids that are keys; tf.string for ids that are hashed to keys.
      partition_num: Number of shards of the table, 1 to 1000. None: set by the partitioner of the
        variable scope.
      ev_option: Filter, eviction and all other options of the table.
      value_dtype: How the table stores vectors, as in get_embedding_variable.
      slot_dtype: How it stores the slots of optimizers, likewise.
      regularizer: L2Regularizer or LazyDecay, the same as ``ev_option.regularizer``.

    Returns:
      The column. It is hashable and equal to a column with the same settings.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: An argument is out of range.

    Example:
      >>> option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(filter_freq=3))
      >>> user = categorical_column_with_embedding("user", dtype=tf.int64, ev_option=option)
      >>> user.name
      'user'
    """
    check_name("key", key)
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError:
        raise TypeError(
            f"dtype must be a TensorFlow type, got {dtype!r}; for example tf.int64"
        ) from None
    if dtype not in (tf.string, tf.int64, tf.int32):
        raise ValueError(
            f"dtype must be tf.string, tf.int64 or tf.int32, got {dtype!r}; cast or bucket the ids"
        )
    if partition_num is not None and not (
        isinstance(partition_num, numbers.Integral) and 1 <= partition_num <= KEY_CLASSES
    ):
        raise ValueError(
            f"partition_num must be None or an integer in [1, {KEY_CLASSES}], got "
            f"{partition_num!r}; it is the number of shards"
        )
    ev_option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(ev_option, EmbeddingVariableOption):
        raise TypeError(
            f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}; for example "
            "EmbeddingVariableOption(filter_option=CounterFilter(3))"
        )
    return EmbeddedCategoricalColumn(
        *(key, dtype, partition_num, with_regularizer(ev_option, regularizer)),
        as_value_dtype(value_dtype),
        as_slot_dtype(slot_dtype),
    )


def sequence_categorical_column_with_embedding(
    key: str,
    dtype: _DType = tf.string,
    partition_num: Optional[int] = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
    value_dtype: Optional[tf.DType] = None,
    slot_dtype: Optional[tf.DType] = None,
    regularizer: Optional[Regularizer] = None,
) -> feature_columns.SequenceCategoricalColumn:
    """Makes a column of sequences of ids that are keys of a table, for sequence layers.

    Args:
      key: As in categorical_column_with_embedding.
      dtype: As in categorical_column_with_embedding.
      partition_num: As in categorical_column_with_embedding.
      ev_option: As in categorical_column_with_embedding.
      value_dtype: As in categorical_column_with_embedding.
      slot_dtype: As in categorical_column_with_embedding.
      regularizer: As in categorical_column_with_embedding.

    Returns:
      TensorFlow's sequence column. An embedding_column of it gives [batch, length, dimension].

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: An argument is out of range.

    Example:
      >>> history = sequence_categorical_column_with_embedding("history")
      >>> embedding_column(history, dimension=8).name
      'history_embedding'
    """
    return feature_columns.SequenceCategoricalColumn(
        categorical_column_with_embedding(
            key, dtype, partition_num, ev_option, value_dtype, slot_dtype, regularizer
        )
    )


def sparse_column_with_embedding(
    column_name: str,
    dtype: _DType = tf.string,
    partition_num: Optional[int] = None,
    steps_to_live: Optional[int] = None,
    init_data_source: None = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
    value_dtype: Optional[tf.DType] = None,
    slot_dtype: Optional[tf.DType] = None,
    regularizer: Optional[Regularizer] = None,
) -> EmbeddedCategoricalColumn:
    """Same as categorical_column_with_embedding, under its name in tf.contrib.layers.

    Args:
      column_name: Name of the feature in the batch.
      dtype: As in categorical_column_with_embedding.
      partition_num: As in categorical_column_with_embedding.
      steps_to_live: As in get_embedding_variable.
      init_data_source: Must be None.
      ev_option: As in categorical_column_with_embedding.
      value_dtype: As in categorical_column_with_embedding.
      slot_dtype: As in categorical_column_with_embedding.
      regularizer: As in categorical_column_with_embedding.

    Returns:
      The column.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: An argument is out of range.

    Example:
      >>> sparse_column_with_embedding("var") == categorical_column_with_embedding("var")
      True
    """
    if init_data_source is not None:
        raise ValueError(f"init_data_source must be None, got {init_data_source!r}; omit it")
    column = categorical_column_with_embedding(
        column_name, dtype, partition_num, ev_option, value_dtype, slot_dtype, regularizer
    )
    option = with_steps_to_live(column.ev_option, steps_to_live)
    return dataclasses.replace(column, ev_option=option)


# The spelling of DeepRec's page on feature filters.
sparse_column_wth_embedding = sparse_column_with_embedding


def weighted_categorical_column(
    categorical_column: CategoricalColumn, weight_feature_key: str, dtype: _DType = tf.float32
) -> feature_columns.WeightedCategoricalColumn:
    """Adds a weight to each id of a column, for the combiner.

    Args:
      categorical_column: A column of categorical_column_with_embedding, or one of TensorFlow's.
      weight_feature_key: Name of the feature with one weight per id, dense, where 0 is padding, or
        sparse. As in TensorFlow, the first weight of a batch belongs to its first id, and so on.
      dtype: Type of the weights, integer or floating point.

    Returns:
      TensorFlow's weighted column.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: weight_feature_key is empty, or dtype is not a type of numbers.

    Example:
      >>> tags = weighted_categorical_column(categorical_column_with_embedding("tags"), "scores")
      >>> embedding_column(tags, dimension=8, combiner="sum").name
      'tags_weighted_by_scores_embedding'
    """
    if not _has_vocabulary(categorical_column):
        source_of(categorical_column)
    check_name("weight_feature_key", weight_feature_key)
    dtype = tf.as_dtype(dtype)
    if not (dtype.is_integer or dtype.is_floating):
        raise ValueError(
            f"dtype must be integer or floating point, got {dtype.name}; for example tf.float32"
        )
    return feature_columns.WeightedCategoricalColumn(categorical_column, weight_feature_key, dtype)


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Optional[Callable[..., Any]] = None,
    ckpt_to_load_from: Optional[str] = None,
    tensor_name_in_ckpt: Optional[str] = None,
    max_norm: Optional[float] = None,
    trainable: bool = True,
    do_fusion: Any = None,
) -> feature_columns.DenseColumn:
    """Makes a dense column: the combined vectors of a feature's ids, from a table of its own.

    This is ``tf.feature_column.embedding_column``, also for columns of this module. An example
    without ids gets zeros, and no key is counted for it.

    Args:
      categorical_column: A column of categorical_column_with_embedding,
        weighted_categorical_column or sequence_categorical_column_with_embedding. A column with a
        fixed vocabulary is given to TensorFlow's function.
      dimension: Number of elements of a vector, at least 1.
      combiner: How the vectors of an example are combined: "mean", "sum" or "sqrtn".
      initializer: TensorFlow initializer of new rows; ``ev_option.init_option.initializer`` takes
        precedence. None: truncated_normal_initializer with standard deviation 1 / sqrt(dimension),
        as for TensorFlow's and DeepRec's columns.
      ckpt_to_load_from: Must be None for a column with a table, whose ev_option has it.
      tensor_name_in_ckpt: Must be None for a column with a table.
      max_norm: If given, a vector with a larger L2 norm is scaled to this norm before it is
        combined.
      trainable: Whether optimizers update the table by default.
      do_fusion: Not used; in DeepRec it selects fused ops.

    Returns:
      A column for input_layer and linear_model: an EmbeddingColumn, or TensorFlow's.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: An argument is out of range.

    Example:
      >>> user = embedding_column(categorical_column_with_embedding("user"), dimension=4)
      >>> batch = {"user": tf.constant([["a", "b"], ["a", ""]])}
      >>> tf.feature_column.input_layer(batch, [user]).shape.as_list()
      [2, 4]
    """
    del do_fusion
    if _has_vocabulary(categorical_column):
        return tf.feature_column.embedding_column(
            *(categorical_column, dimension, combiner, initializer),
            *(ckpt_to_load_from, tensor_name_in_ckpt, max_norm, trainable),
        )
    _refuse_checkpoint(ckpt_to_load_from, tensor_name_in_ckpt)
    return _dense_column(
        categorical_column, dimension, combiner, initializer, max_norm, trainable, None
    )


def shared_embedding_columns(
    categorical_columns: Sequence[CategoricalColumn],
    dimension: int,
    combiner: str = "mean",
    initializer: Optional[Callable[..., Any]] = None,
    shared_embedding_collection_name: Optional[str] = None,
    ckpt_to_load_from: Optional[str] = None,
    tensor_name_in_ckpt: Optional[str] = None,
    max_norm: Optional[float] = None,
    trainable: bool = True,
    do_fusion: Any = None,
) -> List[feature_columns.DenseColumn]:
    """Makes dense columns of several features that share one table.

    This is ``tf.feature_column.shared_embedding_columns``, also for columns of this module. A
    training step counts the keys of all columns, and sums their gradients per key.

    Args:
      categorical_columns: Columns as in embedding_column. They must have the same ev_option and
        partition_num, and all be strings or all be integers. Columns that all have a fixed
        vocabulary are given to TensorFlow's function.
      dimension: As in embedding_column.
      combiner: As in embedding_column.
      initializer: As in embedding_column.
      shared_embedding_collection_name: Name of the table. All columns with this name share it,
        also in several input_layers of a graph. None: made from the names of the columns.
      ckpt_to_load_from: As in embedding_column.
      tensor_name_in_ckpt: As in embedding_column.
      max_norm: As in embedding_column.
      trainable: As in embedding_column.
      do_fusion: As in embedding_column.

    Returns:
      One dense column per categorical column.

    Raises:
      TypeError: An argument has the wrong type, or only some columns have a fixed vocabulary.
      ValueError: An argument is out of range, or the columns cannot share a table.

    Example:
      >>> watched, bought = shared_embedding_columns(
      ...     [categorical_column_with_embedding(key) for key in ("watched", "bought")], 4)
      >>> watched.shared_name
      'bought_watched_shared_embedding'
    """
    del do_fusion
    columns = list(categorical_columns)
    if not columns:
        raise ValueError("categorical_columns must be one column or more, got none; list them")
    name = shared_embedding_collection_name
    if all(_has_vocabulary(column) for column in columns):
        return tf.feature_column.shared_embedding_columns(
            *(columns, dimension, combiner, initializer, name),
            *(ckpt_to_load_from, tensor_name_in_ckpt, max_norm, trainable),
        )
    _refuse_checkpoint(ckpt_to_load_from, tensor_name_in_ckpt)
    settings = [(column.name, _shared_settings(source_of(column))) for column in columns]
    if any(setting != settings[0][1] for _, setting in settings):
        raise ValueError(
            "categorical_columns must have the same ev_option, partition_num, value_dtype and "
            f"slot_dtype, and all be strings or all be integers, got {settings}; only such columns "
            "can share a table"
        )
    if name is None:
        name = "_".join([*sorted(column.name for column in columns), "shared_embedding"])
    check_name("shared_embedding_collection_name", name)
    return [
        _dense_column(column, dimension, combiner, initializer, max_norm, trainable, name)
        for column in columns
    ]


def _has_vocabulary(column: Any) -> bool:
    """Whether a column is a categorical one of TensorFlow, with a fixed number of ids."""
    kinds = (feature_columns.CategoricalColumn, feature_columns.CategoricalColumnV1)
    return isinstance(column, kinds) and not has_keys(column)


def _refuse_checkpoint(ckpt_to_load_from: Any, tensor_name_in_ckpt: Any) -> None:
    for name, value in (
        ("ckpt_to_load_from", ckpt_to_load_from),
        ("tensor_name_in_ckpt", tensor_name_in_ckpt),
    ):
        if value is not None:
            raise ValueError(
                f"{name} must be None for a column with a table, got {value!r}; give it to "
                "EmbeddingVariableOption(ckpt=CheckpointOption(...)), the column's ev_option"
            )


def _dense_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str,
    initializer: Optional[Callable[..., Any]],
    max_norm: Optional[float],
    trainable: bool,
    shared_name: Optional[str],
) -> EmbeddingColumn:
    source_of(categorical_column)
    dimension = tf.dimension_value(dimension)
    if isinstance(dimension, bool) or not isinstance(dimension, numbers.Integral) or dimension < 1:
        raise ValueError(
            f"dimension must be an integer >= 1, got {dimension!r}; it is the length of a vector"
        )
    if combiner not in COMBINERS:
        raise ValueError(
            f"combiner must be one of {', '.join(COMBINERS)}, got {combiner!r}; the default is mean"
        )
    if initializer is not None and not callable(initializer):
        raise TypeError(
            f"initializer must be a TensorFlow initializer, got {initializer!r}; for fixed values "
            "use tf.constant_initializer(values)"
        )
    if max_norm is not None and not (isinstance(max_norm, numbers.Real) and float(max_norm) > 0):
        raise ValueError(
            f"max_norm must be None or a number above 0, got {max_norm!r}; None sets no limit"
        )
    if not isinstance(trainable, bool):
        raise TypeError(f"trainable must be True or False, got {trainable!r}; the default is True")
    return EmbeddingColumn(
        categorical_column, int(dimension), combiner, initializer, max_norm, trainable, shared_name
    )


def _shared_settings(
    column: EmbeddedCategoricalColumn,
) -> Tuple[EmbeddingVariableOption, Optional[int], tf.DType, tf.DType, bool]:
    dtypes = column.value_dtype, column.slot_dtype
    return column.ev_option, column.partition_num, *dtypes, column.dtype == tf.string
