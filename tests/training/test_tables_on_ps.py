# SPDX-License-Identifier: Apache-2.0
"""Tables on parameter servers, in plain sessions: what a single process does, a cluster does, too.

The tasks are servers in this process, so that a test can run their steps in the order it needs.
"""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from local_cluster import LocalCluster, contents

import rec_estimator as rec
from rec_estimator import feature_column as fc

BATCHES = [[1, 1, -4, 1002, 7], [7, 3, 1, 1, 5], [5, 7, 3, 2**63 - 1, 7]]
NORMAL = tf.random_normal_initializer(seed=3)


def where(num_ps):
    """Functions that make device scopes and sessions on a cluster; in a single process for 0."""
    if not num_ps:
        return lambda: tf.device(None), tf.Session
    cluster = LocalCluster(num_ps)
    return cluster.device, cluster.session


def next_keys(batches=BATCHES):
    data = tf.data.Dataset.from_generator(lambda: batches, tf.int64, [None])
    return tf.data.make_one_shot_iterator(data).get_next()


def minimize(loss, optimizer=None):
    optimizer = optimizer or rec.optimizers.AdagradOptimizer(0.1)
    return optimizer.minimize(loss, tf.train.get_or_create_global_step())


def square(values):
    return tf.reduce_sum(tf.square(values - 0.5))


def train(folder, num_ps, loss_of, optimizer=None):
    """Trains a loss of keys in a new graph; returns (the prefix of the checkpoint, losses)."""
    device, session_of = where(num_ps)
    with tf.Graph().as_default(), device():
        tf.set_random_seed(1)
        loss = loss_of(next_keys())
        train_op = minimize(loss, optimizer)
        saver = rec.Saver(sharded=True)
        with session_of() as session:
            session.run([tf.global_variables_initializer(), tf.tables_initializer()])
            losses = [session.run([loss, train_op])[0] for _ in BATCHES]
            return saver.save(session, str(folder / f"of{num_ps}"), len(BATCHES)), losses


def table_of(name="table", **arguments):
    return rec.get_embedding_variable(name, 4, initializer=NORMAL, **arguments)


def created(**thresholds):
    table = rec.create_table(tf.int64, 4, "table", NORMAL, device_vocabulary_size=100)

    def loss_of(*lists):
        return sum(
            square(
                rec.sparse_lookup(
                    table, keys, modify_graph=True, access_and_evict_config=thresholds or None
                )
            )
            for keys in lists
        )

    return loss_of


# Admission before the lookup of the step, as Rec SDK has it, and in its update, as DeepRec has it.
ADMISSIONS = {
    "create_table": lambda keys: created()(keys),
    "access_threshold": lambda keys: created(access_threshold=3)(keys),
    "access_threshold of two lookups": lambda keys: created(access_threshold=3)(keys, keys[::2]),
    "faae_coefficient": lambda keys: created(access_threshold=5, faae_coefficient=2)(keys),
    "CounterFilter": lambda keys: square(
        rec.embedding_lookup(
            table_of(ev_option=rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(3))),
            keys,
        )
    ),
}


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2])
@pytest.mark.parametrize("kind", ADMISSIONS)
def test_both_times_of_admission_have_the_bits_of_a_single_process(tmp_path, kind, num_ps):
    (single, expected), (on_ps, losses) = (
        train(tmp_path, number, ADMISSIONS[kind]) for number in (0, num_ps)
    )
    assert losses == expected
    assert contents(on_ps) == contents(single)
    assert len(contents(single)["table"]) == 7


@pytest.mark.long
def test_feature_columns_train_on_ps_what_a_single_process_trains(tmp_path):
    def loss_of(keys):
        option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2))
        column = fc.categorical_column_with_embedding("f", tf.int64, ev_option=option)
        dense = fc.embedding_column(column, 4, initializer=NORMAL)
        return square(tf.feature_column.input_layer({"f": tf.reshape(keys, [-1, 1])}, [dense]))

    (single, expected), (on_ps, losses) = (train(tmp_path, number, loss_of) for number in (0, 2))
    # With several shards, other ops combine the vectors of an example, in another order.
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    ((name, expected),), ((same, found),) = contents(single).items(), contents(on_ps).items()
    assert same == name and {1, 7, 3} <= found.keys() == expected.keys()
    for key, row in expected.items():
        assert (found[key]["freqs"], found[key]["versions"]) == (row["freqs"], row["versions"])
        for part in row.keys() - {"freqs", "versions"}:
            values, of_single = (np.frombuffer(each[key][part], "f4") for each in (found, expected))
            np.testing.assert_allclose(values, of_single, rtol=1e-5)


class Clipped(rec.optimizers.AdagradOptimizer):
    """Clips gradients, as a script does between compute_gradients() and apply_gradients()."""

    def compute_gradients(self, *args, **kwargs):
        gradients, variables = zip(*super().compute_gradients(*args, **kwargs))
        return list(zip(tf.clip_by_global_norm(gradients, 0.5)[0], variables))


@pytest.mark.long
def test_clipped_lookups_that_combine_train_on_ps_what_a_single_process_trains(tmp_path):
    def loss_of(keys):
        table = table_of()
        ids = tf.RaggedTensor.from_row_splits(keys, tf.constant([0, 3, 5], tf.int64))
        combined = rec.embedding_lookup_sparse(table, ids, combiner="mean")
        return square(combined) + square(rec.embedding_lookup(table, keys[:2]))

    runs = [train(tmp_path, number, loss_of, Clipped(0.1)) for number in (0, 2)]
    (single, expected), (on_ps, losses) = runs
    # With several shards, other ops combine the vectors of an example, in another order.
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    freqs = [
        {key: row["freqs"] for key, row in contents(prefix)["table"].items()}
        for prefix in (on_ps, single)
    ]
    assert freqs[0] == freqs[1]
    assert freqs[0][1] == 6  # Four times among the ids that are combined, twice among the others.


def two_tables(keys):
    """Two tables, one of create_table, so that there are sparse folders."""
    return square(rec.embedding_lookup(table_of("plain"), keys)) + created()(keys)


def saved_again(folder, prefix, num_ps):
    """Restores a checkpoint into a number of ps, and saves it there; returns the new prefix."""
    device, session_of = where(num_ps)
    with tf.Graph().as_default(), device():
        minimize(two_tables(next_keys()))
        saver = rec.Saver(sharded=True)
        with session_of() as session:
            saver.restore(session, prefix)
            assert not len(session.run(tf.report_uninitialized_variables()))
            return saver.save(session, str(folder / f"again{num_ps}"))


@pytest.mark.long
def test_a_delta_of_two_ps_restores_into_three_and_into_one_process(tmp_path):
    device, session_of = where(2)
    with tf.Graph().as_default(), device():
        train_op = minimize(two_tables(next_keys()))
        saver, full = rec.Saver(sharded=True, incremental=True), rec.Saver(sharded=True)
        with session_of() as session:
            session.run(tf.global_variables_initializer())
            prefixes = []
            for step in range(len(BATCHES)):
                session.run(train_op)
                prefixes.append(saver.save(session, str(tmp_path / "model"), step))
            expected = contents(full.save(session, str(tmp_path / "full")))
    names = dict(tf.train.list_variables(prefixes[-1]))
    assert "plain/part_1-delta_of" in names
    assert len(contents(prefixes[-1])["plain"]) < len(expected["plain"])
    for num_ps in (0, 3):
        assert contents(saved_again(tmp_path, prefixes[-1], num_ps)) == expected


@pytest.mark.long
def test_a_checkpoint_of_one_process_restores_into_ps(tmp_path):
    single, _ = train(tmp_path, 0, two_tables)
    assert contents(saved_again(tmp_path, single, 3)) == contents(single)


@pytest.mark.long
def test_the_folder_of_a_table_has_the_rows_of_all_ps(tmp_path):
    found = {}
    for number in (0, 2):
        train(tmp_path, number, two_tables)
        folder = tmp_path / f"sparse-of{number}-{len(BATCHES)}" / "table"
        keys = np.fromfile(folder / "key" / "slice.data", np.int64)
        columns = [
            np.fromfile(folder / name / "slice.data", np.float32).reshape(len(keys), -1)
            for name in sorted(each.name for each in folder.iterdir() if each.name != "key")
        ]
        assert len(columns) == 2  # Vectors, and the slot of Adagrad.
        found[number] = {
            key: [row.tobytes() for row in rows] for key, *rows in zip(keys.tolist(), *columns)
        }
    assert found[2] == found[0] and len(found[0]) == 7


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 3])
def test_new_keys_start_from_the_bank_of_the_checkpoint(tmp_path, num_ps):
    """Not from the one that the graph of the cluster, with another seed, would draw."""

    def vectors(number, seed, restore=None):
        device, session_of = where(number)
        with tf.Graph().as_default(), device():
            normal = tf.random_normal_initializer(seed=seed)
            table = rec.get_embedding_variable("table", 4, initializer=normal)
            read = rec.embedding_lookup(table, tf.constant([5, -1, 4095, 4096 * 7 + 1], tf.int64))
            saver = rec.Saver(sharded=True)
            with session_of() as session:
                session.run(tf.global_variables_initializer())
                if restore:
                    saver.restore(session, restore)
                return session.run(read), saver.save(session, str(tmp_path / f"{number}-{seed}"))

    expected, prefix = vectors(0, seed=3)
    np.testing.assert_array_equal(vectors(num_ps, seed=3)[0], expected)
    assert not np.array_equal(vectors(num_ps, seed=4)[0], expected)
    restored, again = vectors(num_ps, seed=4, restore=prefix)
    np.testing.assert_array_equal(restored, expected)
    np.testing.assert_array_equal(vectors(0, seed=5, restore=again)[0], expected)


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 3])
def test_a_table_on_ps_is_initialized_from_another_checkpoint(tmp_path, num_ps):
    single, _ = train(tmp_path, 0, lambda keys: square(rec.embedding_lookup(table_of(), keys)))
    found = {}
    for number in (0, num_ps):
        device, session_of = where(number)
        with tf.Graph().as_default(), device():
            keys = next_keys([[7, 8, 7]])
            train_op = minimize(square(rec.embedding_lookup(table_of("other"), keys)))
            rec.init_from_checkpoint(single, {"table": "other", "table/Adagrad": "other/Adagrad"})
            saver = rec.Saver(sharded=True)
            with session_of() as session:
                session.run(tf.global_variables_initializer())
                session.run(train_op)
                found[number] = contents(saver.save(session, str(tmp_path / f"warm{number}")))
    assert found[num_ps] == found[0]
    assert found[0]["other"][7]["freqs"] == 6 and found[0]["other"][8]["freqs"] == 1


@pytest.mark.long
def test_saves_while_workers_insert_hold_value_and_slots_of_the_same_keys(tmp_path):
    cluster = LocalCluster(2, workers=2)
    saves, graphs = 20, []
    for task in range(3):
        with tf.Graph().as_default() as graph, cluster.device(task):
            keys = tf.random.uniform([200], 0, 2**60, tf.int64, seed=task)
            loss = square(rec.embedding_lookup(table_of(), keys))
            train_op = minimize(loss, rec.optimizers.AdamOptimizer(0.1))
            graphs.append((graph, train_op, tf.global_variables_initializer()))
    with graphs[0][0].as_default(), cluster.device():
        saver = rec.Saver(sharded=True, max_to_keep=1)
    with cluster.session(graph=graphs[0][0]) as session:
        session.run(graphs[0][2])
        done, steps = threading.Event(), []

        def work(task):
            graph, train_op, _ = graphs[task]
            with cluster.session(task, graph=graph) as own:
                while not done.is_set():
                    own.run(train_op)
                    steps.append(task)

        workers = [threading.Thread(target=work, args=[task]) for task in (1, 2)]
        for worker in workers:
            worker.start()
        rows = []
        try:
            for save in range(saves):
                session.run(graphs[0][1])
                prefix = saver.save(session, str(tmp_path / "model"), save, write_meta_graph=False)
                rows.append(keys_of_all_parts(prefix))
        finally:
            done.set()
            for worker in workers:
                worker.join()
    assert set(steps) == {1, 2}
    # Rows were inserted during the saves: more between two saves than a step of the chief brings.
    assert rows == sorted(rows) and rows[-1] > saves * 200 + rows[0]


def keys_of_all_parts(prefix):
    """The number of rows; checks that value and slots have the same keys, each once."""
    reader = tf.train.load_checkpoint(prefix)
    total = 0
    for part in range(2):
        shard = f"table/part_{part}"
        keys = reader.get_tensor(f"{shard}-keys")
        assert len(np.unique(keys)) == len(keys) and (keys % 1000 % 2 == part).all()
        assert (reader.get_tensor(f"{shard}-freqs") >= 1).all()
        for name in (f"{shard}/Adam", f"{shard}/Adam_1"):
            np.testing.assert_array_equal(reader.get_tensor(f"{name}-keys"), keys)
        for name in (shard, f"{shard}/Adam", f"{shard}/Adam_1"):
            values = reader.get_tensor(f"{name}-values")
            assert values.shape == (len(keys), 4) and np.isfinite(values).all()
        # A row with a count was updated, so its second moment is above 0: no half of a step.
        assert (values > 0).all()
        total += len(keys)
    return total


class Evicting:
    """The graph and session of a task that trains a table with a timestamp and an EvictHook."""

    def __init__(self, cluster, task):
        with tf.Graph().as_default() as self.graph, cluster.device(task):
            self._keys, self._time = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [])
            table = rec.create_table(
                tf.int64, 4, "table", tf.ones_initializer(), device_vocabulary_size=100
            )
            tf.add_to_collection("ASCEND_TIMESTAMP", self._time)
            config = {"access_threshold": 1, "eviction_threshold": 5}
            rows = rec.sparse_lookup(
                table, self._keys, modify_graph=True, access_and_evict_config=config
            )
            self._train_op = minimize(tf.reduce_sum(rows))
            self._out = table.export()
            hook = rec.EvictHook(evict_enable=True, evict_step_interval=1)
            self.session = rec.MonitoredTrainingSession(
                cluster.targets[task],
                task == 0,
                hooks=[hook],
                config=tf.ConfigProto(operation_timeout_in_ms=60_000),
            )
        self.evicts = any(op.type.endswith("TableEvict") for op in self.graph.get_operations())

    def train(self, keys, time):
        self.session.run(self._train_op, {self._keys: keys, self._time: time})

    def rows(self):
        """{key: timestamp}"""
        return self.session.run_step_fn(
            lambda step_context: dict(
                zip(*(x.tolist() for x in step_context.session.run(self._out)[::2]))
            )
        )


@pytest.mark.long
def test_only_the_chief_of_three_tasks_evicts_by_the_greatest_timestamp_of_all():
    cluster = LocalCluster(2, workers=2)
    chief, first, second = (Evicting(cluster, task) for task in range(3))
    assert [task.evicts for task in (chief, first, second)] == [True, False, False]
    first.train([1, 2], 100)
    second.train([2, 3], 106)
    first.train([4], 103)  # Later, with an older timestamp.
    assert chief.rows() == {1: 100, 2: 106, 3: 106, 4: 103}  # No worker has evicted.
    chief.train([5], 101)
    # 106 is the greatest: 100 and 101 are at least 5 seconds older.
    assert chief.rows() == {2: 106, 3: 106, 4: 103}
    for task in (chief, first, second):
        task.session.close()


@pytest.mark.long
def test_the_evictions_of_a_save_run_once_on_all_ps(tmp_path):
    def loss_of(keys):
        rule = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=1))
        return square(rec.embedding_lookup(table_of(ev_option=rule), keys))

    (single, _), (on_ps, _) = (train(tmp_path, number, loss_of) for number in (0, 2))
    assert contents(on_ps) == contents(single)
    assert sorted(contents(on_ps)["table"]) == sorted(set(BATCHES[2]))


@pytest.mark.long
def test_the_row_limit_of_a_table_counts_the_rows_of_all_ps():
    cluster = LocalCluster(2, workers=1)
    steps, sizes = [], []
    for task in range(2):
        with tf.Graph().as_default() as graph, cluster.device(task):
            keys = tf.placeholder(tf.int64, [None])
            table = rec.create_table(
                tf.int64, 4, "table", tf.ones_initializer(), device_vocabulary_size=6
            )
            train_op = minimize(tf.reduce_sum(rec.sparse_lookup(table, keys, modify_graph=True)))
            initialize, size = tf.global_variables_initializer(), table.size()
        session = cluster.session(task, graph=graph)
        if not task:
            session.run(initialize)
        steps.append(lambda ids, run=session.run, op=train_op, keys=keys: run(op, {keys: ids}))
        sizes.append(lambda run=session.run, size=size: run(size))
    chief, worker = steps
    chief([0, 2, 4])  # All on one ps.
    worker([1, 3])
    with pytest.raises(tf.errors.ResourceExhaustedError, match="table .*at most 6 rows, got 7"):
        chief([5, 6])
    worker([6, 0])
    assert [size() for size in sizes] == [6, 6]


@pytest.mark.long
def test_a_table_that_is_not_saved_is_not_emptied_by_a_worker_that_joins():
    cluster = LocalCluster(2, workers=1)
    runs = []
    for task in range(2):
        with tf.Graph().as_default(), cluster.device(task):
            table = rec.create_table(
                tf.int64, 4, "table", NORMAL, device_vocabulary_size=9, is_save=False
            )
            keys = tf.constant([1, 2, 2], tf.int64)
            train_op = minimize(tf.reduce_sum(rec.sparse_lookup(table, keys, modify_graph=True)))
            counted = table.get_frequency([1, 2])
            session = rec.MonitoredTrainingSession(
                cluster.targets[task],
                task == 0,
                config=tf.ConfigProto(operation_timeout_in_ms=60_000),
            )
            session.run(train_op)
            runs.append((session, counted))
    session, counted = runs[1]
    assert session.run_step_fn(lambda step_context: step_context.session.run(counted)).tolist() == [
        2,
        4,
    ]
    for session, _ in runs:
        session.close()


@pytest.mark.long
def test_rows_are_written_erased_and_bounded_on_several_servers(tmp_path):
    vectors = str(tmp_path / "vectors.npy")
    np.save(vectors, np.ones([40, 4], np.float32))
    np.save(tmp_path / "vectors.keys.npy", np.arange(40))
    device, session_of = where(2)
    with tf.Graph().as_default(), device():
        step = tf.train.get_or_create_global_step()
        option = rec.EmbeddingVariableOption(
            pretrained=rec.PretrainedRows(vectors), capacity=rec.Capacity(40, "lru")
        )
        table = table_of(ev_option=option)
        keys = tf.placeholder(tf.int64, [None])
        train_op = minimize(square(rec.embedding_lookup(table, keys)))
        assign = table.assign(keys, 2 * tf.ones([tf.size(keys), 4]))
        repeated = table.assign([5, 6, 5], np.zeros([3, 4]))
        erase, export = table.erase(keys), table.export()
        with session_of() as session:
            session.run(tf.global_variables_initializer())
            assert sorted(session.run(export).keys) == list(range(40))
            session.run(assign, {keys: [7, 40]})
            with pytest.raises(tf.errors.InvalidArgumentError, match="got 5 twice"):
                session.run(repeated)
            rows = session.run(export)
            written = dict(zip(rows.keys.tolist(), rows.values.tolist()))
            assert written[7] == written[40] == [2] * 4 and written[5] == [1] * 4
            assert session.run(erase, {keys: [0, 1, 99]}) == 2
            session.run(train_op, {keys: np.arange(100, 120)})
            found = session.run(export).keys
            assert len(found) <= 40 and set(found) >= set(range(100, 120))
            assert session.run(step) == 1
