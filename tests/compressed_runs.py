# SPDX-License-Identifier: Apache-2.0
"""Runs a model uncompressed on repeated rows, and compressed on users' rows."""

import re

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import graph_optimizer, sample_compression

F, INT = tf.float64, tf.int64
SIZES = np.array([2, 0, 3, 1], np.int32)


def enable(users, items, **arguments):
    """Enables compression and returns the placeholder of item_size."""
    item_size = tf.placeholder(tf.int32, [None], name="item_size")
    graph_optimizer.enable_sample_awared_graph_compression(users, items, item_size, **arguments)
    return item_size


def placeholder(array):
    kind = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    return tf.placeholder(kind, [None, *array.shape[1:]])


def ragged_placeholder(dtype):
    values = tf.placeholder(dtype, [None])
    return tf.RaggedTensor.from_row_splits(values, tf.placeholder(INT, [None]), validate=False)


def ragged_value(lists, dtype):
    return tf.compat.v1.ragged.constant_value(lists, dtype=dtype, row_splits_dtype=np.int64)


def sparse_value(lists, dtype):
    indices = [(i, j) for i, row in enumerate(lists) for j in range(len(row))]
    values = np.array([x for row in lists for x in row], dtype)
    width = max([len(row) for row in lists] or [0])
    return tf.compat.v1.SparseTensorValue(
        np.array(indices, np.int64).reshape(-1, 2), values, (len(lists), width)
    )


def both(model, users, items, sizes=SIZES, exact=False):
    """Runs a model uncompressed on repeated rows, and compressed.

    Args:
      model: Takes lists of user and item tensors; returns the fetches.
      users: For each input, an array with a row per user; or (list of lists, function that makes
        the placeholder, function that makes the value to feed).
      items: Arrays with a row per candidate.
      sizes: How many candidates each user has.
      exact: See enable_sample_awared_graph_compression.

    Returns:
      (uncompressed, compressed, CompressionReport)
    """
    rows = np.repeat(np.arange(len(sizes)), sizes)
    users = [(u, placeholder, lambda x: x) if isinstance(u, np.ndarray) else u for u in users]
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        user_tensors = [make(value) for value, make, _ in users]
        item_tensors = [placeholder(item) for item in items]
        item_size = enable(user_tensors, item_tensors, exact=exact)
        fetches = model(user_tensors, item_tensors)
        feed = dict(zip(item_tensors, items))
        repeated = [
            value[rows] if isinstance(value, np.ndarray) else [value[row] for row in rows]
            for value, _, _ in users
        ]
        for tensor, value, (_, _, convert) in zip(user_tensors, repeated, users):
            feed[tensor] = convert(value)
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.tables_initializer()])
            expected = session.run(fetches, feed)
        compressed = sample_compression.compress(fetches)
        feed = {**dict(zip(item_tensors, items)), item_size: sizes}
        feed.update({t: convert(value) for t, (value, _, convert) in zip(user_tensors, users)})
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.tables_initializer()])
            got = session.run(compressed, feed)
        return expected, got, sample_compression.compression_report()


def arrays(values):
    for value in tf.nest.flatten(values):
        parts = (value,)
        if isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
            parts = value.values, value.row_splits
        for part in parts:
            yield np.asarray(part)


def expect_equal(expected, got, tolerance=0.0):
    for wanted, value in zip(arrays(expected), arrays(got)):
        assert wanted.shape == value.shape
        if wanted.dtype.kind == "f":
            largest = np.abs(wanted).max(initial=0.0)
            np.testing.assert_allclose(value, wanted, rtol=0, atol=tolerance * largest)
        else:
            np.testing.assert_array_equal(value, wanted)


def uniform(*shape):
    return np.random.uniform(-1, 1, shape)


def predict(export_dir, request, key="predict"):
    """All outputs of a SavedModel for a request."""
    with tf.Session(graph=tf.Graph()) as session:
        model = tf.saved_model.load(session, ["serve"], tf.compat.as_str(export_dir))
        signatures = model.signature_def
        signature = signatures.get(key) or signatures["serving_default"]
        assert set(signature.inputs) == set(request)
        feed = {signature.inputs[name].name: value for name, value in request.items()}
        return session.run({k: v.name for k, v in signature.outputs.items()}, feed)


class LossHook(tf.train.SessionRunHook):
    """Keeps the losses of all steps."""

    def __init__(self):
        self.losses = []

    def before_run(self, run_context):
        # Estimator adds the loss of the model_fn to this collection.
        return tf.train.SessionRunArgs(tf.get_collection(tf.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context, run_values):
        self.losses.append(run_values.results)


def compare_slots(flat, grouped):
    """Compares integers, and Adam's slots to 1e-5 of their largest value; returns the slots."""
    slots = []
    for name, _ in tf.train.list_variables(flat):
        expected, got = (tf.train.load_variable(prefix, name) for prefix in (flat, grouped))
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
        elif re.search(r"/Adam(_1)?(-values)?$", name):
            slots.append(name)
            largest = max(np.abs(expected).max(initial=0), 1e-4 if name[-2:] != "_1" else 1e-8)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * largest, err_msg=name)
    return slots
