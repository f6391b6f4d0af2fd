# SPDX-License-Identifier: Apache-2.0
"""What a work queue knows: which units were handed out, to whom, and which are done.

The state is one int64 vector in a variable, so every Saver saves it and all workers of a cluster
share it on a parameter server. Its first numbers are named below. Behind them, each unit that was
handed out and is not done has three numbers: its position in the order of all passes, its owner
(0: it waits to be handed out again), and its ticket.

A ticket is given once. Tickets grow over restores, too, because a restore continues at the time of
day in microseconds. So a worker that still reads a unit from before a restore finds that its ticket
is gone.
"""

import contextlib
from typing import Any, Callable, Iterator, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import saving
from rec_estimator.table import saveable
from rec_estimator.table.optional_variable import OptionalVariable, integer_of

# The first numbers of the state: the checksum of the units, the seed of their order, the number of
# units in all passes, the next position to hand out and the next ticket.
HEADER = 5
CHECKSUM, _SEED, TOTAL, NEXT, _TICKET = range(HEADER)

# The owner of a unit that is to be handed out again.
_NOBODY = 0

# Results of take() in place of a position.
END = -1  # All units are done, or are being read by the worker that asks.
WAIT = -2  # Other workers read the last units.

# The name of the scalar in a checkpoint that tells that it has a state.
_LENGTH = "length"


class _Rows(NamedTuple):
    """The state, taken apart. Units are int64 [k]."""

    header: tf.Tensor
    positions: tf.Tensor
    owners: tf.Tensor
    tickets: tf.Tensor

    @classmethod
    def of(cls, state: tf.Tensor) -> "_Rows":
        return cls(state[:HEADER], *tf.unstack(tf.reshape(state[HEADER:], [-1, 3]), axis=1))

    def joined(self) -> tf.Tensor:
        units = tf.stack([self.positions, self.owners, self.tickets], axis=1)
        return tf.concat([self.header, tf.reshape(units, [-1])], axis=0)

    def where(self, kept: tf.Tensor) -> "_Rows":
        return _Rows(self.header, *(tf.boolean_mask(column, kept) for column in self[1:]))

    def disowned(self, where: Any = True) -> "_Rows":
        owners = tf.where(
            tf.broadcast_to(where, tf.shape(self.owners)), tf.zeros_like(self.owners), self.owners
        )
        return self._replace(owners=owners)


class QueueState(OptionalVariable):
    """The state of a work queue.

    Args:
      checksum: Of the units.
      seed: Of their order.
      total: Number of units in all passes.
      name: Of the variable.
    """

    def __init__(self, checksum: int, seed: int, total: int, name: str) -> None:
        self._total = total
        begin = tf.constant([checksum, seed, total, 0], tf.int64)
        # No static length: TensorFlow folds the shape of a variable into the ops that read it.
        state = tf.placeholder_with_default(tf.concat([begin, _now()[None]], axis=0), [None])
        super().__init__(
            state,
            name,
            [tf.GraphKeys.GLOBAL_VARIABLES],
            validate_shape=False,
        )
        with tf.device(self.device):
            self._mutex = tf.raw_ops.MutexV2(shared_name=f"{name}/mutex", container="")

    @property
    def specs(self) -> List[Any]:
        """The SaveSpecs to write, or, once a Saver has its save ops, what it reads instead."""
        read = saveable.spec_in_place_of_variable()
        if read is not None:
            return [read]
        with tf.device(self.device):
            state = self.read_value()
            tensors = {
                self.op.name: state,
                f"{self.op.name}/{_LENGTH}": tf.size(state, out_type=tf.int64),
            }
        return [
            saving.SaveSpec(tensor, "", name, dtype=tf.int64, device=self.device)
            for name, tensor in tensors.items()
        ]

    def _read(self, prefix: tf.Tensor) -> tf.Tensor:
        """Returns the state in a checkpoint, in which nobody owns a unit."""
        name = self.op.name

        def stored() -> tf.Tensor:
            (state,) = tf.raw_ops.RestoreV2(
                prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[tf.int64]
            )
            rows = _Rows.of(tf.reshape(state, [-1])).disowned()
            ticket = tf.maximum(rows.header[_TICKET], _now())
            header = tf.concat([rows.header[:_TICKET], ticket[None]], axis=0)
            return rows._replace(header=header).joined()

        length = integer_of(prefix, f"{name}/{_LENGTH}", -1)
        return tf.cond(length < 0, lambda: tf.identity(self.initial_value), stored)

    def take(self, owner: int) -> List[tf.Tensor]:
        """Builds the op that hands out a unit.

        Args:
          owner: The worker that asks.

        Returns:
          int64 []. Its position, END or WAIT; its ticket; the seed of the order of units.
        """

        def of(rows: _Rows) -> Tuple[_Rows, List[tf.Tensor]]:
            waiting = tf.boolean_mask(rows.positions, tf.equal(rows.owners, _NOBODY))
            is_again = tf.size(waiting) > 0
            position, ticket = rows.header[NEXT], rows.header[_TICKET]
            is_new = ~is_again & (position < self._total)
            is_of_others = tf.reduce_any(tf.not_equal(rows.owners, owner))
            none = tf.where(is_of_others, tf.constant(WAIT, tf.int64), tf.constant(END, tf.int64))
            first = tf.reduce_min(tf.concat([waiting, [tf.int64.max]], axis=0))
            taken = tf.where(is_again, first, tf.where(is_new, position, none))
            is_taken = tf.cast(taken >= 0, tf.int64)
            begin = tf.stack([self._total, position + tf.cast(is_new, tf.int64), ticket + is_taken])
            left = rows.where(tf.not_equal(rows.positions, taken))
            added = (taken[None], tf.constant([owner], tf.int64), ticket[None])
            after = _Rows(
                tf.concat([rows.header[:TOTAL], begin], axis=0),
                *(
                    tf.concat([column, new[:is_taken]], axis=0)
                    for column, new in zip(left[1:], added)
                ),
            )
            return after, [taken, ticket, rows.header[_SEED]]

        return self._change(of)

    def settle(self, ticket: tf.Tensor, is_done: tf.Tensor) -> tf.Tensor:
        """Builds the op that asks whether a ticket is valid, and ends it if its unit is done."""

        def of(rows: _Rows) -> Tuple[_Rows, List[tf.Tensor]]:
            is_it = tf.equal(rows.tickets, ticket) & tf.not_equal(rows.owners, _NOBODY)
            return rows.where(~(is_it & is_done)), [tf.reduce_any(is_it)]

        (is_valid,) = self._change(of)
        return is_valid

    def release(self, owner: int, others: bool = False) -> tf.Operation:
        """Builds the op that takes the units of a worker, or of all others, back.

        They are handed out again.
        """
        compare = tf.not_equal if others else tf.equal
        (done,) = self._change(
            lambda rows: (rows.disowned(compare(rows.owners, owner)), [tf.constant(True)])
        )
        return done.op

    def restart(self) -> tf.Operation:
        """Builds the op that begins the initial units, unless a worker has begun them already."""

        def of(rows: _Rows) -> Tuple[_Rows, List[tf.Tensor]]:
            begin = _Rows.of(self.initial_value)
            is_begun = tf.equal(rows.header[CHECKSUM], begin.header[CHECKSUM])
            header = tf.where(is_begun, rows.header, begin.header)
            return rows._replace(header=header), [is_begun]

        (done,) = self._change(of)
        return done.op

    def _change(self, of: Callable[[_Rows], Tuple[_Rows, List[tf.Tensor]]]) -> List[tf.Tensor]:
        """Builds ops that change the state while no other task does, where the state is."""
        with tf.device(self.device), self._locked() as release:
            rows, results = of(_Rows.of(tf.reshape(self.read_value(), [-1])))
            with tf.control_dependencies(results):
                changed = self.assign(rows.joined(), read_value=False)
            with tf.control_dependencies([release([changed])]):
                return [tf.identity(result) for result in results]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Callable[[List[tf.Operation]], tf.Operation]]:
        """Locks the state; the function that it gives unlocks it after some ops."""
        lock = tf.raw_ops.MutexLock(mutex=self._mutex)

        def release(after: List[tf.Operation]) -> tf.Operation:
            with tf.control_dependencies(after):
                return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

        with tf.control_dependencies([lock]):
            yield release


def _now() -> tf.Tensor:
    """The time in microseconds, int64 []."""
    return tf.cast(tf.timestamp() * 1e6, tf.int64)
