# SPDX-License-Identifier: Apache-2.0
"""Tests of where the shards of tables go in a cluster."""

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table import placement

CLUSTER = {"chief": ["h:1"], "ps": ["h:2", "h:3"], "worker": ["h:4"]}
CPU = "/device:CPU:0"


def device_setter(**arguments):
    return tf.train.replica_device_setter(cluster=CLUSTER, **arguments)


def devices(table):
    return [shard.device for shard in table]


def table_of(name="t", **arguments):
    return rec.get_embedding_variable(name, 2, **arguments)


def test_a_table_has_a_shard_on_each_ps_of_a_device_setter():
    with tf.device(device_setter(worker_device="/job:worker/task:0")):
        table = table_of()
    assert devices(table) == [f"/job:ps/task:0{CPU}", f"/job:ps/task:1{CPU}"]
    assert table.initial_value.device == f"/job:ps/task:0{CPU}"
    for shard in table:
        assert shard.initializer.device == shard.device == shard.saveable.device


def test_create_table_has_a_shard_on_each_ps_too():
    with tf.device(device_setter()):
        table = rec.create_table(
            key_dtype=tf.int64,
            dim=2,
            name="t",
            emb_initializer=tf.zeros_initializer(),
            device_vocabulary_size=9,
        )
    assert devices(table) == [f"/job:ps/task:0{CPU}", f"/job:ps/task:1{CPU}"]


def test_tables_do_not_move_the_variables_of_the_user():
    def variables(with_tables):
        with tf.Graph().as_default(), tf.device(device_setter()):
            made = []
            for name in "abc":
                made.append(tf.get_variable(name, [1], use_resource=True).device)
                if with_tables:
                    table_of(f"{name}_table")
            return made

    assert variables(True) == variables(False)


def test_without_ps_a_table_is_where_the_scopes_say():
    with tf.device("/job:worker/task:3"):
        assert devices(table_of("a")) == [f"/job:worker/task:3{CPU}"]
    assert devices(table_of("b")) == [CPU]


def test_a_job_that_the_user_names_inside_the_device_setter_wins():
    with tf.device(device_setter()), tf.device("/job:ps/task:1"):
        assert devices(table_of("a")) == [f"/job:ps/task:1{CPU}"]
    with tf.device(device_setter()), tf.device(None):
        assert devices(table_of("b")) == [CPU]


def test_tables_with_fewer_shards_than_ps_take_turns():
    partitioner = tf.fixed_size_partitioner(1)
    with tf.device(device_setter()):
        tables = [table_of(name, partitioner=partitioner) for name in "abc"]
    assert [devices(table)[0][:14] for table in tables] == [
        "/job:ps/task:0",
        "/job:ps/task:1",
        "/job:ps/task:0",
    ]


def test_more_shards_than_ps_go_round():
    with tf.device(device_setter()):
        table = table_of(partitioner=tf.fixed_size_partitioner(3))
    assert [device[:14] for device in devices(table)] == [
        "/job:ps/task:0",
        "/job:ps/task:1",
        "/job:ps/task:0",
    ]


def test_a_device_function_of_the_user_may_choose_the_ps():
    placement.use_ps_tasks(2)

    def all_on_the_second(op):
        return "/job:ps/task:1" if "ps" in op.device or "Variable" in op.type else op.device

    with tf.device(all_on_the_second):
        assert {device[:14] for device in devices(table_of())} == {"/job:ps/task:1"}


def test_a_device_function_that_gives_each_task_its_own_table_is_refused():
    placement.use_ps_tasks(2)
    with tf.device(lambda op: "/job:worker/task:0"):
        with pytest.raises(ValueError, match="device_fn must place table shard 't/part_0' on job"):
            table_of()


def test_every_op_on_a_table_is_on_the_task_of_its_handle():
    step = tf.train.get_or_create_global_step()
    with tf.device(device_setter(worker_device="/job:worker/task:0")):
        limited = rec.create_table(
            key_dtype=tf.int64,
            dim=2,
            name="limited",
            emb_initializer=tf.zeros_initializer(),
            device_vocabulary_size=9,
        )
        plain = table_of(ev_option=rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(5)))
        keys = tf.constant([1, 2, 3], tf.int64)
        vectors = rec.sparse_lookup(limited, keys, modify_graph=True)
        loss = tf.reduce_sum(vectors + rec.embedding_lookup(plain, keys))
        rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        plain.size(), plain.get_frequency(keys), plain.get_version(keys), plain.export()
        tf.report_uninitialized_variables()
        rec.Saver(sharded=True)
        tf.train.Saver(sharded=True)
    for table in (limited, plain):
        for shard in table:
            users = shard.handle.consumers()
            assert len(users) > 5
            for op in users:
                groups = {group.decode() for group in op.colocation_groups()}
                is_there = f"loc:@{shard.op.name}" in groups or op.device == shard.device
                assert is_there, (op.type, op.device, groups)


def test_a_graph_of_a_worker_is_marked():
    assert state_of().is_chief
    state_of().is_chief = False
    assert not state_of().is_chief
    with tf.Graph().as_default():
        assert state_of().is_chief
