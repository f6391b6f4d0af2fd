# SPDX-License-Identifier: Apache-2.0
"""Tests of tables under tf.train.SyncReplicasOptimizer."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

DIM = 3


def bank_of(key):
    """The initial vector of a key."""
    return np.float32([key % 7, 1, -2])


def make_table(name="table", **arguments):
    bank = np.stack([bank_of(key) for key in range(7)])
    option = rec.InitializerOption(tf.constant_initializer(bank), default_value_dim=7)
    options = rec.EmbeddingVariableOption(init_option=option, **arguments)
    return rec.get_embedding_variable(name, DIM, ev_option=options)


def loss_of(rows, weights):
    return tf.reduce_sum(rows * weights[:, tf.newaxis])


REPLICAS = 2


class Training:
    """The only worker and the chief of a synchronous training; REPLICAS steps make one update."""

    def __init__(self, loss, optimizer, var_list=None):
        self.synchronous = tf.train.SyncReplicasOptimizer(
            optimizer, replicas_to_aggregate=REPLICAS, total_num_replicas=1
        )
        self.step = tf.train.get_or_create_global_step()
        self.train_op = self.synchronous.minimize(loss, global_step=self.step, var_list=var_list)
        (self.update,) = self.synchronous.get_chief_queue_runner().enqueue_ops
        self.tokens = self.synchronous.get_init_tokens_op(REPLICAS - 1)

    def run(self, feeds):
        """Trains on each feed; returns the session."""
        session = tf.Session()
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run([self.synchronous.chief_init_op, self.tokens])
        # A step waits for the update that its gradient completes.
        updates = [self.update] * (len(feeds) // REPLICAS)
        chief = threading.Thread(target=lambda: [session.run(update) for update in updates])
        chief.start()
        for feed in feeds:
            session.run(self.train_op, feed)
        chief.join()
        return session


def oracle(batches, learning_rate=0.5):
    """{key: (row, count)} after one update by the mean over the batches that have the key."""
    sums, counts = {}, {}
    for keys, weights in batches:
        of_batch = {}
        for key, weight in zip(keys, weights):
            of_batch[key] = of_batch.get(key, 0.0) + weight
            counts[key] = counts.get(key, 0) + 1
        for key, gradient in of_batch.items():
            sums.setdefault(key, []).append(gradient)
    return {
        key: (bank_of(key) - learning_rate * np.float32(np.mean(of_key)), counts[key])
        for key, of_key in sums.items()
    }


# Repeated, unordered, negative and extreme keys; key 9 is in both batches, twice in each.
BATCHES = [
    ([9, -4, 9, 2**63 - 1, 5], [1.0, 2.0, 3.0, 4.0, 5.0]),
    ([11, 9, -(2**63), 5, 9, 9], [1.0, 0.5, 2.0, 8.0, 0.25, 0.25]),
]


def test_rows_get_the_mean_of_the_workers_and_counts_all_occurrences():
    table = make_table()
    keys, weights = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None])
    loss = loss_of(rec.embedding_lookup(table, keys), weights)
    training = Training(loss, rec.optimizers.GradientDescentOptimizer(0.5))
    expected = oracle(BATCHES)
    asked = tf.constant(sorted(expected), tf.int64)
    found = [
        rec.embedding_lookup(table, asked),
        table.get_frequency(asked),
        table.get_version(asked),
    ]
    with training.run([{keys: k, weights: w} for k, w in BATCHES]) as session:
        feed = {keys: [], weights: []}
        rows, counts, versions = session.run(found, feed)
    for row, count, key in zip(rows, counts, sorted(expected)):
        np.testing.assert_array_equal(row, expected[key][0])  # All numbers are exact in float32.
        assert count == expected[key][1]
    assert set(versions) == {0}


class Clipped(rec.optimizers.GradientDescentOptimizer):
    """Clips gradients, as a script does between compute_gradients() and apply_gradients()."""

    def compute_gradients(self, *args, **kwargs):
        pairs = super().compute_gradients(*args, **kwargs)
        return [(tf.clip_by_norm(gradient, 2.0), variable) for gradient, variable in pairs]


@pytest.mark.parametrize("optimizer", [rec.optimizers.GradientDescentOptimizer, Clipped])
def test_lookups_that_combine_count_all_occurrences(optimizer):
    table, keys = make_table(), tf.placeholder(tf.int64, [None])
    size = tf.size(keys, out_type=tf.int64)
    ids = tf.RaggedTensor.from_row_splits(keys, tf.stack([np.int64(0), size]))
    loss = tf.reduce_sum(rec.embedding_lookup_sparse(table, ids, combiner="sum"))
    training = Training(loss, optimizer(0.5))
    asked = tf.constant([1, 2, 3], tf.int64)
    found = [rec.embedding_lookup(table, asked), table.get_frequency(asked)]
    with training.run([{keys: [1, 2, 1, 1]}, {keys: [1, 3]}]) as session:
        rows, counts = session.run(found, {keys: []})
    assert counts.tolist() == [4, 1, 1]
    # Key 1 has gradients 3 and 1 in the workers, keys 2 and 3 have 1 in one.
    sums = [np.float64([[3, 3, 3], [1, 1, 1]]), np.float64([[1, 1, 1], [1, 1, 1]])]
    if optimizer is Clipped:
        sums = [each * min(1, 2.0 / np.linalg.norm(each)) for each in sums]
    gradients = [(sums[0][0] + sums[1][0]) / 2, sums[0][1], sums[1][1]]
    for row, gradient, key in zip(rows, gradients, [1, 2, 3]):
        np.testing.assert_allclose(row, bank_of(key) - 0.5 * gradient, rtol=1e-6)


def test_a_table_equals_a_stock_variable_where_no_key_repeats():
    batches = [[0, 3, 6], [3, 2, 5], [1, 0, 4], [6, 5, 4]]
    results = []
    for use_table in (True, False):
        with tf.Graph().as_default():
            keys = tf.placeholder(tf.int64, [3])
            optimizer = rec.optimizers.AdagradOptimizer(0.5)
            everything = tf.range(7, dtype=tf.int64)
            if use_table:
                table = make_table()
                rows = rec.embedding_lookup(table, keys)
                found = rec.embedding_lookup(table, everything)
            else:
                bank = np.stack([bank_of(key) for key in range(7)])
                table = tf.get_variable("dense", initializer=bank, use_resource=True)
                # TensorFlow's accumulator needs ascending keys.
                rows = tf.nn.embedding_lookup(table, tf.sort(keys))
                found = tf.nn.embedding_lookup(table, everything)
            loss = tf.reduce_sum(tf.square(rows))
            with Training(loss, optimizer).run([{keys: each} for each in batches]) as session:
                results.append(session.run(found))
    np.testing.assert_array_equal(*results)


def test_a_filter_admits_by_the_occurrences_of_all_workers():
    table = make_table(filter_option=rec.CounterFilter(4))
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    training = Training(loss, rec.optimizers.GradientDescentOptimizer(0.5))
    size, counts = table.size(), table.get_frequency(tf.constant([1, 2], tf.int64))
    with training.run([{keys: [1, 2, 1]}, {keys: [2, 1, 1]}]) as session:
        assert session.run(size) == 1 and session.run(counts).tolist() == [4, 2]


def test_a_partitioned_table_trains():
    with tf.variable_scope("", partitioner=tf.fixed_size_partitioner(3)):
        table = make_table()
    keys, weights = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None])
    loss = loss_of(rec.embedding_lookup(table, keys), weights)
    training = Training(loss, rec.optimizers.GradientDescentOptimizer(0.5))
    expected = oracle(BATCHES)
    found = rec.embedding_lookup(table, tf.constant(sorted(expected), tf.int64))
    with training.run([{keys: k, weights: w} for k, w in BATCHES]) as session:
        rows = session.run(found)
    np.testing.assert_array_equal(rows, [expected[key][0] for key in sorted(expected)])


def test_a_table_outside_of_the_synchronous_optimizer_is_refused():
    table, dense = make_table(), tf.get_variable("dense", [])
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([1], tf.int64))) * dense
    Training(loss, tf.train.GradientDescentOptimizer(0.1), [dense])
    with pytest.raises(ValueError, match="table 'table' must get its gradient from the SyncRepl"):
        rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss, var_list=[table])


@pytest.mark.parametrize("way", ["unreached", "counts", "create_table"])
def test_keys_that_only_a_worker_knows_are_refused(way):
    ids = tf.constant([1, 2], tf.int64)
    if way == "create_table":
        table = rec.create_table(tf.int64, DIM, "table", tf.ones_initializer())
        threshold = {"access_threshold": 2}
        rows = rec.sparse_lookup(table, ids, modify_graph=True, access_and_evict_config=threshold)
    else:
        table = make_table()
        counts = tf.constant([1, 3]) if way == "counts" else None
        rows = rec.embedding_lookup(table, ids, counts=counts)
    loss = tf.reduce_sum(rows)
    if way == "unreached":
        dense = tf.get_variable("dense", [])
        loss = tf.reduce_sum(tf.stop_gradient(rows)) * dense
    with pytest.raises(ValueError, match="SyncReplicasOptimizer"):
        Training(loss, rec.optimizers.AdagradOptimizer(0.1))


def test_an_untrained_table_is_still_refused():
    table, dense = make_table(), tf.get_variable("dense", [])
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([1], tf.int64))) * dense
    training = Training(loss, tf.train.GradientDescentOptimizer(0.1), [dense])
    with pytest.raises(ValueError, match="no optimizer updates table 'table'"):
        rec.MonitoredTrainingSession(hooks=[training.synchronous.make_session_run_hook(True)])
