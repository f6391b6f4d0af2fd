# SPDX-License-Identifier: Apache-2.0
"""Names of DeepRec that do nothing here, and names that are refused."""

import pathlib

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_staged_returns_the_same_tensors_in_a_structure_of_its_own():
    features = {"user": tf.constant([1, 2]), "tags": [tf.constant([3.0]), tf.constant(["a"])]}
    found = rec.staged(features, num_threads=4, capacity=40, timeout_millis=10, name="batch")
    assert found is not features and found["tags"] is not features["tags"]
    for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(features)):
        assert ours is theirs
    # Scripts replace members of the result.
    found["user"] = None
    assert features["user"] is not None


def test_a_model_over_staged_data_trains_with_the_prefetch_hook():
    data = tf.data.Dataset.from_tensors(np.array([1, 2, 1])).repeat(4)
    keys = rec.staged(tf.data.make_one_shot_iterator(data).get_next())
    table = rec.get_embedding_variable("user", 2)
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys)))
    step = tf.train.get_or_create_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    with tf.control_dependencies([train_op]):
        counted = table.get_frequency([1, 2])
    with tf.train.MonitoredTrainingSession(hooks=[rec.make_prefetch_hook()]) as session:
        while not session.should_stop():
            counts = session.run([train_op, counted])[1]
    assert counts.tolist() == [8, 4]


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("feed_list", [1], r"feed_list must be None, got \[1\]; .* tf.data.Dataset.from_generator"),
        ("feed_generator", iter, "feed_generator must be None, got .*from_generator"),
        (
            "ignored_exception_types",
            (ValueError,),
            r"ignored_exception_types must be None or empty, .* dataset.ignore_errors\(\)",
        ),
    ],
)
def test_what_would_change_the_data_is_refused(argument, value, message):
    with pytest.raises(ValueError, match=message):
        rec.staged(tf.constant([1]), **{argument: value})


def test_columns_made_in_a_group_scope_are_those_made_outside():
    def read():
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            item = rec.embedding_column(rec.categorical_column_with_embedding("item", tf.int64), 3)
            values = tf.feature_column.input_layer({"item": tf.constant([[5], [6]])}, [item])
            session.run(tf.global_variables_initializer())
            return session.run(values)

    with rec.group_embedding_column_scope(name="item"):
        inside = read()
    np.testing.assert_array_equal(inside, read())


def test_each_name_without_effect_says_so_once():
    program = """
import tensorflow.compat.v1 as tf
import rec_estimator as rec
for _ in range(3):
    with tf.Graph().as_default(), rec.group_embedding_column_scope():
        rec.staged([tf.constant(1)])
        rec.make_prefetch_hook()
"""
    done = python_processes.run(["-c", program])
    for name in ("staged", "make_prefetch_hook", "group_embedding_column_scope"):
        assert done.stderr.count(f"{name}: without effect here") == 1, done.stderr


REFUSED = {
    "get_multihash_variable": "two tables of get_embedding_variable and add the vectors",
    "get_dynamic_dimension_embedding_variable": "get_embedding_variable for each dimension",
    "categorical_column_with_multihash": "use categorical_column_with_embedding",
    "categorical_column_with_adaptive_embedding": "embedding with a CounterFilter",
    "adaptive_embedding_lookup_sparse": "embedding_lookup_sparse of a table with a CounterFilter",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_cannot_exist_is_refused_with_the_way_out(name):
    with pytest.raises(NotImplementedError, match=f"^{name} must not be called: .*{REFUSED[name]}"):
        getattr(rec, name)("user", dims=[[4, 2]], ev_option=None)
