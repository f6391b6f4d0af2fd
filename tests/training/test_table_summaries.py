# SPDX-License-Identifier: Apache-2.0
"""TableSummaryHook: its scalars and its line of the log, in RecEstimator and in sessions."""

import logging
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table.activity import TableActivity, build_activity
from rec_estimator.table.table import graph_tables


def scalars_in(folder):
    """{step: {tag: value}} of the tags of tables, the last value of each."""
    found = {}
    for path in sorted(folder.glob("events*")):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.startswith("tables/"):
                    found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


def model_fn(features, labels, mode):
    loss = sum(tf.reduce_sum(tf.square(features[name] - 1.0)) for name in ("user", "item"))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


FEATURES = [
    rec.EmbeddingFeature("user", dim=4),
    rec.EmbeddingFeature("item", dim=4, filter_option=rec.CounterFilter(2)),
]


def input_fn():
    # Each step: users 2 i and 2 i + 1, and always the same three items, one of them twice.
    users = np.arange(40).reshape(20, 2)
    items = np.tile([[7, 8], [7, 9]], (20, 1, 1))
    return tf.data.Dataset.from_tensor_slices(({"user": users, "item": items}, users))


def train(folder, **config):
    config = rec.RunConfig(
        str(folder), save_checkpoints_steps=10, save_summary_steps=5, tf_random_seed=1, **config
    )
    estimator = rec.RecEstimator(model_fn, config=config, embedding_features=FEATURES)
    estimator.train(input_fn, steps=20)


@pytest.mark.long
def test_an_estimator_writes_the_counts_of_each_table_and_of_all(tmp_path):
    train(tmp_path)
    found = scalars_in(tmp_path)
    assert sorted(found) == [0, 5, 10, 15, 20]
    at_15 = {tag[len("tables/") :]: value for tag, value in found[15].items()}
    expected = {
        "user/rows": 30,
        "user/filtered_keys": 0,
        "user/admitted_since_save": 10,
        "user/evicted_since_save": 0,
        "user/new_rows_per_step": 2,
        "user/found_share": 0,
        "item/rows": 3,
        "item/admitted_since_save": 0,
        "item/found_share": 1,
        "total/rows": 33,
        # A step has two users and four items; only the items have rows.
        "total/found_share": 4 / 6,
    }
    for name, value in expected.items():
        assert at_15[name] == pytest.approx(value), name
    assert at_15["total/bytes"] == at_15["user/bytes"] + at_15["item/bytes"] > 0
    # Saves only. Key 7 was trained twice a step.
    assert {step for step in found if "tables/item/largest_norm" in found[step]} == {10, 20}
    # The threshold is 2: key 7 has a row from the first step on, keys 8 and 9 from the second on.
    assert found[5]["tables/item/admitted_since_save"] == 3
    assert found[5]["tables/item/found_share"] == pytest.approx((2 + 3 * 4) / 20)


@pytest.mark.long
def test_a_save_logs_one_line(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tensorflow"):
        train(tmp_path)
    lines = [each.getMessage() for each in caplog.records if " tables, " in each.getMessage()]
    assert len(lines) == 3  # At steps 0, 10 and 20.
    assert re.fullmatch(
        r"model\.ckpt-20: 2 tables, 43 rows \(\+20, 0 evicted\), 0 filtered keys, [\d.]+ .B, "
        r"2\.0 new rows a step, 66\.7 % of ids found; new rows: user 20; largest norm [\d.]+, "
        r"key -?\d+ of '(user|item)'\.",
        lines[-1],
    )


@pytest.mark.long
def test_run_config_switches_the_summaries_off(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tensorflow"):
        train(tmp_path, table_summaries=False)
    assert not scalars_in(tmp_path)
    assert " tables, " not in caplog.text
    config = rec.RunConfig(table_summaries=False).replace(save_summary_steps=3)
    assert not config.table_summaries
    assert config.replace(table_summaries=True).table_summaries


@pytest.mark.long
@pytest.mark.usefixtures("resource_variables")
def test_several_steps_in_a_run_are_counted(tmp_path):
    train(tmp_path, iterations_per_loop=5)
    found = scalars_in(tmp_path)
    assert sorted(found) == [0, 5, 10, 15, 20]
    assert found[15]["tables/user/new_rows_per_step"] == 2


def run_session(folder, steps=6, every_steps=2):
    option = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(2))
    table = rec.get_embedding_variable("user", 2, ev_option=option)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    step = tf.train.get_or_create_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    hook = rec.TableSummaryHook(str(folder), every_steps=every_steps)
    with rec.MonitoredTrainingSession(
        checkpoint_dir=str(folder), save_checkpoint_steps=5, save_summaries_secs=None, hooks=[hook]
    ) as session:
        for i in range(steps):
            session.run(train_op, {keys: [i, 100]})


def test_a_plain_session_writes_the_counts_and_its_evictions(tmp_path):
    run_session(tmp_path)
    found = scalars_in(tmp_path)
    # Step 5 and the last one save; the save of step 5 evicts what was trained before step 3.
    assert found[2]["tables/user/rows"] == 3
    assert found[4]["tables/user/new_rows_per_step"] == 1
    assert found[5]["tables/user/admitted_since_save"] == 6
    assert found[5]["tables/user/evicted_since_save"] == 6 - found[5]["tables/user/rows"] > 0
    assert not any(tag.startswith("tables/total/") for tag in found[5])


@pytest.mark.long
def test_a_resumed_training_starts_to_count_at_its_checkpoint(tmp_path):
    for _ in range(2):
        with tf.Graph().as_default():
            run_session(tmp_path, steps=5, every_steps=100)
    # The second run trained keys of which the checkpoint had some.
    assert scalars_in(tmp_path)[10]["tables/user/admitted_since_save"] < 6


def test_the_tier_on_disk_is_counted(tmp_path):
    storage = rec.StorageOption(
        storage_type=rec.StorageType.DRAM_SSDHASH,
        storage_path=str(tmp_path / "disk"),
        storage_size=[64 * 16],
    )
    option = rec.EmbeddingVariableOption(storage_option=storage)
    table = rec.get_embedding_variable("user", 2, ev_option=option)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    step = tf.train.get_or_create_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    hook = rec.TableSummaryHook(str(tmp_path), every_steps=1)
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for _ in range(2):
            session.run(train_op, {keys: np.arange(1000)})
    found = scalars_in(tmp_path)[2]
    assert found["tables/user/disk_rows"] > 500
    assert found["tables/user/disk_hits"] + found["tables/user/disk_misses"] == 1000
    assert found["tables/user/disk_misses"] > 500


def test_padding_is_neither_looked_up_nor_missed():
    table = rec.create_table(
        key_dtype=tf.int64,
        dim=tf.TensorShape([2]),
        name="user",
        device_vocabulary_size=8,
        emb_initializer=tf.ones_initializer(),
    )
    keys = tf.constant([-1, -1, -1, 4, 5, 4], tf.int64)
    loss = tf.reduce_sum(rec.sparse_lookup(table, keys, is_train=True, modify_graph=True))
    step = tf.train.get_or_create_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    counts = build_activity(graph_tables()[0])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for looked_up, found in ((3, 0), (6, 3)):
            session.run(train_op)
            activity = TableActivity(*session.run(counts).tolist())
            assert (activity.looked_up, activity.found) == (looked_up, found)


def test_an_interval_that_is_not_above_0_is_refused():
    with pytest.raises(ValueError, match="every_steps must be above 0, got 0; .*omit the hook"):
        rec.TableSummaryHook(every_steps=0)
