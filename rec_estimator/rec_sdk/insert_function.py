# SPDX-License-Identifier: Apache-2.0
"""get_asc_insert_func: the function with which FeatureSpec mode maps a dataset.

Step 1a of the data flow, the dataset's side of feature_spec.py. The function checks the ids of a
batch, and records their paths in the batch for the lookups of the graph.

Source: Rec SDK TensorFlow, ``mx_rec.core.asc.helper``.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_modifier.declared_inputs import MARKS, check_timestamp
from rec_estimator.graph_passes.graph_state import DECLARED_ENTRIES
from rec_estimator.rec_sdk.feature_spec import (
    Entry,
    FeatureSpec,
    Path,
    check_ids,
    describe,
    entries_of,
    find_entry,
    follow,
)
from rec_estimator.rec_sdk.runtime import is_static

_DUMP_FOLDER = "export_graph"
_DUMP_FILE = "pipeline_graph.pb"


def get_asc_insert_func(
    tgt_key_specs: Any = None,
    args_index_list: Optional[Sequence[int]] = None,
    table_names: Optional[Sequence[str]] = None,
    *,
    is_training: bool = True,
    dump_graph: bool = False,
) -> Callable[..., Any]:
    """Returns a function for ``dataset.map`` that checks ids and records where a batch has them.

    As in Rec SDK the function adds one entry to the batch: the number of its ids, int32 []. A dict
    gets it under the key ``<last key>_read_emb_key``, a tensor or tuple as its last entry. In a
    pair of features (a dict or tuple) and labels the features get it.

    Args:
      tgt_key_specs: A FeatureSpec, a list of them, or a structure of them like that of the batch or
        of its outer part.
      args_index_list: Instead of tgt_key_specs: the positions of ids among the tensors of the
        batch, from 0.
      table_names: With args_index_list: the table of each position.
      is_training: Whether training lookups take their ids from this dataset.
      dump_graph: Whether to write the graph of this function to
        ``./export_graph/pipeline_graph.pb``.

    Returns:
      A function that takes a batch and returns it with the additional entry.

    Raises:
      ValueError: Both or none of tgt_key_specs and args_index_list are given; a list is empty or
        has elements of a wrong type; table_names is given with tgt_key_specs. When the dataset is
        mapped: an entry is not a dense tensor of integers; a timestamp is not a scalar; with
        ``init(use_dynamic=False)``, ids are a scalar or change their shape.
      RuntimeError: args_index_list is given without table_names.
      KeyError: When the dataset is mapped: the batch has no such entry.
      EnvironmentError: When the dataset is mapped: the batch has a structure that cannot get an
        entry; or it has two timestamps, in training.

    Example:
      >>> spec = rec.FeatureSpec("user_ids", table_name="user")
      >>> dataset = tf.data.Dataset.from_tensors({"user_ids": [7, 9, 9]})
      >>> dataset = dataset.map(rec.get_asc_insert_func(tgt_key_specs=spec))
      >>> sorted(dataset.element_spec)
      ['user_ids', 'user_ids_read_emb_key']
    """
    check_bool("is_training", is_training)
    check_bool("dump_graph", dump_graph)
    if (tgt_key_specs is None) == (args_index_list is None):
        raise ValueError(
            "exactly one of tgt_key_specs and args_index_list must be given, got "
            f"{tgt_key_specs!r} and {args_index_list!r}; give the FeatureSpecs of the batch"
        )
    if args_index_list is not None:
        _check_indices(args_index_list, table_names)
    else:
        _check_specs(tgt_key_specs, table_names)

    @tf.autograph.experimental.do_not_convert
    def insert(*args: Any) -> Any:
        if not graphs.is_function_graph(tf.get_default_graph()):
            raise ValueError(
                "the function of get_asc_insert_func must be called by tf.data, got a call outside "
                "of a dataset; write dataset.map(get_asc_insert_func(...))"
            )
        batch = args[0] if len(args) == 1 else args
        if args_index_list is not None:
            found = []
            ids = _ids_at(args_index_list, batch)
        else:
            found = _find_entries(tgt_key_specs, batch, ())
            ids = _checked_entries(found, is_training)
        count = tf.add_n([tf.zeros([], tf.int32), *(tf.size(tensor) for tensor in ids)])
        with tf.name_scope(None):  # A scope of the caller would change the name.
            count = tf.identity(count, name=MARKS[is_training])
        result, is_first_part = _with_entry(batch, count)
        _record(found, is_first_part, result, is_training)
        if dump_graph:
            graph = tf.get_default_graph()
            tf.io.write_graph(graph, _DUMP_FOLDER, _DUMP_FILE, as_text=False)
        return result

    return insert


def _check_indices(indices: Sequence[int], table_names: Optional[Sequence[str]]) -> None:
    if table_names is None:
        raise RuntimeError(
            "table_names must be given with args_index_list, got None; give one name for each "
            "position"
        )
    for name, values, kind in (
        ("args_index_list", indices, int),
        ("table_names", table_names, str),
    ):
        if (
            not isinstance(values, (list, tuple))
            or not values
            or not all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
        ):
            raise ValueError(
                f"{name} must be a non-empty list of {kind.__name__}, got {values!r}; give one for "
                "each tensor of ids"
            )
    if len(indices) != len(table_names) or min(indices) < 0:
        raise ValueError(
            "args_index_list must be positions from 0, one for each of table_names, got "
            f"{indices!r} and {table_names!r}; give as many names as positions"
        )


def _check_specs(specs: Any, table_names: object) -> None:
    if table_names is not None:
        raise ValueError(
            f"table_names must be None with tgt_key_specs, got {table_names!r}; give each "
            "FeatureSpec its table_name"
        )
    leaves = tf.nest.flatten(specs)
    if not leaves or not all(isinstance(leaf, FeatureSpec) for leaf in leaves):
        raise ValueError(
            f"tgt_key_specs must be one or more FeatureSpecs, got {specs!r}; give a list of them"
        )


class _Found(NamedTuple):
    """The entry of a batch that a FeatureSpec names."""

    spec: FeatureSpec
    path: Path
    tensor: Any


def _find_entries(specs: Any, batch: Any, path: Path) -> List[_Found]:
    """The entries that `specs` name, in order. `batch` is the part of the batch at `path`."""
    if isinstance(specs, FeatureSpec):
        inner, tensor = find_entry(specs, batch)
        return [_Found(specs, (*path, *inner), tensor)]
    if not isinstance(specs, dict) and all(isinstance(spec, FeatureSpec) for spec in specs):
        return [found for spec in specs for found in _find_entries(spec, batch, path)]
    parts = specs.items() if isinstance(specs, dict) else enumerate(specs)
    found = []
    for key, part in parts:
        try:
            inner_batch = follow(batch, (key,))
        except LookupError:
            raise KeyError(
                f"the batch must have an entry at {(*path, key)}, where tgt_key_specs has one, got "
                f"{describe(batch)}; give tgt_key_specs the structure of the batch"
            ) from None
        found += _find_entries(part, inner_batch, (*path, key))
    return found


def _checked_entries(found: List[_Found], is_training: bool) -> List[tf.Tensor]:
    """Checks the entries, and returns the tensors of ids."""
    times = [entry.spec.name for entry in found if entry.spec.is_timestamp]
    if is_training and len(times) > 1:
        raise OSError(
            f"a training batch must have one timestamp, got {times}; set is_timestamp in one "
            "FeatureSpec only"
        )
    for entry in found:
        name = f"FeatureSpec {entry.spec.name!r}"
        if entry.spec.is_timestamp:
            check_timestamp(name, entry.tensor)
        else:
            check_ids(name, entry.tensor)
    return [entry.tensor for entry in found if not entry.spec.is_timestamp]


def _ids_at(positions: Sequence[int], batch: Any) -> List[tf.Tensor]:
    tensors = tf.nest.flatten(batch)
    if max(positions) >= len(tensors):
        raise ValueError(
            f"args_index_list must be positions in a batch of {len(tensors)} tensors, got "
            f"{list(positions)}; the first is 0"
        )
    for position in positions:
        check_ids(f"args_index_list {position}", tensors[position])
    return [tensors[position] for position in positions]


def _with_entry(batch: Any, count: tf.Tensor) -> Tuple[Any, bool]:
    """Adds an entry to a batch. Also returns whether the batch became the first of a pair."""
    if isinstance(batch, tf.Tensor):
        return (batch, count), True
    if type(batch) is tuple and len(batch) == 2 and isinstance(batch[0], (dict, tuple)):
        return (_appended(batch[0], count), batch[1]), False
    return _appended(batch, count), False


def _appended(batch: Any, count: tf.Tensor) -> Any:
    if type(batch) is tuple:
        return (*batch, count)
    if isinstance(batch, dict) and all(isinstance(key, str) for key in batch):
        return {**batch, f"{max(batch)}_read_emb_key": count}
    raise OSError(
        "a batch must be a tensor, a tuple, a dict with strings for keys, or a pair of features "
        f"and labels to get one more entry, got {batch!r}; map it into a dict first"
    )


def _record(found: List[_Found], is_first_part: bool, result: Any, is_training: bool) -> None:
    """Records the found entries in the graph that has the lookups."""
    graph = graphs.outermost_graph(tf.get_default_graph())
    num_tensors = len(tf.nest.flatten(result))
    positions = tf.nest.pack_sequence_as(result, list(range(num_tensors)))
    for spec, path, tensor in found:
        path = (0, *path) if is_first_part else path
        shape = tensor.shape.as_list() if tensor.shape.rank is not None else None
        entry = Entry(
            spec.name,
            path,
            follow(positions, path),
            num_tensors,
            bool(spec.is_timestamp),
            shape,
        )
        _check_same_shape(graph, entry)
        entries = graph.get_collection_ref(DECLARED_ENTRIES[is_training])
        if entry.to_json() not in entries:
            entries.append(entry.to_json())


def _check_same_shape(graph: tf.Graph, entry: Entry) -> None:
    if not is_static():
        return
    for is_training in DECLARED_ENTRIES:
        for other in entries_of(graph, is_training):
            if (other.name, other.path) == (entry.name, entry.path) and other.shape != entry.shape:
                raise ValueError(
                    f"FeatureSpec {entry.name!r} must have one shape with init(use_dynamic=False), "
                    f"got {entry.shape} after {other.shape}; batch both alike, or call "
                    "init(use_dynamic=True)"
                )
