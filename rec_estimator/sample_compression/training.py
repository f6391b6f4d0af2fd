"""Training on compressed batches: gradients and counts of the flat batch, at the users' cost.

The pass runs when an optimizer of ours asks for gradients: before, so that they are built on users'
rows, whose gradients are then sums over the candidates by themselves. Counts are not: a key that is
looked up once for a user with 50 candidates occurs 50 times in the flat batch. The other 49 are
given to the apply op as keys that are counted and have no gradient.
"""

import contextlib
import dataclasses
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import sample_compression as compression
from rec_estimator.graph_walk import ancestors
from rec_estimator.sample_compression.expansion import components
from rec_estimator.sample_compression.rewrite import Rewrite
from rec_estimator.table import graph_tables

_TRACES = ("rec_estimator", "sample_compression_training")

# Ops that hand on keys one for one; the last is the values' input of RaggedTensorToSparse.
_HAND_ON = {"Cast": 0, "Identity": 0, "Reshape": 0, "RaggedTensorToSparse": -1}


@dataclasses.dataclass(frozen=True)
class SampleCompression:
    """Which features of a compressed batch, as ``inputs.group_samples`` makes them, are of users.

    For RecEstimator(sample_compression=): it compresses the model on batches that have the number
    of samples of each user, and leaves it as it is on others.

    Attributes:
      user: Names of the features with a row per user; all others, and labels, are of candidates.
      item_size: Name of the feature with the number of candidates of each user, int32 or int64 [B].
      exact: As of ``enable_sample_awared_graph_compression``.

    Raises:
      ValueError: No user feature, or a name that is no string.

    Example:
      >>> compression = rec.SampleCompression(user=["user", "history"])
      >>> compression.item_size
      'item_size'
    """

    user: Sequence[str]
    item_size: str = "item_size"
    exact: bool = False

    def __post_init__(self) -> None:
        names = [self.user] if isinstance(self.user, str) else list(self.user)
        if not names or not all(isinstance(name, str) for name in (*names, self.item_size)):
            raise ValueError(
                f"user and item_size must be names of features, got {self.user!r} and "
                f"{self.item_size!r}"
            )
        object.__setattr__(self, "user", tuple(names))

    def enable(self, features: Any, labels: Any) -> Any:
        """Enables compression in the default graph if the batch is a compressed one.

        Args:
          features: Of the batch.
          labels: Likewise.

        Returns:
          The features, without the number of candidates.

        Raises:
          ValueError: A user feature is missing.
        """
        if not isinstance(features, Mapping) or self.item_size not in features:
            return features
        rest = {name: value for name, value in features.items() if name != self.item_size}
        for name in self.user:
            if name not in rest:
                raise ValueError(
                    f"user feature {name!r} of sample_compression must be in the batch, got "
                    f"{sorted(rest)}"
                )
        users = [rest[name] for name in self.user]
        items = [value for name, value in rest.items() if name not in self.user]
        items += [label for label in tf.nest.flatten(labels) if label is not None]
        unique = {components(item)[0].name: item for item in tf.nest.flatten(items)}
        compression.enable_sample_awared_graph_compression(
            users, list(unique.values()), features[self.item_size], self.exact
        )
        return rest


@dataclasses.dataclass
class _Traces:
    """What a training graph shows of its compression."""

    slices: List[Tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(default_factory=list)
    # Numbers of ops: those from `pass_end` on were built after the pass, where that ran unasked.
    pass_end: Optional[int] = None
    own_ops: List[Tuple[int, int]] = dataclasses.field(default_factory=list)
    item_size: Optional[tf.Tensor] = None


def _traces() -> _Traces:
    graph = tf.get_default_graph()
    if not graph.get_collection(_TRACES):
        graph.add_to_collection(_TRACES, _Traces())
    return graph.get_collection(_TRACES)[0]


@contextlib.contextmanager
def gradients_of(loss: Any) -> Iterator[Any]:
    """While the gradients of a loss are built: compresses the model first, if that is enabled.

    Args:
      loss: What is minimized.

    Yields:
      The loss of the compressed model.

    Raises:
      ValueError: A table judges keys of users by their occurrences in the batch.
    """
    if not compression.is_enabled() or not isinstance(loss, tf.Tensor):
        yield loss
        return
    is_first = compression.done() is None
    loss = compression.compress(loss)
    _check_admissions()
    if is_first:
        _traces().pass_end = _count_ops()
    with own_ops():
        yield loss


@contextlib.contextmanager
def own_ops() -> Iterator[None]:
    """While an optimizer of ours builds ops, which know what has a row per user."""
    begin = _count_ops()
    yield
    if compression.is_enabled():
        _traces().own_ops.append((begin, _count_ops()))


def _check_admissions() -> None:
    """Refuses tables that ask before a step which keys it admits, and would ask for each once."""
    for table in graph_tables():
        for shard in table:
            for lookup in shard.lookups:
                if lookup.admits is not None and compression.done().is_of_users(lookup.keys):
                    raise ValueError(
                        f"table {table.name!r}, which admits keys by a threshold of sparse_lookup, "
                        f"must not be read by users' keys in compressed training, got "
                        f"{lookup.op.name!r}; use get_embedding_variable with a CounterFilter, or "
                        "train on flat batches"
                    )


def _count_ops() -> int:
    return len(tf.get_default_graph().get_operations())


def note_gradient(keys: tf.Tensor, indices: tf.Tensor) -> None:
    """Remembers that the gradient of a lookup was built.

    Args:
      keys: What it reads, any shape.
      indices: [n]. Its keys in the gradient.
    """
    if compression.done() is not None:
        _traces().slices.append((keys, indices))


def repeated_keys(indices: tf.Tensor) -> List[tf.Tensor]:
    """Occurrences of keys in the flat batch beside those that a gradient has.

    Args:
      indices: int64 [n]. The keys of a gradient, of one or several lookups.

    Returns:
      int64 vectors, one per lookup of users' keys.
    """
    rewrite = compression.done()
    if rewrite is None:
        return []
    upstream = ancestors([indices.op])
    found = []
    for keys, of_lookup in _traces().slices:
        counts = _counts(rewrite, keys) if of_lookup.op in upstream else None
        if counts is not None:
            found.append(_repeat(keys, counts - 1))
    return found


def flat_keys(keys: tf.Tensor) -> tf.Tensor:
    """The keys that a lookup of the flat batch reads.

    Args:
      keys: int64 [n]. Those of the lookup as the model_fn built it.

    Returns:
      int64 [m].
    """
    rewrite = compression.done()
    counts = None if rewrite is None else _counts(rewrite, keys)
    return keys if counts is None else _repeat(keys, counts)


def _repeat(keys: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Each of the keys so many times, int64 [sum of counts]."""
    ends = tf.cumsum(counts)
    places = tf.range(tf.reduce_sum(counts))
    index = tf.raw_ops.UpperBound(sorted_inputs=ends[tf.newaxis], values=places[tf.newaxis])[0]
    return tf.gather(tf.reshape(keys, [-1]), index)


def _counts(rewrite: Rewrite, keys: tf.Tensor) -> Optional[tf.Tensor]:
    """int32 [n], how often the flat batch has each of a lookup's keys; None: once."""
    if not rewrite.knows(keys) and keys.op.type in ("Reshape", "Identity"):
        return _counts(rewrite, keys.op.inputs[0])  # Built after the pass.
    regions = rewrite.regions_of(keys)
    if not regions:
        if not rewrite.is_of_users(keys):
            return None
        with tf.control_dependencies([_sizes()]):
            return tf.identity(rewrite.occurrences(keys))
    if not any(rewrite.is_of_users(part) for t in regions[0].inputs for part in components(t)):
        return None
    return _counts_inside({name: rows for r in regions for name, rows in _rows_in(r)}, keys)


def _counts_inside(rows: Dict[str, tf.Tensor], keys: tf.Tensor) -> tf.Tensor:
    """``_counts`` of keys inside of a declared piece, by the rows of the keys it was given."""
    if keys.name in rows:
        return tf.gather(_sizes(), rows[keys.name])
    op = keys.op
    if op.type in _HAND_ON:
        return _counts_inside(rows, op.inputs[_HAND_ON[op.type]])
    if op.type == "DynamicPartition":
        counts = _counts_inside(rows, op.inputs[0])
        return tf.dynamic_partition(counts, op.inputs[1], len(op.outputs))[keys.value_index]
    raise ValueError(
        f"keys of a lookup must come one for one from a feature's ids, got {op.type} {op.name!r}"
    )


def _rows_in(region: Any) -> List[Tuple[str, tf.Tensor]]:
    """The keys that a piece has, and the row of each."""
    keys = region.keys
    if keys is None:
        return []
    if isinstance(keys, tf.SparseTensor):
        return [(keys.values.name, keys.indices[:, 0])]
    return [(keys.flat_values.name, keys.value_rowids())]


def _sizes() -> tf.Tensor:
    """int32 [B], how many candidates each user has."""
    traces = _traces()
    if traces.item_size is None:
        expansion = compression.done().expansion
        least = "a user must have a sample or more in training, got an item_size of 0; leave it out"
        with tf.control_dependencies(None):
            ones = tf.ones_like(expansion.index)
            sizes = tf.math.unsorted_segment_sum(ones, expansion.index, expansion.users)
            with tf.control_dependencies([tf.debugging.assert_positive(sizes, message=least)]):
                traces.item_size = tf.identity(sizes)
    return traces.item_size


def check_gradients_are_compressed(train_op: Any) -> None:
    """Refuses a step whose gradients were built before the model was compressed.

    Args:
      train_op: Of the model_fn.

    Raises:
      ValueError: An optimizer of TensorFlow's built them.
    """
    if not compression.is_enabled() or compression.done() is not None or train_op is None:
        return
    step = ancestors([train_op.op if isinstance(train_op, tf.Tensor) else train_op])
    if step & {tensor.op for tensor in compression.given_tensors()}:
        raise ValueError(
            "the model must be compressed before its gradients are built, got a train_op of an "
            "optimizer that is not ours; minimize rec_estimator.graph_optimizer.compress(loss), or "
            "with one of rec_estimator.optimizers"
        )


def check_nothing_is_built_after() -> None:
    """Refuses what a model_fn computes from users' rows after its gradients were built.

    It would see a row per user, where the model as written has one per candidate.

    Raises:
      ValueError: There is such an op.
    """
    rewrite = compression.done()
    if rewrite is None or _traces().pass_end is None:
        return
    ours: Set[int] = set()
    for begin, end in _traces().own_ops:
        ours.update(range(begin, end))
    operations = tf.get_default_graph().get_operations()
    for number in range(_traces().pass_end, len(operations)):
        op = operations[number]
        if number in ours or "sample_compression" in op.name.split("/"):
            continue
        for tensor in op.inputs:
            if rewrite.is_of_users(tensor):
                raise ValueError(
                    "what depends on users alone must be used before the optimizer builds "
                    f"gradients, got {op.name!r}, built after it on {tensor.name!r}; build it "
                    "before, or call rec_estimator.graph_optimizer.compress for the tensor"
                )
