# SPDX-License-Identifier: Apache-2.0
"""Says which inputs of a model have one row per user and which one row per candidate."""

import dataclasses
from typing import Any, Dict, List, Mapping, Sequence, Set

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import observers
from rec_estimator.sample_compression.analysis.components import components, tensor_name
from rec_estimator.sample_compression.state import State, current_state, set_state
from rec_estimator.sample_compression.training import CompressionObserver


def enable_sample_awared_graph_compression(
    user_tensors: Any, item_tensors: Any, item_size: tf.Tensor, exact: bool = False
) -> None:
    """Enables compression in the default graph, and says which inputs have one row per user.

    Call it in a serving_input_receiver_fn, and the exports of RecEstimator compress the model. The
    receiver tensors must include item_size. In a graph of your own, call ``compress`` after the
    model is built.

    Args:
      user_tensors: Tensors, SparseTensors and RaggedTensors with B rows, one per user, in a list,
        tuple or dict. RecEstimator also accepts a single user's row without a batch axis: a scalar,
        or a tensor of static shape [D] if D differs from the static length of item_size.
      item_tensors: Tensors of the same kinds with N rows, one per candidate, ordered by user.
      item_size: int32 or int64 [B]. The number of candidates of each user; the sum is N. Shape [1]
        gives every user the same number.
      exact: Whether to keep the order of all additions. Layers are then not split into a user part
        and a candidate part, and most of the gain is lost.

    Raises:
      TypeError: An input is not a tensor, or item_size is not of integers.
      ValueError: There is no user tensor or no item tensor; a tensor is given twice or comes from
        another graph; an item tensor is computed from a user tensor or the other way round;
        item_size is not a vector; or compression is already enabled in this graph.
      tf.errors.InvalidArgumentError: The number of rows does not fit item_size, or a size is
        negative (while running).

    Example:
      >>> user = tf.placeholder(tf.float32, [None, 2])
      >>> item = tf.placeholder(tf.float32, [None, 3])
      >>> item_size = tf.placeholder(tf.int32, [None])
      >>> from rec_estimator import graph_optimizer
      >>> graph_optimizer.enable_sample_awared_graph_compression([user], [item], item_size)
      >>> scores = tf.reduce_sum(tf.concat([tf.square(user), item], axis=1), axis=1)
      >>> scores = graph_optimizer.compress(scores)
      >>> with tf.Session() as session:
      ...     print(session.run(scores, {user: [[1, 2]], item: np.ones([3, 3]), item_size: [3]}))
      [8. 8. 8.]
    """
    graph = tf.get_default_graph()
    if graphs.is_function_graph(graph):
        raise ValueError(
            "sample-aware compression must be enabled in the graph of the model, got the graph of "
            "a function, such as Dataset.map's; give RecEstimator(sample_compression=) instead"
        )
    users, items = _tensors("user_tensors", user_tensors), _tensors("item_tensors", item_tensors)
    item_size = _checked_size(item_size)
    if current_state() is not None:
        raise ValueError(
            "sample-aware compression must be enabled once per graph, got a second call"
        )
    owners: Dict[str, str] = {}
    for name, tensors in (("user_tensors", users), ("item_tensors", items)):
        for tensor in tensors:
            for part in components(tensor):
                if part.graph is not graph:
                    raise ValueError(
                        f"{name} must be of the default graph, got {part.name!r} of another graph"
                    )
                if part.name in owners:
                    raise ValueError(
                        f"{name} must be tensors not given before, got {part.name!r}, which is "
                        f"in {owners[part.name]} already"
                    )
                owners[part.name] = name
    _check_apart("item", items, "user", users)
    _check_apart("user", users, "item", items)
    state = State(users, items, item_size, bool(exact))
    set_state(state)
    observers.register(CompressionObserver(state))


@dataclasses.dataclass(frozen=True)
class SampleCompression:
    """Names the user features of compressed batches, which ``inputs.group_samples`` makes.

    Pass it as RecEstimator(sample_compression=). The model is compressed for batches that have the
    feature item_size, and unchanged for other batches.

    Attributes:
      user: Names of the features with one row per user. All other features, and the labels, have
        one row per candidate.
      item_size: Name of the feature with the number of candidates of each user, int32 or int64 [B].
      exact: See ``enable_sample_awared_graph_compression``.

    Raises:
      ValueError: user is empty, or a name is not a string.

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
                f"user and item_size must be feature names, got {self.user!r} and "
                f"{self.item_size!r}"
            )
        object.__setattr__(self, "user", tuple(names))

    def enable(self, features: Any, labels: Any) -> Any:
        """Enables compression in the default graph if the batch is compressed.

        Args:
          features: The features of the batch.
          labels: The labels of the batch.

        Returns:
          The features without item_size.

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
        enable_sample_awared_graph_compression(
            users, list(unique.values()), features[self.item_size], self.exact
        )
        return rest


def with_open_rows(features: Any) -> Any:
    """Replaces user tensors whose static shape fixes the number of users or lacks that axis.

    Args:
      features: The features of the receiver, before model_fn is built on them.

    Returns:
      The same structure. The first axis of every user tensor has an unknown size.

    Raises:
      ValueError: Such a tensor already has consumers, so that it is too late to replace it.
    """
    state = current_state()
    if state is None or state.rewrite is not None:
        return features
    opened: Dict[int, Any] = {}
    for i, user in enumerate(state.users):
        tensor = _opened(user, state.item_size)
        if tensor is not user:
            opened[id(user)] = state.users[i] = tensor
    return tf.nest.map_structure(lambda feature: opened.get(id(feature), feature), features)


def _opened(user: Any, item_size: tf.Tensor) -> Any:
    """The user tensor, with a first axis of unknown size."""
    if isinstance(user, tf.RaggedTensor):
        return user
    if isinstance(user, tf.SparseTensor):
        if user.shape.rank is None or tf.dimension_value(user.shape[0]) is None:
            return user
        _check_unused(user.dense_shape, user)
        rank = user.dense_shape.shape
        shape = tf.placeholder_with_default(user.dense_shape, rank)
        return tf.SparseTensor(user.indices, user.values, shape)
    if user.shape.rank is None or (user.shape.rank and tf.dimension_value(user.shape[0]) is None):
        return user
    _check_unused(user, user)
    users = tf.dimension_value(item_size.shape[0]) if item_size.shape.rank else None
    if user.shape.rank == 0 or (user.shape.rank == 1 and user.shape.as_list() != [users]):
        user = user[tf.newaxis]  # One user's row.
    return tf.placeholder_with_default(user, [None, *user.shape[1:]])


def _check_unused(tensor: tf.Tensor, user: Any) -> None:
    if tensor.consumers():
        raise ValueError(
            f"user tensor {tensor_name(user)!r} must have a batch axis of unknown size if the "
            f"receiver computes with it, got shape {user.shape}; give its placeholder the shape "
            "[None, ...]"
        )


def _tensors(name: str, tensors: Any) -> List[Any]:
    flat = tf.nest.flatten(tensors)
    for tensor in flat:
        if not isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(
                f"{name} must be Tensors, SparseTensors or RaggedTensors in a list, tuple or dict, "
                f"got {tensor!r}"
            )
    if not flat:
        raise ValueError(f"{name} must name at least one tensor, got {tensors!r}")
    return flat


def _checked_size(item_size: Any) -> tf.Tensor:
    if not isinstance(item_size, tf.Tensor):
        raise TypeError(f"item_size must be a Tensor, got {item_size!r}")
    if item_size.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"item_size must be tf.int32 or tf.int64, got {item_size.dtype.name}")
    if item_size.graph is not tf.get_default_graph():
        raise ValueError(
            f"item_size must be of the default graph, got {item_size.name!r} of another graph"
        )
    if item_size.shape.rank not in (1, None):
        raise ValueError(f"item_size must be of shape [B] or [1], got shape {item_size.shape}")
    return item_size


def _check_apart(side: str, tensors: List[Any], other: str, others: List[Any]) -> None:
    given = {part.name for tensor in others for part in components(tensor)}
    for tensor in tensors:
        seen: Set[tf.Operation] = set()
        stack = [part.op for part in components(tensor)]
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            seen.add(op)
            for source in op.inputs:
                if source.name in given:
                    raise ValueError(
                        f"{side} tensor {tensor_name(tensor)!r} must not be made of {other} "
                        f"tensors, got one made of {source.op.name!r}; give the inputs of "
                        "the model instead"
                    )
                stack.append(source.op)
