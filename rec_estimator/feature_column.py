# SPDX-License-Identifier: Apache-2.0
"""Feature columns over embedding tables, beside TensorFlow's own.

    columns = [
        tf.feature_column.numeric_column("price"),
        feature_column.embedding_column(
            feature_column.categorical_column_with_embedding("user"), dimension=16),
    ]
    net = tf.compat.v1.feature_column.input_layer(features, columns)

DeepRec's functions of these names. A categorical column names keys without a vocabulary; an
embedding column looks them up in a table named as TensorFlow names the variable,
``<variable scope>/<column>_embedding/embedding_weights``. In dense ids -1 and "" are padding; in
sparse ids every value is a key.
"""

import dataclasses
import math
import numbers
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import feature_columns
from rec_estimator.embedding_variable import get_embedding_variable, with_steps_to_live
from rec_estimator.features import check_name, to_keys, without_padding
from rec_estimator.options import EmbeddingVariableOption
from rec_estimator.table.combined_lookup import safe_embedding_lookup_sparse
from rec_estimator.table.registration import check_same_settings
from rec_estimator.table.table import BUCKETS, EmbeddingTable

_COMBINERS = ("sum", "mean", "sqrtn")

# TensorFlow's names: of an embedding column's variable, and of collections of real variables.
_TABLE_NAME = "embedding_weights"
_VARIABLE_COLLECTIONS = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
)


@dataclasses.dataclass(frozen=True)
class EmbeddedCategoricalColumn(
    feature_columns.CategoricalColumn, feature_columns.CategoricalColumnV1
):
    """A feature whose ids are keys of a table; made by categorical_column_with_embedding.

    Attributes:
      key: The feature's entry in the batch.
      dtype: tf.string, tf.int64 or tf.int32.
      partition_num: Shards of the table; None leaves it to the variable scope.
      ev_option: Everything else about the table.
    """

    key: str
    dtype: tf.DType
    partition_num: Optional[int]
    ev_option: EmbeddingVariableOption

    # TensorFlow builds a model of columns that say True here with Keras layers.
    _is_v2_column = False

    @property
    def name(self) -> str:
        """The feature's entry in the batch."""
        return self.key

    @property
    def parents(self) -> List[str]:
        """What the column is made of."""
        return [self.key]

    @property
    def parse_example_spec(self) -> Dict[str, Any]:
        """How tf.io.parse_example reads the feature."""
        # A tf.Example holds strings and int64.
        return {self.key: tf.io.VarLenFeature(tf.string if self._is_string else tf.int64)}

    @property
    def num_buckets(self) -> NoReturn:
        """Raises ValueError: TensorFlow cannot make weights of a vocabulary without end."""
        raise ValueError(
            f"column {self.key!r} must be in a rec_estimator.feature_column.embedding_column, got "
            "one that makes a variable with a row per id; a table has no number of buckets"
        )

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> tf.SparseTensor:
        """Keys of a batch, int64 SparseTensor; called by TensorFlow."""
        return self._keys(transformation_cache.get(self.key, state_manager))

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Keys of a batch without weights; called by TensorFlow."""
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    # The same under the names of TensorFlow's older columns.

    _parse_example_spec = parse_example_spec
    _num_buckets = num_buckets

    def _transform_feature(self, inputs: Any) -> tf.SparseTensor:
        return self._keys(inputs.get(self.key))

    def _get_sparse_tensors(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        del weight_collections, trainable
        return self.IdWeightPair(inputs.get(self), None)

    @property
    def _is_string(self) -> bool:
        return self.dtype == tf.string

    def _keys(self, ids: Any) -> tf.SparseTensor:
        if ids.dtype not in ((tf.string,) if self._is_string else (tf.int64, tf.int32)):
            raise TypeError(
                f"feature {self.key!r} must have ids of the declared dtype {self.dtype.name}, got "
                f"{ids.dtype.name}; give the column that dtype, or cast or bucket the ids"
            )
        sparse, _ = without_padding(ids, None)
        return tf.SparseTensor(sparse.indices, to_keys(sparse.values), sparse.dense_shape)


@dataclasses.dataclass(frozen=True)
class EmbeddingColumn(
    feature_columns.DenseColumn,
    feature_columns.SequenceDenseColumn,
    feature_columns.DenseColumnV1,
    feature_columns.SequenceDenseColumnV1,
):
    """The vectors of a categorical column's ids; made by embedding_column.

    Attributes:
      categorical_column: Names the keys.
      dimension: Floats per vector.
      combiner: "mean", "sum" or "sqrtn".
      initializer: TensorFlow initializer of new rows, or None.
      max_norm: Largest L2 norm of a row before it is combined, or None.
      trainable: Whether optimizers update the table unasked.
      shared_name: What the columns that share its table call it; None: the table is its own.
    """

    categorical_column: Any
    dimension: int
    combiner: str
    initializer: Any
    max_norm: Optional[float]
    trainable: bool
    shared_name: Optional[str]

    _is_v2_column = False  # As EmbeddedCategoricalColumn's.

    @property
    def name(self) -> str:
        """As TensorFlow names it."""
        shared = "" if self.shared_name is None else "_shared"
        return f"{self.categorical_column.name}{shared}_embedding"

    @property
    def parents(self) -> List[Any]:
        """What the column is made of."""
        return [self.categorical_column]

    @property
    def parse_example_spec(self) -> Dict[str, Any]:
        """How tf.io.parse_example reads the feature."""
        return self.categorical_column.parse_example_spec

    @property
    def variable_shape(self) -> tf.TensorShape:
        """Shape of an example's vector."""
        return tf.TensorShape([self.dimension])

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Keys of a batch; called by TensorFlow."""
        return transformation_cache.get(self.categorical_column, state_manager)

    def create_state(self, state_manager: Any) -> None:
        """Makes the table in the variable scope; called by TensorFlow."""
        state_manager.add_resource(self, _TABLE_NAME, self._table((), True))

    def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> tf.Tensor:
        """float32 [batch, dimension]; called by TensorFlow."""
        self._check_sequence(False)
        pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        return self._vectors(pair, state_manager.get_resource(self, _TABLE_NAME))

    def get_sequence_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """float32 [batch, length, dimension] and lengths [batch]; called by TensorFlow."""
        self._check_sequence(True)
        pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        return self._sequence(pair, state_manager.get_resource(self, _TABLE_NAME))

    # The same under the names of TensorFlow's older columns, which call it in a variable scope of
    # the column.

    _variable_shape = variable_shape
    _parse_example_spec = parse_example_spec

    @property
    def _var_scope_name(self) -> str:
        return self.shared_name or self.name

    def _transform_feature(self, inputs: Any) -> Any:
        return inputs.get(self.categorical_column)

    def _get_dense_tensor(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> tf.Tensor:
        self._check_sequence(False)
        pair = self.categorical_column._get_sparse_tensors(inputs)
        return self._vectors(pair, self._table(weight_collections, trainable))

    def _get_sequence_dense_tensor(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        self._check_sequence(True)
        pair = self.categorical_column._get_sparse_tensors(inputs)
        return self._sequence(pair, self._table(weight_collections, trainable))

    def _check_sequence(self, expected: bool) -> None:
        if (
            isinstance(self.categorical_column, feature_columns.SequenceCategoricalColumn)
            != expected
        ):
            kind = "a sequence" if expected else "no sequence"
            raise ValueError(
                f"column {self.name!r} must be of {kind} here, got {self.categorical_column}; "
                "sequences come from sequence_categorical_column_with_embedding and go to sequence "
                "layers"
            )

    def _table(self, collections: Any, trainable: Any) -> EmbeddingTable:
        """The table; collections and trainable as TensorFlow passes them."""
        if self.shared_name is not None:
            present = tf.get_collection(self.shared_name)
            if present:
                return self._checked_shared(present)
        source = _source(self.categorical_column)
        shards = source.partition_num
        table = get_embedding_variable(
            _TABLE_NAME,
            self.dimension,
            # TensorFlow's of an embedding column.
            initializer=self.initializer
            or tf.truncated_normal_initializer(stddev=1 / math.sqrt(self.dimension)),
            trainable=self.trainable and trainable is not False,
            # A table among the variables would break a stock Saver or optimizer.
            collections=[each for each in collections or () if each not in _VARIABLE_COLLECTIONS],
            partitioner=None if shards is None else tf.fixed_size_partitioner(shards),
            ev_option=source.ev_option,
        )
        if self.shared_name is not None:
            tf.add_to_collection(self.shared_name, table)
        return table

    def _checked_shared(self, present: Sequence[Any]) -> EmbeddingTable:
        if len(present) > 1 or not isinstance(present[0], EmbeddingTable):
            raise ValueError(
                f"shared_embedding_collection_name must name a collection of one table, got "
                f"{present} in {self.shared_name!r}; choose another name"
            )
        option = _source(self.categorical_column).ev_option
        check_same_settings(present[0], dim=self.dimension, ev_option=option)
        return present[0]

    def _vectors(self, pair: Any, table: EmbeddingTable) -> tf.Tensor:
        ids, weights = pair
        with tf.name_scope(None, self.name):
            if weights is not None:
                ids, weights = without_padding(ids, weights)
            if weights is not None and self.combiner != "sum":
                # As TensorFlow's columns: such an id would turn the mean around.
                counts = tf.greater(weights.values, 0)
                ids, weights = tf.sparse.retain(ids, counts), tf.sparse.retain(weights, counts)
            return safe_embedding_lookup_sparse(
                table, ids, weights, self.combiner, max_norm=self.max_norm, prune=False
            )

    def _sequence(self, pair: Any, table: EmbeddingTable) -> Any:
        lengths = feature_columns.sequence_length_from_sparse_tensor(pair.id_tensor)
        return self.TensorSequenceLengthPair(self._vectors(pair, table), lengths)


def categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: Optional[int] = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
) -> EmbeddedCategoricalColumn:
    """A feature whose ids are keys of a table, without a vocabulary.

    DeepRec's ``tf.feature_column.categorical_column_with_embedding``. Put it into an
    ``embedding_column`` or ``shared_embedding_columns`` of this module.

    Args:
      key: The feature's entry in the batch and in a tf.Example.
      dtype: tf.string, whose values are hashed to keys, or tf.int64 or tf.int32: the keys.
      partition_num: Shards of the table, 1 to 1000. None: as the variable scope's partitioner.
      ev_option: Filter, eviction and everything else about the table.

    Returns:
      The column; hashable, and equal to one of the same settings.

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: An argument out of range.

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
        raise TypeError(f"dtype must be a TensorFlow type, got {dtype!r}") from None
    if dtype not in (tf.string, tf.int64, tf.int32):
        raise ValueError(f"dtype must be tf.string, tf.int64 or tf.int32, got {dtype!r}")
    if partition_num is not None and not (
        isinstance(partition_num, numbers.Integral) and 1 <= partition_num <= BUCKETS
    ):
        raise ValueError(
            f"partition_num must be None or an integer in [1, {BUCKETS}], got {partition_num!r}"
        )
    ev_option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(ev_option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    return EmbeddedCategoricalColumn(key, dtype, partition_num, ev_option)


def sequence_categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: Optional[int] = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
) -> Any:
    """A sequence of ids that are keys of a table, for layers that take sequences.

    Args:
      key: As of categorical_column_with_embedding.
      dtype: As of categorical_column_with_embedding.
      partition_num: As of categorical_column_with_embedding.
      ev_option: As of categorical_column_with_embedding.

    Returns:
      TensorFlow's sequence column over it; an embedding_column gives [batch, length, dimension].

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: An argument out of range.

    Example:
      >>> history = sequence_categorical_column_with_embedding("history")
      >>> embedding_column(history, dimension=8).name
      'history_embedding'
    """
    return feature_columns.SequenceCategoricalColumn(
        categorical_column_with_embedding(key, dtype, partition_num, ev_option)
    )


def sparse_column_with_embedding(
    column_name: str,
    dtype: Any = tf.string,
    partition_num: Optional[int] = None,
    steps_to_live: Optional[int] = None,
    init_data_source: None = None,
    ev_option: Optional[EmbeddingVariableOption] = None,
) -> EmbeddedCategoricalColumn:
    """categorical_column_with_embedding under the name it has in tf.contrib.layers.

    Args:
      column_name: The feature's entry in the batch.
      dtype: As of categorical_column_with_embedding.
      partition_num: As of categorical_column_with_embedding.
      steps_to_live: As of get_embedding_variable.
      init_data_source: Must be None.
      ev_option: As of categorical_column_with_embedding.

    Returns:
      The column.

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: An argument out of range.

    Example:
      >>> sparse_column_with_embedding("var") == categorical_column_with_embedding("var")
      True
    """
    if init_data_source is not None:
        raise ValueError(f"init_data_source must be None, got {init_data_source!r}")
    column = categorical_column_with_embedding(column_name, dtype, partition_num, ev_option)
    option = with_steps_to_live(column.ev_option, steps_to_live)
    return dataclasses.replace(column, ev_option=option)


# As DeepRec's page on feature filters spells it.
sparse_column_wth_embedding = sparse_column_with_embedding


def weighted_categorical_column(
    categorical_column: Any, weight_feature_key: str, dtype: Any = tf.float32
) -> Any:
    """Gives each id of a column a weight, for the combiner.

    Args:
      categorical_column: Of categorical_column_with_embedding.
      weight_feature_key: The entry of the batch with one weight per id: dense of the ids' shape,
        where 0 is padding, or sparse with the ids' indices.
      dtype: Of the weights, integer or floating point.

    Returns:
      TensorFlow's weighted column over it.

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: An empty key, or weights that are no numbers.

    Example:
      >>> tags = weighted_categorical_column(categorical_column_with_embedding("tags"), "scores")
      >>> embedding_column(tags, dimension=8, combiner="sum").name
      'tags_weighted_by_scores_embedding'
    """
    _source(categorical_column)
    check_name("weight_feature_key", weight_feature_key)
    dtype = tf.as_dtype(dtype)
    if not (dtype.is_integer or dtype.is_floating):
        raise ValueError(f"dtype must be integer or floating point, got {dtype.name}")
    return feature_columns.WeightedCategoricalColumn(categorical_column, weight_feature_key, dtype)


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    max_norm: Optional[float] = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """The vectors of a feature's ids, from a table of its own.

    ``tf.feature_column.embedding_column`` for columns of this module. Zeros for an example without
    ids, which count nothing.

    Args:
      categorical_column: Of categorical_column_with_embedding, weighted_categorical_column or
        sequence_categorical_column_with_embedding.
      dimension: Floats per vector, at least 1.
      combiner: "mean", "sum" or "sqrtn" of the vectors of an example.
      initializer: TensorFlow initializer of new rows;
        ``ev_option.init_option.initializer`` goes before it. None: truncated_normal_initializer of
        standard deviation 1 / sqrt(dimension), as TensorFlow's columns.
      max_norm: If given, each row is scaled down to this L2 norm before it is combined.
      trainable: Whether optimizers update the table unasked.

    Returns:
      A dense column, for input_layer and in linear_model.

    Raises:
      TypeError: An argument of the wrong type, or a column of TensorFlow's.
      ValueError: An argument out of range.

    Example:
      >>> user = embedding_column(categorical_column_with_embedding("user"), dimension=4)
      >>> batch = {"user": tf.constant([["a", "b"], ["a", ""]])}
      >>> tf.feature_column.input_layer(batch, [user]).shape
      TensorShape([2, 4])
    """
    return _dense_column(
        categorical_column, dimension, combiner, initializer, max_norm, trainable, None
    )


def shared_embedding_columns(
    categorical_columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: Optional[str] = None,
    max_norm: Optional[float] = None,
    trainable: bool = True,
) -> List[EmbeddingColumn]:
    """The vectors of several features' ids, from one table.

    ``tf.feature_column.shared_embedding_columns`` for columns of this module. All lookups of a step
    are counted and summed.

    Args:
      categorical_columns: As embedding_column takes them, of one ev_option and partition_num, all
        of strings or all of integers.
      dimension: As of embedding_column.
      combiner: As of embedding_column.
      initializer: As of embedding_column.
      shared_embedding_collection_name: What the table is called: columns of this name share it, and
        so do several input_layers of a graph. None: made of the columns' names.
      max_norm: As of embedding_column.
      trainable: As of embedding_column.

    Returns:
      One dense column per categorical column.

    Raises:
      TypeError: An argument of the wrong type, or a column of TensorFlow's.
      ValueError: An argument out of range, or columns that cannot share a table.

    Example:
      >>> watched, bought = shared_embedding_columns(
      ...     [categorical_column_with_embedding(key) for key in ("watched", "bought")], 4)
      >>> watched.shared_name
      'bought_watched_shared_embedding'
    """
    columns = list(categorical_columns)
    if not columns:
        raise ValueError("categorical_columns must be one column or more, got none")
    settings = [(column.name, _shared_settings(_source(column))) for column in columns]
    if any(setting != settings[0][1] for _, setting in settings):
        raise ValueError(
            "categorical_columns must be of one ev_option and partition_num, and all of strings or "
            f"all of integers, to share a table, got {settings}"
        )
    name = shared_embedding_collection_name
    if name is None:
        name = "_".join([*sorted(column.name for column in columns), "shared_embedding"])
    check_name("shared_embedding_collection_name", name)
    return [
        _dense_column(column, dimension, combiner, initializer, max_norm, trainable, name)
        for column in columns
    ]


def _dense_column(
    categorical_column: Any,
    dimension: Any,
    combiner: Any,
    initializer: Any,
    max_norm: Any,
    trainable: Any,
    shared_name: Optional[str],
) -> EmbeddingColumn:
    _source(categorical_column)
    if isinstance(dimension, bool) or not isinstance(dimension, numbers.Integral) or dimension < 1:
        raise ValueError(f"dimension must be an integer >= 1, got {dimension!r}")
    if combiner not in _COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(_COMBINERS)}, got {combiner!r}")
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer must be a TensorFlow initializer, got {initializer!r}")
    if max_norm is not None and not (isinstance(max_norm, numbers.Real) and max_norm > 0):
        raise ValueError(f"max_norm must be None or a number above 0, got {max_norm!r}")
    if not isinstance(trainable, bool):
        raise TypeError(f"trainable must be True or False, got {trainable!r}")
    return EmbeddingColumn(
        categorical_column, int(dimension), combiner, initializer, max_norm, trainable, shared_name
    )


def _source(column: Any) -> EmbeddedCategoricalColumn:
    """The column of ours that TensorFlow's columns are around.

    Raises:
      TypeError: There is none.
    """
    given = column
    while isinstance(
        column,
        (feature_columns.WeightedCategoricalColumn, feature_columns.SequenceCategoricalColumn),
    ):
        column = column.categorical_column
    if isinstance(column, EmbeddedCategoricalColumn):
        return column
    raise TypeError(
        "categorical_column must come from categorical_column_with_embedding, got "
        f"{given!r}; columns of TensorFlow go to tf.feature_column's functions"
    )


def _shared_settings(column: EmbeddedCategoricalColumn) -> Tuple[Any, ...]:
    return column.ev_option, column.partition_num, column.dtype == tf.string
