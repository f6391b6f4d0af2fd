# SPDX-License-Identifier: Apache-2.0
"""Tests of the state of a graph."""

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_state import state_of


def test_each_graph_has_one_state():
    state = state_of()
    state.is_chief = False
    assert state_of(tf.get_default_graph()) is state
    with tf.Graph().as_default():
        assert state_of() is not state and state_of().is_chief


def test_the_graph_of_a_function_has_a_state_of_its_own():
    state_of().ps_devices = ["/job:ps/task:0"]
    states = []
    tf.data.Dataset.range(1).map(lambda x: states.append(state_of()) or x)
    assert states[0].ps_devices == []


def test_a_finalized_graph_has_a_state():
    graph = tf.Graph()
    graph.finalize()
    assert state_of(graph) is state_of(graph)


def test_a_metagraph_leaves_the_state_out(caplog):
    caplog.set_level("WARNING", logger="tensorflow")
    state_of().steps_per_run = 3
    exported = tf.train.export_meta_graph()
    assert not exported.collection_def and not caplog.text
    with tf.Graph().as_default():
        tf.train.import_meta_graph(exported)
        assert state_of().steps_per_run == 1
