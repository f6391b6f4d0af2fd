# SPDX-License-Identifier: Apache-2.0
"""Tables that share memory: which rows they keep, deltas, smaller budgets, and what is refused.

tests/ops/core/evict/test_memory_budget.cc has long streams and shares of several tables.
"""

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import _ops
from rec_estimator.checkpoint.checkpoint_table import CheckpointTable
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table.memory_limit import share_memory
from rec_estimator.table.table import graph_tables

DIMS = {"narrow": 2, "wide": 6}
# Bytes of a row with its slot, and of its entry in the index.
BYTES = {name: 2 * 4 * dim + 35 for name, dim in DIMS.items()}


def capacity(**arguments):
    return rec.EmbeddingVariableOption(capacity=rec.Capacity(policy="lru", **arguments))


class Model:
    """Tables that share `budget` bytes, under training."""

    def __init__(self, budget, **arguments):
        state_of().shares_table_memory = True  # As RecEstimator does.
        self.step = tf.train.get_or_create_global_step()
        self.keys = tf.placeholder(tf.int64, [None])
        self.tables = {
            name: rec.get_embedding_variable(name, dim, ev_option=capacity(**arguments))
            for name, dim in DIMS.items()
        }
        values = [rec.embedding_lookup(table, self.keys) for table in self.tables.values()]
        loss = tf.add_n([tf.reduce_sum(value) for value in values])
        self.train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, self.step)
        share_memory(graph_tables(), budget)
        self.exports = {name: table.export() for name, table in self.tables.items()}

    def session(self):
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        return session

    def keys_of(self, session):
        """{table: its keys}"""
        return {name: set(each.keys) for name, each in session.run(self.exports).items()}


def bytes_of(keys):
    return sum(len(keys[name]) * BYTES[name] for name in DIMS)


def test_memory_stays_level_and_the_rows_of_a_step_stay():
    budget = 1000 * sum(BYTES.values())
    model = Model(budget)
    with model.session() as session:
        for begin in range(0, 4000, 200):
            batch = np.arange(begin, begin + 250)
            session.run(model.train, {model.keys: batch})
            keys = model.keys_of(session)
            assert all(found.issuperset(batch) for found in keys.values())
            assert bytes_of(keys) <= budget + sum(BYTES.values())
            if begin > 1500:
                # A step evicts its excess and no more.
                assert bytes_of(keys) > budget - sum(BYTES.values())
        # Both tables have the same keys, so they keep as many, up to the rounding of 20 steps.
        assert len(keys["narrow"]) == pytest.approx(len(keys["wide"]), rel=0.05)


def test_a_table_also_keeps_to_rows_of_its_own():
    model = Model(1000 * sum(BYTES.values()), max_rows=100)
    with model.session() as session:
        for begin in range(0, 1000, 50):
            session.run(model.train, {model.keys: np.arange(begin, begin + 50)})
            assert all(len(found) <= 100 for found in model.keys_of(session).values())


def test_the_next_delta_has_what_a_budget_has_evicted(tmp_path):
    model = Model(100 * sum(BYTES.values()))
    saver = rec.Saver(incremental=True)
    with model.session() as session:
        for number in range(3):
            session.run(model.train, {model.keys: np.arange(80 * number, 80 * number + 90)})
            prefix = saver.save(session, str(tmp_path / "model.ckpt"), number)
        before = model.keys_of(session)
        assert bytes_of(before) <= 101 * sum(BYTES.values())
        saver.restore(session, prefix)
        assert model.keys_of(session) == before


def test_shares_are_those_of_the_tables_on_disk_and_the_rest_is_shared(tmp_path):
    state_of().shares_table_memory = True
    storage = rec.EmbeddingVariableOption(storage_option=storage_runs.on_disk(tmp_path))
    on_disk = rec.get_embedding_variable("on_disk", 8, ev_option=storage)
    evicting = [
        rec.get_embedding_variable("a", 8, ev_option=capacity()),
        rec.get_embedding_variable(
            "b", 8, ev_option=capacity(), partitioner=tf.fixed_size_partitioner(2)
        ),
    ]
    other = rec.get_embedding_variable("other", 8)
    of_key = 8 * 4 + 35
    share_memory(graph_tables(), 300 * of_key)
    assert on_disk.shards[0].op.get_attr("memory_limit") == 100 * of_key
    budgets = [shard.op.get_attr("memory_budget") for table in evicting for shard in table]
    assert budgets == [200 * of_key] * 3
    assert other.shards[0].op.get_attr("memory_budget") == 0


def test_each_task_has_a_part_of_the_budget():
    state_of().shares_table_memory = True
    with tf.device(tf.train.replica_device_setter(cluster={"ps": ["a:1", "b:1"]})):
        partitioner = tf.fixed_size_partitioner(2)
        table = rec.get_embedding_variable("t", 8, ev_option=capacity(), partitioner=partitioner)
    share_memory([table], 1000)
    assert [shard.op.get_attr("memory_budget") for shard in table] == [500, 500]


def test_a_table_has_one_budget():
    handles = [
        _ops.gen.rec_estimator_table_handle(shared_name="t", dim=2, memory_budget=budget)
        for budget in (7, 8)
    ]
    with tf.Session() as session:
        session.run(handles[0].op)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="memory_budget of table t must be 7, .* got 8"
        ):
            session.run(handles[1].op)


def test_a_capacity_without_rows_needs_a_budget(tmp_path):
    with pytest.raises(ValueError, match="capacity of table 't' must have max_rows, got None; "):
        rec.get_embedding_variable("t", 2, ev_option=capacity())
    option = rec.EmbeddingVariableOption(
        capacity=rec.Capacity(), storage_option=storage_runs.on_disk(tmp_path)
    )
    state_of().shares_table_memory = True
    with pytest.raises(ValueError, match="which has a tier on disk, must have max_rows, got None"):
        rec.get_embedding_variable("t", 2, ev_option=option)


def model_fn(features, labels, mode):
    loss = tf.add_n([tf.reduce_sum(tf.square(features[name])) for name in DIMS])
    step = tf.train.get_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_in(folder, keys):
    """An Estimator with memory for so many keys in each table."""
    features = [rec.EmbeddingFeature(name, dim, ev_option=capacity()) for name, dim in DIMS.items()]
    config = rec.RunConfig(table_memory_bytes=keys * sum(BYTES.values()), table_summaries=False)
    return rec.RecEstimator(model_fn, str(folder), config, embedding_features=features)


def saved_bytes(estimator):
    prefix = tf.train.latest_checkpoint(estimator.model_dir)
    return sum(len(CheckpointTable(prefix, name)) * BYTES[name] for name in DIMS)


@pytest.mark.long
def test_an_estimator_keeps_to_the_budget_and_to_a_smaller_one_after_a_restart(tmp_path):
    def input_fn():
        keys = np.arange(3000).reshape([-1, 50])
        return tf.data.Dataset.from_tensor_slices(dict.fromkeys(DIMS, keys)).repeat()

    for keys in (1000, 400):
        estimator = estimator_in(tmp_path, keys)
        estimator.train(input_fn, steps=30)
        budget = keys * sum(BYTES.values())
        # Full, except for a part of the last batch, which has 50 keys.
        assert 0.95 * budget < saved_bytes(estimator) <= budget + sum(BYTES.values())
    assert estimator.evaluate(input_fn, steps=1)["global_step"] == 60
