# SPDX-License-Identifier: Apache-2.0
"""Options that add a variable can be switched on between runs, with any Saver."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

TIME = 1_700_000_000


def sparse_table(evicts):
    """Trains a table of create_table, which may evict by the timestamps of the data."""
    table = rec.create_table(tf.int64, 2, "t", tf.ones_initializer(), device_vocabulary_size=9)
    thresholds = {"access_threshold": 3, **({"eviction_threshold": 3600} if evicts else {})}
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, tf.constant(TIME, tf.int64))
    rows = rec.sparse_lookup(
        table,
        tf.constant([1, 1, 1, 2], tf.int64),
        modify_graph=True,
        access_and_evict_config=thresholds,
    )
    step = tf.train.get_or_create_global_step()
    return table, rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows), step)


def embedding_variable(evicts):
    """Trains a table of a graph without a global step, unless the table evicts by it."""
    rule = rec.GlobalStepEvict(steps_to_live=100) if evicts else None
    option = rec.EmbeddingVariableOption(evict_option=rule)
    table = rec.get_embedding_variable("t", 2, ev_option=option)
    loss = tf.reduce_sum(rec.embedding_lookup(table, [1, 1, 1, 2]))
    return table, rec.optimizers.AdagradOptimizer(0.1).minimize(loss)


MODELS = {
    "timestamp": (sparse_table, "rec_estimator_timestamp", TIME),
    "step": (embedding_variable, "global_step", 1),
}
SAVERS = {
    "ours": rec.Saver,
    "ours, sharded": lambda: rec.Saver(sharded=True),
    "stock": tf.train.Saver,
    "stock, sharded": lambda: tf.train.Saver(sharded=True),
    "stock, of a list": lambda: tf.train.Saver(
        [*tf.global_variables(), *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]
    ),
}


def run(folder, make, evicts, saver, name, restores, trains=True):
    """Restores, trains and saves a model; returns (variable after the restore, counts, prefix)."""
    with tf.Graph().as_default(), tf.Session() as session:
        table, train = make(evicts)
        counts = table.get_frequency([1, 2])
        opened = saver()
        session.run(tf.global_variables_initializer())
        if restores:
            opened.restore(session, f"{folder}/model")
        restored = session.run(f"{name}/Read/ReadVariableOp:0") if evicts else None
        restored_counts = session.run(counts).tolist()
        if trains:
            session.run(train)
        opened.save(session, f"{folder}/model")
        return restored, restored_counts


@pytest.mark.long
@pytest.mark.each_value
@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("model", MODELS)
def test_an_eviction_is_switched_on_off_and_on_again_between_runs(tmp_path, model, saver):
    make, name, trained = MODELS[model]
    arguments = tmp_path, make

    def go(evicts, restores=True):
        return run(*arguments, evicts, SAVERS[saver], name, restores)

    go(False, restores=False)
    assert go(True) == (0, [3, 1])
    assert go(True) == (trained, [6, 2])
    assert go(False) == (None, [9, 3])
    assert go(True) == (0, [12, 4])


def run_estimator(folder, evicts):
    def model_fn(features, labels, mode):
        del features, labels
        _, train = sparse_table(evicts)
        return rec.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=train)

    rec.RecEstimator(model_fn, folder).train(lambda: tf.data.Dataset.from_tensors(1), steps=1)


def run_our_session(folder, evicts):
    with tf.Graph().as_default():
        _, train = sparse_table(evicts)
        with rec.MonitoredTrainingSession(checkpoint_dir=folder) as session:
            session.run(train)


def run_stock_session(folder, evicts):
    with tf.Graph().as_default():
        _, train = sparse_table(evicts)
        with tf.train.MonitoredTrainingSession(checkpoint_dir=folder) as session:
            session.run(train)


@pytest.mark.long
@pytest.mark.parametrize("run", [run_estimator, run_our_session, run_stock_session])
def test_a_run_goes_on_after_an_eviction_was_switched_on(tmp_path, run):
    for evicts in (False, True, True):
        run(str(tmp_path), evicts)
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert reader.get_tensor("global_step") == 3
    assert reader.get_tensor("rec_estimator_timestamp") == TIME
    np.testing.assert_array_equal(reader.get_tensor("t-freqs"), [9, 3])


@pytest.mark.parametrize("saver", [rec.Saver, tf.train.Saver])
def test_an_imported_graph_restores_a_checkpoint_without_the_variable(tmp_path, saver):
    run(tmp_path, sparse_table, False, rec.Saver, "", restores=False)
    with tf.Graph().as_default(), tf.Session() as session:
        sparse_table(True)
        opened = saver()
        session.run(tf.global_variables_initializer())
        meta = f"{tmp_path}/other.meta"
        opened.export_meta_graph(meta)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(meta).restore(session, f"{tmp_path}/model")
        assert session.run("rec_estimator_timestamp/Read/ReadVariableOp:0") == 0


@pytest.mark.parametrize("stored", [np.int32(1), np.zeros([2], np.int64)])
def test_a_variable_of_another_type_or_shape_is_refused(tmp_path, stored):
    run(tmp_path, sparse_table, False, rec.Saver, "", restores=False)
    with tf.Graph().as_default(), tf.Session() as session:
        sparse_table(True)
        session.run(tf.global_variables_initializer())
        reader = tf.train.load_checkpoint(f"{tmp_path}/model")
        names = list(reader.get_variable_to_shape_map())
        save = tf.raw_ops.SaveV2(
            prefix=f"{tmp_path}/bad",
            tensor_names=[*names, "rec_estimator_timestamp"],
            shape_and_slices=[""] * (len(names) + 1),
            tensors=[*map(reader.get_tensor, names), stored],
        )
        session.run(save)
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be an int64 of shape"):
            tf.train.Saver().restore(session, f"{tmp_path}/bad")
