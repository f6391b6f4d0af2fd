# SPDX-License-Identifier: Apache-2.0
"""Carries units and tickets between the state of a work queue and the dataset of a worker.

A dataset cannot use a variable of another task. So it puts questions into queues of TensorFlow in
its own task, and waits for the answers without holding a thread of the session. Two Python threads
of each worker answer: one takes units, one settles tickets. Every MonitoredSession and Estimator
starts them, as tf.compat.v1.train.start_queue_runners does, because they are in QUEUE_RUNNERS.
"""

import contextlib
import hashlib
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.inputs.queue_state import END, WAIT, QueueState

# How often a worker asks again while other workers read the last units.
_POLL_SECS = 0.5

# A question that no dataset asks.
_STOP = -1

# Questions that may wait: one of the dataset, and those of datasets that it replaced.
_CAPACITY = 64


class Questions:
    """Questions that a dataset asks, and their answers.

    Args:
      question, answer: The types of the tensors, [] each.

    Attributes:
      asked: The handle of the queue of questions.
    """

    def __init__(self, question: Sequence[tf.DType], answer: Sequence[tf.DType]) -> None:
        self._asked, self._answered = (
            tf.FIFOQueue(_CAPACITY, types, [[]] * len(types)) for types in (question, answer)
        )
        self.asked = self._asked.queue_ref
        self._receive = self._asked.dequeue()
        self._stop = self._asked.enqueue([tf.constant(_STOP, dtype) for dtype in question])
        self._values = [tf.placeholder(dtype, []) for dtype in answer]
        self._reply = self._answered.enqueue(self._values)
        self._clear = [queue.dequeue_many(queue.size()) for queue in (self._asked, self._answered)]

    def ask(self, *question: tf.Tensor) -> Any:
        """Asks, in a function of a dataset; returns the answer."""
        with tf.control_dependencies([self._asked.enqueue(question)]):
            return self._answered.dequeue()

    def always_reply(self, *answer: Any) -> Tuple[List[tf.Operation], tf.Operation, tf.Operation]:
        """Builds the ops with which a QueueRunner gives one answer to all questions."""
        reply = self._answered.enqueue(answer)
        return [reply], tf.no_op(), self._answered.close(cancel_pending_enqueues=True)

    def clear(self, session: tf.Session) -> None:
        """Forgets the questions and answers of earlier sessions."""
        session.run(self._clear)

    def receive(self, session: tf.Session) -> Any:
        """Waits for the next question and returns it; None after stop()."""
        while True:
            try:
                question = session.run(self._receive)
                return None if np.all(np.equal(question, _STOP)) else question
            except tf.errors.DeadlineExceededError:
                pass  # ConfigProto(operation_timeout_in_ms=) was shorter than a unit.

    def stop(self, session: tf.Session) -> None:
        """Ends the wait for a question."""
        session.run(self._stop)

    def reply(self, session: tf.Session, *answer: Any) -> None:
        """Answers the question."""
        session.run(self._reply, dict(zip(self._values, answer)))


class QueueThreads:
    """The threads of one worker, with the interface of a tf.compat.v1.train.QueueRunner.

    Args:
      state: The state that all workers share.
      check: Gets the values of the state when a session begins. It raises an error if they are of
        other units, and returns whether the state must begin the units of this graph.
      takeover_secs: How long a worker with nothing left to read waits for the units of others.
      name: Of the queue.

    Attributes:
      units: A question is a number without meaning; the answer is (position or END, ticket, seed,
        an error or "").
      tickets: A question is (ticket, 1 if its unit was trained, else 0); the answer is whether the
        ticket is valid.
    """

    def __init__(
        self,
        state: QueueState,
        check: Callable[[np.ndarray], bool],
        takeover_secs: float,
        name: str,
    ) -> None:
        self.name = name
        self._check, self._takeover_secs = check, takeover_secs
        self.units = Questions([tf.int64], [tf.int64, tf.int64, tf.int64, tf.string])
        self.tickets = Questions([tf.int64, tf.int64], [tf.bool])
        owner = _owner_of(self.units.asked.device)
        self._ticket = [tf.placeholder(dtype, []) for dtype in (tf.int64, tf.int64)]
        self._read, self._restart = state.read_value(), state.restart()
        self._take, self._settle = (
            state.take(owner),
            state.settle(self._ticket[0], self._ticket[1] > 0),
        )
        self._release, self._take_over = state.release(owner), state.release(owner, others=True)
        # What a MetaGraph keeps of a QueueRunner: not our threads. So a dataset in one gets an
        # error instead of waiting for a unit forever.
        self.queue, self._queue_closed_exception_types = self.units.asked, ()
        self.enqueue_ops, self.close_op, self.cancel_op = self.units.always_reply(
            0,
            0,
            0,
            f"work queue {name!r} cannot be read in an imported MetaGraph; build the graph with "
            "rec_estimator.inputs.work_queue",
        )
        tf.add_to_collection(tf.GraphKeys.QUEUE_RUNNERS, self)

    def create_threads(
        self,
        sess: tf.Session,
        coord: Optional[tf.train.Coordinator] = None,
        daemon: bool = False,
        start: bool = False,
    ) -> List[threading.Thread]:
        """Takes back what this worker left undone, and makes the threads for a session."""
        if self._check(sess.run(self._read)):
            sess.run(self._restart)
        for questions in (self.units, self.tickets):
            questions.clear(sess)
        sess.run(self._release)
        targets = [
            lambda: self._serve(sess, coord, self._answer_unit),
            lambda: self._serve(sess, coord, self._answer_ticket),
        ]
        if coord is not None:
            targets.append(lambda: self._stop_with(sess, coord))
        threads = [
            threading.Thread(target=target, daemon=daemon or coord is None) for target in targets
        ]
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    def _serve(
        self,
        session: tf.Session,
        coord: Optional[tf.train.Coordinator],
        answer: Callable[[tf.Session, Optional[tf.train.Coordinator]], bool],
    ) -> None:
        try:
            while answer(session, coord):
                pass
        except (tf.errors.CancelledError, RuntimeError):
            pass  # The session was closed: RuntimeError if it was closed between two runs.
        except Exception as error:
            # The dataset waits for an answer, so it must hear of the error, too.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self.units.reply(session, 0, 0, 0, f"work queue {self.name}: {error}")
            if coord is None:
                raise
            coord.request_stop(error)

    def _stop_with(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Ends the other threads and the dataset when the coordinator stops.

        TensorFlow crashes if a session is closed while a dataset waits for a queue: it calls the op
        that waits after that op is deleted.
        """
        coord.wait_for_stop()
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            for questions in (self.units, self.tickets):
                questions.stop(session)
            self.units.reply(session, END, 0, 0, "")
            self.tickets.reply(session, False)

    def _answer_unit(self, session: tf.Session, coord: Optional[tf.train.Coordinator]) -> bool:
        """Waits for a question and answers it; returns whether to go on."""
        if self.units.receive(session) is None:
            return False
        deadline = time.monotonic() + self._takeover_secs
        while True:
            position, ticket, seed = session.run(self._take)
            if position != WAIT:
                break
            if time.monotonic() > deadline:
                tf.logging.warning(
                    "Work queue %s: units of other workers were not done within %s seconds; this "
                    "worker reads them, too.",
                    self.name,
                    self._takeover_secs,
                )
                session.run(self._take_over)
            elif coord is None:
                time.sleep(_POLL_SECS)
            elif coord.wait_for_stop(_POLL_SECS):
                return False
        self.units.reply(session, position, ticket, seed, "")
        return True

    def _answer_ticket(self, session: tf.Session, coord: Optional[tf.train.Coordinator]) -> bool:
        """Waits for a question and answers it; returns whether to go on."""
        del coord
        question = self.tickets.receive(session)
        if question is None:
            return False
        is_valid = session.run(self._settle, dict(zip(self._ticket, question)))
        self.tickets.reply(session, is_valid)
        return True


def _owner_of(device: str) -> int:
    """A number above 0 that all sessions of a task have, and no other task of a cluster."""
    spec = tf.DeviceSpec.from_string(device)
    task = f"{spec.job or ''}/{spec.task or 0}"
    return int.from_bytes(hashlib.sha256(task.encode()).digest()[:7], "little") + 1
