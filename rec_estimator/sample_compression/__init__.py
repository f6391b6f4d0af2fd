# SPDX-License-Identifier: Apache-2.0
"""Sample-aware graph compression: what depends on the user alone is computed once per user.

Candidates come with item features of one row each and user features of one row per user, and
``item_size`` says how many candidates each user has. The model is written for flat samples; after
model_fn has built it, this pass runs what depends on users alone on their rows and repeats rows
where they meet candidates. Outputs are those of the model as written.
"""

import dataclasses
from typing import Any, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf
from tensorflow_estimator import estimator as _estimator

from rec_estimator._tensorflow import graphs
from rec_estimator.sample_compression.occurrences import Occurrences
from rec_estimator.sample_compression.regions import Region
from rec_estimator.sample_compression.report.report import CompressionReport, report
from rec_estimator.sample_compression.rewrite.expansion import components, tensor_name
from rec_estimator.sample_compression.rewrite.rewrite import Rewrite

_export = _estimator.export

# A tuple: TensorFlow writes only collections with a string for a name into a MetaGraph.
_STATE = ("rec_estimator", "sample_compression")


@dataclasses.dataclass
class _State:
    """What a graph knows of its compression."""

    users: List[Any]
    items: List[Any]
    item_size: tf.Tensor
    exact: bool
    stock_ops: bool = False
    regions: List[Region] = dataclasses.field(default_factory=list)
    done: Optional[Rewrite] = None
    occurrences: Optional[Occurrences] = None


def enable_sample_awared_graph_compression(
    user_tensors: Any, item_tensors: Any, item_size: tf.Tensor, exact: bool = False
) -> None:
    """Says which inputs have a row per user, which a row per candidate.

    Called in a serving_input_receiver_fn, so that RecEstimator's exports compress the model; the
    receiver's tensors must include item_size. In a graph of one's own, call ``compress`` when the
    model is built.

    Args:
      user_tensors: Tensors, SparseTensors and RaggedTensors of B rows, one per user, in a list,
        tuple or dict. RecEstimator takes a tensor of static shape [D], D not the static length of
        item_size, and a scalar for one user's row without a batch axis.
      item_tensors: Such of N rows, the first user's candidates first.
      item_size: int32 or int64 [B], the number of candidates of each user, their sum N; [1]: the
        same number for each user.
      exact: Leaves out what reorders additions: layers are then not split into a part of users and
        one of candidates, and most of the gain is lost.

    Raises:
      TypeError: Something that is no tensor, or an item_size that is no integer.
      ValueError: No user or no item tensor, a tensor given twice or of another graph, an item
        tensor that is made of a user tensor or the other way round, an item_size that is no vector,
        or a second call in one graph.
      tf.errors.InvalidArgumentError: A number of rows that does not fit item_size, or a negative
        size (while running).

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
            "sample-aware compression must be enabled in the graph of the model, got a function's, "
            "such as a dataset's map; give RecEstimator(sample_compression=) instead"
        )
    users, items = _tensors("user_tensors", user_tensors), _tensors("item_tensors", item_tensors)
    item_size = _checked_size(item_size)
    if graph.get_collection(_STATE):
        raise ValueError(
            "sample-aware compression must be enabled once in a graph, got a second call"
        )
    owners: Dict[str, str] = {}
    for name, tensors in (("user_tensors", users), ("item_tensors", items)):
        for tensor in tensors:
            for part in components(tensor):
                if part.graph is not graph:
                    raise ValueError(
                        f"{name} must be of the default graph, got {part.name!r} of another one"
                    )
                if part.name in owners:
                    raise ValueError(
                        f"{name} must be of tensors not given before, got {part.name!r}, which is "
                        f"in {owners[part.name]} already"
                    )
                owners[part.name] = name
    _check_apart("item", items, "user", users)
    _check_apart("user", users, "item", items)
    graph.add_to_collection(_STATE, _State(users, items, item_size, bool(exact)))


def compress(fetches: Any) -> Any:
    """Compresses the default graph, if that is enabled.

    What is built afterwards on a tensor of the model that depends on users alone finds a row per
    user; on what this function returns for it, a row per candidate.

    Args:
      fetches: A tensor, or a list, tuple or dict of tensors, SparseTensors and others, that the
        model gives.

    Returns:
      The same structure. Tensors that have a row per user after the pass have one per candidate
      again.

    Raises:
      ValueError: A user tensor whose static number of rows says what only item_size may say.
    """
    state = _state()
    if state is None:
        return fetches
    if state.done is None:
        for user in state.users:
            _check_open(user)
        with tf.name_scope("sample_compression"), tf.control_dependencies(None), tf.device(None):
            rewrite = Rewrite(
                state.users,
                state.items,
                state.item_size,
                state.regions,
                state.exact,
                state.stock_ops,
            )
            rewrite.run()
            state.occurrences = Occurrences(rewrite)
            state.occurrences.tell_admissions()
        state.done = rewrite
        tf.logging.info("%s", compression_report())
    with tf.name_scope("sample_compression"), tf.control_dependencies(None), tf.device(None):
        return tf.nest.map_structure(
            lambda fetch: state.done.full(fetch) if isinstance(fetch, tf.Tensor) else fetch,
            fetches,
            expand_composites=True,
        )


def use_stock_ops() -> None:
    """Makes the pass add TensorFlow's own ops only, if compression is enabled in the default graph.

    For portable exports, before the model is compressed. Answers are the same; they come slower.
    Rows of kernels become local variables, which are to be initialized after the restore.
    """
    state = _state()
    if state is not None:
        state.stock_ops = True


def with_open_rows(features: Any) -> Any:
    """Gives user tensors whose static shape says a number of users, or no such axis, an open one.

    Args:
      features: Of the receiver, before model_fn is built on them.

    Returns:
      The same structure, those tensors replaced.

    Raises:
      ValueError: Such a tensor is used already, so that its replacement would come too late.
    """
    state = _state()
    if state is None or state.done is not None:
        return features
    opened: Dict[int, Any] = {}
    for i, user in enumerate(state.users):
        tensor = _opened(user, state.item_size)
        if tensor is not user:
            opened[id(user)] = state.users[i] = tensor
    return tf.nest.map_structure(lambda feature: opened.get(id(feature), feature), features)


def compress_spec(spec: Any) -> Any:
    """Compresses the model of an EstimatorSpec, if that is enabled in the default graph.

    Args:
      spec: An EstimatorSpec of any mode.

    Returns:
      The spec, whose tensors have a row per candidate.
    """
    if _state() is None:
        return spec
    outputs = {
        name: _compressed_output(output) for name, output in (spec.export_outputs or {}).items()
    }
    return spec._replace(
        predictions=compress(spec.predictions),
        loss=compress(spec.loss),
        eval_metric_ops=compress(spec.eval_metric_ops),
        export_outputs=outputs or None,
    )


def _compressed_output(output: Any) -> Any:
    if isinstance(output, _export.PredictOutput):
        return _export.PredictOutput(compress(output.outputs))
    if isinstance(output, _export.ClassificationOutput):
        return _export.ClassificationOutput(compress(output.scores), compress(output.classes))
    if isinstance(output, _export.RegressionOutput):
        return _export.RegressionOutput(compress(output.value))
    raise TypeError(
        "export_outputs must be of PredictOutput, ClassificationOutput and RegressionOutput, got "
        f"{output!r}"
    )


def _opened(user: Any, item_size: tf.Tensor) -> Any:
    """A user tensor with a first axis of unknown size."""
    if isinstance(user, tf.RaggedTensor):
        return user
    if isinstance(user, tf.SparseTensor):
        if user.shape.rank is None or user.shape[0] is None:
            return user
        _check_unused(user.dense_shape, user)
        rank = user.dense_shape.shape
        shape = tf.placeholder_with_default(user.dense_shape, rank)
        return tf.SparseTensor(user.indices, user.values, shape)
    if user.shape.rank is None or (user.shape.rank and user.shape[0] is None):
        return user
    _check_unused(user, user)
    users = item_size.shape[0] if item_size.shape.rank else None
    if user.shape.rank == 0 or (user.shape.rank == 1 and user.shape[0] != users):
        user = user[tf.newaxis]  # One user's row.
    return tf.placeholder_with_default(user, [None, *user.shape[1:]])


def _check_unused(tensor: tf.Tensor, user: Any) -> None:
    if tensor.consumers():
        raise ValueError(
            f"user tensor {tensor_name(user)!r} must have a batch axis of unknown size where the "
            f"receiver computes with it, got shape {user.shape}; give its placeholder the shape "
            "[None, ...]"
        )


def compression_report(users: int = 1, items: int = 500) -> CompressionReport:
    """Says what compression did to the default graph.

    Args:
      users: B of the request to count FLOPs for.
      items: N.

    Returns:
      A CompressionReport; ``str()`` of it is what is logged.

    Raises:
      ValueError: The graph is not compressed.
    """
    state = _state()
    if state is None or state.done is None:
        raise ValueError(
            "the default graph must be compressed before compression_report, got one that is not; "
            "export the model, or call rec_estimator.graph_optimizer.compress"
        )
    return report(state.done.records, users, items)


def declare_row_wise(inputs: Any, outputs: Any, keys: Any = None) -> None:
    """Promises the pass that row i of each output depends on row i of the inputs only.

    For a piece of a model that is made of many ops, such as the lookup of a feature; the pass then
    need not understand them. Without compression it does nothing.

    Args:
      inputs: Tensors, SparseTensors and RaggedTensors with rows on axis 0.
      outputs: Tensors with the same rows on axis 0.
      keys: SparseTensor or RaggedTensor of those rows, inside of the piece, that its lookups read.
    """
    state = _state()
    if state is not None:
        flat = tf.nest.flatten(inputs)
        if all(isinstance(x, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)) for x in flat):
            state.regions.append(Region(flat, tf.nest.flatten(outputs), keys))


def is_enabled() -> bool:
    """Whether compression is enabled in the default graph."""
    return _state() is not None


def done() -> Optional[Rewrite]:
    """What the pass did to the default graph, None if it did not run."""
    state = _state()
    return None if state is None else state.done


def occurrences() -> Optional[Occurrences]:
    """How often the flat batch has keys, None if the pass did not run."""
    state = _state()
    return None if state is None else state.occurrences


def given_tensors() -> List[tf.Tensor]:
    """What the users' and items' tensors consist of."""
    state = _state()
    return [part for tensor in (*state.users, *state.items) for part in components(tensor)]


def _state() -> Optional[_State]:
    found = tf.get_default_graph().get_collection(_STATE)
    return found[0] if found else None


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
        raise TypeError(f"item_size must be of tf.int32 or tf.int64, got {item_size.dtype.name}")
    if item_size.graph is not tf.get_default_graph():
        raise ValueError(
            f"item_size must be of the default graph, got {item_size.name!r} of another one"
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
                        f"{side} tensor {tensor_name(tensor)!r} must not be made of a tensor of "
                        f"the other side, got one made of {other} tensor {source.op.name!r}; name "
                        "the inputs instead"
                    )
                stack.append(source.op)


def _check_open(user: Any) -> None:
    if user.shape.rank is not None and (user.shape.rank == 0 or user.shape[0] is not None):
        raise ValueError(
            f"user tensor {tensor_name(user)!r} must have a batch axis of unknown size, got shape "
            f"{user.shape}; use tf.placeholder with shape [None, ...], or RecEstimator, which "
            "takes it as it is"
        )
