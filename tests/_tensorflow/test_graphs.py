# SPDX-License-Identifier: Apache-2.0
"""Private names about graphs: which ops gradients have built."""

import contextlib

import pytest
import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs


@tf.custom_gradient
def doubled(x):
    return 2 * x, lambda grad: grad * tf.constant(2.0, name="factor")


def model(x):
    """Its gradient has sums, ones, zeros, and ops of a custom gradient."""
    return x * x + tf.split(x, 3)[0] + doubled(x)


def gradients(x):
    y = model(x)
    return lambda: tf.gradients(y, x)


def tape(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    return lambda: tape.gradient(y, x)


def jacobian(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    return lambda: tape.jacobian(y, x, experimental_use_pfor=False)


@contextlib.contextmanager
def new_ops():
    begin, found = len(tf.get_default_graph().get_operations()), []
    yield found
    found += tf.get_default_graph().get_operations()[begin:]


@pytest.mark.parametrize("build", [gradients, tape, jacobian])
def test_all_ops_that_gradients_build_are_known(build, version):
    build_gradients = build(tf.placeholder(tf.float32, [3]))
    with new_ops() as found:
        build_gradients()
    assert found and all(map(graphs.is_of_gradients, found))


@pytest.mark.parametrize("scope", ["x_grad", "gradients/x_grad", "gradient_tape"])
def test_name_scopes_do_not_make_an_op_one_of_gradients(scope):
    x = tf.placeholder(tf.float32, [3])
    with new_ops() as found, tf.name_scope(scope), tf.GradientTape() as tape:
        tape.watch(x)
        doubled(tf.square(x))
    assert found and not any(map(graphs.is_of_gradients, found))


def test_it_cannot_be_known_of_imported_ops(graph):
    x = tf.placeholder(tf.float32, [3])
    (gradient,) = tf.gradients(tf.square(x), x)
    with tf.Graph().as_default():
        (imported,) = tf.import_graph_def(graph.as_graph_def(), return_elements=[gradient.name])
        assert not graphs.is_of_gradients(imported.op)
    assert graphs.is_of_gradients(gradient.op)
