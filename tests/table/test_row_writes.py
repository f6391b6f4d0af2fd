# SPDX-License-Identifier: Apache-2.0
"""Rows that are assigned and erased: values, counts, slots, versions, deltas; what is refused."""

import zlib

import numpy as np
import oracle
import pytest
import tensorflow.compat.v1 as tf
from filter_rules import LARGE
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec

DIM = 2
BANK = np.arange(8, dtype=np.float32).reshape(4, DIM)
HYPER = [0.5]
SHARDS = pytest.mark.parametrize("shards", [1, 3])


class Model:
    """A table with what a session does to it, in its graph."""

    def __init__(self, shards=1, name="t", value_dtype=None, **option):
        init = rec.InitializerOption(tf.constant_initializer(BANK), len(BANK))
        self.table = rec.get_embedding_variable(
            name,
            DIM,
            value_dtype=value_dtype,
            ev_option=rec.EmbeddingVariableOption(init_option=init, **option),
            partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
        )
        self.step = tf.train.get_or_create_global_step()
        self.keys = tf.placeholder(tf.int64, [None])
        self.rows = tf.placeholder(tf.float32, [None, DIM])
        self.counts = tf.placeholder(tf.int64, [None])
        self.assign = self.table.assign(self.keys, self.rows)
        self.assign_counts = self.table.assign(self.keys, self.rows, self.counts)
        self.erase = self.table.erase(self.keys)
        self.values = rec.embedding_lookup(self.table, self.keys)
        self.train = rec.optimizers.AdagradOptimizer(*HYPER).minimize(
            tf.reduce_sum(self.values), self.step
        )
        self.export = self.table.export()

    def initialized_session(self):
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        return session


def rows_of(session, model):
    """{key: (value, count, version)} of all rows."""
    found = session.run(model.export)
    return {
        key: (tuple(value), freq, version)
        for key, value, freq, version in zip(
            found.keys.tolist(), found.values.tolist(), found.freqs.tolist(), found.versions
        )
    }


@VALUE_DTYPES
@SHARDS
def test_assigned_rows_are_read_and_have_the_global_step(shards, value_dtype):
    model = Model(shards, value_dtype=value_dtype)
    with model.initialized_session() as session:
        session.run(model.train, {model.keys: [1, 1, -5]})
        session.run(model.assign, {model.keys: [1, 7], model.rows: [[3, 4], [5, 6]]})
        found = rows_of(session, model)
        assert found[1] == ((3, 4), 2, 1) and found[7] == ((5, 6), 0, 1)
        assert session.run(model.values, {model.keys: [7, 1]}).tolist() == [[5, 6], [3, 4]]


@SHARDS
def test_slots_of_assigned_rows_start_fresh(shards):
    model = Model(shards)
    with model.initialized_session() as session:
        for _ in range(3):
            session.run(model.train, {model.keys: [1]})
        session.run(model.assign, {model.keys: [1, 2], model.rows: [[0, 0], [0, 0]]})
        session.run(model.train, {model.keys: [1, 2]})
        first, second = session.run(model.values, {model.keys: [1, 2]})
        assert first.tolist() == second.tolist() and first[0] != 0


@SHARDS
@pytest.mark.parametrize(
    "filter_option", [rec.CounterFilter(3), rec.CBFFilter(3, **LARGE)], ids=["counter", "bloom"]
)
def test_filter_admits_assigned_keys_and_counts_erased_ones_from_0(filter_option, shards):
    model = Model(shards, filter_option=filter_option)
    frequency = model.table.get_frequency([1, 2, 3])
    with model.initialized_session() as session:
        session.run(model.train, {model.keys: [1, 1, 1, 1, 2]})
        session.run(model.assign, {model.keys: [1, 2, 3], model.rows: np.ones([3, DIM])})
        assert session.run(frequency).tolist() == [4, 3, 3]
        counts = {model.keys: [2], model.rows: [[1, 1]], model.counts: [9]}
        session.run(model.assign_counts, counts)
        assert session.run(frequency).tolist() == [4, 9, 3]
        assert session.run(model.erase, {model.keys: [1, 2, 2, 8]}) == 2
        assert session.run(frequency).tolist() == [0, 0, 3]
        session.run(model.train, {model.keys: [1, 1]})
        assert session.run(model.values, {model.keys: [1]}).tolist() == [[0, 0]]
        session.run(model.train, {model.keys: [1]})
        assert session.run(model.table.size()) == 2


BAD_ROWS = {
    "got 5 twice": ([5, 6, 5], np.zeros([3, DIM]), [1, 2, 3]),
    "got nan in row 1 of key 6": ([5, 6], [[0, 1], [2, np.nan]], [1, 2]),
    "got inf in row 0 of key 5": ([5, 6], [[np.inf, 1], [2, 3]], [1, 2]),
    "must be >= 0, got -1": ([5, 6], np.zeros([2, DIM]), [1, -1]),
    "one for each of the 2 keys, got 1": ([5, 6], np.zeros([2, DIM]), [1]),
    r"\[n, dim\] = \[2,2\], got shape \[1,2\]": ([5, 6], np.zeros([1, DIM]), [1, 2]),
}


@SHARDS
@pytest.mark.parametrize("message", BAD_ROWS)
def test_refused_rows_change_nothing(message, shards):
    keys, rows, counts = BAD_ROWS[message]
    model = Model(shards)
    with model.initialized_session() as session:
        session.run(model.train, {model.keys: [5]})
        before = rows_of(session, model)
        feed = {model.keys: keys, model.rows: rows, model.counts: counts}
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(model.assign_counts, feed)
        assert rows_of(session, model) == before


# By type: numbers that it lacks, with the largest ones that become finite.
LOST = {
    tf.float16: ([65_520.0, -1e6], [65_519.9, -65_504.0]),
    tf.bfloat16: ([np.finfo(np.float32).max, -3.3962e38], [3.396e38, -3.3895e38]),
}


@SHARDS
@pytest.mark.parametrize("dtype", LOST, ids=lambda dtype: dtype.name)
def test_numbers_that_the_type_of_the_table_lacks_change_nothing(dtype, shards):
    lost, kept = LOST[dtype]
    model = Model(shards, value_dtype=dtype)
    with model.initialized_session() as session:
        session.run(model.train, {model.keys: [5]})
        before = rows_of(session, model)
        for number in lost:
            message = f"t must be finite in {dtype.name}, got .* row 1 of key 6; choose float32"
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(model.assign, {model.keys: [5, 6], model.rows: [[0, 1], [2, number]]})
            assert rows_of(session, model) == before
        session.run(model.assign, {model.keys: [5, 6], model.rows: [kept, kept]})
        for value, *_ in rows_of(session, model).values():
            assert np.isfinite(value).all()


def test_static_shapes_that_do_not_fit_are_refused_when_the_op_is_built():
    table = rec.get_embedding_variable("t", DIM)
    keys = tf.constant([1, 2], tf.int64)
    with pytest.raises(ValueError, match=r"rows of table 't' must be of shape \[.*2.*, 2\], got"):
        table.assign(keys, tf.zeros([2, 3]))
    with pytest.raises(ValueError, match="keys of table 't' must be of shape"):
        table.assign(tf.constant([[1]], tf.int64), tf.zeros([1, 2]))
    with pytest.raises(TypeError, match="keys must be int64 or int32"):
        table.erase(["a"])


def test_row_limit_and_padding_of_create_table_hold_for_assigned_rows():
    table = rec.create_table(tf.int64, DIM, "t", tf.zeros_initializer(), device_vocabulary_size=3)
    keys, rows = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, DIM])
    assign, erase = table.assign(keys, rows), table.erase(keys)
    rec.sparse_lookup(table, keys, send_count=4, is_train=False, modify_graph=True)
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="rows are assigned"):
            session.run(assign, {keys: [1], rows: [[1, 1]]})
        session.run(tf.global_variables_initializer())
        session.run(assign, {keys: [1, 2], rows: np.ones([2, DIM])})
        with pytest.raises(tf.errors.InvalidArgumentError, match="must not be padding, got -1"):
            session.run(assign, {keys: [-1], rows: [[1, 1]]})
        with pytest.raises(tf.errors.ResourceExhaustedError, match="after the write"):
            session.run(assign, {keys: [1, 3, 4], rows: np.ones([3, DIM])})
        assert session.run(table.size()) == 2
        assert session.run(erase, {keys: [2]}) == 1
        session.run(assign, {keys: [1, 3, 4], rows: np.ones([3, DIM])})
        assert session.run(table.size()) == 3


def test_lookup_of_many_keys_reads_the_table_before_or_after_an_assignment():
    model = Model()
    n = 20_000
    keys, ones = np.arange(n), np.ones([n, DIM], np.float32)
    with model.initialized_session() as session:
        session.run(model.assign, {model.keys: keys, model.rows: ones})
        constant = tf.constant(keys)
        reads = [rec.embedding_lookup(model.table, constant) for _ in range(4)]
        for round_ in range(2, 6):
            feed = {model.keys: keys, model.rows: round_ * ones}
            *found, _ = session.run([*reads, model.assign], feed)
            assert all(len(np.unique(each)) == 1 for each in found)


@pytest.mark.long
@VALUE_DTYPES
@pytest.mark.parametrize("shards", [1, 2])
def test_random_writes_steps_evictions_and_checkpoints_equal_the_oracle(
    shards, value_dtype, tmp_path
):
    rng = np.random.default_rng(shards)
    model = Model(
        shards,
        value_dtype=value_dtype,
        filter_option=rec.CounterFilter(2),
        evict_option=rec.GlobalStepEvict(6),
    )
    dtypes = oracle.RowTypes(value_dtype.as_numpy_dtype, seed=zlib.crc32(b"t"))
    expected = oracle.TableOracle(BANK, threshold=2, dtypes=dtypes)
    evict, saver = model.table.evict(), rec.Saver(incremental=True, max_to_keep=0)
    step, prefix = 0, None
    with model.initialized_session() as session:
        for turn in range(36):
            keys = rng.integers(-20, 20, 8)
            distinct = np.unique(keys)
            action = rng.choice(["assign", "assign", "erase", "train", "train", "evict", "save"])
            if action == "assign":
                rows = rng.normal(size=[len(distinct), DIM]).astype(np.float32)
                feed = {model.keys: distinct, model.rows: rows}
                counts = rng.integers(0, 9, len(distinct)) if turn % 2 else None
                if counts is None:
                    session.run(model.assign, feed)
                else:
                    session.run(model.assign_counts, {**feed, model.counts: counts})
                expected.assign(distinct, rows, counts, version=step)
            elif action == "erase":
                assert session.run(model.erase, {model.keys: keys}) == expected.erase(keys)
            elif action == "train":
                session.run(model.train, {model.keys: keys})
                grads = np.ones([len(keys), DIM], np.float32)
                expected.apply("Adagrad", HYPER, keys, grads, version=step)
                step += 1
            elif action == "evict":
                session.run(evict)
                expected.evict_older(6, step)
            else:
                # A full save evicts first; a delta does not.
                if prefix is None:
                    expected.evict_older(6, step)
                prefix = saver.save(session, str(tmp_path / "model.ckpt"), turn)
                session.run(tf.global_variables_initializer())
                saver.restore(session, prefix)
            found = rows_of(session, model)
            assert found.keys() == expected.rows.keys()
            for key, row in expected.rows.items():
                assert found[key] == (tuple(row.value.tolist()), row.freq, row.version), key


@VALUE_DTYPES
def test_disk_tier_takes_assigned_rows_and_gives_erased_ones_back(tmp_path, value_dtype):
    storage = rec.StorageOption(
        rec.StorageType.DRAM_SSDHASH, storage_path=str(tmp_path), storage_size=[64 * 4 * 2 * DIM]
    )
    model = Model(value_dtype=value_dtype, storage_option=storage)
    n = 1000
    keys = np.arange(n)
    counts = model.table.tier_counts()
    with model.initialized_session() as session:
        for round_ in range(2):
            rows = rng_rows(round_, n)
            session.run(model.assign, {model.keys: keys, model.rows: rows})
            expected = rows.astype(value_dtype.as_numpy_dtype).astype(np.float32)
            np.testing.assert_array_equal(session.run(model.values, {model.keys: keys}), expected)
        assert session.run(counts).disk_rows > n // 2
        assert session.run(model.erase, {model.keys: keys[::2]}) == n // 2
        assert sorted(rows_of(session, model)) == keys[1::2].tolist()


def rng_rows(seed, n):
    return np.random.default_rng(seed).normal(size=[n, DIM]).astype(np.float32)
