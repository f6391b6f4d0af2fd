# SPDX-License-Identifier: Apache-2.0
"""tf.train.SyncReplicasOptimizer with a chief and a worker, whose tables are on two ps.

Both are tasks of servers in this process. Without tokens in advance, each update has one batch of
each of them, so that NumPy can compute the result. All numbers are exact in float32.
"""

import os
import threading
from unittest import mock

import cluster_jobs
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from local_cluster import LocalCluster, contents

import rec_estimator as rec

DIM, RATE, UPDATES = 3, 0.5, 6
BANK = np.float32([[key, 1, -2] for key in range(7)])
NO_TOKENS = 0


def batches(task):
    """(int64 [n] keys, float32 [n] weights). Keys repeat within a batch and across the tasks."""
    rng = np.random.default_rng(task)
    found = []
    for update in range(UPDATES):
        keys = rng.integers(-9, 9, 20 + task)
        if update == 2:
            keys *= 2  # The second ps gets none, of either task.
        found.append((keys, np.float32(rng.integers(-8, 8, len(keys)) / 8)))
    return found


class Oracle:
    """Rows that get the mean over the batches of an update that have the key.

    Attributes:
      rows: {key: [value float32 [DIM], count, version]}
      dense: The dense variable.
    """

    def __init__(self):
        self.rows = {}
        self.dense = 0.0

    def update(self, version, *of_tasks):
        gradients = {}
        for keys, weights in of_tasks:
            for key in set(keys.tolist()):
                gradients.setdefault(key, []).append(weights[keys == key].sum())
                row = self.rows.setdefault(key, [BANK[key % 7], 0, version])
                row[1:] = row[1] + np.count_nonzero(keys == key), version
        for key, of_key in gradients.items():
            self.rows[key][0] = self.rows[key][0] - np.float32(RATE * np.mean(of_key))
        self.dense -= RATE * np.mean([weights.sum() for _, weights in of_tasks])
        return self


def oracle(*tasks):
    result = Oracle()
    for update, of_tasks in enumerate(zip(*tasks)):
        result.update(update, *of_tasks)
    return result


class Model:
    """The graph that all tasks build: a table, a dense variable, and their synchronous update."""

    def __init__(self, keys, weights, replicas=2):
        initial = rec.InitializerOption(tf.constant_initializer(BANK), default_value_dim=7)
        table = rec.get_embedding_variable(
            "table", DIM, ev_option=rec.EmbeddingVariableOption(init_option=initial)
        )
        dense = tf.get_variable("dense", [], initializer=tf.zeros_initializer())
        rows = rec.embedding_lookup(table, keys)
        self.loss = tf.reduce_sum(rows * weights[:, tf.newaxis]) + dense * tf.reduce_sum(weights)
        self.synchronous = tf.train.SyncReplicasOptimizer(
            rec.optimizers.GradientDescentOptimizer(RATE),
            replicas_to_aggregate=replicas,
            total_num_replicas=2,
        )
        step = tf.train.get_or_create_global_step()
        self.train_op = self.synchronous.minimize(self.loss, global_step=step)
        (self.update,) = self.synchronous.get_chief_queue_runner().enqueue_ops
        self.found = table.export(), dense


def assert_equal(found, expected):
    table, dense = found
    assert sorted(table.keys.tolist()) == sorted(expected.rows)
    for key, value, version, count in zip(table.keys, table.values, table.versions, table.freqs):
        np.testing.assert_array_equal(value, expected.rows[key][0])
        assert [count, version] == expected.rows[key][1:]
    assert dense == expected.dense


class Task:
    """A task that is fed batches in a plain session."""

    def __init__(self, cluster, task, replicas=2):
        self._cluster, self._task = cluster, task
        self.graph = tf.Graph()
        with self.graph.as_default(), cluster.device(task):
            self._feeds = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None])
            self.model = Model(*self._feeds, replicas)
            self._initialize = tf.global_variables_initializer(), tf.local_variables_initializer()

    def open(self, tokens=NO_TOKENS):
        """Opens a session by hand; returns the task."""
        synchronous = self.model.synchronous
        with self.graph.as_default():
            tokens = synchronous.get_init_tokens_op(tokens)
        self.session = self._cluster.session(self._task, graph=self.graph)
        if self._task == 0:
            self.session.run(self._initialize)
            self.session.run([synchronous.chief_init_op, tokens])
        else:
            self.session.run(self._initialize[1])
            self.session.run(synchronous.local_step_init_op)
        return self

    def monitored(self):
        """A session as scripts have it; that of the chief updates in a thread of its own."""
        hook = self.model.synchronous.make_session_run_hook(self._task == 0, NO_TOKENS)
        with self.graph.as_default():
            return rec.MonitoredTrainingSession(
                self._cluster.targets[self._task],
                self._task == 0,
                hooks=[hook],
                # Otherwise a chief waits so long for its update, which has no more gradients.
                stop_grace_period_secs=0.1,
            )

    def train(self, batch, session=None):
        (session or self.session).run(self.model.train_op, dict(zip(self._feeds, batch)))


def in_threads(*calls):
    """Calls functions at the same time; raises what one of them raises."""
    errors = []

    def run(call):
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# How long workers wait for each other before a step. Otherwise TensorFlow lets one that is ahead
# take the token of the other one, which then waits for an update that never comes.
WAIT = 300  # seconds


class Together(tf.train.SessionRunHook):
    """Makes the workers of an Estimator begin each step together."""

    def __init__(self, both):
        self._both = both

    def before_run(self, run_context):
        self._both.wait(WAIT)


# The end of the chief's session cancels the update that its thread waits for.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rows_get_the_means_of_two_workers_and_the_counts_of_both():
    cluster = LocalCluster(2, workers=1)
    tasks = [Task(cluster, task) for task in range(2)]
    sessions = [task.monitored() for task in tasks]
    both = threading.Barrier(2)

    def work(task):
        for batch in batches(task):
            both.wait(WAIT)
            tasks[task].train(batch, sessions[task])

    in_threads(lambda: work(0), lambda: work(1))
    with cluster.session(graph=tasks[0].graph) as session:
        assert_equal(session.run(tasks[0].model.found), oracle(batches(0), batches(1)))
    for session in sessions[::-1]:
        session.close()


@pytest.mark.long
def test_a_gradient_that_comes_too_late_is_dropped_with_its_counts():
    cluster = LocalCluster(2, workers=1)
    chief, worker = (Task(cluster, task, replicas=1).open(tokens=1) for task in range(2))
    (first, _, *_), (late, second, *_) = batches(0), batches(1)
    chief.train(first)
    chief.session.run(chief.model.update)
    worker.train(late)  # Its step began before this update.
    worker.train(second)
    chief.session.run(chief.model.update)
    assert_equal(chief.session.run(chief.model.found), oracle([first, second]))


@pytest.mark.long
def test_a_worker_that_was_lost_goes_on_where_the_others_are():
    cluster = LocalCluster(2, workers=1)
    chief = Task(cluster, 0).open()
    of_chief, of_worker = batches(0), batches(1)

    def update(number, task):
        in_threads(
            lambda: chief.train(of_chief[number]),
            lambda: task.train(of_worker[number]),
            lambda: chief.session.run(chief.model.update),
        )

    lost = Task(cluster, 1).open()
    for number in range(3):
        update(number, lost)
    lost.session.close()
    again = Task(cluster, 1).open()  # As a new process: with a new local step.
    for number in range(3, UPDATES):
        update(number, again)
    assert_equal(chief.session.run(chief.model.found), oracle(of_chief, of_worker))


def estimator_of(folder, cluster, task):
    def model_fn(features, mode, config):
        model = Model(features["keys"], features["weights"])
        hook = model.synchronous.make_session_run_hook(config.is_chief, NO_TOKENS)
        return rec.EstimatorSpec(
            mode, loss=model.loss, train_op=model.train_op, training_hooks=[hook]
        )

    with mock.patch.dict(os.environ, TF_CONFIG=cluster.tf_config(task)):
        return rec.RecEstimator(model_fn, config=rec.RunConfig(model_dir=str(folder)))


@pytest.mark.slow  # TensorFlow waits two minutes for the next update before it ends a chief.
def test_estimators_get_the_means_of_two_workers_and_the_counts_of_both(tmp_path):
    cluster = LocalCluster(2, workers=1)

    estimators = [estimator_of(tmp_path, cluster, task) for task in range(2)]
    both = threading.Barrier(2)

    def work(task):
        def input_fn():
            def samples():
                return (dict(zip(("keys", "weights"), batch)) for batch in batches(task))

            return tf.data.Dataset.from_generator(
                samples,
                {"keys": tf.int64, "weights": tf.float32},
                {"keys": [None], "weights": [None]},
            )

        estimators[task].train(input_fn, hooks=[Together(both)])

    in_threads(lambda: work(0), lambda: work(1))
    prefix = tf.train.latest_checkpoint(str(tmp_path))
    expected = oracle(batches(0), batches(1))
    assert contents(prefix)["table"] == {
        key: {"": value.tobytes(), "freqs": count, "versions": version}
        for key, (value, count, version) in expected.rows.items()
    }
    assert tf.train.load_variable(prefix, "dense") == expected.dense


@pytest.mark.slow
def test_synchronous_training_survives_the_kill_of_a_worker(tmp_path):
    result = cluster_jobs.run("synchronous_kill", tmp_path, seconds=600)
    assert result["ends"] == [0, 0] and result["step"] >= result["steps"]
    seen = "".join((tmp_path / f"seen{task}").read_text() for task in (0, 1)).split()
    keys, fed = np.unique(np.array(seen, np.int64), return_counts=True)
    counted = contents(tf.train.latest_checkpoint(str(tmp_path / "model")))["table"]
    assert counted.keys() == set(keys.tolist())
    for key, most in zip(keys.tolist(), fed.tolist()):
        assert counted[key]["freqs"] <= most
    # Each update has two batches.
    total = sum(row["freqs"] for row in counted.values())
    assert total >= 2 * cluster_jobs.BATCH * result["step"]
