# SPDX-License-Identifier: Apache-2.0
"""The classes of the feature columns, with the methods that TensorFlow's layers call."""

import dataclasses
import math
from typing import (
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Protocol,
    Sequence,
    Union,
)

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import feature_columns
from rec_estimator.embedding_variable import get_embedding_variable
from rec_estimator.features import to_keys, without_padding
from rec_estimator.options import EmbeddingVariableOption
from rec_estimator.table.combined_lookup import safe_embedding_lookup_sparse
from rec_estimator.table.registration import check_same_settings
from rec_estimator.table.table import EmbeddingTable

COMBINERS = ("sum", "mean", "sqrtn")

# TensorFlow's name for the variable of an embedding column.
_TABLE_NAME = "embedding_weights"

# The collections of variables, which a table must not be in.
_VARIABLE_COLLECTIONS = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
)

_Ids = Union[tf.Tensor, tf.SparseTensor, tf.RaggedTensor]


class _IdWeightPair(Protocol):
    """TensorFlow's IdWeightPair: the ids of a batch, and their weights or None."""

    id_tensor: tf.SparseTensor
    weight_tensor: Optional[tf.SparseTensor]


class _TransformationCache(Protocol):
    """TensorFlow's FeatureTransformationCache: the transformed columns of a batch."""

    def get(self, key: Any, state_manager: Any) -> Any: ...


class _StateManager(Protocol):
    """TensorFlow's StateManager: the variables of columns, here also tables."""

    def add_resource(self, feature_column: Any, name: str, resource: EmbeddingTable) -> None: ...

    def get_resource(self, feature_column: Any, name: str) -> EmbeddingTable: ...


class _LazyBuilder(Protocol):
    """TensorFlow's _LazyBuilder: the transformation cache of the older columns."""

    def get(self, key: Any) -> Any: ...


@dataclasses.dataclass(frozen=True)
class EmbeddedCategoricalColumn(
    feature_columns.CategoricalColumn, feature_columns.CategoricalColumnV1
):
    """A feature whose ids are keys of a table; made by categorical_column_with_embedding.

    Attributes:
      key: Name of the feature in the batch.
      dtype: tf.string, tf.int64 or tf.int32.
      partition_num: Number of shards of the table. None: set by the variable scope.
      ev_option: All other options of the table.
      value_dtype: How the table stores vectors, as in get_embedding_variable.
      slot_dtype: How it stores the slots of optimizers, likewise.
    """

    key: str
    dtype: tf.DType
    partition_num: Optional[int]
    ev_option: EmbeddingVariableOption
    value_dtype: tf.DType = tf.float32
    slot_dtype: tf.DType = tf.float32

    # With True here, TensorFlow would use the column in Keras layers.
    _is_v2_column = False

    @property
    def name(self) -> str:
        """Name of the feature in the batch."""
        return self.key

    @property
    def parents(self) -> List[str]:
        """The features that the column is computed from."""
        return [self.key]

    @property
    def parse_example_spec(self) -> Dict[str, Any]:
        """The specification of the feature for tf.io.parse_example."""
        # A tf.Example has no int32.
        return {self.key: tf.io.VarLenFeature(tf.string if self._is_string else tf.int64)}

    @property
    def num_buckets(self) -> NoReturn:
        """Always raises a ValueError: a table has no fixed number of rows."""
        raise ValueError(
            f"column {self.key!r} must be in embedding_column or linear_model of "
            "rec_estimator.feature_column, got a function or an estimator of TensorFlow that makes "
            "a variable with a row per id; a table has no number of buckets"
        )

    def transform_feature(
        self, transformation_cache: _TransformationCache, state_manager: _StateManager
    ) -> tf.SparseTensor:
        """Returns the keys of a batch, int64; called by TensorFlow."""
        return self._keys(transformation_cache.get(self.key, state_manager))

    def get_sparse_tensors(
        self, transformation_cache: _TransformationCache, state_manager: _StateManager
    ) -> _IdWeightPair:
        """Returns the keys of a batch without weights; called by TensorFlow."""
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    # The same methods under the names of TensorFlow's older columns.

    _parse_example_spec = parse_example_spec
    _num_buckets = num_buckets

    def _transform_feature(self, inputs: _LazyBuilder) -> tf.SparseTensor:
        return self._keys(inputs.get(self.key))

    def _get_sparse_tensors(
        self,
        inputs: _LazyBuilder,
        weight_collections: Optional[Sequence[str]] = None,
        trainable: Optional[bool] = None,
    ) -> _IdWeightPair:
        del weight_collections, trainable
        return self.IdWeightPair(inputs.get(self), None)

    @property
    def _is_string(self) -> bool:
        return self.dtype == tf.string

    def _keys(self, ids: _Ids) -> tf.SparseTensor:
        if ids.dtype not in ((tf.string,) if self._is_string else (tf.int64, tf.int32)):
            raise TypeError(
                f"feature {self.key!r} must have ids of the declared dtype {self.dtype.name}, got "
                f"{ids.dtype.name}; declare that dtype, or cast or bucket the ids"
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
    """The combined vectors of a categorical column's ids; made by embedding_column.

    Attributes:
      categorical_column: The column that produces the keys.
      dimension: Number of elements of a vector.
      combiner: "mean", "sum" or "sqrtn".
      initializer: TensorFlow initializer of new rows, or None.
      max_norm: Largest L2 norm of a vector before it is combined, or None.
      trainable: Whether optimizers update the table by default.
      shared_name: Name of the table if several columns share it. None: the table is not shared.
    """

    categorical_column: "CategoricalColumn"
    dimension: int
    combiner: str
    initializer: Optional[Callable[..., Any]]
    max_norm: Optional[float]
    trainable: bool
    shared_name: Optional[str]

    _is_v2_column = False  # As in EmbeddedCategoricalColumn.

    @property
    def name(self) -> str:
        """The name that TensorFlow gives such a column."""
        shared = "" if self.shared_name is None else "_shared"
        return f"{self.categorical_column.name}{shared}_embedding"

    @property
    def parents(self) -> List[Any]:
        """The columns that the column is computed from."""
        return [self.categorical_column]

    @property
    def parse_example_spec(self) -> Dict[str, Any]:
        """The specification of the features for tf.io.parse_example."""
        return self.categorical_column.parse_example_spec

    @property
    def variable_shape(self) -> tf.TensorShape:
        """Shape of the vector of one example."""
        return tf.TensorShape([self.dimension])

    def transform_feature(
        self, transformation_cache: _TransformationCache, state_manager: _StateManager
    ) -> Any:
        """Returns the keys of a batch; called by TensorFlow."""
        return transformation_cache.get(self.categorical_column, state_manager)

    def create_state(self, state_manager: _StateManager) -> None:
        """Makes the table in the variable scope; called by TensorFlow."""
        state_manager.add_resource(self, _TABLE_NAME, self._table((), True))

    def get_dense_tensor(
        self, transformation_cache: _TransformationCache, state_manager: _StateManager
    ) -> tf.Tensor:
        """Returns float32 [batch, dimension]; called by TensorFlow."""
        self._check_sequence(False)
        pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        return self._vectors(pair, state_manager.get_resource(self, _TABLE_NAME))

    def get_sequence_dense_tensor(
        self, transformation_cache: _TransformationCache, state_manager: _StateManager
    ) -> NamedTuple:
        """Returns float32 [batch, length, dimension] and lengths [batch]; called by TensorFlow."""
        self._check_sequence(True)
        pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        return self._sequence(pair, state_manager.get_resource(self, _TABLE_NAME))

    # The same methods under the names of TensorFlow's older columns. TensorFlow calls them in a
    # variable scope of the column.

    _variable_shape = variable_shape
    _parse_example_spec = parse_example_spec

    @property
    def _var_scope_name(self) -> str:
        return self.shared_name or self.name

    def _transform_feature(self, inputs: _LazyBuilder) -> Any:
        return inputs.get(self.categorical_column)

    def _get_dense_tensor(
        self,
        inputs: _LazyBuilder,
        weight_collections: Optional[Sequence[str]] = None,
        trainable: Optional[bool] = None,
    ) -> tf.Tensor:
        self._check_sequence(False)
        pair = self.categorical_column._get_sparse_tensors(inputs)
        return self._vectors(pair, self._table(weight_collections, trainable))

    def _get_sequence_dense_tensor(
        self,
        inputs: _LazyBuilder,
        weight_collections: Optional[Sequence[str]] = None,
        trainable: Optional[bool] = None,
    ) -> NamedTuple:
        self._check_sequence(True)
        pair = self.categorical_column._get_sparse_tensors(inputs)
        return self._sequence(pair, self._table(weight_collections, trainable))

    def _check_sequence(self, expected: bool) -> None:
        if (
            isinstance(self.categorical_column, feature_columns.SequenceCategoricalColumn)
            != expected
        ):
            kind = "a sequence column" if expected else "no sequence column"
            raise ValueError(
                f"column {self.name!r} must be {kind} here, got {self.categorical_column}; make "
                "sequence columns with sequence_categorical_column_with_embedding, and pass them "
                "to sequence layers only"
            )

    def _table(
        self, collections: Optional[Sequence[str]], trainable: Optional[bool]
    ) -> EmbeddingTable:
        """Makes or finds the table. TensorFlow passes collections and trainable."""
        if self.shared_name is not None:
            present = tf.get_collection(self.shared_name)
            if present:
                return self._checked_shared(present)
        table = table_of(
            self.categorical_column,
            _TABLE_NAME,
            self.dimension,
            # The default is that of TensorFlow's embedding columns.
            initializer=self.initializer
            or tf.truncated_normal_initializer(stddev=1 / math.sqrt(self.dimension)),
            trainable=self.trainable and trainable is not False,
            collections=collections,
        )
        if self.shared_name is not None:
            tf.add_to_collection(self.shared_name, table)
        return table

    def _checked_shared(self, present: Sequence[Any]) -> EmbeddingTable:
        if len(present) > 1 or not isinstance(present[0], EmbeddingTable):
            raise ValueError(
                "shared_embedding_collection_name must name a collection of one table, got "
                f"{present} in {self.shared_name!r}; choose another name"
            )
        source = source_of(self.categorical_column)
        check_same_settings(
            present[0],
            dim=self.dimension,
            ev_option=source.ev_option,
            value_dtype=source.value_dtype,
            slot_dtype=source.slot_dtype,
        )
        return present[0]

    def _vectors(self, pair: _IdWeightPair, table: EmbeddingTable) -> tf.Tensor:
        with tf.name_scope(None, self.name):
            ids, weights = pair.id_tensor, pair.weight_tensor
            return combine(ids, weights, table, self.combiner, self.max_norm)

    def _sequence(self, pair: _IdWeightPair, table: EmbeddingTable) -> NamedTuple:
        lengths = feature_columns.sequence_length_from_sparse_tensor(pair.id_tensor)
        return self.TensorSequenceLengthPair(self._vectors(pair, table), lengths)


def table_of(
    column: "CategoricalColumn",
    name: str,
    dimension: int,
    *,
    initializer: Callable[..., Any],
    trainable: bool,
    collections: Optional[Sequence[str]],
) -> EmbeddingTable:
    """Makes or finds the table of a categorical column in the current variable scope.

    Args:
      column: The column. Its ev_option and partition_num are those of the table.
      name: As in get_embedding_variable.
      dimension: Number of elements of a vector.
      initializer: As in get_embedding_variable.
      trainable: As in get_embedding_variable.
      collections: The collections that TensorFlow's layers pass for variables.
    """
    source = source_of(column)
    shards = source.partition_num
    return get_embedding_variable(
        name,
        dimension,
        initializer=initializer,
        trainable=trainable,
        # A stock Saver or optimizer would fail on a table among the variables.
        collections=[each for each in collections or () if each not in _VARIABLE_COLLECTIONS],
        partitioner=None if shards is None else tf.fixed_size_partitioner(shards),
        ev_option=source.ev_option,
        value_dtype=source.value_dtype,
        slot_dtype=source.slot_dtype,
    )


def combine(
    ids: tf.SparseTensor,
    weights: Optional[tf.SparseTensor],
    table: EmbeddingTable,
    combiner: str,
    max_norm: Optional[float] = None,
) -> tf.Tensor:
    """Reads and combines the rows of each example, as TensorFlow's columns do.

    Args:
      ids: int64 [d0, ..., dn].
      weights: As many floating point numbers. The first belongs to the first id, and so on,
        whatever their indices. None: all are 1.
      table: The table.
      combiner: "mean", "sum" or "sqrtn". Unless it is "sum", ids with a weight of 0 or less are
        dropped: a negative sum of weights would change the sign of a mean.
      max_norm: Largest L2 norm of a row before it is combined, or None.

    Returns:
      float32 [d0, ..., dn-1, dimension].

    Raises:
      tf.errors.InvalidArgumentError: There are more or fewer weights than ids (while running).
    """
    if weights is not None:
        as_many = tf.debugging.assert_equal(
            tf.size(weights.values), tf.size(ids.values), message="weights must be as many as ids"
        )
        with tf.control_dependencies([as_many]):
            weights = ids.with_values(tf.identity(tf.cast(weights.values, tf.float32)))
    if weights is not None and combiner != "sum":
        is_positive = tf.greater(weights.values, 0)
        ids = tf.sparse.retain(ids, is_positive)
        weights = tf.sparse.retain(weights, is_positive)
    return safe_embedding_lookup_sparse(
        table, ids, weights, combiner, max_norm=max_norm, prune=False
    )


# What embedding columns accept as categorical_column.
CategoricalColumn = Union[
    EmbeddedCategoricalColumn,
    feature_columns.SequenceCategoricalColumn,
    feature_columns.WeightedCategoricalColumn,
]


def has_keys(column: Any) -> bool:
    """Whether a column produces keys of a table; TensorFlow's weighted or sequence columns may."""
    return isinstance(_innermost(column), EmbeddedCategoricalColumn)


def source_of(column: CategoricalColumn) -> EmbeddedCategoricalColumn:
    """Returns the column of this package that TensorFlow's weighted or sequence columns wrap.

    Raises:
      TypeError: They wrap none.
    """
    source = _innermost(column)
    if isinstance(source, EmbeddedCategoricalColumn):
        return source
    raise TypeError(
        f"categorical_column must come from categorical_column_with_embedding, got {column!r}; use "
        "tf.feature_column's functions for TensorFlow's columns"
    )


def _innermost(column: Any) -> Any:
    while isinstance(
        column,
        (feature_columns.WeightedCategoricalColumn, feature_columns.SequenceCategoricalColumn),
    ):
        column = column.categorical_column
    return column
