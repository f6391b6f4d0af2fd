# SPDX-License-Identifier: Apache-2.0
"""Tables that store values in 16 bits: lookups, small steps, filters, disk, deltas, arguments."""

import numpy as np
import oracle
import pytest
import storage_runs
import stored_checkpoints
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
from optimizer_rules import initialized_session

import rec_estimator as rec
from rec_estimator.checkpoint.checkpoint_table import CheckpointTable
from rec_estimator.features import lookup_features
from rec_estimator.table.table import graph_tables

NARROW = pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
KEYS = [3, -7, 3, 2**60, 11]


# ------------------------------------------------------------------ lookups and steps


@NARROW
def test_an_unknown_key_reads_the_nearest_numbers_to_its_initial_vector(dtype):
    table = make_table(dtype)
    with initialized_session() as session:
        read = session.run(rec.embedding_lookup(table, tf.constant(KEYS, tf.int64)))
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, BANK[np.mod(KEYS, 8)].astype(dtype.as_numpy_dtype))


@NARROW
def test_a_cast_of_trained_and_unknown_vectors_loses_nothing(dtype):
    table = make_table(dtype)
    train = trainer(table, adagrad())
    (keys, gradients), *_ = random_batches(1)
    vectors = rec.embedding_lookup(table, tf.constant([*keys, *KEYS], tf.int64))
    narrow = tf.cast(vectors, dtype)
    (gradient,) = tf.gradients(narrow * tf.constant(3, dtype), [table])
    with initialized_session() as session:
        train(session, keys, gradients)
        read, cast, found = session.run([vectors, narrow, gradient])
    assert cast.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(cast.astype(np.float32), read)
    assert found.values.dtype == np.float32 and (found.values == 3).all()
    assert found.indices.tolist() == [*keys, *KEYS]


def test_small_steps_add_up():
    # Rounded to the nearest, 1 + 2^-11 is 1 in bfloat16, and no row would ever move.
    table = make_table(tf.bfloat16, 32)
    train = trainer(table, rec.optimizers.GradientDescentOptimizer(2**-11))
    read = rec.embedding_lookup(table, tf.constant([1], tf.int64))
    with initialized_session() as session:
        before = session.run(read)
        for _ in range(128):
            train(session, [1], -np.ones([1, 32], np.float32))
        moved = session.run(read) - before
    assert abs(np.mean(moved) - 128 / 2**11) < 0.01


@NARROW
def test_combined_lookups_combine_the_stored_values(dtype):
    table = make_table(dtype)
    train = trainer(table, adagrad())
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([*KEYS, 5], tf.int64), [3, 0, 1, 2])
    combined = rec.embedding_lookup_sparse(table, ids.to_sparse(), combiner="mean")
    values = rec.embedding_lookup(table, ids.values)
    with initialized_session() as session:
        for batch in random_batches(2):
            train(session, *batch)
        got, rows = session.run([combined, values])
    expected = oracle.combine(rows, np.array([0, 0, 0, 2, 3, 3]), 4, "mean")
    np.testing.assert_array_equal(got, expected)


@NARROW
def test_filters_and_evictions_read_what_is_stored(dtype):
    table = make_table(
        dtype, filter_option=rec.CounterFilter(2), evict_option=rec.L2WeightEvict(0.5)
    )
    train = trainer(table, rec.optimizers.GradientDescentOptimizer(1.0))
    read = rec.embedding_lookup(table, tf.constant([1, 2], tf.int64))
    evict, size = table.evict(), table.size()
    with initialized_session() as session:
        train(session, [1, 2, 2], np.zeros([3, DIM], np.float32))
        value = session.run(read)[1]
        train(session, [1, 2], np.stack([np.zeros(DIM, np.float32), value]))
        assert session.run(size) == 2
        np.testing.assert_array_equal(session.run(read)[1], np.zeros(DIM))
        assert session.run(evict) == 1, "a row of zeros"
        assert session.run(size) == 1


def test_rows_on_disk_have_the_bits_of_rows_in_memory(tmp_path):
    storage = storage_runs.on_disk(tmp_path)
    in_memory = after_steps(8, value_dtype=tf.bfloat16, batches=many_keys)
    on_disk = after_steps(8, value_dtype=tf.bfloat16, batches=many_keys, storage_option=storage)
    assert on_disk == in_memory


@NARROW
def test_rows_take_half_the_memory_and_the_slots_what_they_take(dtype):
    floats, narrow = (
        memory_of_rows(rec.optimizers.RowwiseAdagradOptimizer, 20000, dim=64, value_dtype=each)
        for each in (tf.float32, dtype)
    )
    assert floats - narrow == 20000 * 64 * 2


# ------------------------------------------------------------------ checkpoints


def test_initial_vectors_that_the_type_lacks_are_refused(tmp_path):
    large = {"initializer": tf.constant_initializer(7e4), "value_dtype": tf.float16}
    message = "initial vectors of table t must be finite in float16, got 70000; choose float32"
    table = rec.get_embedding_variable("t", DIM, **large)
    default = rec.InitializerOption(default_value_no_permission=-7e4)
    option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2), init_option=default)
    other = rec.get_embedding_variable("d", DIM, value_dtype=tf.float16, ev_option=option)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(table.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="default_value must be finite in"):
            session.run(other.initializer)
    bank = {"t/default_values": np.full([8, DIM], 7e4, np.float32)}
    rows = {"t-keys": np.arange(2), "t-values": np.ones([2, DIM], np.float32)}
    prefix = stored_checkpoints.write(tmp_path / "large.ckpt", {**rows, **bank})
    with tf.Graph().as_default():
        table = make_table(tf.float16)
        with initialized_session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                rec.Saver([table]).restore(session, prefix)
            assert session.run(table.size()) == 0


@pytest.mark.parametrize("shards", [None, 2])
def test_numbers_that_the_type_lacks_are_not_restored(tmp_path, shards):
    tensors = {"t-keys": np.arange(2), "t-values": np.float32([[1] * DIM, [7e4] * DIM])}
    prefix = stored_checkpoints.write(tmp_path / "large.ckpt", tensors)
    table = make_table(tf.float16, shards=shards)
    train = trainer(table, adagrad())
    saver, contents = rec.Saver([table]), table.export()
    message = "t-values of .* finite in float16, .* got 70000 of key 1"
    with initialized_session() as session:
        train(session, *next(random_batches(1)))
        before = session.run(contents)
        with pytest.raises(tf.errors.DataLossError, match=message):
            saver.restore(session, prefix)
        for expected, found in zip(before, session.run(contents)):
            np.testing.assert_array_equal(found, expected)
    with tf.Session() as session:
        with pytest.raises(tf.errors.DataLossError, match=message):
            saver.restore(session, prefix)
    # An infinity is what the checkpoint has: saves tell of it.
    tensors["t-values"][1] = np.inf
    stored_checkpoints.write(tmp_path / "large.ckpt", tensors)
    with tf.Session() as session:
        saver.restore(session, prefix)


@NARROW
def test_base_and_deltas_restore_the_bits(tmp_path, dtype):
    table, optimizer = make_table(dtype), adagrad()
    train = trainer(table, optimizer)
    contents, saver = Contents(table, optimizer), rec.Saver(incremental=True)
    with initialized_session() as session:
        for step, batch in enumerate(random_batches(3)):
            train(session, *batch)
            prefix = saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
        before = contents.bits(session)
        train(session, *batch)
        saver.restore(session, prefix)
        assert contents.bits(session) == before
    values = CheckpointTable(prefix, "t").rows(list(before))
    assert [value.tobytes() for value in values] == [value for value, *_ in before.values()]


# ------------------------------------------------------------------ arguments


def test_other_types_and_long_vectors_are_refused_by_name():
    with pytest.raises(ValueError, match="value_dtype must be float32, bfloat16 or float16, got"):
        rec.get_embedding_variable("t", 4, value_dtype=tf.int8)
    with pytest.raises(ValueError, match="embedding_dim must be <= 2048 with value_dtype=bfloat"):
        rec.get_embedding_variable("t", 2049, value_dtype=tf.bfloat16)
    with pytest.raises(ValueError, match="dim must be <= 2048 with value_dtype=float16, got 3000"):
        rec.EmbeddingFeature("t", 3000, value_dtype=tf.float16)
    make_table(tf.bfloat16)
    with pytest.raises(ValueError, match="got value_dtype = tf.float16 after tf.bfloat16"):
        make_table(tf.float16)


def test_features_and_columns_give_their_tables_the_type():
    features = [
        rec.EmbeddingFeature("a", 4, table="user", value_dtype=tf.bfloat16),
        rec.EmbeddingFeature("b", 4, table="user"),
    ]
    ids = {"a": tf.constant([[1]], tf.int64), "b": tf.constant([[2]], tf.int64)}
    lookup_features(ids, features)
    column = rec.feature_column.categorical_column_with_embedding(
        "item", tf.int64, value_dtype=tf.float16
    )
    dense = rec.feature_column.embedding_column(column, 4)
    tf.feature_column.input_layer({"item": tf.constant([[1]], tf.int64)}, [dense])
    assert [table.value_dtype for table in graph_tables()] == [tf.bfloat16, tf.float16]


def test_tables_of_rec_sdk_have_the_type_and_float32_in_their_folders(tmp_path):
    table = rec.create_table(
        key_dtype=tf.int64,
        dim=4,
        name="t",
        emb_initializer=tf.random_normal_initializer(seed=1),
        device_vocabulary_size=100,
        value_dtype=tf.bfloat16,
    )
    values = rec.sparse_lookup(
        table, tf.constant([5, 6], tf.int64), is_train=True, modify_graph=True
    )
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(values))
    saver = rec.Saver()
    with initialized_session() as session:
        session.run(train)
        saver.save(session, str(tmp_path / "model.ckpt"), global_step=1)
        read = session.run(values)
    (folder,) = tmp_path.glob("sparse-*/t/embedding")
    attribute = np.fromfile(folder / "slice.attribute", np.int64)
    np.testing.assert_array_equal(attribute, [2, 4, 4])
    stored = np.fromfile(folder / "slice.data", np.float32).reshape(2, 4)
    np.testing.assert_array_equal(stored, read)
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-1"))
    assert reader.get_variable_to_dtype_map()["t-values"] == tf.bfloat16
