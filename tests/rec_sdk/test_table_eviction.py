# SPDX-License-Identifier: Apache-2.0
"""Evictions of create_table tables: by a rule, and by timestamps of the data that jump."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fake_clock import DAY, NOW, FakeClock

import rec_estimator as rec
from rec_estimator.rec_sdk.data_time import table_timestamp


@pytest.fixture
def clock(monkeypatch):
    return FakeClock(monkeypatch)


def make_table(rule=None, name="t", shards=1):
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    with tf.variable_scope("", partitioner=partitioner):
        return rec.create_table(tf.int64, 2, name, tf.ones_initializer(), 1000, evict_option=rule)


class Training:
    """A session that trains the keys of a step at a time of the clock or of the data."""

    def __init__(self, *tables, time=None, thresholds=(None,), hooks=()):
        self.time = tf.placeholder(tf.int64, []) if time is None else time
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, self.time)
        self.keys = tf.placeholder(tf.int64, [None])
        loss = 0.0
        for table, seconds in zip(tables, thresholds):
            config = {"access_threshold": 0, "eviction_threshold": seconds}
            loss += tf.reduce_sum(
                rec.sparse_lookup(
                    table, self.keys, modify_graph=True, access_and_evict_config=config
                )
            )
        optimizer = rec.optimizers.AdagradOptimizer(0.5)
        self.train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
        self.session = tf.train.MonitoredSession(hooks=hooks) if hooks else tf.Session()
        if not hooks:
            self.session.run(tf.global_variables_initializer())

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.session.close()

    def step(self, keys, now):
        self.session.run(self.train_op, {self.keys: keys, self.time: now})

    def run(self, fetches):
        return self.session.run(fetches)


# ------------------------------------------------------------------ evict_option


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("timestamp", [None, "event"])
def test_a_save_evicts_by_the_clock_or_by_the_data(timestamp, shards, clock, tmp_path):
    time = clock.now if timestamp is None else tf.placeholder(tf.int64, [], name=timestamp)
    table = make_table(rec.TimeEvict(10, timestamp), shards=shards)
    saver = rec.Saver()
    with Training(table, time=time) as training:
        for second in range(20):
            training.step([1, second], NOW + second)
        assert training.run(table.get_version([1, 0])).tolist() == [NOW + 19, NOW]
        path = saver.save(training.session, str(tmp_path / "model.ckpt"))
        assert sorted(training.run(table.export()).keys) == [1, *range(9, 20)]
    reader = tf.train.load_checkpoint(path)
    part = "t/part_0" if shards > 1 else "t"
    assert reader.get_tensor(f"{part}-version_unit") == b"second"
    assert reader.get_tensor(f"rec_estimator_time/{timestamp or 'clock'}_10") == NOW + 19


def test_a_hook_evicts_every_few_steps(clock):
    table = make_table(rec.TimeEvict(5))
    rows, time = table.size(), clock.now
    hook = rec.EvictHook(evict_enable=True, evict_step_interval=4)
    with Training(table, time=time, hooks=[hook]) as training:
        sizes = []
        for second in range(12):
            training.step([second], NOW + second)
            read = training.session.run_step_fn(lambda step_context: step_context.session.run(rows))
            sizes.append(int(read))
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 6]


def test_a_clock_that_jumps_empties_no_table_with_time_evict(clock):
    table = make_table(rec.TimeEvict(3600))
    with Training(table, time=clock.now) as training:
        for second in range(50):
            training.step([second], NOW + second)
        training.step([1], NOW + 10 * DAY)
        assert training.run(table.evict()) == 0
        training.step([1], NOW - 10 * DAY)
        training.step([1], NOW + 51)
        assert training.run(table.evict()) == 0
        assert training.run(table.size()) == 50


@pytest.mark.parametrize("rule", [rec.GlobalStepEvict(1), rec.L2WeightEvict(0.1)])
def test_the_other_rules_evict_at_a_save_as_well(rule, tmp_path):
    table = make_table(rule)
    with Training(table) as training:
        for _ in range(3):
            training.step([1], NOW)
        training.step([2], NOW)
        rec.Saver().save(training.session, str(tmp_path / "model.ckpt"))
        # Key 1 was not trained in the last step, and three steps brought its ones near 0.
        assert training.run(table.export()).keys.tolist() == [2]


def test_a_table_has_one_rule():
    table = make_table(rec.TimeEvict(60))
    message = "eviction_threshold of table 't' must be None with evict_option, got 5 with TimeEvict"
    with pytest.raises(ValueError, match=message):
        Training(table, thresholds=[5])
    with pytest.raises(TypeError, match="evict_option must be of type GlobalStepEvict or TimeE"):
        make_table(60, "other")
    with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
        make_table(rec.TimeEvict(61))
    assert make_table(rec.TimeEvict(60)) is table


def test_a_restored_table_goes_on_at_its_time(clock, tmp_path):
    def training():
        table = make_table(rec.TimeEvict(1000))
        return table, rec.Saver(), Training(table, time=clock.now)

    with tf.Graph().as_default():
        _, saver, first = training()
        with first:
            first.step([1], NOW)
            path = saver.save(first.session, str(tmp_path / "model.ckpt"))
    table, saver, second = training()
    with second:
        saver.restore(second.session, path)
        second.run(table.assign([5], [[1.0, 2.0]]))
        second.step([3], NOW + 100 * DAY)  # A pause: one second passes.
        assert second.run(table.get_version([1, 3, 5])).tolist() == [NOW, NOW + 1, NOW]


# ------------------------------------------------------------------ eviction_threshold


def test_a_wrong_timestamp_takes_no_rows_away():
    table = make_table()
    with Training(table, thresholds=[3600]) as training:
        evict, rows = table.evict(), table.size()
        for second in range(100):
            training.step([second % 50, 1], NOW + second)
        for wrong in (NOW + 10 * DAY, 1, NOW - 10 * DAY):
            training.step([1], wrong)
            assert (training.run(evict), training.run(rows)) == (0, 50)
            for second in range(100, 150):
                training.step([second - 100], NOW + second)
            assert (training.run(evict), training.run(rows)) == (0, 50)
        # It has cost a minute at most.
        assert training.run(table_timestamp()) == NOW + 99 + 60
        versions = training.run(table.get_version(np.arange(50)))
        assert versions.tolist() == list(range(NOW + 100, NOW + 150))


def test_a_first_timestamp_that_is_wrong_takes_no_rows_away():
    table = make_table()
    with Training(table, thresholds=[3600]) as training:
        evict = table.evict()
        training.step([0], NOW + 10 * DAY)
        for second in range(100):
            training.step([second], NOW + second)
            assert training.run(evict) == 0
        assert training.run(table_timestamp()) == NOW + 10 * DAY + 99


def test_data_that_goes_on_after_a_gap_ages_rows_step_by_step():
    table = make_table()
    with Training(table, thresholds=[DAY]) as training:
        training.step([1, 2], NOW)
        for step in range(1000):
            training.step([1], NOW + 30 * DAY + step)
        assert training.run(table.evict()) == 0
        for step in range(1000, 1010):
            training.step([1], NOW + 30 * DAY + step)
        assert training.run(table.evict()) == 1
        assert training.run(table.export()).keys.tolist() == [1]


def test_tables_share_the_time_of_the_data_and_advance_it_once_a_step():
    tables = [make_table(name=name) for name in "abc"]
    with Training(*tables, thresholds=[DAY, 100_000, 10 * DAY]) as training:
        training.step([1], NOW)
        training.step([1], NOW + 5 * DAY)
        # By a thousandth of the shortest threshold.
        assert training.run(table_timestamp()) == NOW + 86
        versions = [table.get_version([1]) for table in tables]
        assert np.concatenate(training.run(versions)).tolist() == [NOW + 86] * 3
        types = [op.type for op in tf.get_default_graph().get_operations()]
        assert types.count("RecEstimator>AdvanceTime") == 1
