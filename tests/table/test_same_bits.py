# SPDX-License-Identifier: Apache-2.0
"""The bits of 16-bit rows are the same with any threads and shards, and after a restart."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from narrow_tables import DIM, NARROW_TYPES, Contents, make_table, trainer
from session_threads import session_with_threads, threads_that_run

import rec_estimator as rec

KEYS = 30_000  # Of a step, so many that each shard divides its loops among threads.
DISTINCT = 5000
STEPS = 4


def make_batches():
    random = np.random.RandomState(3)
    for _ in range(STEPS):
        keys = random.randint(-DISTINCT // 2, DISTINCT // 2, KEYS)
        yield keys, random.randn(KEYS, DIM).astype(np.float32)


BATCHES = list(make_batches())


def run(batches, types, threads, shards=1, restore=None, save=None):
    """The bits of a table after some steps; with save, the checkpoint of it instead."""
    with tf.Graph().as_default():
        table = make_table(shards=shards, **types)
        optimizer = rec.optimizers.AdamOptimizer(0.01)
        train = trainer(table, optimizer)
        contents, saver = Contents(table, optimizer), rec.Saver()
        with session_with_threads(*threads) as session:
            session.run(tf.global_variables_initializer())
            if restore:
                saver.restore(session, restore)
            for batch in batches:
                train(session, *batch)
            return saver.save(session, save) if save else contents.bits(session)


@pytest.mark.long
@NARROW_TYPES
def test_threads_shards_and_restarts_do_not_change_the_bits(value_dtype, slot_dtype, tmp_path):
    types = dict(value_dtype=value_dtype, slot_dtype=slot_dtype)
    expected = run(BATCHES, types, threads=(1, 1))
    assert len(expected) > DISTINCT * 0.99
    for threads, shards in (((2, 1), 1), ((3, 3), 1), ((2, 2), 3)):
        assert run(BATCHES, types, threads, shards) == expected, (threads, shards)
    half = STEPS // 2
    for threads, before, after in (((1, 1), 1, 2), ((2, 1), 3, 1), ((3, 3), 2, 3)):
        prefix = str(tmp_path / f"{before}-{after}")
        run(BATCHES[:half], types, threads, before, save=prefix)
        restarted = run(BATCHES[half:], types, threads, after, restore=prefix)
        assert restarted == expected, (threads, before, after)


@pytest.mark.parametrize("value_dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
def test_such_a_step_runs_on_the_threads_of_its_session(value_dtype):
    table = make_table(value_dtype)
    keys, gradients = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, DIM])
    # A step without a lookup and without gradients: no other op uses threads.
    pairs = [(tf.IndexedSlices(gradients, keys), table)]
    train = rec.optimizers.AdamOptimizer(0.01).apply_gradients(pairs)
    used = {}
    for threads in ((1, 1), (2, 1), (3, 3)):
        with session_with_threads(*threads) as session:
            session.run(tf.global_variables_initializer())

            def run_steps(session=session):
                for batch in BATCHES:
                    session.run(train, dict(zip((keys, gradients), batch)))

            run_steps()  # The first one also optimizes the graph.
            # On a busy machine, a thread may come too late for all work of a step, and threads of
            # other tests may end meanwhile.
            used[threads] = [threads_that_run(run_steps) for _ in range(5)]
    assert min(used[1, 1]) == 1 and max(used[2, 1]) > 1 and max(used[3, 3]) > 1, used
