# SPDX-License-Identifier: Apache-2.0
"""Tables with a capacity: which rows they keep, against NumPy; deltas; what is refused."""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec
from rec_estimator.options import CAPACITY_POLICIES

POLICIES = pytest.mark.parametrize("policy", CAPACITY_POLICIES)
HALF_LIFE = 20


def capacity_of(max_rows, policy):
    return rec.Capacity(max_rows, policy, HALF_LIFE if policy == "lfu_decay" else None)


class Model:
    """A table of dim 1 that a session trains."""

    def __init__(self, capacity, shards=1, value_dtype=None, **option):
        self.step = tf.train.get_or_create_global_step()
        self.table = rec.get_embedding_variable(
            "t",
            1,
            value_dtype=value_dtype,
            ev_option=rec.EmbeddingVariableOption(capacity=capacity, **option),
            partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
        )
        self.keys = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(rec.embedding_lookup(self.table, self.keys))
        self.train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, self.step)
        self.owned = tf.not_equal(self.table.get_version(self.keys), -1)
        self.size, self.export = self.table.size(), self.table.export()

    def session(self):
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        return session


class Cache:
    """The rows that a policy keeps, decided one by one over all rows after each batch."""

    def __init__(self, max_rows, policy):
        self.max_rows, self.policy = max_rows, policy
        self.counts, self.versions = collections.Counter(), {}

    def coldness(self, key, step):
        count, version = self.counts[key], self.versions[key]
        if self.policy == "lru":
            return version, count
        if self.policy == "lfu_decay":
            return np.log2(count + 1) - (step - version) / HALF_LIFE, version
        return count, version

    def train(self, batch, step):
        """Returns how many occurrences had a row."""
        hits = sum(key in self.versions for key in batch)
        for key in batch:
            self.counts[key] += 1
            self.versions[key] = step
        excess = len(self.versions) - self.max_rows
        others = self.versions.keys() - set(batch)
        for key in sorted(others, key=lambda key: self.coldness(key, step))[: max(excess, 0)]:
            del self.versions[key], self.counts[key]
        return hits


def zipf(rng, steps, size, drift=0):
    for step in range(steps):
        yield (rng.zipf(1.2, size) % 50_000 + drift * step).tolist()


@POLICIES
@pytest.mark.parametrize("drift", [0, 5])
def test_hit_rate_is_within_2_percent_of_a_cache_that_looks_at_all_rows(policy, drift):
    max_rows, steps, size = 300, 60, 100
    model, cache = Model(capacity_of(max_rows, policy)), Cache(max_rows, policy)
    found = expected = 0
    with model.session() as session:
        for step, batch in enumerate(zipf(np.random.default_rng(7), steps, size, drift)):
            found += int(session.run(model.owned, {model.keys: batch}).sum())
            session.run(model.train, {model.keys: batch})
            expected += cache.train(batch, step)
            assert session.run(model.size) <= max_rows
    assert expected > 0.2 * steps * size
    assert abs(found - expected) < 0.02 * expected


@pytest.mark.each_value
@VALUE_DTYPES
@POLICIES
@pytest.mark.parametrize("shards", [1, 3])
def test_coldest_rows_go_and_those_of_the_step_stay(policy, shards, value_dtype):
    model = Model(capacity_of(30, policy), shards, value_dtype)
    old, hot, new = np.arange(100, 112), np.arange(12), np.arange(200, 212)
    with model.session() as session:
        session.run(model.train, {model.keys: old})
        for _ in range(3):
            session.run(model.train, {model.keys: hot})
        session.run(model.train, {model.keys: new})
        kept = set(session.run(model.export).keys.tolist())
        assert len(kept) <= 30 and kept >= {*hot, *new}


@POLICIES
@pytest.mark.parametrize("shards", [1, 3])
def test_a_restart_does_not_change_which_rows_a_full_table_keeps(policy, shards, tmp_path):
    def train(model, session, steps):
        for step in steps:
            keys = np.random.default_rng(step).integers(-2000, 2000, 300)
            session.run(model.train, {model.keys: keys})

    def rows(model, session):
        return [column.tolist() for column in session.run(model.export)]

    found = []
    for restart in (None, 11, 19):
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            model, saver = Model(capacity_of(600, policy), shards), rec.Saver()
            with model.session() as session:
                train(model, session, range(restart or 20))
                prefix = saver.save(session, str(tmp_path / "model.ckpt"))
                if restart is None:
                    found.append(rows(model, session))
                    continue
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            model, saver = Model(capacity_of(600, policy), shards), rec.Saver()
            with model.session() as session:
                saver.restore(session, prefix)
                train(model, session, range(restart, 20))
                found.append(rows(model, session))
    assert 500 < len(found[0][0]) <= 600
    assert found[1] == found[0] and found[2] == found[0]


@pytest.mark.parametrize("policy", ["lfu", "lru"])
def test_coldest_rows_go_whether_versions_are_steps_or_seconds(policy):
    time = tf.placeholder(tf.int64, [], name="time")
    model = Model(rec.Capacity(5, policy), evict_option=rec.TimeEvict(10**6, "time"))
    with model.session() as session:
        for step, keys in enumerate([[0, 1, 2] * 9, [3, 4], [5, 6], [0, 7]]):
            feed = {model.keys: keys, time: 1_700_000_000 + 500 * step}
            session.run(model.train, feed)
        kept = sorted(session.run(model.export).keys)
    if policy == "lfu":
        # One of the two youngest that occurred once, and the rows of the step.
        assert kept in ([0, 1, 2, 5, 7], [0, 1, 2, 6, 7])
    else:
        assert kept in ([0, 3, 5, 6, 7], [0, 4, 5, 6, 7])


def test_decay_by_steps_is_refused_with_versions_in_seconds():
    capacity, rule = rec.Capacity(5, "lfu_decay", 50), rec.TimeEvict(60)
    with pytest.raises(ValueError, match="capacity must not be Capacity.*50. with TimeEvict, with"):
        rec.EmbeddingVariableOption(capacity=capacity, evict_option=rule)
    for rule in (rec.TimeEvict(), rec.GlobalStepEvict(60), rec.L2WeightEvict(0.1)):
        rec.EmbeddingVariableOption(capacity=capacity, evict_option=rule)


@pytest.mark.parametrize("max_rows, shards", [(10, 8), (8, 8), (30, 7), (1000, 3)])
def test_shards_together_keep_max_rows(max_rows, shards):
    model = Model(rec.Capacity(max_rows), shards)
    parts = [shard.handle.op.get_attr("capacity_rows") for shard in model.table]
    assert sum(parts) == max_rows and max(parts) - min(parts) <= 1
    with model.session() as session:
        for begin in range(0, 3 * max_rows, 10):
            session.run(model.train, {model.keys: np.arange(begin, begin + 10)})
        for key in range(shards):  # A step keeps its rows.
            session.run(model.train, {model.keys: [key]})
        size = session.run(model.size)
        assert 0.9 * max_rows - shards <= size <= max_rows


def test_each_shard_needs_a_row():
    with pytest.raises(ValueError, match="max_rows must be >= 8, the number of shards of the t"):
        Model(rec.Capacity(7), shards=8)


def test_step_that_alone_exceeds_the_capacity_keeps_its_rows_until_the_next_one():
    model = Model(rec.Capacity(10))
    with model.session() as session:
        session.run(model.train, {model.keys: np.arange(50)})
        assert session.run(model.size) == 50
        session.run(model.train, {model.keys: [1, 2]})
        assert session.run(model.size) == 10


@VALUE_DTYPES
def test_a_key_that_comes_back_starts_afresh(value_dtype):
    model = Model(rec.Capacity(2), value_dtype=value_dtype)
    value = rec.embedding_lookup(model.table, [7])
    with model.session() as session:
        fresh = session.run(value)
        session.run(model.train, {model.keys: [7, 7]})
        first = session.run(value)
        for key in (1, 2, 3):
            session.run(model.train, {model.keys: [key] * 9})
        assert session.run(value) == fresh
        assert session.run(model.table.get_frequency([7])) == 0
        session.run(model.train, {model.keys: [7, 7]})
        assert session.run(value) == first


@VALUE_DTYPES
def test_delta_says_which_rows_went(tmp_path, value_dtype):
    model = Model(rec.Capacity(50), value_dtype=value_dtype)
    saver = rec.Saver(incremental=True)
    rng = np.random.default_rng(3)
    with model.session() as session:
        saver.save(session, str(tmp_path / "model.ckpt"), 0)
        for number in range(1, 4):
            for _ in range(5):
                session.run(model.train, {model.keys: rng.integers(0, 200, 20)})
            prefix = saver.save(session, str(tmp_path / "model.ckpt"), number)
        before = session.run(model.export)
        saver.restore(session, prefix)
        for field, array in before._asdict().items():
            assert getattr(session.run(model.export), field).tolist() == array.tolist(), field


@VALUE_DTYPES
def test_rows_go_to_disk_first_and_leave_it_when_the_table_is_full(tmp_path, value_dtype):
    storage = rec.StorageOption(
        rec.StorageType.DRAM_SSDHASH, storage_path=str(tmp_path), storage_size=[64 * 4 * 2]
    )
    model = Model(rec.Capacity(400, "lru"), value_dtype=value_dtype, storage_option=storage)
    counts = model.table.tier_counts()
    with model.session() as session:
        for begin in range(0, 2000, 50):
            session.run(model.train, {model.keys: np.arange(begin, begin + 50)})
        rows = session.run(counts)
        assert rows.memory_rows + rows.disk_rows == session.run(model.size) <= 400
        assert rows.disk_rows > 200
        newest = session.run(model.export).keys
        assert newest.min() >= 2000 - 400 - 100


def test_filter_admits_an_evicted_key_only_when_it_has_occurred_often_enough_again():
    model = Model(rec.Capacity(3), filter_option=rec.CounterFilter(2))
    with model.session() as session:
        session.run(model.train, {model.keys: [1, 1]})
        session.run(model.train, {model.keys: [2, 2, 2, 3, 3, 3, 4, 4, 4]})
        assert session.run(model.size) == 3
        session.run(model.train, {model.keys: [1]})
        assert sorted(session.run(model.export).keys) == [2, 3, 4]
        session.run(model.train, {model.keys: [1]})
        assert 1 in session.run(model.export).keys


def test_table_restored_too_large_shrinks_and_lookups_do_not(tmp_path):
    vectors = tmp_path / "vectors.npy"
    np.save(vectors, np.ones([5000, 1], np.float32))
    np.save(tmp_path / "vectors.keys.npy", np.arange(5000))
    model = Model(rec.Capacity(100), pretrained=rec.PretrainedRows(str(vectors)))
    with model.session() as session:
        sizes = [session.run(model.size)]
        while sizes[-1] > 100:
            session.run(model.train, {model.keys: [1]})
            sizes.append(session.run(model.size))
        assert sizes[0] == 5000 and len(sizes) <= 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0,), "max_rows must be an integer >= 1 or None, got 0"),
        ((5, "fifo"), "policy must be one of lfu, lru, lfu_decay, got 'fifo'"),
        ((5, "lfu_decay"), "half_life must be given with policy='lfu_decay'"),
        ((5, "lru", 3), "half_life must be given with policy='lfu_decay' and only there"),
        ((5, "lfu_decay", 0), "half_life must be an integer >= 1, got 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        rec.Capacity(*arguments)
