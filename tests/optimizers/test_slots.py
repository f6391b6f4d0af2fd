# SPDX-License-Identifier: Apache-2.0
"""Slots as scripts read them with Optimizer.get_slot(), of tables and of dense variables."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    ALL_RULES,
    EXACT_RULES,
    assert_same_bits,
    initial_vectors,
    initialized_session,
    ours,
    rows_of,
    rules,
    table_from,
    tensorflows,
)
from tf_behavior import resource_variables

import rec_estimator as rec
from rec_estimator.table.slot_rows import SlotRows

KEYS = [3, -7, 3, 1003, 4]


def trained_table(optimizer, shards=1):
    """A table and its train op."""
    cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table = table_from(initial_vectors(3), partitioner=cut)
    return table, optimizer.minimize(tf.reduce_sum(tf.square(rows_of(table, KEYS))))


# Not every release computes powers alike; see optimizer_rules.
@rules({name: rule for name, rule in EXACT_RULES.items() if name != "ftrl_power"})
def test_slots_of_a_table_are_those_of_a_dense_variable_under_the_same_names(rule):
    dense = tf.get_variable("dense", initializer=initial_vectors(3))
    table = table_from(initial_vectors(3))
    optimizer, stock = ours(rule), tensorflows(rule)
    keys = [3, 5, 3, 9]
    train = [
        optimizer.minimize(tf.reduce_sum(tf.square(rows_of(table, keys))), var_list=[table]),
        stock.minimize(tf.reduce_sum(tf.square(tf.gather(dense, keys))), var_list=[dense]),
    ]
    names = optimizer.get_slot_names()
    assert names == stock.get_slot_names()
    slots = [optimizer.get_slot(table, name).lookup(range(40)) for name in names]
    with initialized_session() as session:
        for _ in range(2):
            session.run(train)
        for actual, name in zip(session.run(slots), names):
            assert_same_bits(actual, session.run(stock.get_slot(dense, name)))


@pytest.mark.each_value
@rules(ALL_RULES)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_slot_reads_what_a_checkpoint_has(rule, shards, tmp_path):
    optimizer = ours(rule)
    table, train = trained_table(optimizer, shards)
    slots = [optimizer.get_slot(table, name) for name in optimizer.get_slot_names()]
    slots = {slot.name: slot for slot in slots if isinstance(slot, SlotRows)}
    exports = {name: slot.export() for name, slot in slots.items()}
    with initialized_session() as session:
        session.run(train)
        exports = session.run(exports)
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    reader = tf.train.load_checkpoint(prefix)
    stored = {name for name in reader.get_variable_to_shape_map() if name.endswith("-values")}
    parts = ["table"] if shards == 1 else [f"table/part_{i}" for i in range(shards)]
    assert stored == {
        f"{part}{name[len('table') :]}-values" for part in parts for name in ["table", *slots]
    }
    for name, (keys, values) in exports.items():
        keys_of = [reader.get_tensor(f"{part}-keys") for part in parts]
        slot = name[len("table") :]
        values_of = [reader.get_tensor(f"{part}{slot}-values") for part in parts]
        np.testing.assert_array_equal(keys, np.concatenate(keys_of))
        assert_same_bits(values, np.concatenate(values_of))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_slot_is_read_by_keys_of_any_shape_known_or_not(shards):
    optimizer = rec.optimizers.AdagradOptimizer(0.1, initial_accumulator_value=0.25)
    table, train = trained_table(optimizer, shards)
    slot = optimizer.get_slot(table, "accumulator")
    keys = np.int64([[1003, 3], [-(2**63), 2**63 - 1], [0, -7]])
    found = slot.lookup(keys)
    assert found.shape == [3, 2, 3] and slot.width == 3
    rows = rows_of(table, keys.reshape(-1))
    with initialized_session() as session:
        # A table without rows.
        np.testing.assert_array_equal(session.run(found), np.full([3, 2, 3], 0.25, np.float32))
        before = session.run(rows).reshape(found.shape)
        session.run(train)
        # Key 3 occurs twice.
        gradient = 2 * before * np.float32([[[1], [2]], [[0], [0]], [[0], [1]]])
        assert_same_bits(session.run(found), np.float32(0.25) + gradient * gradient)


def test_a_shard_has_the_slots_of_its_rows():
    optimizer = rec.optimizers.MomentumOptimizer(0.1, 0.9)
    table, train = trained_table(optimizer, shards=2)
    slots = [optimizer.get_slot(shard, "momentum") for shard in table]
    assert [slot.name for slot in slots] == ["table/part_0/Momentum", "table/part_1/Momentum"]
    with initialized_session() as session:
        session.run(train)
        keys = [session.run(slot.export()).keys.tolist() for slot in slots]
    assert keys == [[4], [3, 1003, -7]]


def test_there_is_no_slot_before_training_or_of_another_name_or_table():
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    table = rec.get_embedding_variable("t", 2)
    other = rec.get_embedding_variable("other", 2)
    assert optimizer.get_slot(table, "m") is None and optimizer.get_slot_names() == []
    optimizer.minimize(tf.reduce_sum(rec.embedding_lookup(table, [1])), var_list=[table])
    assert optimizer.get_slot_names() == ["m", "v"]
    assert repr(optimizer.get_slot(table, "v")) == "<rec_estimator.SlotRows 't/Adam_1' width=2>"
    assert optimizer.get_slot(table, "accumulator") is None
    assert optimizer.get_slot(other, "m") is None


@pytest.mark.parametrize(
    "use", [tf.identity, lambda slot: tf.concat([tf.ones([1, 3]), slot], 0), tf.reduce_sum]
)
def test_a_slot_in_place_of_a_tensor_is_an_error_with_a_remedy(use):
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    table, _ = trained_table(optimizer)
    with pytest.raises(TypeError, match=r"slot 'table/Adam' .*; read it with lookup\(keys\) or"):
        use(optimizer.get_slot(table, "m"))


def test_keys_of_another_type_are_refused():
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    table, _ = trained_table(optimizer)
    with pytest.raises(TypeError, match="keys must be int64 or int32, got string; hash strings"):
        optimizer.get_slot(table, "m").lookup(["a"])


@pytest.mark.each_value
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "slices"])
@pytest.mark.parametrize("is_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64], ids=lambda t: t.name)
def test_adam_async_has_the_powers_of_the_betas_of_each_variable_as_slots(
    dtype, is_resource, is_sparse
):
    with resource_variables(is_resource):
        variables = [tf.get_variable(n, initializer=tf.ones([2], dtype)) for n in ("a", "b")]
    gradient = tf.constant([0.1, 0.1], dtype)
    if is_sparse:
        gradient = tf.IndexedSlices(gradient, tf.constant([0, 1]), tf.constant([2]))
    optimizer = rec.optimizers.AdamAsyncOptimizer(beta1=lambda: 0.5, beta2=0.25)
    update_all = optimizer.apply_gradients([(gradient, v) for v in variables])
    update_first = optimizer.apply_gradients([(gradient, variables[0])])
    names = ("beta1_power", "beta2_power")
    powers = [[optimizer.get_slot(v, name) for name in names] for v in variables]
    assert all(power in optimizer.variables() for pair in powers for power in pair)
    assert [power.op.name for power in powers[0]] == ["a/AdamAsync_2", "a/AdamAsync_3"]
    assert optimizer.get_slot_names() == ["beta1_power", "beta2_power", "m", "v"]
    with tf.Graph().as_default():
        assert list(optimizer.variables()) == []
    with initialized_session() as session:
        assert session.run(powers) == [[0.5, 0.25]] * 2
        session.run(update_all)
        session.run(update_first)
        assert session.run(powers) == [[0.125, 0.015625], [0.25, 0.0625]]


@pytest.mark.parametrize("shards", [1, 2])
def test_adam_async_has_the_powers_of_the_betas_of_a_table_as_slots(shards):
    optimizer = rec.optimizers.AdamAsyncOptimizer(beta1=0.5, beta2=0.25)
    table, train = trained_table(optimizer, shards)
    power = optimizer.get_slot(table, "beta1_power")
    assert power.op.name == "table/AdamAsync_2"
    assert all(optimizer.get_slot(shard, "beta1_power") is power for shard in table)
    with initialized_session() as session:
        session.run(train)
        assert session.run([power, optimizer.get_slot(table, "beta2_power")]) == [0.25, 0.0625]


@pytest.mark.parametrize("base", [rec.optimizers.AdamOptimizer, tf.train.AdamOptimizer])
def test_adam_extended_with_decoupled_weight_decay_keeps_the_names_of_adams_slots(base):
    extended = rec.optimizers.extend_with_decoupled_weight_decay(base)
    optimizer = extended(weight_decay=0.5)
    dense = tf.get_variable("dense", initializer=2.0)
    table = table_from(initial_vectors(3))
    optimizer.minimize(dense * tf.reduce_sum(rows_of(table, KEYS)))
    assert optimizer.get_slot(table, "m").name == "table/Adam"
    assert optimizer.get_slot(dense, "v").op.name == "dense/Adam_1"
    assert extended(0.5, name="Mine").get_name() == "Mine"
