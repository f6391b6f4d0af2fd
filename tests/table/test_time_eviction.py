# SPDX-License-Identifier: Apache-2.0
"""TimeEvict: which keys are evicted, by a clock that jumps and by the timestamps of batches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fake_clock import DAY, NOW, FakeClock
from local_cluster import LocalCluster
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec
from rec_estimator import _ops


@pytest.fixture
def clock(monkeypatch):
    return FakeClock(monkeypatch)


def make_table(rule, shards=1, name="t", value_dtype=None, **arguments):
    option = rec.EmbeddingVariableOption(evict_option=rule, **arguments)
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    return rec.get_embedding_variable(
        name, 2, value_dtype=value_dtype, ev_option=option, partitioner=partitioner
    )


class Training:
    """A session that trains the keys of a step at a time of the clock or of the data."""

    def __init__(self, *tables, time, optimizer=None):
        self.keys, self.time = tf.placeholder(tf.int64, [None]), time
        loss = tf.add_n([tf.reduce_sum(rec.embedding_lookup(table, self.keys)) for table in tables])
        optimizer = optimizer or rec.optimizers.AdagradOptimizer(0.5)
        self.train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.session.close()

    def step(self, keys, now):
        self.session.run(self.train_op, {self.keys: keys, self.time: now})

    def run(self, fetches):
        return self.session.run(fetches)


class Oracle:
    """The meaning of TimeEvict: times of keys in a dict."""

    def __init__(self, seconds, tolerance):
        self.seconds, self.most, self.tolerance = seconds, max(seconds // 1000, 1), tolerance
        self.time, self.ahead, self.trained = 0, 0, {}

    def step(self, keys, reading):
        if abs(reading - self.time) < abs(reading + self.ahead - self.time):
            self.ahead = 0
        present = reading + self.ahead
        if self.time == 0:
            self.time = reading
        elif present > self.time:
            self.time += min(present - self.time, self.most)
        elif self.time - present > self.tolerance:
            self.ahead = self.time - reading
        self.trained.update(dict.fromkeys(keys, self.time))

    def evict(self):
        gone = {key for key, time in self.trained.items() if self.time - time > self.seconds}
        for key in gone:
            del self.trained[key]
        return len(gone)


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("is_event_time", [True, False])
def test_a_clock_that_jumps_at_random_evicts_what_the_oracle_evicts(is_event_time, shards, clock):
    rng = np.random.default_rng(0)
    rule = rec.TimeEvict(200, "event" if is_event_time else None)
    event = tf.placeholder(tf.int64, [], name="event")
    table = make_table(rule, shards)
    evict, rows = table.evict(), table.export()
    oracle = Oracle(200, 200 if is_event_time else 60)
    now, evicted = NOW, 0
    with Training(table, time=event if is_event_time else clock.now) as training:
        for step in range(600):
            now += int(rng.integers(0, 3))
            if step % 97 == 50:
                now += int(rng.choice([-5 * DAY, -90, -30, 3 * DAY, 40]))
            keys = [*rng.integers(0, 40, 2).tolist(), 1000 + step // 50]
            training.step(keys, now)
            oracle.step(keys, now)
            if step % 60 == 59:
                found = training.run(evict)
                evicted += found
                assert found == oracle.evict()
                assert sorted(training.run(rows).keys) == sorted(oracle.trained)
        assert evicted > 5
        keys = sorted(oracle.trained)
        versions = training.run(table.get_version(np.array(keys)))
        assert versions.tolist() == [oracle.trained[key] for key in keys]


@pytest.mark.long
def test_a_clock_that_jumps_ahead_or_a_long_pause_empties_no_table(clock):
    table = make_table(rec.TimeEvict(DAY))
    with Training(table, time=clock.now) as training:
        training.step([1, 2], NOW)
        for _ in range(1000):
            training.step([1], NOW + 365 * DAY)
        assert training.run(table.evict()) == 0
        for _ in range(10):
            training.step([1], NOW + 365 * DAY)
        assert training.run(table.evict()) == 1
        assert training.run(table.export()).keys.tolist() == [1]


@pytest.mark.long
def test_a_clock_that_was_set_back_goes_on_from_the_present_time(clock):
    table = make_table(rec.TimeEvict(1000))
    with Training(table, time=clock.now) as training:
        training.step([1], NOW)
        training.step([2], NOW - 100 * DAY)
        assert training.run(table.get_version([1, 2])).tolist() == [NOW, NOW]
        for second in range(1001):
            training.step([2], NOW - 100 * DAY + second + 1)
        assert training.run(table.get_version([2])).tolist() == [NOW + 1001]
        assert training.run(table.evict()) == 1


def test_the_median_of_a_batch_tells_its_time():
    times = tf.placeholder(tf.float64, [None], name="logged/at")
    table = make_table(rec.TimeEvict(1_000_000, "logged/at"))
    with Training(table, time=times) as training:
        for now, expected in (
            ([], -1),  # No time is known.
            ([0, 0, NOW], -1),  # Most have none.
            ([NOW, 1, NOW + 9e8], NOW),
            ([NOW + 8.0, NOW + 8.9, NOW + 9, 5e10], NOW + 8),
        ):
            training.step([7], now)
            assert training.run(table.get_version([7])).tolist() == [expected]
        message = r"timestamp must be seconds since 1970 in \[0, 100000000000\), got 1700000000000"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            training.step([7], [NOW * 1000.0])


def test_tables_of_a_rule_share_one_time_and_advance_it_once_a_step(clock):
    tables = [make_table(rec.TimeEvict(5000), name=name, shards=2) for name in "ab"]
    other = make_table(rec.TimeEvict(7000), name="c")
    with Training(*tables, other, time=clock.now) as training:
        training.step([1], NOW)
        training.step([1], NOW + DAY)
        versions = [table.get_version([1]) for table in (*tables, other)]
        assert np.concatenate(training.run(versions)).tolist() == [NOW + 5, NOW + 5, NOW + 7]
        types = [op.type for op in tf.get_default_graph().get_operations()]
        assert types.count("RecEstimator>AdvanceTime") == 2


@pytest.mark.parametrize("make_filter", [rec.CounterFilter, lambda n: rec.CBFFilter(n, 100, 0.01)])
def test_counts_of_filtered_keys_grow_old_as_well(make_filter, clock):
    table = make_table(rec.TimeEvict(10), filter_option=make_filter(3))
    frequency = table.get_frequency([1, 2])
    with Training(table, time=clock.now) as training:
        training.step([1, 2], NOW)
        for second in range(1, 40):
            training.step([2], NOW + second)
            if second % 4 == 0:
                training.run(table.evict())
        assert training.run(frequency).tolist() == [0, 40]


@pytest.mark.each_value
@pytest.mark.long
@VALUE_DTYPES
@pytest.mark.parametrize("make_saver", [rec.Saver, tf.train.Saver])
def test_a_save_evicts_and_a_restored_training_goes_on_at_its_time(
    make_saver, value_dtype, clock, tmp_path
):
    def training(shards):
        table = make_table(rec.TimeEvict(1000), shards, value_dtype=value_dtype)
        return table, make_saver(), Training(table, time=clock.now)

    with tf.Graph().as_default():
        _, saver, first = training(2)
        with first:
            first.step([1, 2], NOW)
            for second in range(1, 1002):
                first.step([2, 3], NOW + second)
            path = saver.save(first.session, str(tmp_path / "model.ckpt"))
    reader = tf.train.load_checkpoint(path)
    assert reader.get_tensor("rec_estimator_time/clock_1000") == NOW + 1001
    assert reader.get_tensor("t/part_0-version_unit") == b"second"
    with tf.Graph().as_default():
        table, saver, second = training(3)
        with second:
            saver.restore(second.session, path)
            assert sorted(second.run(table.export()).keys) == [2, 3]
            second.step([3], NOW + 100 * DAY)  # A pause: one second passes.
            assert second.run(table.get_version([2, 3])).tolist() == [NOW + 1001, NOW + 1002]


def test_nothing_is_evicted_before_the_first_step_of_a_warm_start(clock, tmp_path):
    with tf.Graph().as_default():
        with Training(make_table(rec.TimeEvict(1000)), time=clock.now) as training:
            training.step([1], NOW)
            path = rec.Saver().save(training.session, str(tmp_path / "model.ckpt"))
    table = make_table(rec.TimeEvict(5))
    rec.init_from_checkpoint(path, {"t": "t"})
    with Training(table, time=clock.now) as training:
        assert training.run(table.evict()) == 0
        assert training.run(table.get_version([1])).tolist() == [NOW]
        training.step([2], NOW + 3)
        assert training.run(table.evict()) == 0
        for second in range(4, 8):
            training.step([2], NOW + second)
        assert training.run(table.evict()) == 1


@VALUE_DTYPES
def test_an_evicted_key_is_deleted_by_the_next_delta(clock, tmp_path, value_dtype):
    table = make_table(rec.TimeEvict(2), value_dtype=value_dtype)
    saver = rec.Saver(incremental=True)
    with Training(table, time=clock.now) as training:
        training.step([1, 2], NOW)
        saver.save(training.session, str(tmp_path / "model.ckpt"), global_step=1)
        for second in range(1, 5):
            training.step([2], NOW + second)
        training.run(table.evict())
        delta = saver.save(training.session, str(tmp_path / "model.ckpt"), global_step=2)
    reader = tf.train.load_checkpoint(delta)
    assert reader.get_tensor("t-keys_erased").tolist() == [1]
    assert reader.get_tensor("rec_estimator_time/clock_2") == NOW + 4


def test_rows_that_are_written_count_as_trained_now(clock):
    table = make_table(rec.TimeEvict(1000))
    write = [table.assign([key], [[1.0, 2.0]]) for key in (5, 6)]
    with Training(table, time=clock.now) as training:
        training.run(write[0])  # Before the time is known.
        training.step([1], NOW)
        training.run(write[1])
        assert training.run(table.get_version([5, 6])).tolist() == [-1, NOW]


@VALUE_DTYPES
def test_rows_on_disk_are_evicted_as_well(clock, tmp_path, value_dtype):
    storage = rec.StorageOption(rec.StorageType.SSDHASH, str(tmp_path / "rows"))
    table = make_table(rec.TimeEvict(3), value_dtype=value_dtype, storage_option=storage)
    with Training(table, time=clock.now) as training:
        training.step(np.arange(100), NOW)
        for second in range(1, 6):
            training.step(np.arange(50), NOW + second)
        assert training.run(table.evict()) == 50
        assert sorted(training.run(table.export()).keys) == list(range(50))


@pytest.mark.long
def test_the_tasks_of_a_cluster_share_the_time():
    cluster = LocalCluster(2, workers=1)

    class Task:
        def __init__(self, task):
            with tf.Graph().as_default() as graph, cluster.device(task):
                self.keys = tf.placeholder(tf.int64, [None])
                self.time = tf.placeholder(tf.int64, [None], name="time")
                table = make_table(rec.TimeEvict(2000, "time"))
                loss = tf.reduce_sum(rec.embedding_lookup(table, self.keys))
                optimizer = rec.optimizers.AdagradOptimizer(0.1)
                self.train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
                self.evict, self.rows = table.evict(), table.export()
                self.initialize = tf.global_variables_initializer()
            assert len(table.shards) == 2
            self.session = cluster.session(task, graph=graph)

        def step(self, key, now):
            self.session.run(self.train_op, {self.keys: [key], self.time: [now]})

    chief, worker = Task(0), Task(1)
    chief.session.run(chief.initialize)
    chief.step(1, NOW)
    worker.step(2, NOW + DAY)  # Ahead: two seconds pass.
    chief.step(3, NOW + 1)  # Behind the worker.
    for _ in range(1000):
        worker.step(4, NOW + DAY)
    assert chief.session.run(chief.evict) == 1
    rows = chief.session.run(chief.rows)
    versions = dict(zip(rows.keys.tolist(), rows.versions.tolist()))
    assert versions == {2: NOW + 2, 3: NOW + 2, 4: NOW + 2002}


def model_fn(features, labels, mode):
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["item"], axis=1) - labels))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return rec.EstimatorSpec(mode, predictions={"loss": loss}, loss=loss, train_op=train_op)


@pytest.mark.long
@pytest.mark.parametrize("steps_per_loop", [1, 2])
def test_rec_estimator_evicts_by_an_entry_of_the_batch(
    steps_per_loop, tmp_path, resource_variables
):
    feature = rec.EmbeddingFeature("item", dim=2, evict_option=rec.TimeEvict(4, "time"))
    config = rec.RunConfig(iterations_per_loop=steps_per_loop)
    estimator = rec.RecEstimator(
        model_fn, str(tmp_path / "model"), config, embedding_features=[feature]
    )
    columns = {"item": np.array([1, 2, 3, 3, 3, 3, 3, 3]), "time": NOW + np.arange(8)}
    input_fn = rec.inputs.numpy_input_fn(columns, np.ones(8, np.float32), batch_size=1)
    hook = rec.EvictHook(evict_enable=True, evict_step_interval=6)
    estimator.train(input_fn, hooks=[hook])
    assert estimator.get_variable_value("item-keys").tolist() == [3]
    assert np.isfinite(estimator.evaluate(input_fn)["loss"])
    message = "the batch must have an entry 'time', by which table 'item' evicts, got .'item'."
    with pytest.raises(ValueError, match=message):
        items = {"item": columns["item"]}
        estimator.train(rec.inputs.numpy_input_fn(items, np.ones(8, np.float32)))


def test_a_timestamp_that_is_no_number_is_refused():
    text = tf.placeholder(tf.string, [None], name="text")
    table = make_table(rec.TimeEvict(4, "text"))
    with pytest.raises(ValueError, match="timestamp 'text' must be a dense tensor of numbers"):
        Training(table, time=text)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_a_timestamp_that_is_not_finite_counts_as_a_wrong_one(bad, dtype):
    time = tf.placeholder(dtype, [None], name="time")
    table = make_table(rec.TimeEvict(1000, "time"))
    versions = table.export().versions
    with Training(table, time=time) as training:
        training.step([1], [NOW, bad, NOW, NOW, bad])
        assert abs(training.run(versions) - NOW) <= 128, "float32 has every 128th second"
        for times in ([bad], [NOW, bad, bad]):
            message = "timestamp 'time' must be finite in more than half of a batch, got NaN"
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                training.step([1], times)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"in \[0, 1.*\), got 46116860"):
            training.step([1], [1e30])
        assert abs(training.run(versions) - NOW) <= 128


def test_decay_by_steps_is_refused_with_versions_in_seconds(clock):
    table = make_table(rec.TimeEvict(4), regularizer=rec.LazyDecay(0.1))
    with pytest.raises(ValueError, match="must not be .* with an eviction_threshold or TimeEvict"):
        Training(table, time=clock.now)


@pytest.mark.parametrize("value", [-1, 10**11])
def test_a_reading_that_is_no_time_is_an_error_and_changes_nothing(value):
    time = tf.Variable(NOW, dtype=tf.int64, use_resource=True)
    advance = _ops.gen.rec_estimator_advance_time(
        time.handle, tf.constant(value, tf.int64), most_seconds=1, tolerance=0
    )
    with tf.Session() as session:
        session.run(time.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="timestamp must be seconds"):
            session.run(advance)
        assert session.run(time) == NOW
