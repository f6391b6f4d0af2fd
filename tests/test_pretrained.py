# SPDX-License-Identifier: Apache-2.0
"""PretrainedRows: rows of a new table from a file, once, in sessions and Estimators."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec
from rec_estimator.inputs.vector_files import keys_path

KEYS, ROWS = np.arange(-20, 20), np.random.default_rng(1).normal(size=[40, 2]).astype(np.float32)


@pytest.fixture
def vectors(tmp_path):
    path = str(tmp_path / "vectors.npy")
    np.save(path, ROWS)
    np.save(keys_path(path), KEYS)
    return path


def make_table(path, shards=1, **arguments):
    option = rec.EmbeddingVariableOption(
        pretrained=rec.PretrainedRows(path), filter_option=rec.CounterFilter(3)
    )
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    return rec.get_embedding_variable(
        "t", 2, ev_option=option, partitioner=partitioner, **arguments
    )


@VALUE_DTYPES
@pytest.mark.parametrize("shards", [1, 3])
def test_initializer_gives_a_table_the_rows_of_a_file(shards, value_dtype, vectors):
    table = make_table(vectors, shards, value_dtype=value_dtype)
    export = table.export()
    rows = ROWS.astype(value_dtype.as_numpy_dtype).astype(np.float32)
    with tf.Session() as session:
        for _ in range(2):
            session.run(tf.global_variables_initializer())
            found = session.run(export)
            order = np.argsort(found.keys)
            assert found.keys[order].tolist() == KEYS.tolist()
            assert found.values[order].tolist() == rows.tolist()
            assert set(found.freqs) == {3} and set(found.versions) == {-1}
            session.run(table.erase(KEYS))


@pytest.mark.parametrize("shards", [1, 2])
def test_bad_file_leaves_every_shard_as_it_was(shards, vectors):
    table = make_table(vectors, shards)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.save(vectors, ROWS[:, :1])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be \[n, dim\] = \[40,2\]"):
            session.run(tf.global_variables_initializer())
        np.save(vectors, np.full_like(ROWS, np.nan))
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have vectors that are"):
            session.run(tf.global_variables_initializer())
        assert session.run(table.size()) == 40


@pytest.mark.parametrize("shards", [1, 2])
def test_numbers_that_the_type_of_the_table_lacks_leave_every_shard_as_it_was(shards, vectors):
    table = make_table(vectors, shards, value_dtype=tf.float16)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rows = ROWS.copy()
        rows[7, 1] = 7e4
        np.save(vectors, rows)
        message = f"finite in float16, got 70000 in row 7 of key {KEYS[7]}; choose float32"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(tf.global_variables_initializer())
        assert session.run(table.size()) == 40


def test_keys_must_be_of_the_type_of_the_table(vectors):
    np.save(keys_path(vectors), KEYS + 2**40)
    make_table(vectors, key_dtype=tf.int32)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be int32, as the table's"):
            session.run(tf.global_variables_initializer())


def test_settings_are_checked():
    with pytest.raises(TypeError, match="path must be of type str, got 3"):
        rec.PretrainedRows(3)
    with pytest.raises(TypeError, match="pretrained must be of type PretrainedRows or None"):
        rec.EmbeddingVariableOption(pretrained="words.vec")
    option = rec.EmbeddingVariableOption(pretrained=rec.PretrainedRows("a.npy"))
    with pytest.raises(ValueError, match="pretrained must be given once"):
        rec.EmbeddingFeature("user", 2, pretrained="b.npy", ev_option=option)


def model_fn(features, labels, mode):
    loss = tf.losses.mean_squared_error(labels, tf.reduce_sum(features["word"], axis=1))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.long
def test_estimator_reads_the_file_once_and_resumes_without_it(tmp_path):
    path = tmp_path / "words.vec"
    path.write_text("red 1 2\nblue 3 4\n")
    feature = rec.EmbeddingFeature("word", 2, dtype=tf.string, pretrained=str(path))
    assert feature.ev_option.pretrained == rec.PretrainedRows(str(path))
    estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"), embedding_features=[feature])
    batch = {"word": np.array(["blue"])}, np.array([0.0], np.float32)
    estimator.train(rec.inputs.numpy_input_fn(*batch, batch_size=1))
    path.unlink()
    estimator.train(rec.inputs.numpy_input_fn(*batch, batch_size=1))
    values = tf.train.load_checkpoint(str(tmp_path / "model")).get_tensor("word-values")
    assert [1, 2] in values.tolist() and len(values) == 2
    assert values.max() < 4, "the trained row has moved twice"
