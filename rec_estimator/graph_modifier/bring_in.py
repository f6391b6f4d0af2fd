# SPDX-License-Identifier: Apache-2.0
"""Brings rows of coming batches from disk into memory, in the dataset of a modified graph.

A table may keep rows on disk (docs/storage.md). A training step reads those of its keys before it
changes anything. In a modified graph the dataset knows the keys some batches ahead, so an op in the
dataset reads their rows while earlier steps run, and the step finds them in memory. The op changes
nothing that a read can see: a batch that is never trained leaves no trace.
"""

from typing import List, NamedTuple, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.graph_passes.walk import graph_def_of
from rec_estimator.table.table import graph_tables


class TableRead(NamedTuple):
    """The keys that a training lookup reads from a table with rows on disk."""

    table: tf.Tensor  # The handle, a resource [].
    keys: tf.Tensor  # int64, any shape.


def reads_of(lookup: tf.Operation) -> List[TableRead]:
    """Returns what a lookup reads from tables with rows on disk.

    Args:
      lookup: A lookup op of a graph that a script has built. Its inputs are tables, then as many
        lists of keys, then others.
    """
    on_disk = {
        shard.handle.name
        for table in graph_tables(lookup.graph)
        if table.disk_storage is not None
        for shard in table
    }
    tables = [tensor for tensor in lookup.inputs if tensor.dtype == tf.resource]
    keys = lookup.inputs[len(tables) : 2 * len(tables)]
    return [TableRead(table, k) for table, k in zip(tables, keys) if table.name in on_disk]


def bring_in_rows(
    data: tf.data.Dataset,
    batch: Sequence[tf.Tensor],
    reads: Sequence[TableRead],
    device: str,
    batches_ahead: int,
) -> tf.data.Dataset:
    """A dataset of the same batches that brings in the rows of each batch.

    Args:
      data: A dataset of flat tuples.
      batch: The tensors of the step that stand for the elements of a tuple.
      reads: The reads of a step. The step itself reads keys that are not in the batch.
      device: The device of the iterator. The step itself reads tables on other tasks.
      batches_ahead: How many batches may be between the dataset and the end of their step.
    """
    positions = {tensor.name: i for i, tensor in enumerate(batch)}
    near = [read for read in reads if read.keys.name in positions and _is_near(read, device)]
    if not near:
        return data
    handles = [_handle_here(read.table) for read in near]
    keys = [positions[read.keys.name] for read in near]

    def bring_in(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        # TensorFlow runs the stateful ops of a dataset's function before the function returns.
        _ops.gen.rec_estimator_tables_bring_in(
            handles, [tensors[i] for i in keys], batches_ahead=batches_ahead
        )
        return tensors

    # Two at a time: the disk reads for one batch while the rows of the other enter the table.
    return data.map(bring_in, num_parallel_calls=2, deterministic=True)


def _is_near(read: TableRead, device: str) -> bool:
    """Whether a table is on the task of a device."""
    here, there = tf.DeviceSpec.from_string(device), tf.DeviceSpec.from_string(read.table.device)
    if (here.job, here.replica, here.task) == (there.job, there.replica, there.task):
        return True
    tf.logging.info(
        "Steps read the rows of table %s from disk, not the dataset: the table is on %s.",
        read.table.op.name,
        read.table.device,
    )
    return False


def _handle_here(handle: tf.Tensor) -> tf.Tensor:
    """A handle of the same table in the default graph."""
    if tf.get_default_graph() is handle.graph:
        return handle
    # The dataset of a one-shot iterator is made by a function, which must not capture anything.
    (copy,) = tf.import_graph_def(
        graph_def_of(handle.graph, [handle.op]), return_elements=[handle.name], name="table"
    )
    return copy
