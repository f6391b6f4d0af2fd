# SPDX-License-Identifier: Apache-2.0
"""StepLoop and SharedKernel: number of steps, errors, and random sequences."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops


@pytest.fixture
def counter():
    """(session, variable, step function). A step adds 1 to the variable and fails from 5 on."""
    variable = tf.get_variable("count", [], tf.int64, tf.zeros_initializer(), use_resource=True)

    def count_up(handle):
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        with tf.control_dependencies([tf.debugging.assert_less(before, np.int64(5))]):
            added = tf.raw_ops.AssignAddVariableOp(resource=handle, value=np.int64(1))
        with tf.control_dependencies([added]):
            return tf.constant(True)

    step = tf.wrap_function(count_up, [tf.TensorSpec([], tf.resource)])
    with tf.Session() as session:
        session.run(variable.initializer)
        yield session, variable, step


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_step_runs_as_often_as_asked(counter, count):
    session, variable, step = counter
    loop = _ops.gen.rec_estimator_step_loop(np.int64(count), [variable.handle], step=step)
    session.run(loop)
    assert session.run(variable) == count
    if count == 1:
        session.run(loop)
        assert session.run(variable) == 2


def test_many_steps_in_the_callers_thread_do_not_deepen_the_stack():
    variable = tf.get_variable("many", [], tf.int64, tf.zeros_initializer(), use_resource=True)

    def count_up(handle):
        added = tf.raw_ops.AssignAddVariableOp(resource=handle, value=np.int64(1))
        with tf.control_dependencies([added]):
            return tf.constant(True)

    step = tf.wrap_function(count_up, [tf.TensorSpec([], tf.resource)])
    loop = _ops.gen.rec_estimator_step_loop(np.int64(50_000), [variable.handle], step=step)
    with tf.Session() as session:
        session.run(variable.initializer)
        session.run(loop, options=tf.RunOptions(inter_op_thread_pool=-1))
        assert session.run(variable) == 50_000


def test_an_error_ends_the_loop_and_the_steps_before_it_stay(counter):
    session, variable, step = counter
    loop = _ops.gen.rec_estimator_step_loop(np.int64(9), [variable.handle], step=step)
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        session.run(loop)
    assert session.run(variable) == 5


@pytest.mark.parametrize(
    "count, message",
    [
        (np.int64(-1), r"count must be in \[0, 1000000\], got -1"),
        (np.int64(1_000_001), "count must be in .* got 1000001"),
        (np.zeros([2], np.int64), r"count must be \[\], got shape \[2\]"),
    ],
)
def test_bad_counts_are_errors(counter, count, message):
    session, variable, step = counter
    fed = tf.placeholder(tf.int64)
    loop = _ops.gen.rec_estimator_step_loop(fed, [variable.handle], step=step)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(loop, {fed: count})
    assert session.run(variable) == 0


@pytest.mark.parametrize("captured", [[], [tf.int64], [tf.resource, tf.resource]])
def test_captured_must_match_the_arguments_of_the_step(counter, captured):
    session, variable, step = counter
    tensors = [
        variable.handle if dtype == tf.resource else tf.zeros([], dtype) for dtype in captured
    ]
    loop = _ops.gen.rec_estimator_step_loop(np.int64(1), tensors, step=step)
    with pytest.raises(tf.errors.InvalidArgumentError, match="captured must be the arguments of"):
        session.run(loop)


def node_of(name="uniform", op="RandomUniform", seed=3):
    node = tf.NodeDef(name=name, op=op, input=["shape"])
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["T"].type = tf.int32.as_datatype_enum
    node.attr["seed"].i, node.attr["seed2"].i = seed, 4
    return node


def shared(node, name="shared", inputs=((2,),), dtype=tf.float32):
    (output,) = _ops.gen.rec_estimator_shared_kernel(
        [tf.constant(value, tf.int32) for value in inputs],
        Toutputs=[dtype],
        node=node if isinstance(node, bytes) else node.SerializeToString(),
        shared_name=name,
    )
    return output


def test_ops_of_one_name_draw_one_sequence():
    first, second, other = shared(node_of()), shared(node_of()), shared(node_of(), "other")
    plain = tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, seed=3, seed2=4)
    with tf.Session() as session:
        expected = [session.run(plain).tolist() for _ in range(3)]
        drawn = [session.run(op).tolist() for op in (first, second, first)]
        assert drawn == expected
        assert session.run(other).tolist() == expected[0]
    with tf.Session() as session:
        assert session.run(second).tolist() == expected[0]


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: shared(b"\xff\xff"), "node must be a serialized NodeDef"),
        (lambda: shared(node_of(), name=""), "shared_name must not be empty"),
        (lambda: shared(node_of(op="Nonsense")), "Nonsense"),
        (lambda: shared(node_of(), dtype=tf.int64), "inputs and outputs must have the types of"),
        (lambda: shared(node_of(), inputs=[]), "inputs and outputs must have the types of"),
        (
            lambda: shared(node_of(op="RecEstimator>SharedKernel")),
            "RecEstimator>SharedKernel",
        ),
    ],
)
def test_nodes_that_cannot_be_shared_are_an_error(build, message):
    with tf.Session() as session, pytest.raises(tf.errors.OpError, match=message):
        session.run(build())


def test_one_shared_name_with_two_nodes_is_an_error():
    ops = shared(node_of()), shared(node_of(seed=5))
    with tf.Session() as session:
        session.run(ops[0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="node must be that of the other"):
            session.run(ops[1])
