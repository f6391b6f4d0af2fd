# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are mostly on disk: every number is that of a table in memory."""

import gc
import socket

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from optimizer_rules import ALL_RULES, ours, rules
from storage_runs import MEMORY_ROWS, STEPS, Run, on_disk

import rec_estimator as rec
from rec_estimator.table.disk_storage import DiskStorage, disk_storage_of
from rec_estimator.table.table import graph_tables

# What a read of a row takes, and one of compaction, with rows and memory as small as here.
PAGE_BYTES = 4096
SEGMENT_BYTES = 1 << 20


def adagrad():
    return rec.optimizers.AdagradOptimizer(0.1)


def same(tmp_path, scenario, **disk):
    storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario, **disk)


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize("has_path", [True, False], ids=["path", "no path"])
@pytest.mark.parametrize("kind", rec.StorageType, ids=lambda kind: kind.name)
def test_memory_and_files_are_the_only_tiers(kind, has_path, tmp_path):
    path = str(tmp_path / "rows") if has_path else None
    if not has_path and kind.is_on_disk:
        with pytest.raises(ValueError, match=f"storage_path must be given .* {kind.name}, got No"):
            rec.StorageOption(kind)
        return
    option = rec.EmbeddingVariableOption(storage_option=rec.StorageOption(kind, path))
    if kind in (rec.StorageType.DEFAULT, rec.StorageType.DRAM) or kind.is_on_disk:
        table = rec.get_embedding_variable("t", 2, ev_option=option)
        assert (table.disk_storage is not None) == kind.is_on_disk
        assert not (tmp_path / "rows").exists(), "the session that makes the table makes it"
        return
    message = f"DRAM_SSDHASH or SSDHASH, got {kind.name}; .* leave storage_option out"
    with pytest.raises(ValueError, match=message):
        rec.get_embedding_variable("t", 2, ev_option=option)
    assert graph_tables() == []


def test_shards_share_the_memory_evenly():
    storage = DiskStorage(("a", "b"), memory_rows=100, strategy=rec.CacheStrategy.LRU)
    assert storage.handle_attrs(3) == {
        "storage_paths": ["a", "b"],
        "memory_rows": 34,
        "memory_bytes": 0,
        "spilled_first": "oldest",
    }
    kind = rec.StorageType.DRAM_SSDHASH
    table = storage_runs.make_table(rec.StorageOption(kind, "rows", [1000, 7]), shards=2)
    for shard in table:
        assert shard.op.get_attr("memory_bytes") == 500
        assert shard.op.get_attr("storage_paths") == [b"rows"]
        assert shard.op.get_attr("spilled_first") == b"least_counted"


def test_ssdhash_keeps_no_memory_for_rows():
    option = rec.StorageOption(rec.StorageType.SSDHASH, "rows", [1000])
    assert disk_storage_of(option) == DiskStorage(("rows",))
    assert disk_storage_of(rec.StorageOption(rec.StorageType.DRAM, "rows")) is None


@pytest.mark.parametrize(
    "attrs, message",
    [
        (dict(storage_paths=[""]), "storage_paths must be folders, got ''"),
        (dict(memory_rows=3), "must be 0 without storage_paths, got 3, 0 and 0"),
        (dict(memory_limit=3), "must be 0 without storage_paths, got 0, 0 and 3"),
        (
            dict(storage_paths=["."], memory_rows=3, memory_limit=4),
            "one of memory_rows, memory_bytes and memory_limit must be above 0 at most, got 3, 0",
        ),
        (
            dict(storage_paths=["."], memory_budget=3),
            "memory_budget must be >= 0, and 0 with storage_paths, got 3",
        ),
    ],
)
def test_handle_refuses_attributes_that_do_not_fit(attrs, message):
    handle = rec._ops.gen.rec_estimator_table_handle(shared_name="t", dim=2, **attrs)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(handle.op)


@pytest.mark.parametrize(
    "name, value, shown",
    [
        ("storage_paths", ["elsewhere"], r"\[.*rows\], .* got \[elsewhere\]"),
        ("memory_bytes", 8, "7, .* got 8"),
        ("memory_limit", 8, "0, .* got 8"),
        ("spilled_first", "oldest", "least_counted, .* got oldest"),
    ],
)
def test_a_shared_table_is_not_opened_with_other_settings(name, value, shown, tmp_path):
    given = dict(storage_paths=[str(tmp_path / "rows")], memory_bytes=7)
    other = {**given, name: value}
    if name == "memory_limit":
        del other["memory_bytes"]
    handle = rec._ops.gen.rec_estimator_table_handle
    first, again = (handle(shared_name="t", dim=2, **given) for _ in range(2))
    third = handle(shared_name="t", dim=2, **other)
    wrong = "memory_bytes" if name == "memory_limit" else name
    shown = "7, .* got 0" if name == "memory_limit" else shown
    message = f"{wrong} of table t must be {shown}; give all graphs of a server the same"
    with tf.Session() as session:
        session.run([first.op, again.op])
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(third.op)


# ------------------------------------------------------------------ the same numbers


@pytest.mark.long
@rules(ALL_RULES)
def test_every_optimizer_gives_the_same_bits(rule, tmp_path):
    def scenario(storage, folder):
        run = Run(lambda: ours(rule), storage)
        losses = run.steps(STEPS)
        rec.Saver().save(run.session, str(folder / "model"), global_step=STEPS)
        return losses, run.contents(), storage_runs.files_of(folder), run.tiers()

    same(tmp_path, scenario)


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("strategy", rec.CacheStrategy, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "SSDHASH"])
def test_every_strategy_gives_the_same_bits(strategy, kind, tmp_path):
    def scenario(storage, folder):
        run = Run(adagrad, storage)
        return run.steps(STEPS), run.contents(), run.tiers()

    same(tmp_path, scenario, strategy=strategy, kind=rec.StorageType[kind])


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        dict(filter_option=rec.CounterFilter(3)),
        dict(evict_option=rec.GlobalStepEvict(20)),
        dict(evict_option=rec.L2WeightEvict(8.0), filter_option=rec.CounterFilter(2)),
    ],
    ids=["counter filter", "by steps", "by values"],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_filters_evictions_and_incremental_saves_give_the_same_bytes(options, shards, tmp_path):
    def scenario(storage, folder):
        run = Run(adagrad, storage, shards, **options)
        saver = rec.Saver(incremental=True, max_to_keep=None)
        evict = run.table.evict() if "evict_option" in options else tf.no_op()
        losses = []
        for part in range(5):
            losses.append(run.steps(STEPS // 4, seed=part))
            losses.append(run.session.run(evict))
            saver.save(run.session, str(folder / "model"), global_step=(part + 1) * 15)
        return losses, run.contents(), storage_runs.files_of(folder), run.tiers()

    same(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize("size", [8192, 8193], ids=["short", "long"])
def test_lists_of_keys_that_lookups_hand_over_give_the_same_bits(size, tmp_path):
    def scenario(storage, folder):
        run = Run(adagrad, storage)
        losses = [run.step(*batch) for batch in storage_runs.batches(12, size=size)]
        return losses, run.contents(), run.tiers()

    same(tmp_path, scenario)


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("saved_as, restored_as", [(1, 3), (3, 2)])
@pytest.mark.parametrize("make_saver", [rec.Saver, tf.train.Saver], ids=["ours", "stock"])
def test_restore_into_another_number_of_shards_trains_on(
    saved_as, restored_as, make_saver, tmp_path
):
    def scenario(storage, folder):
        run = Run(adagrad, storage, saved_as)
        before = run.steps(STEPS)
        prefix = make_saver().save(run.session, str(folder / "model"), global_step=STEPS)
        saved = storage_runs.files_of(folder)
        with tf.Graph().as_default():
            again = Run(adagrad, storage, restored_as)
            make_saver().restore(again.session, prefix)
            storage_runs.assert_same(sorted(again.contents()[0]), sorted(run.contents()[0]))
            after = again.steps(STEPS, seed=7)
            return before, saved, after, again.contents(), again.tiers()

    same(tmp_path, scenario)


@pytest.mark.long
def test_warm_start_gives_the_same_bits(tmp_path):
    with tf.Graph().as_default():
        first = Run(adagrad, rec.StorageOption())
        first.steps(STEPS)
        prefix = rec.Saver().save(first.session, str(tmp_path / "first"))

    def scenario(storage, folder):
        run = Run(adagrad, storage, ckpt=rec.CheckpointOption(prefix, "t"))
        return run.contents(), run.steps(STEPS), run.contents(), run.tiers()

    same(tmp_path, scenario)


@pytest.mark.long
def test_two_tables_of_one_step_give_the_same_bits(tmp_path):
    """They share a list of keys, and a lookup combines sequences."""

    def scenario(storage, folder):
        tables = [storage_runs.make_table(storage, name=name) for name in ("a", "b")]
        ids = tf.placeholder(tf.int64, [None])
        rows = tf.RaggedTensor.from_row_lengths(ids, [200, 0, 599, 1])
        found = rec.group_embedding_lookup_sparse([*tables, tables[0]], [rows] * 3, ["mean"] * 3)
        loss = tf.add_n([tf.reduce_sum(tf.square(each + 0.1)) for each in found])
        train = rec.optimizers.AdamOptimizer(0.01).minimize(loss)
        exports = [table.export() for table in tables]
        counts = [table.tier_counts() for table in tables]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses = [
                session.run([loss, train], {ids: keys})[0]
                for keys, _ in storage_runs.batches(STEPS)
            ]
            contents = [list(session.run(export)) for export in exports]
            return losses, contents, rec.TierCounts(*map(int, session.run(counts[1])))

    same(tmp_path, scenario)


@pytest.mark.long
def test_parameter_servers_give_the_same_bits_and_read_as_much(tmp_path):
    sockets = [socket.socket() for _ in range(3)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    first, second, worker = (f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    for each in sockets:
        each.close()
    jobs = {"ps": [first, second], "worker": [worker]}
    # They end with this function.
    servers = [tf.train.Server(jobs, job, i) for job in jobs for i in range(len(jobs[job]))]

    read = {}

    def scenario(storage, folder):
        with tf.device(tf.train.replica_device_setter(cluster=jobs, worker_device="/job:worker")):
            # A server keeps a table by its name.
            run = Run(adagrad, storage, name=folder.name, target=servers[2].target)
        assert [shard.device[:14] for shard in run.table] == ["/job:ps/task:0", "/job:ps/task:1"]
        steps = run.steps(STEPS)
        read[folder.name] = run.tiers().bytes_read
        return steps, run.contents(), run.tiers()

    same(tmp_path, scenario)
    assert len(list((tmp_path / "rows").iterdir())) == 2, "a file of each ps"
    with tf.Graph().as_default():
        local = Run(adagrad, on_disk(tmp_path / "local"), 2)
        local.steps(STEPS)
        assert read["disk"] == local.tiers().bytes_read, "a miss is read once"


@pytest.mark.slow
def test_ten_thousand_steps_give_the_same_bytes(tmp_path):
    def scenario(storage, folder):
        run = Run(
            lambda: rec.optimizers.FtrlOptimizer(0.05, l1_regularization_strength=0.001),
            storage,
            2,
            filter_option=rec.CounterFilter(2),
            evict_option=rec.GlobalStepEvict(300),
        )
        saver = rec.Saver(incremental=True, max_to_keep=None)
        losses = []
        for part in range(20):
            losses.append(run.steps(500, seed=part))
            losses.append(run.session.run(run.table.evict()))
            saver.save(run.session, str(folder / "model"), global_step=(part + 1) * 500)
        return losses, run.contents(), storage_runs.files_of(folder), run.tiers()

    same(tmp_path, scenario)


# ------------------------------------------------------------------ what reads change


def test_a_lookup_leaves_rows_on_disk(tmp_path):
    run = Run(adagrad, on_disk(tmp_path))
    run.steps(STEPS)
    before = run.tiers()
    keys = run.contents()[0]
    values = run.read(keys)
    np.testing.assert_array_equal(values, run.contents()[1])
    after = run.tiers()
    assert (after.memory_rows, after.disk_rows) == (before.memory_rows, before.disk_rows)
    assert (after.misses, after.spills) == (before.misses, before.spills)
    assert after.bytes_read > before.bytes_read


def test_a_step_does_not_read_again_what_its_lookups_have_read(tmp_path):
    run = Run(adagrad, on_disk(tmp_path))
    run.steps(STEPS)
    in_steps = []
    for batch in storage_runs.batches(6, seed=8):
        run.read(batch[0])
        before = run.tiers()
        run.step(*batch)
        after = run.tiers()
        # Compaction reads whole segments, which the pages of these rows do not fill.
        assert (after.misses - before.misses) * PAGE_BYTES % SEGMENT_BYTES > 0
        in_steps.append(after.bytes_read - before.bytes_read)
    assert 0 in in_steps
    assert {read % SEGMENT_BYTES for read in in_steps} == {0}


@pytest.mark.long
def test_a_key_that_is_not_admitted_costs_no_read(tmp_path):
    run = Run(adagrad, on_disk(tmp_path), filter_option=rec.CounterFilter(2))
    for keys, weights in storage_runs.batches(STEPS):
        run.step(np.concatenate([keys, keys]), np.concatenate([weights, weights]))
    before = run.tiers()
    new = np.arange(10**6, 10**6 + 50)
    run.step(new, np.ones([50, storage_runs.DIM]))
    after = run.tiers()
    assert after == before
    assert run.session.run(run.table.get_frequency(new)).tolist() == [1] * 50


@pytest.mark.long
def test_counts_say_where_the_rows_are(tmp_path):
    run = Run(adagrad, on_disk(tmp_path), shards=2)
    run.steps(STEPS)
    tiers = run.tiers()
    rows = run.session.run(run.table.size())
    assert tiers.memory_rows + tiers.disk_rows == rows
    assert 0 < tiers.memory_rows <= 2 * MEMORY_ROWS
    distinct = sum(len(np.unique(keys)) for keys, _ in storage_runs.batches(STEPS))
    assert tiers.hits + tiers.misses + rows == distinct, "a key is new once"
    assert tiers.spills >= tiers.misses
    assert tiers.file_bytes == sum(each.stat().st_size for each in tmp_path.iterdir())


def test_memory_of_rows_stays_within_storage_size(tmp_path):
    rows = 1000
    row_bytes = 4 * 2 * storage_runs.DIM
    kind = rec.StorageType.DRAM_SSDHASH
    run = Run(adagrad, rec.StorageOption(kind, str(tmp_path), [rows * row_bytes]))
    run.steps(STEPS)
    tiers = run.tiers()
    assert tiers.disk_rows > 0
    # A stripe has a 64th of the rows; some may have less than their share.
    assert rows // 2 < tiers.memory_rows <= rows


# ------------------------------------------------------------------ files


@pytest.mark.long
def test_the_end_of_a_session_removes_the_files(tmp_path):
    folder = tmp_path / "deep" / "rows"
    run = Run(adagrad, on_disk(folder), shards=2)
    run.steps(STEPS)
    assert len(list(folder.iterdir())) == 2
    run.session.close()
    run.session = None
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_an_initializer_empties_the_tier(tmp_path):
    run = Run(adagrad, on_disk(tmp_path))
    run.steps(STEPS)
    run.session.run(tf.global_variables_initializer())
    tiers = run.tiers()
    assert (tiers.memory_rows, tiers.disk_rows) == (0, 0)
    with tf.Graph().as_default():
        fresh = Run(adagrad, rec.StorageOption())
        storage_runs.assert_same(run.steps(STEPS), fresh.steps(STEPS))
