# SPDX-License-Identifier: Apache-2.0
"""FeatureSpec mode: which entries of a batch are ids, declared by name, checked in the dataset.

Step 1a of the data flow, as scripts for Rec SDK write it without graph modification:

    specs = [FeatureSpec("user_ids", table_name="user"), FeatureSpec("time", is_timestamp=True)]
    dataset = dataset.map(get_asc_insert_func(tgt_key_specs=specs, is_training=True))
    batch = make_initializable_iterator(dataset.prefetch(100)).get_next()
    vectors = sparse_lookup(table, specs[0], batch=batch)
    start_asc_pipeline()

A FeatureSpec is a value: what a lookup is given may be a copy of what the dataset was given, as
Estimator makes of its params. They meet by the name, in the graph's collections.

Source: Rec SDK TensorFlow, ``mx_rec.core.asc``.
"""

import dataclasses
import json
import re
from typing import Any, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int, check_text
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors, called_functions
from rec_estimator.rec_sdk.constants import ASCEND_TIMESTAMP
from rec_estimator.rec_sdk.runtime import is_static
from rec_estimator.table.table import graph_tables

# Collections of what insert functions found in a graph's datasets: one JSON text per entry, which
# a MetaGraph can hold.
PIPELINES = {True: "rec_estimator/training_pipeline", False: "rec_estimator/evaluation_pipeline"}

# Names an insert function gives to the op that it adds, by which datasets are recognised.
MARKS = {True: "rec_estimator_training_ids", False: "rec_estimator_evaluation_ids"}

# The ids that lookups by FeatureSpec took.
_IDS = {True: "rec_estimator/training_ids", False: "rec_estimator/evaluation_ids"}

# The timestamp of the batches that FeatureSpec lookups of training took.
_TIMESTAMPS = "rec_estimator/timestamps"

# Rec SDK's bounds.
_MAX_NAME = 255
_MAX_INDEX = 255


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """An entry of a batch: the ids of one lookup, or the batch's timestamp.

    Attributes:
      name: 1 to 255 characters, by which a lookup finds what the dataset was told. Several may
        share it.
      table_name: Table of the ids. None: the name. Other characters than letters, digits and "_"
        are left out.
      index_key: Which entry of the batch: its key, or its position from 0 to 255. None: the name.
      access_threshold: Occurrences in training that admit a key; from -1, which is none. None: as
        -1.
      eviction_threshold: Seconds of the data's timestamps after which a key that was not trained is
        evicted; from -1, which is never. It needs an access_threshold.
      is_timestamp: Whether this is the batch's timestamp: one integer above 0, in seconds.
      batch_size: From 1; kept, and not needed.
      faae_coefficient: What one occurrence counts for, from 1.
      feat_count: Of Rec SDK's older scripts; checked, and not needed.

    Raises:
      ValueError: A value of another type or out of its range.

    Example:
      >>> spec = rec.FeatureSpec("user_ids", table_name="user", access_threshold=3)
      >>> spec.index_key
      'user_ids'
    """

    name: str
    table_name: Optional[str] = None
    index_key: Optional[Union[str, int]] = None
    access_threshold: Optional[int] = None
    eviction_threshold: Optional[int] = None
    is_timestamp: Optional[bool] = None
    batch_size: Optional[int] = None
    faae_coefficient: int = 1
    feat_count: dataclasses.InitVar[Optional[int]] = None

    def __post_init__(self, feat_count: Optional[int]) -> None:
        check_text("name", self.name, _MAX_NAME)
        if self.table_name is not None:
            check_text("table_name", self.table_name, _MAX_NAME)
        if isinstance(self.index_key, str):
            check_text("index_key", self.index_key, _MAX_NAME)
        elif self.index_key is not None:
            check_int("index_key", self.index_key, 0, _MAX_INDEX)
        for name in ("access_threshold", "eviction_threshold"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), -1)
        if self.eviction_threshold is not None and self.access_threshold is None:
            raise ValueError(
                "access_threshold must be given where eviction_threshold is, got None; 0 admits "
                "every key"
            )
        if self.is_timestamp is not None:
            check_bool("is_timestamp", self.is_timestamp)
        for name, value in (("batch_size", self.batch_size), ("feat_count", feat_count)):
            if value is not None:
                check_int(name, value, 1)
        check_int("faae_coefficient", self.faae_coefficient, 1)
        table_name = re.sub(r"\W", "", self.table_name or self.name)
        if not table_name:
            raise ValueError(
                f"table_name must have a letter, a digit or '_', got {self.table_name!r} for "
                f"FeatureSpec {self.name!r}; give the name of the table"
            )
        object.__setattr__(self, "table_name", table_name)
        if self.index_key is None:
            object.__setattr__(self, "index_key", self.name)


# Where an entry of a batch is: keys and positions, from the outermost structure inwards.
Path = Tuple[Union[str, int], ...]


class Entry(NamedTuple):
    """What an insert function found of one FeatureSpec."""

    name: str
    path: Path
    position: int  # Among the tensors that an iterator gives.
    num_tensors: int  # That it gives.
    is_timestamp: bool
    shape: Optional[Sequence[Optional[int]]]

    def to_json(self) -> str:
        """The text in the collection."""
        return json.dumps(self)

    @staticmethod
    def from_json(text: str) -> "Entry":
        """The entry that a text in the collection is of."""
        name, path, *rest = json.loads(text)
        return Entry(name, tuple(path), *rest)


def follow(structure: Any, path: Path) -> Any:
    """What is at `path` of a batch, or of a part of one.

    Raises:
      LookupError: Nothing is there.
    """
    for key in path:
        if isinstance(structure, dict) or (
            isinstance(structure, (list, tuple)) and isinstance(key, int)
        ):
            structure = structure[key]
        else:
            raise LookupError(key)
    return structure


def names_of(batch: Any) -> str:
    """What a message says of the entries that a batch has."""
    if isinstance(batch, dict):
        return f"the keys {sorted(batch, key=str)}"
    if isinstance(batch, (list, tuple)):
        return f"{len(batch)} parts"
    return f"one tensor, {batch!r}"


def check_ids(name: str, tensor: Any) -> None:
    """Refuses what cannot be ids.

    Raises:
      ValueError: No dense tensor of integers; a scalar, where shapes are static.
    """
    if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_integer:
        raise ValueError(
            f"{name} must be a dense tensor of integers, got {tensor!r}; hash strings with "
            "tf.strings.to_hash_bucket_fast(values, 2**63 - 1), make sparse ids dense with "
            "tf.sparse.to_dense(ids, default_value=-1)"
        )
    if is_static() and tensor.shape.rank == 0:
        raise ValueError(
            f"{name} must have at least one dimension with init(use_dynamic=False), got a scalar; "
            "batch the dataset before, or init(use_dynamic=True)"
        )


def check_time(name: str, tensor: Any) -> None:
    """Refuses what cannot be a timestamp.

    Raises:
      ValueError: Not one integer for the whole batch.
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


def entries_of(graph: tf.Graph, is_training: bool) -> List[Entry]:
    """What insert functions found in the datasets of one mode of a graph."""
    return [Entry.from_json(text) for text in graph.get_collection(PIPELINES[is_training])]


def as_spec(ids: Any) -> FeatureSpec:
    """The one FeatureSpec that a lookup was given, by itself or in a list.

    Args:
      ids: As of sparse_lookup.

    Raises:
      ValueError: ids is something else, or a list of several.
    """
    if isinstance(ids, (list, tuple)) and len(ids) == 1:
        ids = ids[0]
    if not isinstance(ids, FeatureSpec):
        raise ValueError(
            f"ids must be one FeatureSpec, or a list of one, got {ids!r}; make a lookup for each"
        )
    return ids


def ids_of(spec: FeatureSpec, table: Any, is_train: bool, batch: Any = None) -> tf.Tensor:
    """The ids that a FeatureSpec names, in the batch of a step.

    Args:
      spec: Of a lookup.
      table: Has the table_name that the FeatureSpec must have.
      is_train: Whether this is a lookup of training, and so of a training dataset.
      batch: The batch, or the part of it that holds the ids. None, with
        ``init(use_dynamic=False)``: that of the graph's only iterator over a dataset of this mode.

    Returns:
      Integers of any shape.

    Raises:
      ValueError: A timestamp; a FeatureSpec of another table; no integers; no batch, and not one
        iterator to take it from.
      RuntimeError: No dataset of this mode was mapped by an insert function with this FeatureSpec;
        or no batch, with dynamic shapes.
      KeyError: The batch has no such entry, or lacks the timestamp that its dataset has.
    """
    if spec.is_timestamp or spec.table_name != table.table_name:
        raise ValueError(
            f"FeatureSpec {spec.name!r} must name ids of table {table.table_name!r}, got "
            f"table_name={spec.table_name!r}, is_timestamp={spec.is_timestamp}; give "
            "FeatureSpec(table_name=)"
        )
    entries = entries_of(tf.get_default_graph(), is_train)
    named = [entry for entry in entries if entry.name == spec.name and not entry.is_timestamp]
    mode = "training" if is_train else "evaluation"
    if not named:
        raise RuntimeError(
            f"FeatureSpec {spec.name!r} must be known to a dataset of {mode} of this graph, got "
            f"{sorted({entry.name for entry in entries})}; call dataset.map(get_asc_insert_func("
            f"tgt_key_specs=..., is_training={is_train})) with it before the lookup"
        )
    # Several may share a name: that of this entry first.
    named.sort(key=lambda entry: entry.path[-1:] != (spec.index_key,))
    if batch is None:
        batch = _batch_of_iterator(spec, is_train)
    tensor = _read(named, batch)
    check_ids(f"FeatureSpec {spec.name!r}", tensor)
    times = [entry for entry in entries if entry.is_timestamp]
    if is_train and times:
        _collect_once(_TIMESTAMPS, _read(times, batch))
    _collect_once(_IDS[is_train], tensor)
    return tensor


def _batch_of_iterator(spec: FeatureSpec, is_train: bool) -> List[tf.Tensor]:
    """The tensors of the only iterator over datasets of a mode."""
    if not is_static():
        raise RuntimeError(
            f"batch must be given to look FeatureSpec {spec.name!r} up, got None; give the batch "
            "that get_next() or input_fn gave, or init(use_dynamic=False)"
        )
    graph = tf.get_default_graph()
    found = [
        op
        for op in graph.get_operations()
        if op.type == GET_NEXT and MARKS[is_train] in _nodes_of_dataset(op)
    ]
    if len(found) != 1:
        raise ValueError(
            "batch must be given where not exactly one get_next() is of a dataset with "
            f"FeatureSpec {spec.name!r}, got {[op.name for op in found]}; give "
            "sparse_lookup(batch=)"
        )
    return found[0].outputs


def _nodes_of_dataset(get_next: tf.Operation) -> Set[str]:
    """Names of all ops in the functions of the datasets that an iterator gives batches of."""
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


def _read(entries: Sequence[Entry], batch: Any) -> Any:
    """The tensor of the first of the entries that is in a batch, or in a part of one."""
    for entry in entries:
        if isinstance(batch, list) and len(batch) == entry.num_tensors:
            return batch[entry.position]
        for start in range(len(entry.path) + 1):
            try:
                tensor = follow(batch, entry.path[start:])
            except LookupError:
                continue
            if not isinstance(tensor, (dict, list, tuple)):
                return tensor
    raise KeyError(
        f"batch must hold FeatureSpec {entries[0].name!r} at {entries[0].path}, got "
        f"{names_of(batch)}; give the whole batch"
    )


def _collect_once(collection: str, tensor: tf.Tensor) -> None:
    tensors = tf.get_collection_ref(collection)
    if not any(tensor is other for other in tensors):
        tensors.append(tensor)


def batch_timestamp(
    graph: Optional[tf.Graph] = None, keys: Optional[Sequence[tf.Tensor]] = None
) -> Optional[tf.Tensor]:
    """The timestamp of a training batch, which scripts name in one of two ways.

    By a FeatureSpec with is_timestamp, or by a tensor in the collection ``ASCEND_TIMESTAMP``. Where
    there are timestamps of several batches, that of the training lookups' batch counts.

    Args:
      graph: The graph. None: the default graph.
      keys: Of these training lookups. None: of all of the graph's.

    Returns:
      int64 [], seconds, and InvalidArgument in the step if it is not above 0. None: the graph has
      none.

    Raises:
      ValueError: It is not one integer for the whole batch.
      EnvironmentError: The batch has several.
    """
    graph = graph or tf.get_default_graph()
    found = _find_timestamp(graph, _training_keys(graph) if keys is None else keys)
    if found is None:
        return None
    with graph.as_default(), tf.name_scope("timestamp"):
        time = tf.cast(tf.ensure_shape(found, []), tf.int64)
        message = [f"timestamp {found.name!r} must be above 0, got"]
        with tf.control_dependencies([tf.debugging.Assert(time > 0, [*message, time])]):
            return tf.identity(time)


def _find_timestamp(graph: tf.Graph, keys: Sequence[tf.Tensor]) -> Optional[tf.Tensor]:
    found: List[tf.Tensor] = []
    for collection in (_TIMESTAMPS, ASCEND_TIMESTAMP):
        for tensor in graph.get_collection(collection):
            check_time(ASCEND_TIMESTAMP, tensor)
            if not any(tensor is other for other in found):
                found.append(tensor)
    if len(found) > 1:
        batches = _batches_of(keys)
        found = [tensor for tensor in found if batches & _batches_of([tensor])]
    if not found:
        return None
    if len(found) > 1:
        raise OSError(
            f"a batch of training must have one timestamp, got {[t.name for t in found]}; leave "
            f"one FeatureSpec with is_timestamp, or one tensor in {ASCEND_TIMESTAMP}"
        )
    return found[0]


def _training_keys(graph: tf.Graph) -> List[tf.Tensor]:
    return [
        lookup.keys
        for table in graph_tables(graph)
        for shard in table
        for lookup in shard.lookups
        if lookup.is_training
    ]


def _batches_of(tensors: Sequence[tf.Tensor]) -> Set[tf.Operation]:
    ops = ancestors([tensor.op for tensor in tensors])
    return {op for op in ops if op.type == GET_NEXT}


def start_asc_pipeline() -> None:
    """Checks a graph in FeatureSpec mode: every lookup's ids come from a dataset of its mode.

    Call it when the graph is complete, before a session runs it; again after changes, if you like.
    There is nothing to start: a dataset starts with its iterator.

    Raises:
      RuntimeError: The graph has no table; or a lookup by FeatureSpec takes its ids from a dataset
        that was not mapped by a function of get_asc_insert_func with its is_training.
      ValueError: The timestamp is not one integer for the whole batch.
      EnvironmentError: A batch of training has several timestamps.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> rec.start_asc_pipeline()
    """
    if not graph_tables():
        raise RuntimeError(
            "the graph must have a table to start its pipeline, got an empty table_info_list; call "
            "create_table before start_asc_pipeline"
        )
    for is_training, collection in _IDS.items():
        for ids in tf.get_collection(collection):
            for get_next in _batches_of([ids]):
                _check_mode(ids, get_next, is_training)
    graph = tf.get_default_graph()
    _find_timestamp(graph, _training_keys(graph))


def _check_mode(ids: tf.Tensor, get_next: tf.Operation, is_training: bool) -> None:
    nodes = _nodes_of_dataset(get_next)
    # Nothing is known of an iterator that is started outside of this graph.
    if nodes and MARKS[is_training] not in nodes:
        raise RuntimeError(
            f"the ids of a lookup with is_train={is_training} must come from a dataset mapped by "
            f"get_asc_insert_func(is_training={is_training}), got {ids.name!r} of "
            f"{get_next.name!r}; give the lookup the batch of its mode"
        )
