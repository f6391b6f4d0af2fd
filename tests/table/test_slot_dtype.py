# SPDX-License-Identifier: Apache-2.0
"""Tables that store slots in 16 bits: refused rules, small increments, disk, deltas, arguments."""

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from narrow_tables import (
    BANK,
    DIM,
    Contents,
    adagrad,
    after_steps,
    make_table,
    many_keys,
    memory_of_rows,
    random_batches,
    trainer,
)
from optimizer_rules import ALL_RULES, initialized_session, ours, rules

import rec_estimator as rec
from rec_estimator.features import lookup_features
from rec_estimator.table.table import graph_tables

NARROW = {"slot_dtype": tf.bfloat16}
REFUSED = {"adagrad_decay", "amsgrad", "rmsprop_centered"}


# ------------------------------------------------------------------ steps


@rules({name: ALL_RULES[name] for name in sorted(REFUSED)})
def test_rules_that_need_exact_slots_refuse_the_table_by_name(rule):
    table = make_table(**NARROW)
    with pytest.raises(ValueError, match="slot_dtype of table 't' must be float32 with .*, whose"):
        trainer(table, ours(rule))


def test_small_increments_of_a_slot_add_up():
    # Rounded to the nearest, 1 + 2^-12 is 1 in bfloat16, and the sum of squares would never grow.
    table = make_table(dim=32, **NARROW)
    optimizer = rec.optimizers.AdagradOptimizer(0.1, initial_accumulator_value=1.0)
    train = trainer(table, optimizer)
    slot = optimizer.get_slot(table, "accumulator").lookup([1])
    with initialized_session() as session:
        for _ in range(256):
            train(session, [1], np.full([1, 32], 2.0**-6, np.float32))
        sums = session.run(slot)
    # 256 steps go up by 2^-7 with a chance of 1/32 each: the mean of 32 sums is 0.004 from theirs.
    assert abs(np.mean(sums) - (1 + 256 / 2**12)) < 0.015


def test_rows_on_disk_have_the_bits_of_rows_in_memory(tmp_path):
    in_memory = after_steps(8, batches=many_keys, **NARROW)
    storage = storage_runs.on_disk(tmp_path)
    assert after_steps(8, batches=many_keys, storage_option=storage, **NARROW) == in_memory


def test_slots_take_half_the_memory_but_for_those_of_one_number():
    def saved(make_optimizer):
        floats, narrow = (
            memory_of_rows(make_optimizer, 20000, dim=64, slot_dtype=dtype)
            for dtype in (tf.float32, tf.bfloat16)
        )
        return floats - narrow

    assert saved(rec.optimizers.AdamOptimizer) == 20000 * 64 * 2 * 2
    assert saved(rec.optimizers.RowwiseAdagradOptimizer) == 0


# ------------------------------------------------------------------ checkpoints


def test_base_and_deltas_restore_the_bits(tmp_path):
    table, optimizer = make_table(**NARROW), adagrad()
    train = trainer(table, optimizer)
    contents, saver = Contents(table, optimizer), rec.Saver(incremental=True)
    with initialized_session() as session:
        for step, batch in enumerate(random_batches(3)):
            train(session, *batch)
            prefix = saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
        before = contents.bits(session)
        train(session, *batch)
        after = contents.bits(session)
        saver.restore(session, prefix)
        assert contents.bits(session) == before
        train(session, *batch)
        assert contents.bits(session) == after


# ------------------------------------------------------------------ arguments


def test_other_types_and_long_vectors_are_refused_by_name():
    with pytest.raises(ValueError, match="slot_dtype must be float32 or bfloat16, got float16"):
        rec.get_embedding_variable("t", 4, slot_dtype=tf.float16)
    with pytest.raises(ValueError, match="embedding_dim must be <= 2048 with slot_dtype=bfloat16"):
        rec.get_embedding_variable("t", 2049, slot_dtype=tf.bfloat16)
    with pytest.raises(ValueError, match="dim must be <= 2048 with slot_dtype=bfloat16, got 3000"):
        rec.EmbeddingFeature("t", 3000, slot_dtype=tf.bfloat16)
    make_table(**NARROW)
    with pytest.raises(ValueError, match="got slot_dtype = tf.float32 after tf.bfloat16"):
        make_table()


def test_features_and_columns_give_their_tables_the_type():
    features = [
        rec.EmbeddingFeature("a", 4, table="user", slot_dtype=tf.bfloat16),
        rec.EmbeddingFeature("b", 4, table="user", value_dtype=tf.float16),
    ]
    ids = {"a": tf.constant([[1]], tf.int64), "b": tf.constant([[2]], tf.int64)}
    lookup_features(ids, features)
    column = rec.feature_column.categorical_column_with_embedding(
        "item", tf.int64, slot_dtype=tf.bfloat16
    )
    dense = rec.feature_column.embedding_column(column, 4)
    tf.feature_column.input_layer({"item": tf.constant([[1]], tf.int64)}, [dense])
    types = [(table.value_dtype, table.slot_dtype) for table in graph_tables()]
    assert types == [(tf.float16, tf.bfloat16), (tf.float32, tf.bfloat16)]


def test_tables_of_rec_sdk_have_the_type_and_float32_in_their_folders(tmp_path):
    table = rec.create_table(
        key_dtype=tf.int64,
        dim=DIM,
        name="t",
        emb_initializer=tf.constant_initializer(BANK[0]),
        device_vocabulary_size=100,
        slot_dtype=tf.bfloat16,
    )
    keys = tf.constant([5, 6], tf.int64)
    values = rec.sparse_lookup(table, keys, is_train=True, modify_graph=True)
    optimizer = rec.optimizers.LazyAdamOptimizer(0.1)
    train = optimizer.minimize(tf.reduce_sum(values))
    moment, saver = optimizer.get_slot(table, "m").lookup(keys), rec.Saver()
    with initialized_session() as session:
        session.run(train)
        saver.save(session, str(tmp_path / "model.ckpt"), global_step=1)
        expected = session.run(moment)
    (folder,) = tmp_path.glob("sparse-*/t/*_momentum")
    attribute = np.fromfile(folder / "slice.attribute", np.int64)
    np.testing.assert_array_equal(attribute, [2, DIM, 4])
    stored = np.fromfile(folder / "slice.data", np.float32).reshape(2, DIM)
    np.testing.assert_array_equal(stored, expected)
