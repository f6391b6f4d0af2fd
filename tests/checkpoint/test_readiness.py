# SPDX-License-Identifier: Apache-2.0
"""A worker that asks while a chief restores sees a table as ready only when all rows are there."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

ROWS = 2_000_000
# Spread over the whole file. Their rows are read in one lookup.
SAMPLE = np.arange(0, ROWS, 997)


class Worker(threading.Thread):
    """Asks in a session of its own whether the table is ready, and reads the sample if it is."""

    def __init__(self, target, uninitialized, sample, restored):
        super().__init__()
        self._session = tf.Session(target)
        self._fetches = uninitialized, sample
        self._restored = restored
        self._done = threading.Event()
        self.refusals, self.reads, self.wrong = 0, 0, 0

    def run(self):
        uninitialized, sample = self._fetches
        while not self._done.is_set():
            if len(self._session.run(uninitialized)):
                self.refusals += 1
                continue
            try:
                rows = self._session.run(sample)
            except tf.errors.FailedPreconditionError:
                continue  # The restore has begun in between.
            self.reads += 1
            self.wrong += not np.array_equal(rows, self._restored)

    def stop(self):
        self._done.set()
        self.join()
        self._session.close()


@pytest.mark.long
def test_a_restore_of_two_million_rows_polled_from_another_session(tmp_path):
    table = rec.get_embedding_variable("emb", 4, initializer=tf.zeros_initializer())
    rows = rec.embedding_lookup(table, tf.range(ROWS, dtype=tf.int64))
    values = tf.reshape(tf.range(ROWS * 4, dtype=tf.float32), [ROWS, 4])
    train = rec.optimizers.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(rows * values))
    sample = rec.embedding_lookup(table, tf.constant(SAMPLE))
    uninitialized = tf.report_uninitialized_variables()
    saver = rec.Saver()
    first, second = (tf.train.Server.create_local_server() for _ in range(2))
    with tf.Session(first.target) as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        expected = session.run(sample)
        prefix = saver.save(session, str(tmp_path / "model"))
    # A server on which the table is new, as after a restart.
    with tf.Session(second.target) as session:
        worker = Worker(second.target, uninitialized, sample, expected)
        worker.start()
        saver.restore(session, prefix)
        assert session.run(table.size()) == ROWS
        assert not len(session.run(uninitialized))
        worker.stop()
    assert worker.wrong == 0
    assert worker.refusals > 0
    np.testing.assert_array_equal(expected, np.float32(-SAMPLE[:, None] * 4 - np.arange(4)))
