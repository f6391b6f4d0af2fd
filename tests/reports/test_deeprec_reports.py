# SPDX-License-Identifier: Apache-2.0
"""Faults that users of DeepRec reported, tried on this package. N in test_N is the issue there."""

import threading

import numpy as np
import pytest
import stored_checkpoints
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.deltas import Deltas
from rec_estimator.table import saveable
from rec_estimator.tools import inspect_checkpoint
from rec_estimator.tools.shrink_ckpt_with_filtered_features import shrink

ZEROS = rec.InitializerOption(tf.zeros_initializer(), default_value_dim=1)


def table_of_zeros(name="t", dim=2, shards=1, **options):
    return rec.get_embedding_variable(
        name,
        dim,
        partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
        ev_option=rec.EmbeddingVariableOption(init_option=ZEROS, **options),
    )


def in_threads(session, count, work):
    """Runs work(i) in `count` threads, in the session's graph; returns the errors."""
    errors = []

    def call(i):
        try:
            with session.graph.as_default():
                work(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


# ------------------------------------------------------------------ 1023


@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
@pytest.mark.parametrize("shards", [1, 3])
def test_1023_value_slot_and_count_in_a_checkpoint_are_of_one_instant(tmp_path, shards, saver):
    # Three threads train while a fourth saves. A gradient of 1 makes value and slot of a key a
    # function of its count.
    table = table_of_zeros(shards=shards)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.AdagradOptimizer(0.5, initial_accumulator_value=1.0).minimize(loss)
    writer = saver(max_to_keep=None)
    ids, saves, steps = np.arange(200), 4, 60
    saved = []

    def work(i):
        if i == 0:
            for n in range(saves):
                saved.append(writer.save(session, str(tmp_path / f"m{n}")))
        else:
            for _ in range(steps):
                session.run(train, {keys: ids})

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert in_threads(session, 4, work) == []
        saved.append(writer.save(session, str(tmp_path / "last")))
    values, accumulators = [np.float32(0)], [np.float32(1)]
    for _ in range(3 * steps):
        accumulators.append(accumulators[-1] + np.float32(1))
        values.append(values[-1] - np.float32(0.5) / np.sqrt(accumulators[-1]))
    for prefix in saved:
        reader = tf.train.NewCheckpointReader(prefix)
        names = [f"t/part_{i}" for i in range(shards)] if shards > 1 else ["t"]
        for name in names:
            counts = reader.get_tensor(f"{name}-freqs")
            assert (
                reader.get_tensor(f"{name}/Adagrad-keys") == reader.get_tensor(f"{name}-keys")
            ).all()
            for part, expected in ((name, values), (f"{name}/Adagrad", accumulators)):
                stored = reader.get_tensor(f"{part}-values")
                # The kernel's own square root is within 2 ulp of NumPy's in each of 180 steps.
                np.testing.assert_allclose(
                    stored, np.array(expected)[counts][:, None].repeat(2, axis=1), rtol=1e-5
                )
    assert counts.tolist() == [3 * steps] * len(counts)


@pytest.mark.parametrize("slot_keys", [[1, 2, 3, 4], [2], [8, 9]], ids=["more", "fewer", "others"])
def test_1023_keys_of_a_slot_that_are_not_those_of_the_values_never_meet_them(tmp_path, slot_keys):
    def tensors(name, keys, value):
        keys = stored_checkpoints.in_bucket_order(np.array(keys))
        return {
            f"{name}-keys": keys,
            f"{name}-values": np.array([[value + key, -key] for key in keys], np.float32),
            f"{name}-freqs": 5 + keys,
            f"{name}-versions": keys,
            f"{name}-partition_offset": stored_checkpoints.offsets(keys),
        }

    stored = {**tensors("t", [1, 2, 3], 100), **tensors("t/Adagrad", slot_keys, 1000)}
    prefix = stored_checkpoints.write(tmp_path / "m", stored)
    table = table_of_zeros()
    loss = tf.reduce_sum(rec.embedding_lookup(table, [1]))
    rec.optimizers.AdagradOptimizer(0.5, initial_accumulator_value=0.25).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rec.Saver([table]).restore(session, prefix)
        export = session.run(saveable.export_shard(table.shards[0], table.shards[0].slots))
    assert sorted(export.keys) == [1, 2, 3]
    for key, value, slot in zip(export.keys, export.values, export.slot_values[0]):
        assert value.tolist() == [100 + key, -key]
        assert slot.tolist() == ([1000 + key, -key] if key in slot_keys else [0.25, 0.25])


# ------------------------------------------------------------------ 999


@pytest.mark.long
def test_999_deltas_of_an_estimator_predict_as_it_was_trained(tmp_path):
    every_key = np.arange(60)
    rng = np.random.default_rng(0)
    batches = rng.zipf(1.2, (20, 30)) % 60
    option = rec.EmbeddingVariableOption(
        init_option=ZEROS,
        filter_option=rec.CounterFilter(2),
        evict_option=rec.GlobalStepEvict(steps_to_live=4),
    )

    def model_fn(features, labels, mode):
        table = rec.get_embedding_variable(
            "t", 2, ev_option=option, partitioner=tf.fixed_size_partitioner(3)
        )
        loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, features["id"]) - 1))
        step = tf.train.get_global_step()
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        tf.identity(rec.embedding_lookup(table, every_key), name="rows")
        predictions = {"rows": rec.embedding_lookup(table, features["id"])}
        return rec.EstimatorSpec(mode, loss=loss, train_op=train, predictions=predictions)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices({"id": batches.astype(np.int64)})

    live = {}

    class Rows(tf.train.SessionRunHook):
        def after_run(self, context, values):
            step, rows = context.session.run([tf.train.get_global_step(), "rows:0"])
            live[int(step)] = rows

    config = rec.RunConfig(
        save_checkpoints_steps=100, save_incremental_checkpoints_steps=1, keep_checkpoint_max=None
    )
    estimator = rec.RecEstimator(model_fn, str(tmp_path), config)
    estimator.train(input_fn, hooks=[Rows()])
    assert sorted(live) == list(range(1, 21))
    deltas = 0
    for step, rows in live.items():
        prefix = str(tmp_path / f"model.ckpt-{step}")
        deltas += Deltas().parent_of(prefix) is not None
        if step % 3:
            continue
        once = lambda: tf.data.Dataset.from_tensors({"id": every_key})  # noqa: E731
        predicted = list(estimator.predict(once, checkpoint_path=prefix))
        restored = np.array([prediction["rows"] for prediction in predicted])
        assert restored.tobytes() == rows.tobytes(), step
    assert deltas == 19


# ------------------------------------------------------------------ 739, 808


@pytest.mark.long
@pytest.mark.parametrize("make_filter", [None, rec.CounterFilter(2)], ids=["plain", "filtered"])
def test_739_lookups_steps_evictions_saves_and_exports_may_run_at_once(tmp_path, make_filter):
    table = table_of_zeros(
        shards=3, filter_option=make_filter, evict_option=rec.GlobalStepEvict(10**6)
    )
    keys = tf.placeholder(tf.int64, [None])
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
    reads = [rec.embedding_lookup(table, keys), table.export(), table.size(), table.evict()]
    saver = rec.Saver()
    ids, steps = np.arange(500), 40

    def work(i):
        for n in range(steps):
            if i < 2:
                session.run(train, {keys: ids})
            elif i == 2 and n % 8 == 0:
                saver.save(session, str(tmp_path / "m"), global_step=n)
            elif i > 2:
                rows, export, _, _ = session.run(reads, {keys: ids})
                assert (rows <= 0).all() and len(export.keys) <= len(ids)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert in_threads(session, 6, work) == []
        assert (session.run(table.get_frequency(ids)) == 2 * steps).all()
        # Each step subtracts 1 for a gradient of 1, except the step that admits nothing yet.
        rows = session.run(reads[0], {keys: ids})
    expected = 2 * steps - (1 if make_filter else 0)
    assert (rows == -expected).all()


# ------------------------------------------------------------------ 692, 741


@pytest.mark.long
@pytest.mark.each_value
@pytest.mark.parametrize("key_dtype", [tf.int32, tf.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("ids", [[], [7, -3]], ids=["empty", "two keys"])
def test_692_tables_of_any_keys_and_size_are_saved_restored_shrunk_and_inspected(
    tmp_path, capsys, key_dtype, ids
):
    def build():
        table = rec.get_embedding_variable("t", 2, key_dtype=key_dtype)
        keys = tf.placeholder(key_dtype, [None])
        loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
        step = tf.train.get_or_create_global_step()
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        return table, keys, train, step

    table, keys, train, step = build()
    saver = rec.Saver(incremental=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        full = saver.save(session, str(tmp_path / "m"), global_step=step)
        session.run(train, {keys: ids})
        delta = saver.save(session, str(tmp_path / "m"), global_step=step)
        again = saver.save(session, str(tmp_path / "f"), global_step=step, full=True)
    assert Deltas().parent_of(delta) is not None
    shrunk = str(tmp_path / "s" / "m")
    (tmp_path / "s").mkdir()
    shrink(again, shrunk)
    for prefix, expected in ((full, []), (delta, ids), (again, ids), (shrunk, ids)):
        with tf.Graph().as_default(), tf.Session() as session:
            table, *_ = build()
            saver_of = rec.Saver()
            session.run(tf.global_variables_initializer())
            saver_of.restore(session, prefix)
            assert sorted(session.run(table.export()).keys) == sorted(expected)
        assert inspect_checkpoint.main([prefix]) == 0
        assert "\nt" in capsys.readouterr().out


# ------------------------------------------------------------------ 252


@pytest.mark.long
@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
def test_252_restores_into_one_session_do_not_add_memory(tmp_path, saver):
    table = table_of_zeros(dim=16, filter_option=rec.CounterFilter(2))
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.AdagradOptimizer(0.5).minimize(loss)
    writer, memory = saver(), table.memory_bytes()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train, {keys: np.arange(5000)})
        prefix = writer.save(session, str(tmp_path / "m"))
        writer.restore(session, prefix)
        first = session.run(memory)
        for _ in range(20):
            writer.restore(session, prefix)
        assert session.run(memory) == first
