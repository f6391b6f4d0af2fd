# SPDX-License-Identifier: Apache-2.0
"""Training with a regularizer is the same bits wherever rows are, and however batches come."""

import threading

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from local_cluster import LocalCluster, contents

import rec_estimator as rec
from rec_estimator import graph_optimizer
from rec_estimator.graph_modifier import modify_graph_and_start_emb_cache
from rec_estimator.graph_modifier.prepared_input import get_initializer

regularizers = pytest.mark.parametrize(
    "regularizer", [rec.L2Regularizer(0.05), rec.LazyDecay(0.02)], ids=["l2", "decay"]
)
NORMAL = tf.random_normal_initializer(seed=3)

# Few keys, so that they repeat; each is away for some steps.
BATCHES = np.random.RandomState(0).randint(-15, 15, [12, 8]) * 1000 + 7


def table_of(regularizer, shards=1, **options):
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    option = rec.EmbeddingVariableOption(regularizer=regularizer, **options)
    return rec.get_embedding_variable(
        "table", 4, initializer=NORMAL, partitioner=partitioner, ev_option=option
    )


def minimize(loss, optimizer=rec.optimizers.AdagradOptimizer):
    return optimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())


class Run:
    """A graph that trains a table on a list of batches, in a session."""

    def __init__(self, regularizer, optimizer=rec.optimizers.AdagradOptimizer, cluster=None, **kw):
        self._graph, self._cluster = tf.Graph(), cluster
        with self._graph.as_default(), cluster.device() if cluster else tf.device(None):
            tf.set_random_seed(1)
            table = table_of(regularizer, **kw)
            self._keys = tf.placeholder(tf.int64, [None])
            values = rec.embedding_lookup(table, self._keys)
            # One key is only counted in the step.
            counted = tf.stop_gradient(rec.embedding_lookup(table, self._keys[:1] + 1))
            self._loss = tf.reduce_sum(tf.square(values - 0.5)) + tf.reduce_sum(counted)
            self._train = minimize(self._loss, optimizer)
            self.saver = rec.Saver(sharded=True, incremental=True, max_to_keep=None)
            initialize = tf.global_variables_initializer()
        self.session = (
            cluster.session(graph=self._graph) if cluster else tf.Session(graph=self._graph)
        )
        self.session.run(initialize)

    def steps(self, batches):
        run, fetches = self.session.run, [self._loss, self._train]
        return [run(fetches, {self._keys: batch})[0] for batch in batches]

    def save(self, folder, step):
        with self._graph.as_default():
            return self.saver.save(self.session, str(folder / "model"), step)


@pytest.mark.long
@pytest.mark.each_value
@regularizers
@pytest.mark.parametrize("num_ps", [1, 2])
@pytest.mark.parametrize("optimizer", ["Adagrad", "GradientDescent", "Adam"])
def test_parameter_servers_train_the_bits_of_a_single_process(
    regularizer, optimizer, num_ps, tmp_path
):
    optimizer = getattr(rec.optimizers, f"{optimizer}Optimizer")
    runs = [Run(regularizer, optimizer, cluster) for cluster in (None, LocalCluster(num_ps))]
    losses = [run.steps(BATCHES) for run in runs]
    assert losses[0] == losses[1]
    single, on_ps = (
        contents(run.save(tmp_path / str(i), len(BATCHES))) for i, run in enumerate(runs)
    )
    assert single == on_ps and len(single["table"]) > 20


@pytest.mark.long
@regularizers
@pytest.mark.parametrize("shards", [1, 3])
def test_a_restore_of_a_checkpoint_and_its_deltas_trains_on(regularizer, shards, tmp_path):
    options = {"filter_option": rec.CounterFilter(2)}
    whole = Run(regularizer, **options)
    expected = whole.steps(BATCHES)
    stopped = Run(regularizer, **options)
    losses = stopped.steps(BATCHES[:3])
    for end in (3, 5, 7):  # A full checkpoint and two deltas.
        prefix = stopped.save(tmp_path / "stopped", end)
        losses += stopped.steps(BATCHES[end : end + 2])
    resumed = Run(regularizer, shards=shards, **options)
    resumed.saver.restore(resumed.session, prefix)
    assert losses[:7] + resumed.steps(BATCHES[7:]) == expected
    assert contents(resumed.save(tmp_path / "b", 12)) == contents(whole.save(tmp_path / "a", 12))


def test_a_row_whose_version_a_warm_start_resets_begins_to_decay_with_its_first_step(tmp_path):
    source = Run(None)
    source.steps(BATCHES)
    prefix = source.save(tmp_path, len(BATCHES))
    keys = BATCHES[0][:1]
    expected = np.frombuffer(contents(prefix)["table"][keys[0]][""], np.float32)
    table = table_of(rec.LazyDecay(0.5))
    rec.init_from_checkpoint(prefix, {"table": "table"}, reset_version=True)
    read = rec.embedding_lookup(table, tf.constant(keys))
    step = tf.train.get_or_create_global_step()
    optimizer = rec.optimizers.GradientDescentOptimizer(0.0)
    train = optimizer.minimize(tf.reduce_sum(read), global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step.assign(1000))
        np.testing.assert_array_equal(session.run(read), [expected])
        session.run(train)
        np.testing.assert_array_equal(session.run(read), [expected / 2])


@regularizers
def test_rows_on_disk_train_the_bits_of_rows_in_memory(regularizer, tmp_path):
    def scenario(storage, folder):
        del folder
        run = storage_runs.Run(
            lambda: rec.optimizers.AdagradOptimizer(0.1), storage, regularizer=regularizer
        )
        return run.steps(20), run.contents(), run.tiers()

    storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario)


def train_modified(regularizer, modified):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        data = tf.data.Dataset.from_tensor_slices(BATCHES)
        iterator = tf.data.make_initializable_iterator(data)
        table = table_of(regularizer)
        loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, iterator.get_next() // 3)))
        train, export = minimize(loss), table.export()
        if modified:
            modify_graph_and_start_emb_cache()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(get_initializer(True) if modified else iterator.initializer)
            losses = [session.run([loss, train])[0] for _ in BATCHES]
            return [losses, *session.run(export)]


@regularizers
def test_a_modified_graph_trains_the_same_bits(regularizer):
    storage_runs.assert_same(*(train_modified(regularizer, each) for each in (True, False)))


def train_grouped(regularizer, compressed):
    sizes = np.array([2, 1, 3], np.int32)
    with tf.Graph().as_default():
        user, item = (tf.placeholder(tf.int64, [None]) for _ in range(2))
        feed = {user: [7, 8, 7], item: [1, 2, 1, 3, 1, 5]}
        if compressed:
            item_size = tf.placeholder(tf.int32, [None])
            graph_optimizer.enable_sample_awared_graph_compression([user], [item], item_size)
            feed[item_size] = sizes
        else:
            feed[user] = np.repeat(feed[user], sizes)
        table = table_of(regularizer)
        vectors = rec.embedding_lookup(table, user) * rec.embedding_lookup(table, item)
        train = minimize(tf.reduce_sum(tf.square(tf.reduce_sum(vectors, axis=1) - 1)))
        rows = rec.embedding_lookup(table, [1, 2, 3, 5, 7, 8])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(train, feed)
            return session.run(rows)


@regularizers
def test_a_user_of_a_compressed_batch_is_regularized_once(regularizer):
    compressed, flat = (train_grouped(regularizer, each) for each in (True, False))
    # A user's gradients are added up in another order.
    np.testing.assert_allclose(compressed, flat, rtol=1e-5, atol=1e-6)


@regularizers
def test_graphs_that_do_not_train_know_nothing_of_a_regularizer(regularizer):
    attrs = []
    for each in (None, regularizer):
        with tf.Graph().as_default():
            table = table_of(each)
            rec.embedding_lookup(table, [1, 2])
            attrs.append([str(op.node_def) for op in tf.get_default_graph().get_operations()])
    assert attrs[0] == attrs[1]


def test_gradients_of_two_workers_get_one_l2_gradient():
    """Under SyncReplicasOptimizer, the chief applies the mean of the workers' gradients."""
    table = table_of(rec.L2Regularizer(0.5))
    loss = 0.0 * tf.reduce_sum(rec.embedding_lookup(table, [3]))
    optimizer = tf.train.SyncReplicasOptimizer(
        rec.optimizers.GradientDescentOptimizer(0.1), replicas_to_aggregate=2, total_num_replicas=1
    )
    train = optimizer.minimize(loss, tf.train.get_or_create_global_step())
    (update,) = optimizer.get_chief_queue_runner().enqueue_ops
    tokens = optimizer.get_init_tokens_op(1)
    row = rec.embedding_lookup(table, [3])
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run([optimizer.chief_init_op, tokens])
        before = session.run(row)
        chief = threading.Thread(target=session.run, args=[update])
        chief.start()
        for _ in range(2):
            session.run(train)
        chief.join()
        np.testing.assert_allclose(session.run(row), before * np.float32(0.95), rtol=1e-6)
