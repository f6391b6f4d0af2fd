# SPDX-License-Identifier: Apache-2.0
"""create_table with an SSD tier: the numbers of a table in memory, the limit, the folders."""

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from storage_runs import DIM, STEPS, batches

import rec_estimator as rec

THRESHOLDS = dict(access_and_evict_config=dict(access_threshold=2))


@pytest.fixture
def expansion():
    rec.init(use_dynamic_expansion=True)
    yield
    rec.terminate_config_initializer()


def table_of(storage, rows=10**5, name="t", more_paths=()):
    """A table in memory, or one that keeps 128 rows there, as storage says."""
    path = storage.storage_path
    return rec.create_table(
        *(tf.int64, DIM, name, tf.random_normal_initializer(seed=4)),
        device_vocabulary_size=64 if path else rows - 64,
        host_vocabulary_size=64,
        ssd_vocabulary_size=rows - 128 if path else 0,
        ssd_data_path=[path, *more_paths] if path else ["."],
    )


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("lookup", [{}, THRESHOLDS], ids=["all keys", "threshold"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_table_with_an_ssd_tier_gives_the_same_bytes(lookup, shards, tmp_path):
    def scenario(storage, folder):
        partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
        with tf.variable_scope("", partitioner=partitioner):
            table = table_of(storage)
        ids = tf.placeholder(tf.int64, [None])
        values = rec.sparse_lookup(table, ids, is_train=True, modify_graph=True, **lookup)
        loss = tf.reduce_sum(tf.square(values - 1))
        optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(learning_rate=0.01)
        step = tf.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        counts, saver = table.tier_counts(), rec.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses = [
                session.run([loss, train], {ids: np.append(keys, -1)})[0]
                for keys, _ in batches(STEPS)
            ]
            saver.save(session, str(folder / "model"))
            files = storage_runs.files_of(folder)
            return losses, files, rec.TierCounts(*map(int, session.run(counts)))

    storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario)


@pytest.mark.long
def test_the_second_path_takes_over_when_the_first_is_full(tmp_path):
    second = tmp_path / "second"
    most = 4 * 2**20

    def scenario(storage, folder):
        table = table_of(storage, more_paths=[str(second)])
        ids = tf.placeholder(tf.int64, [None])
        values = rec.sparse_lookup(table, ids, is_train=True, modify_graph=True)
        loss = tf.reduce_sum(tf.square(values - 1))
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        counts, export = table.tier_counts(), table.export()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with storage_runs.largest_file(most):
                losses = [session.run([loss, train], {ids: keys})[0] for keys, _ in batches(STEPS)]
            if storage.storage_path:
                (first,) = (tmp_path / "rows").iterdir()
                (other,) = second.iterdir()
                # No other segment, of 1 MiB, fits into the first.
                assert most - 2**20 < first.stat().st_size <= most
                assert 2**20 < other.stat().st_size <= most
            tiers = rec.TierCounts(*map(int, session.run(counts)))
            return losses, list(session.run(export)), tiers

    storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario)


def test_the_row_limit_counts_the_rows_on_ssd(tmp_path):
    storage = storage_runs.on_disk(tmp_path)
    table = table_of(storage, rows=300)
    assert table.max_rows == 300 and table.slice_ssd_vocabulary_size == 172
    ids = tf.placeholder(tf.int64, [None])
    values = rec.sparse_lookup(table, ids, modify_graph=True)
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(values))
    counts, capacity = table.tier_counts(), table.capacity()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {ids: np.arange(300)})
        message = "at most 300 rows, got 301 with .*ssd_vocabulary_size of create_table larger"
        with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
            session.run(train, {ids: [300]})
        tiers = rec.TierCounts(*session.run(counts))
        assert tiers.memory_rows + tiers.disk_rows == session.run(capacity) == 300
        assert tiers.memory_rows <= 128


def test_folders_are_filled_in_their_order_and_are_part_of_the_settings(tmp_path):
    paths = [str(tmp_path / name) for name in ("first", "second")]
    arguments = dict(host_vocabulary_size=1, ssd_vocabulary_size=9)

    def make(paths):
        initializer = tf.zeros_initializer()
        return rec.create_table(tf.int64, DIM, "t", initializer, ssd_data_path=paths, **arguments)

    table = make(paths)
    assert make(list(paths)) is table
    assert table.disk_storage.paths == tuple(paths)
    assert table.shards[0].op.get_attr("memory_rows") == 2
    with pytest.raises(ValueError, match="got ssd_data_path = .*second.* after"):
        make(paths[::-1])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for path in paths:
            assert len(tf.io.gfile.listdir(path)) == 1


def test_dynamic_expansion_keeps_all_rows_in_memory(expansion, tmp_path):
    table = rec.create_table(
        *(tf.int64, DIM, "t", tf.zeros_initializer()),
        host_vocabulary_size=1,
        ssd_vocabulary_size=9,
        ssd_data_path=[str(tmp_path / "rows")],
    )
    assert table.disk_storage is None and table.max_rows == 0
