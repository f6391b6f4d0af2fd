# SPDX-License-Identifier: Apache-2.0
"""The state of the pass in one graph, and the function that runs the pass on it."""

import contextlib
import dataclasses
from typing import Any, Iterator, List, Optional, Set

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.walk import collect_new_ops
from rec_estimator.sample_compression.analysis.components import tensor_name
from rec_estimator.sample_compression.occurrences import Occurrences
from rec_estimator.sample_compression.regions import Region
from rec_estimator.sample_compression.report.report import report
from rec_estimator.sample_compression.rewrite.rewrite import Rewrite

# The request for which the log reports FLOPs: one user with 500 candidates.
LOGGED_USERS, LOGGED_CANDIDATES = 1, 500


@dataclasses.dataclass
class State:
    """What a graph in which compression is enabled knows of it.

    Attributes:
      users: The tensors with one row per user.
      items: The tensors with one row per candidate.
      item_size: The number of candidates of each user.
      exact: Whether the pass must not reorder additions.
      stock_ops: Whether the pass may add ops of TensorFlow only.
      regions: Parts of the model that are declared to be row-wise.
      rewrite: What the pass did; None: it has not run.
      occurrences: How often keys occur in the uncompressed batch; None: the pass has not run.
      own_ops: The ops that the pass added.
    """

    users: List[Any]
    items: List[Any]
    item_size: tf.Tensor
    exact: bool
    stock_ops: bool = False
    regions: List[Region] = dataclasses.field(default_factory=list)
    rewrite: Optional[Rewrite] = None
    occurrences: Optional[Occurrences] = None
    own_ops: Set[tf.Operation] = dataclasses.field(default_factory=set)


def set_state(state: State) -> None:
    """Sets the state of the default graph, which must have none."""
    state_of().compression = state


def current_state() -> Optional[State]:
    """The state of the default graph; None: compression is not enabled there."""
    return state_of().compression


def compress(fetches: Any) -> Any:
    """Compresses the default graph, if compression is enabled in it.

    The pass runs at the first call. Afterwards a tensor of the model that depends on users alone
    has one row per user: build further ops on what this function returns for that tensor, which has
    one row per candidate.

    Args:
      fetches: A tensor, or a list, tuple or dict of results of the model: tensors, SparseTensors
        and others.

    Returns:
      The same structure, in which every tensor has one row per candidate.

    Raises:
      ValueError: A user tensor has a static number of rows, which only item_size may determine.
    """
    state = current_state()
    if state is None:
        return fetches
    with _own_scope(state):
        rewrite = state.rewrite or _run(state)
        return tf.nest.map_structure(
            lambda fetch: rewrite.full(fetch) if isinstance(fetch, tf.Tensor) else fetch,
            fetches,
            expand_composites=True,
        )


@contextlib.contextmanager
def _own_scope(state: State) -> Iterator[None]:
    """Records the ops that the pass adds, and keeps them apart from the caller's context."""
    with tf.name_scope("sample_compression"), tf.control_dependencies(None), tf.device(None):
        with collect_new_ops() as ops:
            yield
    state.own_ops.update(ops)


def _run(state: State) -> Rewrite:
    for user in state.users:
        _check_open(user)
    rewrite = Rewrite(
        state.users, state.items, state.item_size, state.regions, state.exact, state.stock_ops
    )
    rewrite.run()
    state.occurrences = Occurrences(rewrite)
    state.occurrences.update_admissions()
    state.rewrite = rewrite
    tf.logging.info("%s", report(rewrite.records, LOGGED_USERS, LOGGED_CANDIDATES))
    return rewrite


def _check_open(user: Any) -> None:
    rank = user.shape.rank
    if rank == 0 or (rank is not None and tf.dimension_value(user.shape[0]) is not None):
        raise ValueError(
            f"user tensor {tensor_name(user)!r} must have a batch axis of unknown size, got shape "
            f"{user.shape}; use tf.placeholder with shape [None, ...], or RecEstimator, which "
            "accepts any"
        )
