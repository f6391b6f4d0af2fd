# SPDX-License-Identifier: Apache-2.0
"""Sessions whose ops run on a given number of threads, and how many threads a step runs on."""

import contextlib
import pathlib
import threading

import tensorflow.compat.v1 as tf

# Arguments of session_with_threads: one thread an op; four intra-op threads; four of the step.
OP_THREADS = ((1, 4), (4, 1), (4, 4))

# A thread that looks for work and finds none runs for less.
WORK_NS = 50_000


def session_with_threads(threads, step_threads=1, graph=None):
    """A session whose ops divide their loops among so many threads; see conftest.py.

    An op uses the threads that run the ops of its step (step_threads) if there are enough.
    """
    config = tf.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=step_threads,
        use_per_session_threads=True,
    )
    return tf.Session(graph=graph, config=config)


def threads_that_run(function):
    """How many threads other than the calling one work while a function runs."""
    before = _run_times()
    function()
    after = _run_times()
    after.pop(threading.get_native_id())
    return sum(time - before.get(thread, 0) > WORK_NS for thread, time in after.items())


def _run_times():
    """{thread of this process: nanoseconds it has run}."""
    times = {}
    for folder in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # The thread has ended.
            times[int(folder.name)] = int((folder / "schedstat").read_text().split()[0])
    return times
