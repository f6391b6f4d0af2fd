# SPDX-License-Identifier: Apache-2.0
"""Walks over a finished graph."""

import pytest
import tensorflow.compat.v1 as tf
from tf_behavior import control_flow

from rec_estimator.graph_passes import walk


def test_ancestors_follow_data_and_control_edges_and_include_the_start():
    first, second, other = tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)
    with tf.control_dependencies([first]):
        last = tf.negative(second)
    assert walk.ancestors([last.op]) == {first.op, second.op, last.op}
    assert walk.ancestors([last.op, other.op]) == {first.op, second.op, last.op, other.op}
    assert walk.ancestors([]) == set()


def test_ancestors_end_in_a_loop():
    with tf.Graph().as_default():
        with control_flow(1):
            last = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
        assert {"Enter", "NextIteration"} <= {op.type for op in walk.ancestors([last.op])}


@pytest.mark.parametrize("from_batch", [True, False], ids=["batch", "constant"])
def test_a_placeholder_with_a_default_is_of_a_batch_if_an_iterator_gives_it(from_batch):
    batch = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors([1, 2])).get_next()
    default = batch + 1 if from_batch else tf.constant([1, 2])
    hidden = tf.placeholder_with_default(default, [None])
    assert walk.has_batch_default(hidden.op) is from_batch
    assert not walk.has_batch_default(default.op)


def test_called_functions_are_those_of_every_attribute():
    with control_flow(2):
        result = tf.cond(tf.placeholder(tf.bool, []), lambda: 1, lambda: 2)
    branches = [op for op in tf.get_default_graph().get_operations() if "If" in op.type]
    assert len(branches) == 1
    assert len(walk.called_functions(branches[0].node_def)) == 2
    assert walk.called_functions(result.op.node_def) == []


def test_ops_in_a_graph_def_lose_what_a_function_does_not_have():
    graph = tf.get_default_graph()
    outside = tf.constant(0.0, name="outside")
    with tf.device("/device:CPU:0"), tf.control_dependencies([outside]):
        inside = tf.constant(1.0, name="inside")
        before = tf.constant(2.0, name="before")
        with tf.colocate_with(inside), tf.control_dependencies([before]):
            last = tf.negative(inside, name="last")
    graph_def = walk.graph_def_of(graph, [inside.op, before.op, last.op])
    inputs = {node.name: list(node.input) for node in graph_def.node}
    assert inputs == {"inside": [], "before": [], "last": ["inside", "^before"]}
    assert {node.device for node in graph_def.node} == {""}
    assert not any("_class" in node.attr for node in graph_def.node)
    assert not graph_def.library.function


def test_functions_that_ops_call_come_along():
    with control_flow(2):
        tf.cond(tf.placeholder(tf.bool, [], name="which"), lambda: 1, lambda: 2)
    graph = tf.get_default_graph()
    graph_def = walk.graph_def_of(graph, graph.get_operations())
    assert len(graph_def.library.function) == 2
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph_def, name="")
        assert session.run("cond/Identity:0", {"which:0": True}) == 1
