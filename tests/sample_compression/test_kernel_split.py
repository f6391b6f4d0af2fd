# SPDX-License-Identifier: Apache-2.0
"""Split kernels: their rows are copied once, and again after every write to the kernel."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import enable, predict

import rec_estimator as rec
from rec_estimator import graph_optimizer
from rec_estimator.graph_passes.walk import ancestors

# The split adds 24 float32 products of numbers below 1 in another order: some ulps of the sum.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
WIDTH, UNITS, SIZES = 4, 3, np.array([3, 0, 2], np.int32)
FIELDS = [f"field_{i}" for i in range(6)]  # Users' and candidates' fields alternate.
USERS, ITEMS = FIELDS[::2], FIELDS[1::2]


def request():
    shapes = {name: len(SIZES) if name in USERS else SIZES.sum() for name in FIELDS}
    return {
        name: np.random.uniform(-1, 1, (rows, WIDTH)).astype(np.float32)
        for name, rows in shapes.items()
    }


def expected(values, kernel):
    rows = [np.repeat(values[n], SIZES, axis=0) if n in USERS else values[n] for n in FIELDS]
    return np.concatenate(rows, axis=1) @ kernel


def compressed(use_resource):
    """A layer over alternating fields, its kernel, its inputs and item_size."""
    fields = {name: tf.placeholder(tf.float32, [None, WIDTH]) for name in FIELDS}
    item_size = enable([fields[n] for n in USERS], [fields[n] for n in ITEMS])
    shape = [len(FIELDS) * WIDTH, UNITS]
    kernel = tf.get_variable("kernel", shape, use_resource=use_resource)
    layer = tf.matmul(tf.concat(list(fields.values()), axis=1), kernel)
    return graph_optimizer.compress(layer), kernel, fields, item_size


@pytest.mark.parametrize("use_resource", [False, True])
def test_every_write_to_the_kernel_reaches_the_layer(use_resource, tmp_path):
    layer, kernel, fields, item_size = compressed(use_resource)
    rows = [op for op in tf.get_default_graph().get_operations() if op.type.endswith("KernelRows")]
    assert [op.get_attr("keep") for op in rows] == [use_resource] * 2  # Users' and candidates'.
    step = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(layer)))
    writes = [kernel.assign_add(tf.ones_like(kernel)), kernel.initializer]
    saver = tf.train.Saver([kernel])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "model.ckpt"))
        for turn in range(12):
            values = request()
            feed = {item_size: SIZES, **{fields[name]: values[name] for name in FIELDS}}
            for _ in range(2):
                now, got = session.run([kernel.read_value(), layer], feed)
                np.testing.assert_allclose(got, expected(values, now), **CLOSE)
            if turn % 4 == 0:
                session.run(step, feed)
            elif turn % 4 == 1:
                saver.restore(session, path)
            else:
                session.run(writes[turn % 2])


def model_fn(features, labels, mode):
    """A model with a local variable, and a local_init_op that initializes only this one."""
    local = tf.get_variable(
        "local", [], initializer=tf.ones_initializer(), collections=[tf.GraphKeys.LOCAL_VARIABLES]
    )
    kernel = tf.get_variable("kernel", [len(FIELDS) * WIDTH, UNITS])
    layer = tf.matmul(tf.concat([features[name] for name in FIELDS], axis=1), kernel) * local
    loss = tf.reduce_sum(layer)
    step = tf.train.get_global_step()
    return rec.EstimatorSpec(
        mode,
        predictions={"layer": layer},
        loss=loss,
        train_op=tf.train.GradientDescentOptimizer(0.1).minimize(loss, step),
        scaffold=tf.train.Scaffold(local_init_op=local.initializer),
    )


@pytest.mark.long
def test_a_portable_model_fills_the_kernel_rows_when_it_is_loaded(tmp_path):
    estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"))
    ones = {name: np.ones([5, WIDTH], np.float32) for name in FIELDS}
    estimator.train(lambda: tf.data.Dataset.from_tensors((ones, np.zeros(5))))
    spec = {name: tf.TensorSpec([None, WIDTH], tf.float32, name) for name in FIELDS}
    receiver_fn = rec.compressed_serving_input_receiver_fn(
        user=[spec[name] for name in USERS], item=[spec[name] for name in ITEMS]
    )
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver_fn, portable=True)
    values = request()
    wanted = expected(values, estimator.get_variable_value("kernel"))
    got = predict(path, {**values, "item_size": SIZES})["layer"]
    np.testing.assert_allclose(got, wanted, **CLOSE)
    with tf.Session(graph=tf.Graph()) as session:
        model = tf.saved_model.load(session, ["serve"], path.decode())
        output = model.signature_def["serving_default"].outputs["layer"].name
        read = ancestors([session.graph.get_tensor_by_name(output).op])
    variables = [op for op in read if op.type in ("VarHandleOp", "VariableV2")]
    names = {op.name.rpartition("/")[2] for op in variables}
    assert names == {"local", "kernel_rows", "kernel_rows_1"}  # Not the kernel.
