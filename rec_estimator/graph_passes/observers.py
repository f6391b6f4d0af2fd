# SPDX-License-Identifier: Apache-2.0
"""Observers: how a graph pass learns what lookups and optimizers build, and how it answers.

A pass that rewrites a training graph registers an observer with that graph. Features, lookups and
optimizers call the observers of the graph they build in; they do not know which passes exist.
"""

import contextlib
from typing import Iterator, List

from rec_estimator.graph_passes.graph_observer import GraphObserver
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.walk import collect_new_ops


def register(observer: GraphObserver) -> None:
    """Adds an observer to the default graph."""
    state_of().observers.append(observer)


def observers() -> List[GraphObserver]:
    """The observers of the default graph, in the order in which they were registered."""
    return list(state_of().observers)


@contextlib.contextmanager
def building_optimizer_ops() -> Iterator[None]:
    """Reports the ops that are built inside the block to the observers as those of an optimizer."""
    with collect_new_ops() as ops:
        yield
    for observer in observers():
        observer.optimizer_ops_built(ops)
