# SPDX-License-Identifier: Apache-2.0
"""CheckpointTable and RecEstimator.table: rows of checkpoints and of chains of deltas."""

import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from stored_checkpoints import checkpoint, checkpoint_files  # noqa: F401

import rec_estimator as rec
from rec_estimator.checkpoint.checkpoint_table import CheckpointTable


@pytest.mark.long
def test_the_rows_are_those_of_the_tensors_by_key(checkpoint):  # noqa: F811
    prefix, tensors = checkpoint
    table = CheckpointTable(prefix, "scope/user")
    shards = [f"scope/user/part_{part}" for part in range(3)]
    keys, values, freqs, versions = (
        np.concatenate([tensors[f"{shard}-{name}"] for shard in shards])
        for name in ("keys", "values", "freqs", "versions")
    )
    order = np.argsort(keys)
    np.testing.assert_array_equal(table.keys, keys[order])
    np.testing.assert_array_equal(table.values, values[order])
    np.testing.assert_array_equal(table.freqs, freqs[order])
    np.testing.assert_array_equal(table.versions, versions[order])
    some = keys[[5, 0, 5]]
    np.testing.assert_array_equal(table.rows(some), values[[5, 0, 5]])
    assert len(table) == 200 and int(keys[0]) in table
    assert CheckpointTable(prefix, "item").keys.dtype == np.int64


def test_a_key_without_a_row_is_refused_by_name(checkpoint):  # noqa: F811
    table = CheckpointTable(checkpoint[0], "item")
    assert 10_001 not in table and 2**63 - 1 not in table and -(2**63) not in table
    for read in (table.rows, table.frame):
        with pytest.raises(KeyError, match="table 'item', got 10001, which has none"):
            read([int(table.keys[0]), 10_001])
    with pytest.raises(KeyError, match="got 10001"):
        table.nearest(10_001)


def test_an_unknown_table_is_refused_with_the_names_of_all(checkpoint):  # noqa: F811
    with pytest.raises(ValueError, match="got 'user'; it has 'item', 'scope/user'"):
        CheckpointTable(checkpoint[0], "user")


def test_the_nearest_keys_are_those_of_the_greatest_cosines(checkpoint):  # noqa: F811
    table = CheckpointTable(checkpoint[0], "scope/user")
    unit = table.values / np.linalg.norm(table.values, axis=1, keepdims=True)
    cosines = unit @ unit[17]
    expected = [at for at in np.argsort(-cosines) if at != 17]
    key = int(table.keys[17])
    found = table.nearest(key, 3)
    assert [each.key for each in found] == table.keys[expected[:3]].tolist()
    np.testing.assert_allclose([each.cosine for each in found], cosines[expected[:3]], atol=1e-6)
    assert len(table.nearest(key, 1000)) == 199
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        table.nearest(key, 0)
    np.testing.assert_allclose(table.norms(), np.linalg.norm(table.values, axis=1), rtol=1e-6)


def test_a_frame_has_a_row_for_each_key(checkpoint, monkeypatch):  # noqa: F811
    table = CheckpointTable(checkpoint[0], "scope/user")
    frame = table.frame()
    assert list(frame.columns) == ["frequency", "version", "norm", 0, 1, 2, 3]
    assert frame.index.name == "key" and frame.index.tolist() == table.keys.tolist()
    np.testing.assert_array_equal(frame[[0, 1, 2, 3]].to_numpy(), table.values)
    two = table.frame(table.keys[[3, 1]])
    assert two["frequency"].tolist() == table.freqs[[3, 1]].tolist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas, which is not installed; pip install pandas"):
        table.frame()


def model_fn(features, labels, mode):
    loss = tf.reduce_sum(tf.square(features["user"] - 1.0))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_an_estimator_without_a_checkpoint_has_no_rows(tmp_path):
    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    with pytest.raises(ValueError, match="model_dir .* has no checkpoint; train first"):
        estimator.table("user")


@pytest.mark.long
def test_rows_of_a_delta_are_those_of_a_full_checkpoint(tmp_path):
    keys = np.random.default_rng(0).integers(0, 50, (12, 6))

    def estimator_in(folder, **config):
        config = rec.RunConfig(tf_random_seed=1, keep_checkpoint_max=None, **config)
        feature = rec.EmbeddingFeature("user", dim=4)
        return rec.RecEstimator(model_fn, str(folder), config, embedding_features=[feature])

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(({"user": keys}, keys))

    deltas = estimator_in(
        tmp_path / "deltas", save_checkpoints_steps=8, save_incremental_checkpoints_steps=3
    )
    full = estimator_in(tmp_path / "full", save_checkpoints_steps=3)
    for estimator in (deltas, full):
        estimator.train(input_fn, steps=12)
    at_6 = deltas.table("user", str(tmp_path / "deltas" / "model.ckpt-6"))
    expected = full.table("user", str(tmp_path / "full" / "model.ckpt-6"))
    for name in ("keys", "values", "freqs", "versions"):
        np.testing.assert_array_equal(getattr(at_6, name), getattr(expected, name), name)
    np.testing.assert_array_equal(deltas.table("user").values, full.table("user").values)
    assert len(full.table("user")) > len(at_6)
    with pytest.raises(ValueError, match=r"'user', a table; call estimator.table\('user'\) for"):
        full.get_variable_value("user")
    with pytest.raises(tf.errors.NotFoundError):
        full.get_variable_value("users")


def test_erased_rows_are_gone_and_rows_that_came_back_are_new(tmp_path):
    option = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(2))
    table = rec.get_embedding_variable("user", 2, ev_option=option)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    step = tf.train.get_or_create_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    evict = table.evict()
    saver = rec.Saver(incremental=True)
    prefixes = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for batch in ([1, 2, 3], [3], [3, 2], [1, 4]):
            session.run(train_op, {keys: batch})
            if prefixes:
                session.run(evict)
            prefixes.append(saver.save(session, str(tmp_path / "m"), global_step=step))
        export = session.run(table.export())
    last = CheckpointTable(prefixes[-1], "user")
    assert last.keys.tolist() == sorted(export.keys.tolist()) == [1, 2, 3, 4]
    order = np.argsort(export.keys)
    np.testing.assert_array_equal(last.values, export.values[order])
    np.testing.assert_array_equal(last.freqs, export.freqs[order])
