# SPDX-License-Identifier: Apache-2.0
"""Ref variables, which reads share: no optimizer overwrites what another's gradient still reads."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes.walk import ancestors

KEYS = np.arange(6)


@pytest.fixture
def ref_variables():
    was_resource = tf.resource_variables_enabled()
    tf.disable_resource_variables()
    yield
    if was_resource:
        tf.enable_resource_variables()


def model():
    """A table, a kernel that its gradient flows through, and a loss."""
    table = rec.get_embedding_variable("ids", 4)
    kernel = tf.get_variable("kernel", [4, 4])
    return table, kernel, tf.reduce_sum(tf.matmul(rec.embedding_lookup(table, KEYS), kernel) ** 2)


def dense_step(loss, kernel, module=tf.train):
    optimizer = module.GradientDescentOptimizer(0.1)
    return optimizer.apply_gradients(optimizer.compute_gradients(loss, [kernel]))


def table_step(loss, table):
    optimizer = rec.optimizers.GradientDescentOptimizer(0.1)
    return optimizer.apply_gradients(zip(tf.gradients(loss, [table]), [table]))


def dense_first(loss, table, kernel):
    return [dense_step(loss, kernel), table_step(loss, table)]


def table_first(loss, table, kernel):
    return [table_step(loss, table), dense_step(loss, kernel, rec.optimizers)]


def update_and_gradient():
    graph = tf.get_default_graph()
    (update,) = [op for op in graph.get_operations() if op.type == "ApplyGradientDescent"]
    (apply,) = [op for op in graph.get_operations() if op.type == "RecEstimator>TablesApply"]
    return update, apply.inputs[1].op


@pytest.mark.parametrize("build", [dense_first, table_first])
def test_an_update_waits_for_the_gradient_of_a_table_that_reads_the_variable(ref_variables, build):
    table, kernel, loss = model()
    train_op = tf.group(build(loss, table, kernel))
    update, gradient = update_and_gradient()
    assert gradient in ancestors([update])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)


def test_the_table_moves_along_the_gradient_before_the_step(ref_variables):
    table, kernel, loss = model()
    vectors = rec.embedding_lookup(table, KEYS)
    train_op = tf.group(dense_first(loss, table, kernel))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(200):
            weights = np.random.standard_normal([4, 4]).astype(np.float32) / 4
            kernel.load(weights, session)
            before = session.run(vectors)
            session.run(train_op)
            after = session.run(vectors)
            # float32 sums of 4 products; the gradient of an updated kernel is off by 0.1 and more.
            expected = before - 0.2 * before @ weights @ weights.T
            np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)


def test_steps_of_different_inputs_stay_apart(ref_variables):
    table = rec.get_embedding_variable("ids", 4)
    kernel = tf.get_variable("kernel", [4, 4])
    fed = tf.placeholder(tf.float32, [None, 4])
    keys = tf.placeholder(tf.int64, [None])
    dense_op = dense_step(tf.reduce_sum(tf.matmul(fed, kernel) ** 2), kernel)
    table_op = table_step(
        tf.reduce_sum(tf.matmul(rec.embedding_lookup(table, keys), kernel) ** 2), table
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(dense_op, {fed: np.ones([2, 4])})
        session.run(table_op, {keys: KEYS})


def test_one_optimizer_for_all_is_left_to_tensorflow(ref_variables):
    _, _, loss = model()
    rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    update, gradient = update_and_gradient()
    assert gradient not in ancestors([update])
