# SPDX-License-Identifier: Apache-2.0
"""Ids and timestamps that a dataset declares: what the checks find in a graph, default or not."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_modifier import declared_inputs
from rec_estimator.graph_modifier.declared_inputs import (
    check_declared_inputs,
    find_timestamp,
    get_nexts_of_mode,
)

SPECS = [rec.FeatureSpec("user"), rec.FeatureSpec("time", is_timestamp=True)]


def batch_of(is_training, specs=SPECS):
    data = tf.data.Dataset.from_tensors({"user": np.int64([3, 4]), "time": 7})
    if specs:
        data = data.map(rec.get_asc_insert_func(tgt_key_specs=specs, is_training=is_training))
    return tf.data.make_initializable_iterator(data.repeat().prefetch(2)).get_next()


def look_up(batch, is_train):
    table = rec.create_table(tf.int64, 2, "user", tf.ones_initializer())
    return rec.sparse_lookup(table, SPECS[0], batch=batch, is_train=is_train)


def test_get_nexts_of_mode_returns_those_whose_dataset_an_insert_function_of_the_mode_mapped():
    training, evaluation, _ = batch_of(True), batch_of(False), batch_of(True, specs=None)
    graph = tf.get_default_graph()
    for is_training, batch in ((True, training), (False, evaluation)):
        assert get_nexts_of_mode(graph, is_training) == [batch["user"].op]


@pytest.mark.parametrize("is_training", [True, False])
def test_a_graph_that_is_not_the_default_graph_can_be_checked(is_training):
    with tf.Graph().as_default() as other:
        batch = batch_of(is_training)
        look_up(batch, is_training)
    check_declared_inputs(other)
    with pytest.raises(RuntimeError, match="the graph must have a table"):
        check_declared_inputs(tf.get_default_graph())
    with other.as_default():
        declared_inputs.record_ids(batch["user"], not is_training)
    with pytest.raises(RuntimeError, match=f"is_train={not is_training} must come from a dataset"):
        check_declared_inputs(other)


def test_ids_of_an_iterator_that_is_started_elsewhere_are_accepted():
    handle = tf.placeholder(tf.string, [])
    batch = tf.data.Iterator.from_string_handle(handle, tf.int64, [None]).get_next()
    rec.create_table(tf.int64, 2, "user", tf.ones_initializer())
    declared_inputs.record_ids(batch, is_training=True)
    check_declared_inputs(tf.get_default_graph())


def test_find_timestamp_returns_the_recorded_tensor_once():
    graph = tf.get_default_graph()
    assert find_timestamp(graph) is None
    batch = batch_of(True)
    for _ in range(2):
        look_up(batch, is_train=True)
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, batch["time"])
    assert find_timestamp(graph) is batch["time"]
