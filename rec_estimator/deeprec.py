# SPDX-License-Identifier: Apache-2.0
"""Functions of DeepRec that do nothing here, or that this package refuses.

Scripts for DeepRec call them, so they can be imported under the same names. A function without
effect logs that once in a process. A refused function raises an error that names what to use
instead. docs/porting.md lists all names of DeepRec.
"""

import contextlib
import functools
from typing import Any, Callable, Iterator, NoReturn, Optional, Sequence, Type

import tensorflow.compat.v1 as tf


def staged(
    features: Any,
    feed_list: None = None,
    feed_generator: None = None,
    capacity: int = 1,
    num_threads: int = 1,
    num_clients: int = 1,
    timeout_millis: int = 300_000,
    closed_exception_types: Optional[Sequence[Type[Exception]]] = None,
    ignored_exception_types: Optional[Sequence[Type[Exception]]] = None,
    use_stage_subgraph_thread_pool: bool = False,
    stage_subgraph_thread_pool_id: int = 0,
    stage_subgraph_stream_id: int = 0,
    name: Optional[str] = None,
) -> Any:
    """Returns features as they are. In DeepRec, their ops run ahead of the step.

    To compute a batch ahead of the step, end the dataset with ``prefetch()``; GraphModifierHook
    moves the ops that compute ids into the dataset.

    Args:
      features: A tensor, or a structure of tensors.
      feed_list: Must be None.
      feed_generator: Must be None. Data come from a dataset.
      capacity: Without effect.
      num_threads: Without effect.
      num_clients: Without effect.
      timeout_millis: Without effect.
      closed_exception_types: Without effect: every error reaches ``session.run()``.
      ignored_exception_types: Must be None or empty.
      use_stage_subgraph_thread_pool: Without effect.
      stage_subgraph_thread_pool_id: Without effect.
      stage_subgraph_stream_id: Without effect.
      name: Without effect.

    Returns:
      A structure like features, with the same tensors.

    Raises:
      ValueError: feed_list, feed_generator or ignored_exception_types is given.

    Example:
      >>> ids = tf.constant([7, 9])
      >>> rec.staged({"user": ids}, capacity=40, num_threads=4)["user"] is ids
      True
    """
    for argument, value in (("feed_list", feed_list), ("feed_generator", feed_generator)):
        if value is not None:
            raise ValueError(
                f"{argument} must be None, got {value!r}; make a dataset of the generator with "
                "tf.data.Dataset.from_generator"
            )
    if ignored_exception_types:
        raise ValueError(
            f"ignored_exception_types must be None or empty, got {ignored_exception_types!r}; "
            "skip bad elements with dataset.ignore_errors()"
        )
    _log_once("staged", "to prepare batches ahead of the step, end the dataset with prefetch()")
    return tf.nest.map_structure(lambda tensor: tensor, features)


def make_prefetch_hook(daemon: bool = True, start: bool = True) -> tf.train.SessionRunHook:
    """Returns a hook that does nothing. In DeepRec, it runs what ``staged`` returned.

    Args:
      daemon: Without effect.
      start: Without effect.

    Example:
      >>> hooks = [rec.make_prefetch_hook()]
    """
    _log_once("make_prefetch_hook", "the hook does nothing")
    return tf.train.SessionRunHook()


@contextlib.contextmanager
def group_embedding_column_scope(name: Optional[str] = None) -> Iterator[None]:
    """Does nothing. In DeepRec, the columns made inside are looked up together.

    A step runs the lookups of all columns that combine without weights in one op anyway.

    Args:
      name: Without effect.

    Example:
      >>> with rec.group_embedding_column_scope(name="item"):
      ...     item = rec.embedding_column(rec.categorical_column_with_embedding("item"), 8)
    """
    _log_once("group_embedding_column_scope", "results are the same")
    yield


@functools.cache
def _log_once(name: str, consequence: str) -> None:
    """Logs that a function has no effect, in its first call of this process."""
    tf.logging.warning("%s: without effect here; %s.", name, consequence)


# The names that are refused, what this package does not have, and what to use instead.
_REMEDIES = {
    "get_multihash_variable": (
        "variables; look up ids // n and floormod(ids, n) in two tables of get_embedding_variable "
        "and add the vectors"
    ),
    "get_dynamic_dimension_embedding_variable": (
        "variables; make a table of get_embedding_variable for each dimension"
    ),
    "categorical_column_with_multihash": "columns; use categorical_column_with_embedding",
    "categorical_column_with_adaptive_embedding": (
        "columns; use categorical_column_with_embedding with a CounterFilter, whose rare keys read "
        "default_value_no_permission"
    ),
    "adaptive_embedding_lookup_sparse": (
        "lookups; use embedding_lookup_sparse of a table with a CounterFilter, whose rare keys "
        "read default_value_no_permission"
    ),
}


def _refused(name: str) -> Callable[..., NoReturn]:
    """A function of this name that raises an error with the remedy."""
    message = f"rec_estimator has no such {_REMEDIES[name]}"

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} must not be called: {message}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"""Refused: {message}.

    Raises:
      NotImplementedError: Always.
    """
    return refuse


get_multihash_variable = _refused("get_multihash_variable")
get_dynamic_dimension_embedding_variable = _refused("get_dynamic_dimension_embedding_variable")
categorical_column_with_multihash = _refused("categorical_column_with_multihash")
categorical_column_with_adaptive_embedding = _refused("categorical_column_with_adaptive_embedding")
adaptive_embedding_lookup_sparse = _refused("adaptive_embedding_lookup_sparse")
