# SPDX-License-Identifier: Apache-2.0
"""Training on compressed batches: gradients and counts of the flat batch, at the users' cost.

The pass runs when an optimizer of ours asks for gradients: before, so that they are built on users'
rows, whose gradients are then sums over the candidates by themselves. Counts are not: a key that is
looked up once for a user with 50 candidates occurs 50 times in the flat batch. The other 49 are
given to the apply op as keys that are counted and have no gradient.
"""

import contextlib
import dataclasses
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import sample_compression as compression
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.sample_compression.rewrite.expansion import components

_TRACES = ("rec_estimator", "sample_compression_training")

# What may be done to slices that are sums over candidates: it can be done to the sums as well.
_KEEP = frozenset({"Cast", "CheckNumerics", "ConcatV2", "Identity", "IdentityN", "Neg", "Reshape"})
_SCALE = frozenset({"Div", "DivNoNan", "Mul", "RealDiv"})


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

    # Of each gradient of a lookup, what is looked up.
    slices: List[Tuple[tf.Tensor, tf.IndexedSlices]] = dataclasses.field(default_factory=list)
    # Gradients of which the flat batch has more slices.
    of_users: List[tf.IndexedSlices] = dataclasses.field(default_factory=list)
    # Numbers of ops: those from `pass_end` on were built after the pass, where that ran unasked.
    pass_end: Optional[int] = None
    own_ops: List[Tuple[int, int]] = dataclasses.field(default_factory=list)


def _traces() -> _Traces:
    graph = tf.get_default_graph()
    if not graph.get_collection(_TRACES):
        graph.add_to_collection(_TRACES, _Traces())
    return graph.get_collection(_TRACES)[0]


@contextlib.contextmanager
def gradients_of(loss: Any, grad_loss: Any) -> Iterator[Tuple[Any, Any]]:
    """While the gradients of a loss are built: compresses the model first, if that is enabled.

    Args:
      loss: What is minimized.
      grad_loss: Its own gradient, None for ones.

    Yields:
      Both, of the compressed model.
    """
    if not compression.is_enabled() or not isinstance(loss, tf.Tensor):
        yield loss, grad_loss
        return
    is_first = compression.done() is None
    loss, grad_loss = compression.compress((loss, grad_loss))
    if is_first:
        _traces().pass_end = _count_ops()
    with own_ops():
        yield loss, grad_loss


@contextlib.contextmanager
def own_ops() -> Iterator[None]:
    """While an optimizer of ours builds ops, which know what has a row per user."""
    begin = _count_ops()
    yield
    if compression.is_enabled():
        _traces().own_ops.append((begin, _count_ops()))


def _count_ops() -> int:
    return len(tf.get_default_graph().get_operations())


def note_gradient(keys: tf.Tensor, slices: tf.IndexedSlices) -> None:
    """Remembers that the gradient of a lookup was built.

    Args:
      keys: What it reads, any shape.
      slices: The gradient, a slice per key.
    """
    if compression.done() is not None:
        _traces().slices.append((keys, slices))


def note_gradients(gradients: Iterable[Any]) -> None:
    """Remembers the gradients of variables that have a slice per user.

    Args:
      gradients: As compute_gradients() gives them.
    """
    occurrences = compression.occurrences()
    if occurrences is not None:
        found = [each for each in gradients if isinstance(each, tf.IndexedSlices)]
        _traces().of_users += [each for each in found if occurrences.is_repeated(each.indices)]


def check_gradients() -> None:
    """Refuses what is made of gradients with a slice per user, if it is not linear in them.

    The norm of such a gradient is another one than of slices per sample.

    Raises:
      ValueError: There is such an op.
    """
    parts = [part for each in _traces().of_users for part in (each.values, each.indices)]
    derived = {part.name for part in parts}
    ours = _own_numbers() if parts else set()
    numbers = {op: i for i, op in enumerate(tf.get_default_graph().get_operations()) if parts}
    while parts:
        for op in parts.pop().consumers():
            is_scaled = op.type in _SCALE and _may_scale(op, derived)
            if is_scaled or op.type in _KEEP:
                new = [tensor for tensor in op.outputs if tensor.name not in derived]
                derived.update(tensor.name for tensor in new)
                parts += new
            elif numbers[op] not in ours:
                raise ValueError(
                    "gradients of what is looked up with users' ids must be taken as they are or "
                    f"times a number in compressed training, got {op.name!r} ({op.type}): they "
                    "have a slice per user and not per sample, which makes another norm; clip "
                    "dense gradients only, or train on flat batches"
                )


def _may_scale(op: tf.Operation, derived: Set[str]) -> bool:
    """Whether a product or quotient is a gradient's with something else."""
    a, b = (tensor.name in derived for tensor in op.inputs)
    return (a != b) if op.type == "Mul" else not b


def _own_numbers() -> Set[int]:
    """Numbers of the ops that optimizers of ours have built."""
    return {number for begin, end in _traces().own_ops for number in range(begin, end)}


def repeated_keys(indices: tf.Tensor) -> List[tf.Tensor]:
    """Occurrences of keys in the flat batch beside those that a gradient has.

    Args:
      indices: int64 [n]. The keys of a gradient, of one or several lookups.

    Returns:
      int64 vectors, one per lookup of users' keys.
    """
    occurrences = compression.occurrences()
    if occurrences is None:
        return []
    upstream = ancestors([indices.op])
    of_lookups = [keys for keys, slices in _traces().slices if slices.indices.op in upstream]
    found = [occurrences.further(keys) for keys in of_lookups]
    return [keys for keys in found if keys is not None]


def flat_keys(keys: tf.Tensor) -> tf.Tensor:
    """The keys that a lookup of the flat batch reads.

    Args:
      keys: int64 [n]. Those of the lookup as the model_fn built it.

    Returns:
      int64 [m].
    """
    occurrences = compression.occurrences()
    return keys if occurrences is None else occurrences.all_of(keys)


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


def repeat_for_what_is_built_after() -> None:
    """Gives a row per candidate to what a model_fn built on users' rows after its gradients.

    Raises:
      ValueError: It built gradients itself, which have rows of users too; or a norm of such.
    """
    rewrite = compression.done()
    if rewrite is None or _traces().pass_end is None:
        return
    check_gradients()
    ours = _own_numbers()
    operations = tf.get_default_graph().get_operations()
    for number in range(_traces().pass_end, len(operations)):
        op = operations[number]
        is_of_gradients = _is_of_gradients(op)
        is_of_pass = "sample_compression" in op.name.split("/") and not is_of_gradients
        if number in ours or is_of_pass:
            continue
        for index, tensor in enumerate(op.inputs):
            if not rewrite.is_of_users(tensor):
                continue
            if is_of_gradients:
                raise ValueError(
                    "gradients of a compressed model must be built by optimizers of ours, got "
                    f"{op.name!r}, built after the first on {tensor.name!r}; build them before, or "
                    "all of them on rec_estimator.graph_optimizer.compress(loss)"
                )
            graphs.update_input(op, index, compression.compress(tensor))


def _is_of_gradients(op: tf.Operation) -> bool:
    """Whether tf.gradients or a tape built an op, by the scopes that they use."""
    scopes = op.name.split("/")[:-1]
    return any(scope.endswith("_grad") or scope == "gradient_tape" for scope in scopes)
