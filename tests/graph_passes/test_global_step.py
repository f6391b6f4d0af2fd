# SPDX-License-Identifier: Apache-2.0
"""The global step of a graph, however it was made."""

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes.walk import find_global_step


def made_by_name_only():
    zero = tf.zeros_initializer()
    return tf.get_variable("global_step", [], tf.int64, zero, trainable=False, use_resource=True)


@pytest.mark.parametrize("make", [tf.train.create_global_step, made_by_name_only])
def test_the_global_step_is_found_in_its_collection_or_by_its_name(make, graph):
    rec.get_embedding_variable("user", 2)
    step = make()
    assert find_global_step() is step
    with tf.Graph().as_default():
        assert find_global_step() is None
        assert find_global_step(graph) is step


def test_a_graph_with_tables_may_have_no_global_step():
    rec.get_embedding_variable("global_step_of_user", 2)
    assert find_global_step() is None
