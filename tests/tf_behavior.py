# SPDX-License-Identifier: Apache-2.0
"""Parts of TensorFlow's behavior that one test needs, whatever pytest was started with.

``pytest --v1-behavior`` calls tf.disable_v2_behavior() first.
"""

import concurrent.futures
import contextlib

import tensorflow.compat.v1 as tf


@contextlib.contextmanager
def control_flow(version):
    """Builds tf.cond and tf.while_loop as ops of the graph (version 1) or as functions (2)."""
    was_v2 = tf.control_flow_v2_enabled()
    _set_control_flow_v2(version == 2)
    try:
        yield
    finally:
        _set_control_flow_v2(was_v2)


def _set_control_flow_v2(is_enabled):
    if is_enabled:
        tf.enable_control_flow_v2()
    else:
        tf.disable_control_flow_v2()


@contextlib.contextmanager
def resource_variables(is_default):
    """Makes new variables resources, or references as in TensorFlow 1, unless they say which."""
    were_default = tf.resource_variables_enabled()
    _set_resource_variables(is_default)
    try:
        yield
    finally:
        _set_resource_variables(were_default)


def _set_resource_variables(is_default):
    if is_default:
        tf.enable_resource_variables()
    else:
        tf.disable_resource_variables()


def eagerly(function, *arguments):
    """Calls a function in eager mode, as a script without tf.disable_eager_execution() does."""
    called = concurrent.futures.Future()

    def call():
        try:
            called.set_result(function(*arguments))
        except Exception as error:
            called.set_exception(error)

    # TensorFlow runs the body of a py_function eagerly even after tf.disable_v2_behavior().
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.py_function(call, [], []))
    return called.result()
