# SPDX-License-Identifier: Apache-2.0
"""Faults that users of torchrec, TorchEasyRec, recsys-examples and HierarchicalKV reported.

The number in the name of a test is the issue or pull request there.
"""

import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table import saveable

ZEROS = rec.InitializerOption(tf.zeros_initializer(), default_value_dim=1)


class Model:
    """A table of zeros, trained by a gradient of 1."""

    def __init__(self, shards=1, optimizer=None, name="t", **options):
        self.table = rec.get_embedding_variable(
            name,
            2,
            partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
            ev_option=rec.EmbeddingVariableOption(init_option=ZEROS, **options),
        )
        self.keys = tf.placeholder(tf.int64, [None])
        self.rows = rec.embedding_lookup(self.table, self.keys)
        self.step = tf.train.get_or_create_global_step()
        optimizer = optimizer or rec.optimizers.AdagradOptimizer(0.5)
        self._train = optimizer.minimize(tf.reduce_sum(self.rows), global_step=self.step)
        self._exports = [saveable.export_shard(shard, shard.slots) for shard in self.table]

    def train(self, session, keys):
        session.run(self._train, {self.keys: keys})

    def contents(self, session):
        """{key: bits of row, slots, count and version}, and the keys that own no row."""
        rows, filtered = {}, {}
        for export in session.run(self._exports):
            for i, key in enumerate(export.keys):
                slots = tuple(values[i].tobytes() for values in export.slot_values)
                rows[key] = (export.values[i].tobytes(), slots, export.freqs[i], export.versions[i])
            filtered.update(zip(export.keys_filtered, export.freqs_filtered))
        return rows, filtered


def initialized_session():
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


# ------------------------------------------------------------------ recsys-examples


def chain_of_deltas(folder):
    """A full checkpoint m-1 and deltas m-2 to m-4; {prefix: contents}."""
    model = Model(evict_option=rec.GlobalStepEvict(steps_to_live=1))
    saver, live, evict = rec.Saver(incremental=True), {}, model.table.evict()
    with initialized_session() as session:
        # Key 9 is evicted before the second save and comes back before the fourth.
        for keys in ([1, 9], [1, 2], [2, 3], [3, 9]):
            model.train(session, keys)
            session.run(evict)
            prefix = saver.save(session, str(folder / "m"), global_step=model.step)
            live[prefix] = model.contents(session)
    return live


def restored(prefix):
    with tf.Graph().as_default():
        model, saver = Model(evict_option=rec.GlobalStepEvict(steps_to_live=1)), rec.Saver()
        with initialized_session() as session:
            model.train(session, [77])
            before = model.contents(session)
            try:
                saver.restore(session, prefix)
            except (ValueError, tf.errors.OpError):
                assert model.contents(session) == before
                raise
            return model.contents(session)


@pytest.mark.long
def test_454_a_key_that_is_evicted_and_comes_back_is_restored_from_every_delta(tmp_path):
    live = chain_of_deltas(tmp_path)
    present = [9 in rows for rows, _ in live.values()]
    assert present == [True, False, False, True]
    for prefix, contents in live.items():
        assert restored(prefix) == contents, prefix


def move(folder, source, target):
    for name in os.listdir(folder):
        if name.startswith(f"{source}."):
            shutil.move(folder / name, folder / name.replace(source, target))


def swap(folder):
    for source, target in (("m-2", "swap"), ("m-3", "m-2"), ("swap", "m-3")):
        move(folder, source, target)


@pytest.mark.parametrize(
    "change",
    [
        swap,
        lambda folder: [os.remove(path) for path in folder.glob("m-2.*")],
        lambda folder: move(folder, "m-3", "m-2"),
        lambda folder: move(folder, "m-2", "other-2"),
    ],
    ids=["swapped", "missing", "doubled", "renamed"],
)
def test_454_deltas_that_do_not_follow_each_other_are_refused(tmp_path, change):
    last = list(chain_of_deltas(tmp_path))[-1]
    change(tmp_path)
    with pytest.raises((ValueError, tf.errors.OpError), match="m-"):
        restored(last)


class BoundedModel:
    """A table of at most 4 rows, trained by a gradient of 1; keys live for 5 seconds."""

    def __init__(self):
        self.table = rec.create_table(
            tf.int64, 2, "t", tf.zeros_initializer(), device_vocabulary_size=4
        )
        self._keys, self._time = (tf.placeholder(tf.int64, shape) for shape in ([None], []))
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, self._time)
        config = {"access_threshold": 0, "eviction_threshold": 5}
        rows = rec.sparse_lookup(
            self.table, self._keys, modify_graph=True, access_and_evict_config=config
        )
        optimizer = rec.optimizers.GradientDescentOptimizer(1.0)
        self._train = optimizer.minimize(tf.reduce_sum(rows))
        self.evict, self._export = self.table.evict(), self.table.export()

    def train(self, session, keys, second):
        session.run(self._train, {self._keys: keys, self._time: 100 + second})

    def rows(self, session):
        """{key: (first value, count)}"""
        export = session.run(self._export)
        return {
            key: (value, count) for key, value, count in zip(export[0], export[1][:, 0], export[3])
        }


def test_12_a_batch_beyond_the_rows_of_a_table_changes_nothing():
    model = BoundedModel()
    with initialized_session() as session:
        model.train(session, [1, 2], 0)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="4 rows"):
            model.train(session, [1, 2, 3, 4, 5], 0)
        assert model.rows(session) == {1: (-1, 1), 2: (-1, 1)}
        model.train(session, [3, 4], 0)
        assert sorted(model.rows(session)) == [1, 2, 3, 4]


# ------------------------------------------------------------------ HierarchicalKV


def test_78_a_full_table_takes_as_many_new_rows_as_were_evicted():
    model = BoundedModel()
    with initialized_session() as session:
        model.train(session, [1, 2, 3, 4], 0)
        model.train(session, [1, 2, 3], 4)
        model.train(session, [], 6)
        assert session.run(model.evict) == 1
        model.train(session, [5], 6)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="4 rows"):
            model.train(session, [6, 7], 7)
        assert model.rows(session) == {1: (-2, 2), 2: (-2, 2), 3: (-2, 2), 5: (-1, 1)}
        model.train(session, [], 10)
        assert session.run(model.evict) == 3
        model.train(session, [6, 7, 8], 10)
        assert sorted(model.rows(session)) == [5, 6, 7, 8]


# ------------------------------------------------------------------ torchrec


def test_3030_no_row_of_features_that_share_a_table_reads_zeros_after_an_eviction():
    ones = rec.InitializerOption(tf.ones_initializer(), default_value_dim=1)
    option = rec.EmbeddingVariableOption(
        init_option=ones, evict_option=rec.GlobalStepEvict(steps_to_live=2)
    )
    table = rec.get_embedding_variable("t", 4, ev_option=option)
    keys = [tf.placeholder(tf.int64, [None]) for _ in range(2)]
    rows = [rec.embedding_lookup(table, each) for each in keys]
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum([tf.reduce_sum(each) for each in rows])
    train = rec.optimizers.RowwiseAdagradOptimizer(0.01).minimize(loss, global_step=step)
    evict, every_row = table.evict(), rec.embedding_lookup(table, np.arange(30))
    evicted, rng = 0, np.random.default_rng(0)
    with initialized_session() as session:
        for _ in range(30):
            session.run(train, dict(zip(keys, rng.integers(0, 30, (2, 8)))))
            evicted += session.run(evict)
            assert (session.run(every_row) > 0.5).all()
    assert evicted > 10


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("shard_counts", [(3, 7, 1), (1, 2, 5)], ids=str)
@pytest.mark.parametrize(
    "filter_option", [None, rec.CounterFilter(3)], ids=["every key", "counter"]
)
def test_1591_shards_of_unequal_size_hold_what_one_shard_holds(
    tmp_path, shard_counts, filter_option
):
    rng = np.random.default_rng(0)
    batches = [rng.zipf(1.3, 40) % 101 for _ in range(9)]

    def trained(counts):
        """Trains three batches with each number of shards; each restores what the last one saved,
        which is a delta."""
        prefix = None
        for place, shards in enumerate(counts):
            with tf.Graph().as_default():
                model = Model(shards, filter_option=filter_option)
                saver = rec.Saver(incremental=True)
                with initialized_session() as session:
                    if prefix:
                        saver.restore(session, prefix)
                    for batch in batches[3 * place : 3 * place + 3]:
                        model.train(session, batch)
                        path = str(tmp_path / f"{counts}" / "m")
                        prefix = saver.save(session, path, global_step=model.step)
                    contents = model.contents(session)
        return contents

    assert trained(shard_counts) == trained((1, 1, 1))


# ------------------------------------------------------------------ TorchEasyRec

SETTINGS = {
    "as it was": {},
    "filter": dict(filter_option=rec.CounterFilter(2)),
    "Bloom filter": dict(
        filter_option=rec.CBFFilter(2, max_element_size=100, false_positive_probability=0.01)
    ),
    "eviction by steps": dict(evict_option=rec.GlobalStepEvict(100)),
    "eviction by weights": dict(evict_option=rec.L2WeightEvict(1e-9)),
}


@pytest.mark.each_value
@pytest.mark.parametrize("after", SETTINGS)
@pytest.mark.parametrize("before", SETTINGS)
def test_176_training_resumes_after_a_change_of_one_option(tmp_path, before, after):
    model = Model(**SETTINGS[before])
    with initialized_session() as session:
        for keys in ([1, 2, 2], [1, 2, 3]):
            model.train(session, keys)
        prefix = rec.Saver().save(session, str(tmp_path / "m"), global_step=model.step)
        rows, _ = model.contents(session)
    assert {1, 2} <= set(rows)
    with tf.Graph().as_default():
        resumed = Model(shards=2, **SETTINGS[after])
        with tf.Session() as session:
            rec.Saver().restore(session, prefix)
            # A key that owned a row keeps it, whatever the filter is now.
            assert {key: resumed.contents(session)[0][key] for key in rows} == rows
            resumed.train(session, [1, 2])
            assert session.run(resumed.step) == 3
            assert session.run(resumed.table.get_frequency([1, 2])).tolist() == [3, 4]
