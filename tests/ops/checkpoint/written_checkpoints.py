# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints for tests of restores: from arrays, or from a table that is trained here."""

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
    """Reads a checkpoint with TensorFlow, as {name: array}."""
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write(path, tensors, slices=None):
    """Writes {name: array}. ``slices`` is {name: [slice in the notation of SaveV2]}."""
    slices = slices or {}
    parts = [(name, part) for name in tensors for part in slices.get(name, [""])]
    # In a graph of its own: the graph of the test would grow with each call.
    with tf.Graph().as_default(), tf.Session() as session:
        save = tf.raw_ops.SaveV2(
            prefix=str(path),
            tensor_names=[name for name, _ in parts],
            shape_and_slices=[part for _, part in parts],
            tensors=[cut(np.asarray(tensors[name]), part) for name, part in parts],
        )
        session.run(save)
    return path


def cut(array, part):
    """Returns the slice of an array that SaveV2's notation describes; all of it for ''."""
    for axis, extent in enumerate(part.rpartition(" ")[2].split(":") if part else ()):
        begin, length = map(int, extent.split(","))
        array = np.take(array, range(begin, begin + length), axis)
    return array


def rows_of(keys, source="t"):
    """Returns the minimal tensors of a table: keys and values, without offsets."""
    keys = np.asarray(keys)
    values = np.arange(len(keys) * DIM, dtype=np.float32).reshape(-1, DIM)
    return {f"{source}-keys": keys, f"{source}-values": values}


def contents(table, slots=ADAGRAD):
    """Returns the contents of a table as {name: bytes}, so that comparisons are exact."""
    return {name: array.tobytes() for name, array in table.export(slots).items()}


def tensors_of(table, name="t", slots=ADAGRAD):
    """Returns the tensors of the checkpoint of a table without a Bloom filter."""
    out = table.export(slots)
    tensors = {f"{name}/default_values": out.pop("bank"), f"{name}-values": out.pop("values")}
    for slot, _, _ in slots:
        tensors[f"{name}/{slot}-values"] = out.pop(slot)
    for source in [name, *(f"{name}/{slot}" for slot, _, _ in slots)]:
        tensors.update({f"{source}-{suffix}": array for suffix, array in out.items()})
    return tensors


def assert_same(actual, expected):
    """Asserts that two dicts have the same arrays, of the same types."""
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def train_randomly(table):
    """Trains about 300 random keys, and the edge keys in each of three steps."""
    rng = np.random.default_rng(0)
    for step in range(3):
        train(table, [*rng.integers(-3000, 3000, 100), *EDGE_KEYS], version=step)
    return table
