# SPDX-License-Identifier: Apache-2.0
"""Names of DeepRec that do nothing here, or that this package refuses.

Scripts for DeepRec call them, so they are importable under the same names. Each function without
effect says so once a process; each one that is refused names what to use instead. docs/porting.md
lists all names of DeepRec.
"""

import contextlib
from typing import Any, Iterator, NoReturn, Optional, Sequence, Type

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
      capacity: Without effect, as all arguments that are not described here.
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
    tf.logging.log_first_n(
        tf.logging.WARN,
        "staged: without effect here; to prepare batches ahead of the step, end the dataset with "
        "prefetch().",
        1,
    )
    return tf.nest.map_structure(lambda tensor: tensor, features)


def make_prefetch_hook(daemon: bool = True, start: bool = True) -> tf.train.SessionRunHook:
    """Returns a hook that does nothing. In DeepRec, it runs what ``staged`` returned.

    Args:
      daemon: Without effect.
      start: Without effect.

    Example:
      >>> hooks = [rec.make_prefetch_hook()]
    """
    tf.logging.log_first_n(
        tf.logging.WARN, "make_prefetch_hook: without effect here; the hook does nothing.", 1
    )
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
    tf.logging.log_first_n(
        tf.logging.WARN,
        "group_embedding_column_scope: without effect here; results are the same.",
        1,
    )
    yield


def _refuse(name: str, remedy: str) -> NoReturn:
    raise NotImplementedError(f"{name} must not be called: rec_estimator has no such {remedy}")


def get_multihash_variable(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused. Every key of a table has a row of its own.

    Raises:
      NotImplementedError: Always.
    """
    _refuse(
        "get_multihash_variable",
        "variables; look up ids // n and floormod(ids, n) in two tables of get_embedding_variable "
        "and add the vectors",
    )


def get_dynamic_dimension_embedding_variable(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused. All vectors of a table have the same dimension.

    Raises:
      NotImplementedError: Always.
    """
    _refuse(
        "get_dynamic_dimension_embedding_variable",
        "variables; make a table of get_embedding_variable for each dimension",
    )


def categorical_column_with_multihash(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused. Every key of a table has a row of its own.

    Raises:
      NotImplementedError: Always.
    """
    _refuse("categorical_column_with_multihash", "columns; use categorical_column_with_embedding")


def categorical_column_with_adaptive_embedding(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused. Rare keys read the default value of a filter, not a hash bucket.

    Raises:
      NotImplementedError: Always.
    """
    _refuse(
        "categorical_column_with_adaptive_embedding",
        "columns; use categorical_column_with_embedding with a CounterFilter, whose rare keys read "
        "default_value_no_permission",
    )


def adaptive_embedding_lookup_sparse(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused. Rare keys read the default value of a filter, not a hash bucket.

    Raises:
      NotImplementedError: Always.
    """
    _refuse(
        "adaptive_embedding_lookup_sparse",
        "lookups; use embedding_lookup_sparse of a table with a CounterFilter, whose rare keys "
        "read default_value_no_permission",
    )
