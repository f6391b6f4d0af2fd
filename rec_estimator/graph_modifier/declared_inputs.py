# SPDX-License-Identifier: Apache-2.0
"""Input pipelines that declare their ids, as an alternative to graph modification.

A dataset is mapped by an insert function, which marks it as one of training or of evaluation. A
lookup by FeatureSpec records the ids that it takes. This module checks that both agree, and finds
the timestamp of a training batch. The functions that scripts call are in an upper layer.
"""

from typing import List, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_state import DECLARED_IDS, DECLARED_TIMESTAMPS
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors, called_functions
from rec_estimator.table.table import graph_tables

# The collection to which scripts add a timestamp that no FeatureSpec names.
ASCEND_TIMESTAMP = "ASCEND_TIMESTAMP"

# By mode, True for training: the name of the op that an insert function adds to a dataset. It tells
# the mode of the dataset.
MARKS = {True: "rec_estimator_training_ids", False: "rec_estimator_evaluation_ids"}


def record_ids(ids: tf.Tensor, is_training: bool) -> None:
    """Records the ids that a lookup by FeatureSpec takes.

    Args:
      ids: Integers of any shape, of the default graph.
      is_training: Whether the lookup is one of training.
    """
    _collect_once(DECLARED_IDS[is_training], ids)


def record_timestamp(timestamp: tf.Tensor) -> None:
    """Records the timestamp of a training batch from which a lookup by FeatureSpec takes ids.

    Args:
      timestamp: One integer, of the default graph.
    """
    _collect_once(DECLARED_TIMESTAMPS, timestamp)


def _collect_once(collection: str, tensor: tf.Tensor) -> None:
    tensors = tf.get_collection_ref(collection)
    if not any(tensor is other for other in tensors):
        tensors.append(tensor)


def check_timestamp(name: str, tensor: object) -> None:
    """Checks that a tensor can be a timestamp.

    Args:
      name: What the message calls the tensor.
      tensor: Anything.

    Raises:
      ValueError: It is not one integer for the whole batch.
    """
    if (
        not isinstance(tensor, tf.Tensor)
        or not tensor.dtype.is_integer
        or tensor.shape.rank not in (None, 0)
    ):
        raise ValueError(
            f"{name} must be a timestamp, one integer for the whole batch, got {tensor!r}; for "
            "example tf.reduce_max(times)"
        )


def find_timestamp(
    graph: tf.Graph, keys: Optional[Sequence[tf.Tensor]] = None
) -> Optional[tf.Tensor]:
    """Finds the timestamp of the training batch.

    A FeatureSpec with is_timestamp names it, or the script adds it to ``ASCEND_TIMESTAMP``. If
    several batches have timestamps, the one from which training lookups take their keys counts.

    Args:
      graph: The graph.
      keys: Keys of training lookups. None: of all training lookups of the graph.

    Returns:
      One integer, as it was recorded. None: the graph has no timestamp.

    Raises:
      ValueError: A timestamp is not one integer for the whole batch.
      EnvironmentError: The batch has several timestamps.
    """
    found: List[tf.Tensor] = []
    for collection in (DECLARED_TIMESTAMPS, ASCEND_TIMESTAMP):
        for tensor in graph.get_collection(collection):
            check_timestamp(ASCEND_TIMESTAMP, tensor)
            if not any(tensor is other for other in found):
                found.append(tensor)
    if len(found) > 1:
        batches = _get_nexts_of(_training_keys(graph) if keys is None else keys)
        found = [tensor for tensor in found if batches & _get_nexts_of([tensor])]
    if len(found) > 1:
        raise OSError(
            f"a training batch must have one timestamp, got {[t.name for t in found]}; keep only "
            f"one FeatureSpec with is_timestamp, or one tensor in {ASCEND_TIMESTAMP}"
        )
    return found[0] if found else None


def check_declared_inputs(graph: tf.Graph) -> None:
    """Checks that every lookup by FeatureSpec takes its ids from a dataset of its mode.

    Args:
      graph: A complete graph.

    Raises:
      RuntimeError: The graph has no table; or a lookup takes its ids from a dataset that no insert
        function of its mode mapped.
      ValueError: A timestamp is not one integer for the whole batch.
      EnvironmentError: A training batch has several timestamps.
    """
    if not graph_tables(graph):
        raise RuntimeError(
            "the graph must have a table to start its pipeline, got an empty table_info_list; call "
            "create_table before start_asc_pipeline"
        )
    for is_training, collection in DECLARED_IDS.items():
        for ids in graph.get_collection(collection):
            for get_next in _get_nexts_of([ids]):
                _check_mode(ids, get_next, is_training)
    find_timestamp(graph)


def _check_mode(ids: tf.Tensor, get_next: tf.Operation, is_training: bool) -> None:
    nodes = _nodes_of_dataset(get_next)
    # The datasets of an iterator that is started outside this graph are unknown here.
    if nodes and MARKS[is_training] not in nodes:
        raise RuntimeError(
            f"the ids of a lookup with is_train={is_training} must come from a dataset mapped by "
            f"get_asc_insert_func(is_training={is_training}), got {ids.name!r} of "
            f"{get_next.name!r}; give the lookup the batch of its mode"
        )


def get_nexts_of_mode(graph: tf.Graph, is_training: bool) -> List[tf.Operation]:
    """Finds the IteratorGetNext ops whose dataset an insert function of one mode mapped.

    Args:
      graph: The graph.
      is_training: The mode.
    """
    return [
        op
        for op in graph.get_operations()
        if op.type == GET_NEXT and MARKS[is_training] in _nodes_of_dataset(op)
    ]


def _nodes_of_dataset(get_next: tf.Operation) -> Set[str]:
    """Names of all ops in the functions of the datasets from which an iterator takes batches."""
    iterator = get_next.inputs[0].op
    makers = [op for op in iterator.outputs[0].consumers() if op.type == "MakeIterator"]
    bodies = {body.signature.name: body for body in get_next.graph.as_graph_def().library.function}
    called = [
        name for op in ancestors([iterator, *makers]) for name in called_functions(op.node_def)
    ]
    seen: Set[str] = set()
    nodes: Set[str] = set()
    while called:
        name = called.pop()
        if name in bodies and name not in seen:
            seen.add(name)
            for node in bodies[name].node_def:
                nodes.add(node.name)
                called.extend(called_functions(node))
    return nodes


def _training_keys(graph: tf.Graph) -> List[tf.Tensor]:
    return [
        lookup.keys
        for table in graph_tables(graph)
        for shard in table
        for lookup in shard.lookups
        if lookup.is_training
    ]


def _get_nexts_of(tensors: Sequence[tf.Tensor]) -> Set[tf.Operation]:
    """The IteratorGetNext ops that tensors are computed from."""
    ops = ancestors([tensor.op for tensor in tensors])
    return {op for op in ops if op.type == GET_NEXT}
