# SPDX-License-Identifier: Apache-2.0
"""Graphs with tables that tf.train.import_meta_graph() imports from a checkpoint's .meta file."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes import graph_state

KEYS = [1, 2, 3, -9, 77]


def write_with_session(folder, saver_of):
    """Trains, saves, trains and saves again: (prefix, output of the model)."""
    with tf.Graph().as_default(), tf.Session() as session:
        option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2))
        table = rec.get_embedding_variable(
            "user", 3, ev_option=option, partitioner=tf.fixed_size_partitioner(2)
        )
        keys = tf.placeholder(tf.int64, [None], name="keys")
        weight = tf.get_variable("weight", [3], initializer=tf.ones_initializer())
        vectors = tf.multiply(rec.embedding_lookup(table, keys), weight, name="vectors")
        step = tf.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.square(vectors - 1.0))
        train = rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=step)
        tf.add_to_collection("train", train)
        saver = saver_of()
        session.run(tf.global_variables_initializer())
        for batch in ([1, 1, 2, 3, -9, -9], [1, 2]):
            session.run(train, {keys: batch})
            prefix = saver.save(session, f"{folder}/model", global_step=step)
        return prefix, session.run(vectors, {keys: KEYS})


SAVERS = {
    "ours": rec.Saver,
    "sharded": lambda: rec.Saver(sharded=True),
    "incremental": lambda: rec.Saver(incremental=True),
    "stock": tf.train.Saver,
}


@pytest.mark.each_value
@pytest.mark.parametrize("scope", [None, "a/b"])
@pytest.mark.parametrize("kind", SAVERS)
def test_an_imported_graph_restores_its_tables_and_trains_on(tmp_path, kind, scope):
    prefix, expected = write_with_session(tmp_path, SAVERS[kind])
    inside = f"{scope}/" if scope else ""
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{prefix}.meta", clear_devices=True, import_scope=scope)
        saver.restore(session, prefix)
        keys, vectors = f"{inside}keys:0", f"{inside}vectors:0"
        np.testing.assert_array_equal(session.run(vectors, {keys: KEYS}), expected)
        session.run(tf.get_collection("train")[0], {keys: [1]})
        trained = session.run(vectors, {keys: KEYS})
        assert (trained[0] != expected[0]).all()
        again = saver.save(session, str(tmp_path / "again"))
        session.run(tf.get_collection("train")[0], {keys: [1]})
        saver.restore(session, again)
        np.testing.assert_array_equal(session.run(vectors, {keys: KEYS}), trained)


@pytest.mark.long
def test_the_graph_of_an_estimator_restores_its_tables(tmp_path):
    def model_fn(features, labels, mode):
        loss = tf.reduce_sum(tf.square(features["user"] - labels[:, None]))
        optimizer = rec.optimizers.AdamOptimizer(0.1)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn():
        batch = {"user": np.array([1, 2, 3, 3])}, np.ones(4, np.float32)
        return tf.data.Dataset.from_tensors(batch).repeat(3)

    features = [rec.EmbeddingFeature("user", dim=4)]
    estimator = rec.RecEstimator(model_fn, str(tmp_path), embedding_features=features)
    estimator.train(input_fn)
    prefix = estimator.latest_checkpoint()
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{prefix}.meta")
        saver.restore(session, prefix)
        again = saver.save(session, str(tmp_path / "again"))
    found, expected = (tf.train.load_checkpoint(path) for path in (again, prefix))
    names = expected.get_variable_to_shape_map()
    assert "user-values" in names and names.keys() == found.get_variable_to_shape_map().keys()
    for name in names:
        np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name))


@pytest.mark.parametrize("deferred", [False, True])
def test_a_new_saver_of_imported_tables_is_an_error_that_names_the_other(tmp_path, deferred):
    prefix, _ = write_with_session(tmp_path, rec.Saver)
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(f"{prefix}.meta")
        before = len(graph.get_operations())
        message = "var_list must be .*, got op 'user/part_0' of an imported MetaGraph; .* returned"
        with pytest.raises(ValueError, match=message):
            rec.Saver(defer_build=deferred).build()
        with pytest.raises(ValueError, match=message):
            rec.Saver(tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS))
        assert len(graph.get_operations()) == before


def test_a_meta_graph_without_a_saver_def_is_an_error_that_names_the_way_out(tmp_path):
    rec.get_embedding_variable("user", 3)
    tf.get_variable("weight", [3])
    bare = tf.train.export_meta_graph()
    rec.Saver().export_meta_graph(str(tmp_path / "whole.meta"))
    for scope in (None, "inside"):
        with tf.Graph().as_default():
            message = r"'.*user/use_rec_estimator\..*Saver\.export_meta_graph'"
            with pytest.raises(TypeError, match=message):
                tf.train.import_meta_graph(bare, import_scope=scope)
        with tf.Graph().as_default():
            assert tf.train.import_meta_graph(str(tmp_path / "whole.meta"), import_scope=scope)


def test_a_saved_model_of_tables_alone_loads_without_an_error_in_the_log(tmp_path, caplog):
    path = str(tmp_path / "exported")
    with tf.Graph().as_default(), tf.Session() as session:
        table = rec.get_embedding_variable("user", 3)
        vectors = rec.embedding_lookup(table, tf.constant(KEYS, tf.int64))
        vectors = tf.identity(vectors, name="vectors")
        session.run(tf.global_variables_initializer())
        expected = session.run(vectors)
        builder = tf.saved_model.Builder(path)
        builder.add_meta_graph_and_variables(session, ["serve"], saver=rec.Saver())
        builder.save()
    with tf.Graph().as_default(), tf.Session() as session, caplog.at_level("WARNING"):
        meta = tf.saved_model.load(session, ["serve"], path)
        assert "Cannot identify data type" not in caplog.text
        assert tf.GraphKeys.TRAINABLE_VARIABLES not in meta.collection_def
        assert tf.GraphKeys.SAVEABLE_OBJECTS in meta.collection_def
        np.testing.assert_array_equal(session.run("vectors:0"), expected)


def log_of_loads(caplog, path):
    """The log of loading a SavedModel in a session and, where it can be, by TensorFlow 2."""
    with caplog.at_level("ERROR"):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.saved_model.load(session, ["serve"], path)
        tf.compat.v2.saved_model.load(path)
    return caplog.text


def model_of_tables_alone(features, labels, mode):
    table = rec.get_embedding_variable("user", 3)
    values = tf.reduce_sum(rec.embedding_lookup(table, features["user"]), -1)
    loss = tf.reduce_sum(values)
    train = None
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    return rec.EstimatorSpec(mode, predictions={"values": values}, loss=loss, train_op=train)


@pytest.mark.long
def test_exports_of_a_model_of_tables_alone_load_without_an_error_in_the_log(tmp_path, caplog):
    estimator = rec.RecEstimator(model_of_tables_alone, str(tmp_path / "model"))
    estimator.train(lambda: tf.data.Dataset.from_tensors(({"user": tf.constant([3, 5])}, 1)))

    def receiver():
        user = {"user": tf.placeholder(tf.int64, [None], name="user")}
        return rec.ServingInputReceiver(user, user)

    for portable in (False, True):
        folder = str(tmp_path / str(portable))
        path = estimator.export_saved_model(folder, receiver, portable=portable)
        assert not log_of_loads(caplog, path.decode())
    [meta] = tmp_path.glob("model/*-1.meta")
    with tf.Graph().as_default(), caplog.at_level("ERROR"):
        tf.train.import_meta_graph(str(meta))
    assert not caplog.text


def test_a_meta_graph_of_a_scope_has_no_empty_collections():
    tf.get_variable("weight", [3])
    with tf.variable_scope("a"):
        rec.get_embedding_variable("user", 3, collections=[tf.GraphKeys.MODEL_VARIABLES])
    rec.get_embedding_variable("ab", 3)
    saver = rec.Saver()
    for scope, handles in ((None, 2), ("a", 2), ("a/", 1), ("ab", 1)):
        meta = saver.export_meta_graph(export_scope=scope)
        kinds = {name: of.WhichOneof("kind") for name, of in meta.collection_def.items()}
        assert None not in kinds.values(), kinds
        assert len(meta.collection_def[graph_state.TABLE_HANDLES].bytes_list.value) == handles
        assert (tf.GraphKeys.GLOBAL_VARIABLES in kinds) == (scope is None)


def test_a_meta_graph_lists_variables_beside_tables(tmp_path):
    prefix, _ = write_with_session(tmp_path, rec.Saver)
    with tf.Graph().as_default():
        tf.train.import_meta_graph(f"{prefix}.meta")
        assert [variable.op.name for variable in tf.trainable_variables()] == ["weight"]
