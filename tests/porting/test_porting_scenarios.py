# SPDX-License-Identifier: Apache-2.0
"""Inputs that Rec SDK's training scenarios exclude (Keras, no tf.data), and errors in the data."""

import threading

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from modified_graphs import QUICK

import rec_estimator as rec


class Tower(tf2.keras.Model):
    """A Keras model of the user."""

    def call(self, features):
        return features


KERAS = tf2.keras


def table_of():
    return rec.create_table(tf.int64, 2, "user", tf.ones_initializer(), device_vocabulary_size=99)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rec.create_table(tf.int64, 2, "user", KERAS.initializers.Zeros()),
        lambda: rec.create_table(tf.int64, 2, "user", KERAS.initializers.GlorotUniform),
        lambda: rec.sparse_lookup(KERAS.layers.Embedding(9, 2), tf.zeros([1], tf.int64)),
        lambda: rec.sparse_lookup(table_of(), KERAS.layers.Dense(3), modify_graph=True),
        lambda: rec.embedding_lookup(KERAS.layers.Embedding(9, 2), tf.zeros([1], tf.int64)),
        lambda: rec.RecEstimator(Tower()),
        lambda: rec.RecEstimator(Tower().call),
        lambda: rec.RecEstimator(lambda features: None, table_optimizer=KERAS.optimizers.Adam(0.1)),
        lambda: rec.optimizers.AdagradOptimizer(
            KERAS.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5)
        ),
        lambda: rec.optimizers.lazy_adam.create_hash_optimizer(
            KERAS.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5)
        ),
    ],
)
def test_keras_objects_are_refused_with_the_name_of_the_argument(call):
    with pytest.raises(
        ValueError, match="must not be a Keras object, got .*; Keras is not supported, "
    ):
        call()


def model_fn(features, mode):
    vectors = rec.sparse_lookup(table_of(), features["user"], modify_graph=True)
    loss = tf.reduce_sum(tf.square(vectors))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.parametrize(
    "features", [{"user": np.arange(3)}, {"user": [1, 2, 3]}, {"user": iter([[1]])}]
)
def test_features_that_are_not_tensors_are_refused(features, tmp_path):
    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    with pytest.raises(ValueError, match="input_fn must return a tf.data.Dataset or tensors, got"):
        estimator.train(lambda: features, steps=1)


def test_an_insert_function_outside_of_a_dataset_is_refused():
    insert = rec.get_asc_insert_func(tgt_key_specs=rec.FeatureSpec("user"))
    with pytest.raises(ValueError, match="must be called by tf.data, got a call outside"):
        insert({"user": tf.constant([1])})


def by_generator(broken):
    def examples():
        for number in range(100):
            if number == broken:
                raise ValueError("the data broke")
            yield number

    return tf.data.Dataset.from_generator(examples, tf.int64, []).batch(1)


def by_function(broken):
    def check(number):
        if number == broken:
            raise ValueError("the data broke")
        return number

    def read(number):
        return tf.ensure_shape(tf.numpy_function(check, [number], tf.int64), [])

    return tf.data.Dataset.range(100).map(read, num_parallel_calls=2).batch(1)


def input_of(read, modified):
    spec = rec.FeatureSpec("user")
    data = read(broken=30).map(lambda ids: {"user": ids})
    if not modified:
        data = data.map(rec.get_asc_insert_func(tgt_key_specs=spec))
    return data.prefetch(10)


def train_with_session(read, modified, folder, losses):
    del folder
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(input_of(read, modified))
        batch = iterator.get_next()
        ids = batch["user"] * 3 if modified else rec.FeatureSpec("user")
        vectors = rec.sparse_lookup(table_of(), ids, modify_graph=modified, batch=batch)
        loss = tf.reduce_sum(tf.square(vectors))
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        if modified:
            rec.modify_graph_and_start_emb_cache()
        with tf.Session(config=QUICK) as session:
            session.run(rec.get_initializer(True) if modified else iterator.initializer)
            session.run(tf.global_variables_initializer())
            while True:
                losses.append(session.run([loss, train_op])[0])


def train_with_estimator(read, modified, folder, losses):
    class Count(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            losses.append(run_values)

    hooks = [Count(), rec.GraphModifierHook(modify_graph=modified)]
    config = rec.RunConfig(session_config=QUICK)
    estimator = rec.RecEstimator(model_fn, str(folder), config)
    estimator.train(lambda: input_of(read, modified), hooks=hooks)


@pytest.mark.each_value
@pytest.mark.parametrize("train", [train_with_session, train_with_estimator])
@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("read", [by_generator, by_function])
def test_an_error_in_a_thread_of_the_dataset_ends_the_loop_with_its_cause(
    train, modified, read, tmp_path
):
    losses, errors = [], []

    def work():
        try:
            train(read, modified, tmp_path, losses)
        except tf.errors.OpError as error:
            errors.append(error)

    # The bound detects a hang, not a slow machine.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout=600)
    assert not thread.is_alive()
    assert len(losses) == 30
    assert "ValueError: the data broke" in str(errors[0])
