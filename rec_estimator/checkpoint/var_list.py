# SPDX-License-Identifier: Apache-2.0
"""What a Saver saves, restores and lists: its ``var_list``, shapes and collections."""

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.table.initializer_entries import InitializerEntry
from rec_estimator.table.saveable import IMPORTED_NAME
from rec_estimator.table.variable_like import VariableLike

# The tensor of a checkpoint of tf.train.Checkpoint that says which variable is stored where.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# The most names of variables in an error.
_MOST_NAMES = 8

# Collections whose members a MetaGraph writes as definitions of variables.
_OF_VARIABLES = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.LOCAL_VARIABLES,
    tf.GraphKeys.METRIC_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
    tf.GraphKeys.MOVING_AVERAGE_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
)


def as_saveables(item: object) -> List[object]:
    """Returns an item of a ``var_list`` as TensorFlow's Saver takes it.

    Args:
      item: A variable, SaveableObject, table or shard.

    Returns:
      The SaveableObjects of all shards of a table. A shard stands for its table, because one shard
      alone could not be restored. Any other item as it is.
    """
    table = getattr(item, "table", item)
    if hasattr(table, "shards"):
        return [shard.saveable for shard in table.shards]
    return [item]


def with_saveables(var_list: Any) -> Any:
    """Returns a ``var_list`` as TensorFlow's Saver takes it.

    Args:
      var_list: The argument of the Saver.

    Raises:
      TypeError: It is a dict that contains a table under another name.
    """
    if isinstance(var_list, (list, tuple, set)):
        return list(dict.fromkeys(part for item in var_list for part in as_saveables(item)))
    if isinstance(var_list, dict):
        for name, value in var_list.items():
            is_table = hasattr(getattr(value, "table", value), "shards")
            # ExponentialMovingAverage.variables_to_restore() appends its name to that of a table,
            # which has no average.
            if is_table and not f"{name}/".startswith(f"{value.name}/"):
                raise TypeError(
                    f"var_list must be a list to save tables, got {value!r} as {name!r} in a "
                    "dict; a table keeps its name"
                )
    return var_list


def check_not_imported(var_list: Any) -> None:
    """Refuses imported MetaGraphs, which have ops in place of table objects.

    Args:
      var_list: The argument of the Saver. None: everything in the graph.

    Raises:
      ValueError: An item is an op.
    """
    items = tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS) if var_list is None else var_list
    for item in items:
        if isinstance(item, tf.Operation):
            name = item.name.replace(f"/{IMPORTED_NAME}", "")
            raise ValueError(
                f"var_list must be variables and tables that this program made, got op {name!r} of "
                "an imported MetaGraph; save and restore with the Saver that "
                "tf.compat.v1.train.import_meta_graph() returned, or build the model again"
            )


class SavedVariable(NamedTuple):
    """What a checkpoint must have of a variable.

    Attributes:
      shape: Shape of the whole variable; None if it is not known before the graph runs.
      dtype: Its type.
      is_optional: Whether the checkpoint may lack it.
    """

    shape: Optional[List[int]]
    dtype: tf.DType
    is_optional: bool


def check_variables(
    index: Index, variables: Mapping[str, SavedVariable], graph: tf.Graph, any_shape: bool
) -> None:
    """Checks that a checkpoint has all variables before a restore changes anything.

    TensorFlow restores tables and variables at the same time. A resource variable takes any tensor
    that TensorFlow's ops restore, and then has its shape.

    Args:
      index: Of a checkpoint of TensorFlow's V2 format.
      variables: By their names in the checkpoint.
      graph: The graph of the variables.
      any_shape: Whether tensors may have another shape.

    Raises:
      tf.errors.NotFoundError: The checkpoint lacks a variable.
      tf.errors.InvalidArgumentError: A tensor has another shape or type.
    """
    absent = {name for name in variables if name not in index.names}
    missing = [name for name in absent if not variables[name].is_optional]
    # TensorFlow finds the variables of tf.train.Checkpoint under other names.
    if missing and _OBJECT_GRAPH not in index.names:
        message = _of_missing(missing, index.prefix, graph)
        raise tf.errors.NotFoundError(None, None, message)
    for name, (shape, dtype, _) in variables.items():
        if name in absent:
            continue
        tensor = index.tensor(name)
        for what, rule, got, remedy in (
            ("type", dtype.name, tensor.dtype.name, ""),
            ("shape", shape, list(tensor.shape), ", or make the Saver with reshape=True"),
        ):
            if rule == got or (what == "shape" and (any_shape or shape is None)):
                continue
            message = (
                f"tensor {name!r} of checkpoint {index.prefix} must have the {what} of the "
                f"variable, {rule}, got {got}; restore a checkpoint of this model{remedy}"
            )
            raise tf.errors.InvalidArgumentError(None, None, message)


def _of_missing(missing: Sequence[str], prefix: str, graph: tf.Graph) -> str:
    with graph.as_default():
        names = {variable.op.name for variable in tf.trainable_variables()}
    trained = {re.sub(r"/part_\d+$", "", name) for name in names}
    changed = "model" if trained.intersection(missing) else "optimizer"
    listed = ", ".join(sorted(missing)[:_MOST_NAMES])
    more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
    return (
        f"checkpoint {prefix} must have the variables of the graph, got one without "
        f"{listed}{more}: the {changed} was another one when it was written; to take over the "
        "other values, train in a new folder with warm_start_from, or call "
        "rec_estimator.init_from_checkpoint()"
    )


def whole_shape(slice_spec: str, tensor: tf.Tensor) -> Optional[List[int]]:
    """Returns the shape of a variable, None if it is not known before the graph runs.

    Args:
      slice_spec: Where the saved tensor lies in the variable, as TensorFlow writes it: sizes, then
        the slice. Empty if it is the whole variable.
      tensor: The tensor that is saved.

    Example:
      >>> whole_shape("10 4 0,5:0,4", tf.zeros([5, 4]))
      [10, 4]
    """
    if slice_spec:
        return [int(size) for size in slice_spec.split()[:-1]]
    return tensor.shape.as_list() if tensor.shape.is_fully_defined() else None


def exported_collections(graph: tf.Graph, scope: str) -> List[str]:
    """Returns the collections of a graph that belong into a MetaGraph.

    Args:
      graph: The graph.
      scope: The name scope that the MetaGraph has; "" for all.

    A MetaGraph leaves tables out of the collections of variables. One with nothing else would be
    stored empty, and TensorFlow logs an error when it loads an empty one.
    """
    return [
        name
        for name in graph.get_all_collection_keys()
        if name not in _OF_VARIABLES
        or not all(
            isinstance(item, (VariableLike, InitializerEntry))
            # What has no name is in every scope, as TensorFlow exports it.
            or not getattr(item, "name", scope).startswith(scope)
            for item in graph.get_collection(name)
        )
    ]
