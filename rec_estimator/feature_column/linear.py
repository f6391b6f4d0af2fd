# SPDX-License-Identifier: Apache-2.0
"""linear_model: adds weights of keys, from tables, to the weights of TensorFlow's columns."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import feature_columns as tf_columns
from rec_estimator.feature_column.columns import (
    COMBINERS,
    combine,
    has_keys,
    table_of,
)

# What TensorFlow's linear_model adds every variable to.
_COLLECTIONS = (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES)


def linear_model(
    features: Mapping[str, Any],
    feature_columns: Sequence[Any],
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: Optional[Sequence[str]] = None,
    trainable: bool = True,
    cols_to_vars: Optional[Dict[Any, List[Any]]] = None,
    do_fusion: Any = None,
) -> tf.Tensor:
    """Adds up the weights of features: the logits of a linear classifier, or a wide part.

    This is ``tf.feature_column.linear_model``, which also takes columns of
    ``categorical_column_with_embedding``. Such a column gets a table of dimension `units` that
    starts with zeros, as in DeepRec. The names of variables and tables are those that TensorFlow
    gives: ``linear_model/<column>/weights`` and ``linear_model/bias_weights``.

    Args:
      features: The batch, a dict from names to tensors.
      feature_columns: Columns of this package and of TensorFlow, categorical or dense.
      units: Number of outputs, at least 1.
      sparse_combiner: How the weights of an example's ids are combined: "sum", "mean" or "sqrtn".
        The weights of ``weighted_categorical_column`` multiply them.
      weight_collections: Further collections to add variables and tables to.
      trainable: Whether optimizers update variables and tables by default.
      cols_to_vars: None, or a dict to fill: for each column its variables or its table, and under
        "bias" the bias.
      do_fusion: Not used; in DeepRec it selects fused ops.

    Returns:
      float32 [batch, units].

    Raises:
      TypeError: A feature has another type than its column.
      ValueError: An argument is out of range, two columns have the same name, or an element is not
        a column.

    Example:
      >>> user = rec.categorical_column_with_embedding("user", dtype=tf.int64)
      >>> price = tf.feature_column.numeric_column("price")
      >>> batch = {"user": tf.constant([7, 8], tf.int64), "price": tf.constant([0.5, 1.5])}
      >>> linear_model(batch, [user, price]).shape.as_list()
      [2, 1]
      >>> rec.get_dense_and_sparse_variable()[1]
      [<rec_estimator.EmbeddingTable 'linear_model/user/weights' dim=1 shards=1>]
    """
    del do_fusion
    if isinstance(units, bool) or not hasattr(units, "__index__") or units < 1:
        raise ValueError(
            f"units must be an integer >= 1, got {units!r}; it is the number of outputs"
        )
    if sparse_combiner not in COMBINERS:
        raise ValueError(
            f"sparse_combiner must be one of {', '.join(COMBINERS)}, got {sparse_combiner!r}; the "
            "default is sum"
        )
    columns = tf_columns.normalize_feature_columns(feature_columns)
    collections = list(dict.fromkeys([*(weight_collections or ()), *_COLLECTIONS]))
    settings = _Settings(units, sparse_combiner, trainable, collections)
    found: Dict[Any, List[Any]] = {}
    with tf.variable_scope(None, "linear_model") as model_scope:
        pass
    scopes = _scopes_of(columns)
    builder = tf_columns.LazyBuilder(features)
    sums = []
    with tf.variable_scope(model_scope):
        for name, column in sorted(scopes.items()):
            with tf.variable_scope(name):
                weighted_sum, found[column] = _weighted_sum(column, builder, settings)
            sums.append(weighted_sum)
        bias = tf.get_variable(
            "bias_weights",
            [units],
            initializer=tf.zeros_initializer(),
            trainable=trainable,
            collections=collections,
        )
        found["bias"] = _variables_in(f"{model_scope.name}/bias_weights")
        if cols_to_vars is not None:
            cols_to_vars.update(found)
        return tf.nn.bias_add(tf.add_n(sums), bias, name="weighted_sum")


class _Settings(NamedTuple):
    """The arguments of linear_model that hold for every column."""

    units: int
    combiner: str
    trainable: bool
    collections: List[str]


def _scopes_of(columns: Sequence[Any]) -> Dict[str, Any]:
    """The columns by the names of their scopes.

    As in TensorFlow, names are made unique in the scope around the model, not in that of the model.
    """
    scopes = {}
    for column in sorted(columns, key=lambda each: each.name):
        with tf.variable_scope(None, column._var_scope_name) as scope:
            scopes[scope.name.rpartition("/")[2]] = column
    return scopes


def _weighted_sum(column: Any, builder: Any, settings: _Settings) -> Tuple[tf.Tensor, List[Any]]:
    """float32 [batch, units] of a column, and its table or variables in the current scope."""
    units, combiner, trainable, collections = settings
    if not has_keys(column):
        weighted_sum = tf_columns.create_weighted_sum(
            column, builder, units, combiner, collections, trainable
        )
        return weighted_sum, _variables_in(f"{tf.get_variable_scope().name}/")
    table = table_of(
        column,
        "weights",
        units,
        initializer=tf.zeros_initializer(),
        trainable=trainable,
        collections=collections,
    )
    pair = column._get_sparse_tensors(builder)
    weights = None if pair.weight_tensor is None else _flat(pair.weight_tensor)
    return combine(_flat(pair.id_tensor), weights, table, combiner), [table]


def _flat(values: tf.SparseTensor) -> tf.SparseTensor:
    """[batch, ...] -> [batch, n]."""
    return tf.sparse.reshape(values, [tf.shape(values)[0], -1])


def _variables_in(scope: str) -> List[tf.Variable]:
    return tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope=scope)
