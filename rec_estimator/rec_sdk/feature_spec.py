# SPDX-License-Identifier: Apache-2.0
"""FeatureSpec mode: a dataset declares by name which entries of a batch are ids.

Step 1a of the data flow, as scripts for Rec SDK write it without graph modification:

    specs = [FeatureSpec("user_ids", table_name="user"), FeatureSpec("time", is_timestamp=True)]
    dataset = dataset.map(get_asc_insert_func(tgt_key_specs=specs, is_training=True))
    batch = make_initializable_iterator(dataset.prefetch(100)).get_next()
    vectors = sparse_lookup(table, specs[0], batch=batch)
    start_asc_pipeline()

A served batch comes from no dataset: there, a lookup finds its entry by the spec's index_key alone.

This module has the lookup's side; insert_function.py has the dataset's side. A lookup may get a
copy of the FeatureSpec that the dataset got, because Estimator copies its params. Both sides
therefore find each other by the spec's name, in collections of the graph.

Source: Rec SDK TensorFlow, ``mx_rec.core.asc``.
"""

import dataclasses
import json
import re
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int, check_text
from rec_estimator.graph_modifier.declared_inputs import (
    check_declared_inputs,
    find_timestamp,
    get_nexts_of_mode,
    record_ids,
    record_timestamp,
)
from rec_estimator.graph_passes.graph_state import DECLARED_ENTRIES
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors
from rec_estimator.rec_sdk.runtime import is_static
from rec_estimator.table.table import EmbeddingTable

# Rec SDK's limits.
_MAX_NAME = 255
_MAX_INDEX = 255


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Declares an entry of a batch: the ids of one lookup, or the timestamp of the batch.

    Attributes:
      name: 1 to 255 characters. A lookup finds its entry by this name; several specs may share it.
      table_name: Table of the ids. None: the name. Characters other than letters, digits and "_"
        are removed.
      index_key: The entry of the batch: its key, or its position from 0 to 255. None: the name.
      access_threshold: Occurrences in training that admit a key, from 0. -1 or None: no admission.
      eviction_threshold: Seconds of the data's timestamps after which a key that was not trained is
        evicted. -1 or None: never. Requires an access_threshold.
      is_timestamp: Whether this is the timestamp of the batch: one integer above 0, in seconds.
      batch_size: From 1. Without effect.
      faae_coefficient: What one occurrence adds to a key's count, from 1.
      feat_count: From 1. Without effect; older scripts for Rec SDK pass it.

    Raises:
      ValueError: A value has a wrong type or is out of range.

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
                "access_threshold must be given with eviction_threshold, got None; 0 admits every "
                "key"
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


# The path to an entry in a batch: keys and positions, from the outermost structure inwards.
Path = Tuple[Union[str, int], ...]


class Entry(NamedTuple):
    """An entry of a batch that an insert function found for a FeatureSpec."""

    name: str  # The FeatureSpec's.
    path: Path
    position: int  # Among the tensors of the batch.
    num_tensors: int  # In the batch.
    is_timestamp: bool
    shape: Optional[Sequence[Optional[int]]]

    def to_json(self) -> str:
        """Returns the text for the collection."""
        return json.dumps(self)

    @staticmethod
    def from_json(text: str) -> "Entry":
        """Reads a text of the collection."""
        name, path, *rest = json.loads(text)
        return Entry(name, tuple(path), *rest)


def follow(structure: Any, path: Path) -> Any:
    """Returns the part of a batch at `path`.

    Raises:
      LookupError: The batch has no such part.
    """
    for key in path:
        is_sequence = isinstance(structure, (list, tuple)) and isinstance(key, int)
        if not is_sequence and not isinstance(structure, dict):
            raise LookupError(key)
        structure = structure[key]
    return structure


def describe(batch: Any) -> str:
    """Describes the entries of a batch, for a message."""
    if isinstance(batch, dict):
        return f"the keys {sorted(batch, key=str)}"
    if isinstance(batch, (list, tuple)):
        return f"{len(batch)} entries"
    return f"one tensor, {batch!r}"


def check_ids(name: str, tensor: object) -> None:
    """Checks that a tensor can be ids.

    Raises:
      ValueError: It is not a dense tensor of integers; or it is a scalar, and shapes are static.
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
            "batch the dataset first, or call init(use_dynamic=True)"
        )


def entries_of(graph: tf.Graph, is_training: bool) -> List[Entry]:
    """Returns the entries that insert functions found in the datasets of one mode."""
    return [Entry.from_json(text) for text in graph.get_collection(DECLARED_ENTRIES[is_training])]


def as_spec(ids: object) -> FeatureSpec:
    """Returns the FeatureSpec that a lookup got, by itself or in a list of one.

    Args:
      ids: Argument of sparse_lookup.

    Raises:
      ValueError: ids is anything else, also a list of several.
    """
    if isinstance(ids, (list, tuple)) and len(ids) == 1:
        ids = ids[0]
    if not isinstance(ids, FeatureSpec):
        raise ValueError(
            f"ids must be one FeatureSpec, or a list of one, got {ids!r}; make a lookup for each"
        )
    return ids


def ids_of(
    spec: FeatureSpec, table: EmbeddingTable, is_train: bool, batch: Any = None
) -> tf.Tensor:
    """Returns the ids that a FeatureSpec names in the batch of a step.

    Args:
      spec: The FeatureSpec of a lookup.
      table: The table that is looked up. Its name must be the spec's table_name.
      is_train: Whether the lookup is one of training. Its dataset must be one of training then.
      batch: The batch, or the part of it that holds the ids. None, with
        ``init(use_dynamic=False)``: the batch of the only iterator over a dataset of this mode.

    Returns:
      Integers of any shape.

    Raises:
      ValueError: The FeatureSpec is a timestamp, or names another table; the entry is not integers;
        no batch was given, and the graph does not have exactly one iterator of this mode.
      RuntimeError: No insert function mapped a dataset of this mode with this FeatureSpec, and the
        batch is not one of serving; or no batch was given, and shapes are dynamic.
      KeyError: The batch has no such entry, or lacks the timestamp of its dataset.
    """
    if spec.is_timestamp or spec.table_name != table.name:
        raise ValueError(
            f"FeatureSpec {spec.name!r} must name ids of table {table.name!r}, got "
            f"table_name={spec.table_name!r}, is_timestamp={spec.is_timestamp}; give "
            "FeatureSpec(table_name=)"
        )
    entries = entries_of(tf.get_default_graph(), is_train)
    named = [entry for entry in entries if entry.name == spec.name and not entry.is_timestamp]
    mode = "training" if is_train else "evaluation"
    if not named and not is_train:
        served = _ids_without_dataset(spec, batch)
        if served is not None:
            return served
    if not named:
        raise RuntimeError(
            f"FeatureSpec {spec.name!r} must be known to a dataset of {mode} of this graph, got "
            f"{sorted({entry.name for entry in entries})}; call dataset.map(get_asc_insert_func("
            f"tgt_key_specs=..., is_training={is_train})) with it before the lookup"
            f"{'' if is_train else '; in serving, give the features as batch='}"
        )
    # Several specs may share a name: the one with this index_key comes first.
    named.sort(key=lambda entry: entry.path[-1:] != (spec.index_key,))
    if batch is None:
        batch = _batch_of_iterator(spec, is_train)
    tensor = _read(named, batch)
    check_ids(f"FeatureSpec {spec.name!r}", tensor)
    times = [entry for entry in entries if entry.is_timestamp]
    if is_train and times:
        record_timestamp(_read(times, batch))
    record_ids(tensor, is_train)
    return tensor


def find_entry(spec: FeatureSpec, batch: Any) -> Tuple[Path, Any]:
    """Finds the entry that a FeatureSpec names in a batch, or in a part of one, by its index_key.

    Returns:
      The path to the entry, and the entry.

    Raises:
      KeyError: There is no such entry.
    """
    if not isinstance(batch, (dict, list, tuple)):
        return (), batch
    key = spec.name if spec.index_key is None else spec.index_key
    # The second path is for a pair of features and labels.
    paths: List[Path] = [(key,), (0, key)]
    for path in paths:
        try:
            return path, follow(batch, path)
        except LookupError:
            continue
    raise KeyError(
        f"index_key of FeatureSpec {spec.name!r} must name an entry of the batch, got "
        f"{key!r}, and the batch has {describe(batch)}; give index_key="
    )


def _ids_without_dataset(spec: FeatureSpec, batch: Any) -> Optional[tf.Tensor]:
    """The ids in a batch that no dataset gives, as in serving. None: a dataset gives the batch."""
    parts = tf.nest.flatten(batch, expand_composites=True)
    ops = [part.op for part in parts if isinstance(part, tf.Tensor)]
    if not ops or any(op.type == GET_NEXT for op in ancestors(ops)):
        return None
    _, ids = find_entry(spec, batch)
    check_ids(f"FeatureSpec {spec.name!r}", ids)
    return ids


def _batch_of_iterator(spec: FeatureSpec, is_train: bool) -> List[tf.Tensor]:
    """The tensors of the only iterator over datasets of a mode."""
    if not is_static():
        raise RuntimeError(
            f"batch must be given to look up FeatureSpec {spec.name!r}, got None; give the batch "
            "that get_next() or input_fn returned, or call init(use_dynamic=False)"
        )
    found = get_nexts_of_mode(tf.get_default_graph(), is_train)
    if len(found) != 1:
        raise ValueError(
            "batch must be given where not exactly one get_next() is of a dataset with "
            f"FeatureSpec {spec.name!r}, got {[op.name for op in found]}; give "
            "sparse_lookup(batch=)"
        )
    return found[0].outputs


def _read(entries: Sequence[Entry], batch: Any) -> Any:
    """The tensor of the first entry that a batch, or a part of a batch, has."""
    for entry in entries:
        if isinstance(batch, list) and len(batch) == entry.num_tensors:
            return batch[entry.position]
        # A part of a batch lacks the outermost keys of the path.
        for start in range(len(entry.path) + 1):
            try:
                tensor = follow(batch, entry.path[start:])
            except LookupError:
                continue
            if not isinstance(tensor, (dict, list, tuple)):
                return tensor
    raise KeyError(
        f"batch must hold FeatureSpec {entries[0].name!r} at {entries[0].path}, got "
        f"{describe(batch)}; give the whole batch"
    )


def batch_timestamp(
    graph: Optional[tf.Graph] = None, keys: Optional[Sequence[tf.Tensor]] = None
) -> Optional[tf.Tensor]:
    """Returns the timestamp of the training batch, checked in each step.

    Args:
      graph: The graph. None: the default graph.
      keys: Keys of training lookups. None: of all training lookups of the graph.

    Returns:
      int64 [], seconds. A step fails with InvalidArgument unless it is above 0. None: the graph has
      no timestamp.

    Raises:
      ValueError: A timestamp is not one integer for the whole batch.
      EnvironmentError: The batch has several timestamps.
    """
    graph = graph or tf.get_default_graph()
    found = find_timestamp(graph, keys)
    if found is None:
        return None
    with graph.as_default(), tf.name_scope("timestamp"):
        time = tf.cast(tf.ensure_shape(found, []), tf.int64)
        message = [f"timestamp {found.name!r} must be above 0, got"]
        with tf.control_dependencies([tf.debugging.Assert(time > 0, [*message, time])]):
            return tf.identity(time)


def start_asc_pipeline() -> None:
    """Checks a graph in FeatureSpec mode: every lookup takes its ids from a dataset of its mode.

    Call it when the graph is complete, before a session runs it. It may be called again after the
    graph has changed. It starts nothing: a dataset starts with its iterator.

    Raises:
      RuntimeError: The graph has no table; or a lookup by FeatureSpec takes its ids from a dataset
        that no function of get_asc_insert_func with its is_training mapped.
      ValueError: The timestamp is not one integer for the whole batch.
      EnvironmentError: A training batch has several timestamps.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> rec.start_asc_pipeline()
    """
    check_declared_inputs(tf.get_default_graph())
