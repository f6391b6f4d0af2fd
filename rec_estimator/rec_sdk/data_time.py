# SPDX-License-Identifier: Apache-2.0
"""The time of the data, by which tables with an eviction_threshold measure the age of keys.

It is a variable, the greatest timestamp of the batches that trained such a table, which all of them
share and checkpoints contain. A timestamp may be wrong, so the op AdvanceTime says by how much a
step advances the time, as for a TimeEvict.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.checkpoint.format.stored_tables import TIMESTAMP_VARIABLE
from rec_estimator.graph_modifier.declared_inputs import find_timestamp
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.rec_sdk.feature_spec import batch_timestamp
from rec_estimator.table.optional_variable import OptionalVariable

# Seconds that a step may always advance the time, and that a batch may always be late. Scripts that
# try evictions out have thresholds of a few seconds.
_LEAST_SECONDS = 60


def table_timestamp() -> tf.Variable:
    """Returns the variable with the time of the data.

    The first call in a graph makes it. Checkpoints contain it, except those of a run in which no
    table had an eviction_threshold.

    Returns:
      int64 [], of the default graph.
    """
    for variable in tf.global_variables():
        if variable.op.name == TIMESTAMP_VARIABLE:
            return variable
    with tf.init_scope(), tf.name_scope(None), tf.device("/device:CPU:0"):
        return OptionalVariable(0, TIMESTAMP_VARIABLE)


def time_of_batch(
    table_name: str, keys: Sequence[tf.Tensor], thresholds: Sequence[int]
) -> tf.Tensor:
    """Advances the time of the data, once for all tables that an optimizer updates in a step.

    Args:
      table_name: A table that evicts, for the error.
      keys: The keys of its training lookups, which tell its batch.
      thresholds: The eviction_threshold of each table of the graph that has one.

    Returns:
      int64 []. The version of the keys of the batch: its timestamp or, if that jumps, the time.

    Raises:
      ValueError: The batch has no timestamp.
    """
    graph = tf.get_default_graph()
    found = find_timestamp(graph, keys)
    if found is None:
        raise ValueError(
            f"the batch has no timestamp, by which table {table_name!r} evicts; add "
            "FeatureSpec(..., is_timestamp=True) to those of the dataset, or add the tensor to the "
            "collection ASCEND_TIMESTAMP"
        )
    times, place = state_of(graph).times, (found.name, graphs.place_of_new_ops(graph))
    if place not in times:
        time = table_timestamp()
        with graphs.colocate_with(time.handle, ignore_existing=True):
            times[place] = _ops.gen.rec_estimator_advance_time(
                time.handle,
                batch_timestamp(graph, keys),
                most_seconds=max(min(thresholds) // 1000, _LEAST_SECONDS),
                tolerance=max(*thresholds, _LEAST_SECONDS),
                keeps_late=True,
            )
    return times[place]
