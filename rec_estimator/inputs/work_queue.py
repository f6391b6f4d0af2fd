# SPDX-License-Identifier: Apache-2.0
"""A queue of files or row groups that the workers of a cluster share and checkpoints save.

A dataset of a worker asks for a unit, reads it to its end, then asks for the next one. A marker
stands before and behind the batches of each unit. It passes through the prefetched batches, and
what comes behind it is made when a step asks for its batch: there, the marker behind a unit reports
the unit as done, when all its batches were trained and before the first batch of another unit is.
The marker before a unit asks whether the unit is still this worker's.
"""

import hashlib
import os
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from rec_estimator.graph_passes.graph_state import WORK_QUEUES
from rec_estimator.inputs.batching import Batching, numpy_seed
from rec_estimator.inputs.parquet_columns import row_group_sizes
from rec_estimator.inputs.queue_state import CHECKSUM, HEADER, NEXT, TOTAL, QueueState
from rec_estimator.inputs.queue_threads import QueueThreads
from rec_estimator.inputs.row_files import RowFiles

_Dataset = tf.data.Dataset
_Optional = tf.experimental.Optional

# Seeds are below this number.
_SEEDS = 2**62

# A unit is a whole file.
WHOLE_FILE = -1


class Unit(NamedTuple):
    """What a work queue hands out.

    Attributes:
      path: The file.
      row_group: The number of its row group, from 0; WHOLE_FILE: all of the file.
    """

    path: str
    row_group: int = WHOLE_FILE


class WorkQueue:
    """Units that the workers of a cluster read, each unit once a pass. See ``work_queue``.

    Attributes:
      units: What one pass hands out, in the order without shuffling.
      name: The name of the variable that holds the state.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        batching: Batching,
        takeover_secs: float,
        name: str,
    ) -> None:
        self.units, self.name = tuple(units), name
        self._batching, self._takeover_secs = batching, takeover_secs

    def dataset(
        self, read: Callable[[tf.Tensor], tf.data.Dataset], prefetch: int = 2
    ) -> tf.data.Dataset:
        """Makes the dataset of this worker, and the state of the queue, in the default graph.

        Nothing may be appended that reads ahead, such as another prefetch(): a unit would count
        as trained too early.

        Args:
          read: Gets the index of a unit in ``units``, int64 [], and returns a dataset of batches.
          prefetch: Number of batches made in advance.

        Returns:
          A dataset of batches. Each has rows of one unit.

        Raises:
          ValueError: The graph has a queue of this name already.
        """
        threads = self._threads()
        units = _Dataset.range(tf.int64.max).map(threads.units.ask)
        units = units.take_while(_is_unit)

        @tf.autograph.experimental.do_not_convert
        def of_unit(position: tf.Tensor, ticket: tf.Tensor, seed: tf.Tensor, _: Any) -> Any:
            batches = read(self._index_of(position, seed))
            spec = batches.element_spec

            def marker(is_done: int) -> tf.data.Dataset:
                return _Dataset.from_tensors(tf.constant(is_done, tf.int64)).map(
                    lambda is_done: (_Optional.empty(spec), ticket, is_done)
                )

            def marked(*batch: Any) -> Any:
                whole = batch if isinstance(spec, tuple) else batch[0]
                return _Optional.from_value(whole), ticket, tf.constant(0, tf.int64)

            return marker(0).concatenate(batches.map(marked)).concatenate(marker(1))

        def settle(is_valid: tf.Tensor, element: Any) -> Any:
            batch, ticket, is_done = element
            is_batch = batch.has_value()
            is_valid = tf.cond(
                is_batch, lambda: is_valid, lambda: threads.tickets.ask(ticket, is_done)
            )
            return is_valid, (batch, is_batch & is_valid)

        batches = units.flat_map(of_unit).prefetch(prefetch).scan(tf.constant(True), settle)
        batches = batches.filter(lambda batch, is_given: is_given)
        # Not map(): TensorFlow may make it parallel, and would read ahead.
        batches = batches.flat_map(lambda batch, _: _Dataset.from_tensors(batch.get_value()))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return batches.with_options(options)

    def _threads(self) -> QueueThreads:
        if self.name in tf.compat.v1.get_collection(WORK_QUEUES):
            raise ValueError(
                f"name must be that of one work queue of a graph, got {self.name!r} twice; give "
                "each queue a name"
            )
        seed = numpy_seed(self._batching.seed) % _SEEDS
        tf.compat.v1.add_to_collection(WORK_QUEUES, self.name)
        with tf.name_scope(""):
            state = QueueState(self._checksum(), seed, self._total, self.name)
            return QueueThreads(state, self._must_restart, self._takeover_secs, self.name)

    @property
    def _total(self) -> int:
        epochs = self._batching.num_epochs
        return int(tf.int64.max) if epochs is None else len(self.units) * epochs

    def _checksum(self) -> int:
        """A number of the units and of whether they are shuffled, at least 0."""
        text = repr((self.units, bool(self._batching.shuffle)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")

    def _must_restart(self, state: np.ndarray) -> bool:
        """Whether a state is that of other units, all of which are done."""
        if state[CHECKSUM] == self._checksum():
            return False
        left = int(state[TOTAL] - state[NEXT]) + (len(state) - HEADER) // 3
        if left:
            raise ValueError(
                f"the files of work queue {self.name!r} must be those that it began with, in the "
                f"checkpoint or in the chief, until all are read, got others while {left} units "
                "are left; pass the same files, or another name"
            )
        return True

    def _index_of(self, position: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the index of the unit at a position in the order of all passes."""
        count = len(self.units)
        index = position % count
        if not self._batching.shuffle or count == 1:
            return index
        return tf.random.experimental.index_shuffle(
            index, tf.stack([seed, position // count]), tf.constant(count - 1, tf.int64)
        )


def _is_unit(position: tf.Tensor, ticket: tf.Tensor, seed: tf.Tensor, error: tf.Tensor) -> Any:
    del ticket, seed
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
        return position >= 0


def work_queue(
    file_pattern: Union[str, "os.PathLike[str]", Sequence[Any]],
    *,
    num_epochs: Optional[int] = 1,
    shuffle: bool = False,
    seed: Optional[int] = None,
    row_groups: bool = False,
    takeover_secs: float = 600.0,
    name: str = "work_queue",
) -> WorkQueue:
    r"""Makes a queue of files, or of row groups of Parquet files, for the workers of a cluster.

    Pass it to csv_input_fn, tfrecord_input_fn or parquet_input_fn in place of the files. Then each
    worker reads the units that it gets, one after the other. The state of the queue is a variable:
    it is on a parameter server and in each checkpoint. A training that resumes reads no unit again
    that was done in the checkpoint. The unit that a worker read when it was killed, or when the
    checkpoint was written, is handed out again from its beginning: at most one for each worker.

    The queue is for training. It works in one process, too.

    Args:
      file_pattern: As in csv_input_fn.
      num_epochs: Passes over the units. None: unlimited.
      shuffle: Whether each pass hands the units out in another order.
      seed: Of the order. None: the seed of the graph, or a random one that the checkpoint keeps.
      row_groups: Whether a unit is a row group of a Parquet file. False: it is a file.
      takeover_secs: How long a worker with nothing left to read waits for the units that other
        workers read, before it reads them again itself. A unit must take less time.
      name: Of the variable. All workers must give the same one.

    Returns:
      The queue.

    Raises:
      ValueError: An argument is out of range, or a pattern matches no file. While training: the
        files are not those of the checkpoint, and not all of those are read.
      ModuleNotFoundError: row_groups is True, and pyarrow is not installed.

    Example:
      >>> _ = open("day-1.csv", "w").write("user,click\n7,1\n")
      >>> queue = rec.inputs.work_queue("day-*.csv", num_epochs=2)
      >>> input_fn = rec.inputs.csv_input_fn(queue, label_column="click")
      >>> len(queue.units)
      1
    """
    files = RowFiles(file_pattern, None, 1, "error")
    # The batch size and the prefetching are those of the input_fn.
    batching = Batching(1, shuffle, seed, num_epochs, False, 0)
    if isinstance(takeover_secs, bool) or not takeover_secs >= 0:
        raise ValueError(f"takeover_secs must be at least 0, got {takeover_secs!r}; wait longer")
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be the name of a variable, got {name!r}; pass a string")
    units = [Unit(path) for path in files.find()]
    if row_groups:
        units = [
            Unit(path, number) for path, _ in units for number in range(len(row_group_sizes(path)))
        ]
        if not units:
            raise ValueError(
                f"file_pattern must match files with a row group, got {file_pattern!r}; write rows"
            )
    return WorkQueue(units, batching, takeover_secs, name)
