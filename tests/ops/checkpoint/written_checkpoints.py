# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written by hand, and tables that are trained to be written, for tests of restores."""

import numpy as np
import tensorflow.compat.v1 as tf

EDGE_KEYS = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
DIM = 3
BANK = np.arange(5 * DIM, dtype=np.float32).reshape(5, DIM)
ADAGRAD = [("Adagrad", DIM, 0.1)]
BLOOM = {"filter_freq": 3, "max_element_size": 10000, "false_positive_probability": 0.001}
SAVE = {"slots": ADAGRAD, "track_changes": True}


def train(table, keys, version=0):
    grads = np.random.default_rng(len(keys)).normal(size=[len(keys), DIM])
    table.apply("Adagrad", [0.5], keys, grads, version=version, slots=ADAGRAD)


def read(path):
    """{name: array} of a checkpoint, as TensorFlow reads it."""
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write(path, tensors, slices=None):
    """Writes {name: array}; slices: {name: [how SaveV2 says which part of it is written]}."""
    slices = slices or {}
    pieces = [(name, piece) for name in tensors for piece in slices.get(name, [""])]
    # A graph of its own: that of the tests would grow and be built anew each time.
    with tf.Graph().as_default(), tf.Session() as session:
        save = tf.raw_ops.SaveV2(
            prefix=str(path),
            tensor_names=[name for name, _ in pieces],
            shape_and_slices=[piece for _, piece in pieces],
            tensors=[cut(np.asarray(tensors[name]), piece) for name, piece in pieces],
        )
        session.run(save)
    return path


def cut(array, piece):
    for axis, extent in enumerate(piece.rpartition(" ")[2].split(":") if piece else ()):
        begin, length = map(int, extent.split(","))
        array = np.take(array, range(begin, begin + length), axis)
    return array


def rows_of(keys, source="t"):
    keys = np.asarray(keys)
    values = np.arange(len(keys) * DIM, dtype=np.float32).reshape(-1, DIM)
    return {f"{source}-keys": keys, f"{source}-values": values}


def contents(table, slots=ADAGRAD):
    """What a table holds, in bytes that can be compared."""
    return {name: array.tobytes() for name, array in table.export(slots).items()}
