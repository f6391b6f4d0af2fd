# SPDX-License-Identifier: Apache-2.0
"""Datasets of modified graphs bring rows from disk into memory before the step that trains them."""

import gc
import os

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from modified_graphs import QUICK
from storage_runs import DIM, on_disk

import rec_estimator as rec
from rec_estimator.graph_modifier.prepared_input import get_initializer
from rec_estimator.options import StorageOption

OP = "RecEstimator>TablesBringIn"

# Most rows are on disk although 14 batches are on their way, and more leave memory than fit
# into buffers.
STEPS, BATCH = 240, 80


def dataset(steps=STEPS, seed=3):
    keys, weights = zip(*storage_runs.batches(steps, seed, BATCH))
    return tf.data.Dataset.from_tensor_slices(
        {"keys": np.stack(keys), "weights": np.stack(weights)}
    )


def ops_ahead(graph=None):
    """The nodes of functions that bring rows in."""
    library = (graph or tf.get_default_graph()).as_graph_def().library
    return [node for body in library.function for node in body.node_def if node.op == OP]


class Modified:
    """A graph that trains a table by batches of a dataset, with its session."""

    def __init__(self, storage, data=None, one_shot=False, is_modified=True, shards=1, **options):
        self.table = storage_runs.make_table(storage, shards, **options)
        make = tf.data.make_one_shot_iterator if one_shot else tf.data.make_initializable_iterator
        self.iterator = make(dataset() if data is None else data)
        batch = self.iterator.get_next()
        keys = (batch["keys"] - 5) * 3
        self.values = rec.embedding_lookup(self.table, keys)
        self.loss = tf.reduce_sum(self.values * batch["weights"]) + tf.reduce_mean(
            tf.square(self.values)
        )
        self.batch = batch
        self.train = rec.optimizers.AdagradOptimizer(0.1).minimize(
            self.loss, global_step=tf.train.get_or_create_global_step()
        )
        self.counts, self.export = self.table.tier_counts(), self.table.export()
        self.saver = rec.Saver()
        self.start = [] if one_shot else [self.iterator.initializer]
        if is_modified:
            rec.modify_graph_and_start_emb_cache()
        self.session = tf.Session(config=QUICK)
        self.session.run(tf.global_variables_initializer())
        self.session.run(self.start)

    def steps(self, count):
        return [self.session.run([self.loss, self.train])[0] for _ in range(count)]

    def contents(self):
        return list(self.session.run(self.export))

    def tiers(self):
        return rec.TierCounts(*map(int, self.session.run(self.counts)))


def run(tmp_path, name, storage, **options):
    """Losses, contents and checkpoint of a run, and the TierCounts."""
    folder = tmp_path / name
    with tf.Graph().as_default():
        modified = Modified(storage, **options)
        losses = modified.steps(STEPS)
        modified.saver.save(modified.session, str(folder / "model"), global_step=STEPS)
        results = losses, modified.contents(), storage_runs.files_of(folder)
        tiers, has_ahead = modified.tiers(), bool(ops_ahead())
        modified.session.close()
    return results, tiers, has_ahead


# ------------------------------------------------------------------ the same numbers


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(one_shot=True),
        dict(shards=3),
        dict(filter_option=rec.CounterFilter(3)),
        dict(filter_option=rec.CounterFilter(2), evict_option=rec.GlobalStepEvict(20)),
        dict(value_dtype=tf.bfloat16),
    ],
    ids=["plain", "one-shot iterator", "three shards", "counter filter", "eviction", "bfloat16"],
)
@pytest.mark.parametrize("strategy", rec.CacheStrategy, ids=lambda each: each.name)
def test_rows_brought_in_ahead_give_the_same_bits_and_spare_the_steps_their_reads(
    strategy, options, tmp_path
):
    expected, _, ahead = run(tmp_path, "memory", StorageOption(), is_modified=False, **options)
    assert not ahead
    storage = on_disk(tmp_path / "rows", strategy)
    plain, without, ahead = run(tmp_path, "plain", storage, is_modified=False, **options)
    assert not ahead
    actual, tiers, ahead = run(tmp_path, "ahead", storage, **options)
    assert ahead
    storage_runs.assert_same(plain, expected)
    storage_runs.assert_same(actual, expected)
    assert without.misses > 5000, without
    assert tiers.misses < without.misses // 50, (tiers, without)
    assert tiers.hits + tiers.misses == without.hits + without.misses
    assert tiers.spills > tiers.disk_rows + 2000, "rows have come back"


@pytest.mark.long
def test_lookups_of_several_tables_and_combined_ones_spare_the_steps_their_reads(tmp_path):
    def scenario(storage, is_modified):
        with tf.Graph().as_default():
            tables = [storage_runs.make_table(storage, name=name) for name in ("a", "b")]
            iterator = tf.data.make_initializable_iterator(dataset())
            ids = iterator.get_next()["keys"] + 1
            rows = tf.RaggedTensor.from_row_lengths(ids, [20, 0, 59, 1])
            found = rec.group_embedding_lookup_sparse(
                [*tables, tables[0]], [rows] * 3, ["mean"] * 3
            )
            loss = tf.add_n([tf.reduce_sum(tf.square(each + 0.1)) for each in found])
            loss += tf.reduce_sum(rec.embedding_lookup(tables[1], ids * 2))
            train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
            exports = [table.export() for table in tables]
            counts = [table.tier_counts() for table in tables]
            if is_modified:
                rec.modify_graph_and_start_emb_cache()
            with tf.Session(config=QUICK) as session:
                session.run([tf.global_variables_initializer(), iterator.initializer])
                losses = [session.run([loss, train])[0] for _ in range(STEPS)]
                contents = [list(session.run(export)) for export in exports]
                return (losses, contents), session.run([each.misses for each in counts])

    expected, _ = scenario(StorageOption(), False)
    storage = on_disk(tmp_path)
    _, without = scenario(storage, False)
    actual, misses = scenario(storage, True)
    storage_runs.assert_same(actual, expected)
    assert all(with_ahead < few // 50 for with_ahead, few in zip(misses, without))


@pytest.mark.long
def test_sparse_lookups_with_thresholds_spare_the_steps_their_reads(tmp_path):
    def scenario(storage, is_modified):
        with tf.Graph().as_default():
            rows = dict(host_vocabulary_size=64, ssd_vocabulary_size=100_000)
            table = rec.create_table(
                *(tf.int64, DIM, "t", tf.constant_initializer(0.25)),
                **({**rows, "ssd_data_path": [str(tmp_path)]} if storage else {}),
                **({} if storage else {"device_vocabulary_size": 100_064}),
            )
            iterator = tf.data.make_initializable_iterator(dataset())
            keys = iterator.get_next()["keys"] * 3
            values = rec.sparse_lookup(
                *(table, keys),
                is_train=True,
                modify_graph=True,
                access_and_evict_config={"access_threshold": 2},
            )
            loss = tf.reduce_sum(tf.square(values))
            train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
            export, misses = table.export(), table.tier_counts().misses
            if is_modified:
                rec.modify_graph_and_start_emb_cache()
            with tf.Session(config=QUICK) as session:
                session.run([tf.global_variables_initializer(), iterator.initializer])
                losses = [session.run([loss, train])[0] for _ in range(STEPS)]
                return (losses, list(session.run(export))), session.run(misses)

    expected, _ = scenario(False, False)
    _, without = scenario(True, False)
    actual, misses = scenario(True, True)
    storage_runs.assert_same(actual, expected)
    assert misses < without // 50


# ------------------------------------------------------------------ what is left alone


@pytest.mark.long
def test_a_batch_that_is_never_trained_changes_nothing(tmp_path):
    modified = Modified(on_disk(tmp_path), dataset().repeat())
    modified.steps(STEPS)
    before, tiers = modified.contents(), modified.tiers()
    for _ in range(15):
        modified.session.run(modified.batch["keys"])
    after, later = modified.contents(), modified.tiers()
    storage_runs.assert_same(after, before)
    assert later.bytes_read > tiers.bytes_read, "rows were brought in"
    assert (later.hits, later.misses) == (tiers.hits, tiers.misses)
    assert later.memory_rows + later.disk_rows == tiers.memory_rows + tiers.disk_rows
    # Twelve batches are on their way, and one is there before others leave.
    assert later.memory_rows <= storage_runs.MEMORY_ROWS + 13 * BATCH


@pytest.mark.long
def test_evaluation_leaves_rows_on_disk(tmp_path):
    modified = Modified(on_disk(tmp_path), is_modified=False)
    modified.steps(STEPS)
    prefix = modified.saver.save(modified.session, str(tmp_path / "model"))
    modified.session.close()
    with tf.Graph().as_default() as graph:
        table = storage_runs.make_table(on_disk(tmp_path))
        iterator = tf.data.make_initializable_iterator(dataset())
        values = rec.embedding_lookup(table, (iterator.get_next()["keys"] - 5) * 3)
        counts = table.tier_counts()
        rec.modify_graph_and_start_emb_cache()
        assert ops_ahead(graph) == []
        with tf.Session(config=QUICK) as session:
            rec.Saver().restore(session, prefix)
            session.run(get_initializer(False))
            before = rec.TierCounts(*session.run(counts))
            for _ in range(10):
                session.run(values)
            after = rec.TierCounts(*session.run(counts))
    assert (after.memory_rows, after.spills) == (before.memory_rows, before.spills)
    assert after.disk_rows > 3000


def test_tables_in_memory_get_no_op_in_the_dataset():
    modified = Modified(StorageOption())
    assert ops_ahead() == []
    modified.steps(2)


def test_tables_on_other_tasks_are_left_to_the_steps(tmp_path):
    with tf.device("/job:ps/task:0"):
        table = storage_runs.make_table(on_disk(tmp_path))
    with tf.device("/job:worker/task:0"):
        iterator = tf.data.make_initializable_iterator(dataset())
        keys = iterator.get_next()["keys"] * 3
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    rec.modify_graph_and_start_emb_cache()
    assert ops_ahead() == []


def test_a_key_that_is_not_admitted_costs_no_read(tmp_path):
    keys = np.arange(BATCH * 30).reshape(30, BATCH)
    weights = np.ones([30, BATCH, 1], np.float32)
    data = tf.data.Dataset.from_tensor_slices({"keys": keys, "weights": weights})
    modified = Modified(on_disk(tmp_path), data, filter_option=rec.CounterFilter(2))
    modified.steps(30)
    assert ops_ahead()
    tiers = modified.tiers()
    assert tiers.bytes_read == tiers.memory_rows == tiers.disk_rows == 0


# ------------------------------------------------------------------ sessions


def test_a_dataset_may_start_before_the_table_is_initialized(tmp_path):
    modified = Modified(on_disk(tmp_path), dataset().repeat())
    with tf.Session(config=QUICK) as session:
        session.run(modified.start)
        for _ in range(5):
            session.run(modified.batch["keys"])
        with pytest.raises(tf.errors.FailedPreconditionError, match="must be initialized"):
            session.run(modified.values)
        session.run(tf.global_variables_initializer())
        for _ in range(30):
            session.run(modified.train)


@pytest.mark.long
def test_an_initializer_in_the_middle_gives_the_same_bits(tmp_path):
    def scenario(storage, is_modified):
        with tf.Graph().as_default():
            modified = Modified(storage, is_modified=is_modified)
            losses = modified.steps(100)
            modified.session.run(tf.global_variables_initializer())
            losses += modified.steps(STEPS - 100)
            contents = modified.contents()
            modified.session.close()
            return losses, contents

    storage_runs.assert_same(scenario(on_disk(tmp_path), True), scenario(StorageOption(), False))


@pytest.mark.long
def test_an_iterator_that_starts_again_and_again_gives_the_same_bits(tmp_path):
    def scenario(storage, is_modified):
        with tf.Graph().as_default():
            modified = Modified(storage, is_modified=is_modified)
            losses = []
            for count in (3, 1, 100, 2, STEPS):
                modified.session.run(modified.start)
                losses += modified.steps(count)
            with pytest.raises(tf.errors.OutOfRangeError):
                modified.steps(1)
            contents, tiers = modified.contents(), modified.tiers()
            modified.session.close()
            return (losses, contents), tiers

    expected, _ = scenario(StorageOption(), False)
    actual, tiers = scenario(on_disk(tmp_path), True)
    storage_runs.assert_same(actual, expected)
    assert tiers.misses < tiers.hits // 50


@pytest.mark.long
def test_a_session_may_end_while_batches_are_on_their_way(tmp_path):
    for steps in (0, 1, 7):
        with tf.Graph().as_default():
            modified = Modified(on_disk(tmp_path), dataset().repeat())
            modified.steps(steps)
            modified.session.run(modified.batch["keys"])
            modified.session.close()
            del modified
        gc.collect()
    assert list(tmp_path.iterdir()) == [], "the end of a session removes the files"


@pytest.mark.long
def test_an_iterator_whose_state_is_saved_is_left_alone(tmp_path):
    def scenario(storage, is_modified):
        with tf.Graph().as_default():
            modified = Modified(storage, dataset().repeat(), is_modified=False)
            state = tf.train.Saver(
                [tf.data.experimental.make_saveable_from_iterator(modified.iterator)]
            )
            if is_modified:
                rec.modify_graph_and_start_emb_cache()
                assert ops_ahead() == [], "a dataset with state that is not its own cannot be saved"
            session = tf.Session(config=QUICK)
            session.run([tf.global_variables_initializer(), modified.start])
            steps = [session.run([modified.loss, modified.train])[0] for _ in range(9)]
            path = state.save(session, str(tmp_path / f"input-{is_modified}"))
            steps += [session.run([modified.loss, modified.train])[0] for _ in range(9)]
            state.restore(session, path)
            steps += [session.run([modified.loss, modified.train])[0] for _ in range(9)]
            session.close()
            return steps

    storage_runs.assert_same(
        scenario(on_disk(tmp_path / "rows"), True), scenario(StorageOption(), False)
    )


# ------------------------------------------------------------------ faults


@pytest.mark.long
def test_a_damaged_file_is_the_error_of_the_step(tmp_path):
    modified = Modified(on_disk(tmp_path), dataset().repeat())
    modified.steps(STEPS)
    (file,) = tmp_path.iterdir()
    os.truncate(file, 4096)
    with pytest.raises(tf.errors.DataLossError, match=f"table t: storage file '{file}'"):
        modified.steps(60)
    modified.session.run(tf.global_variables_initializer())
    modified.steps(5)
