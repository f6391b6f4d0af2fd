# SPDX-License-Identifier: Apache-2.0
"""Data and tables for the tests of graph modification: batches of every structure."""

import collections
import pathlib

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_modifier.prepared_input import get_initializer

# Optimizing these small graphs takes longer than running them.
QUICK = tf.ConfigProto()
QUICK.graph_options.rewrite_options.disable_meta_optimizer = True

ROWS = 256
BATCH = 16
HASH_BUCKETS = 2**63 - 1

Example = collections.namedtuple("Example", ["user", "history", "label"])


def columns(seed=0):
    """String users, int64 items (keys 0, -1, min and max among them), histories, labels."""
    rng = np.random.default_rng(seed)
    item = rng.integers(-3, 20, [ROWS, 2])
    item[:4, 0] = 0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max
    history = rng.integers(0, 9, [ROWS, 4]) * rng.integers(0, 2, [ROWS, 4])
    return {
        "user": rng.integers(0, 40, ROWS).astype(str).astype(object),
        "item": item,
        "history": history,
        "label": rng.random(ROWS).astype(np.float32),
    }


def sparse(history):
    return tf.sparse.from_dense(history)


def ragged(history):
    return tf.RaggedTensor.from_tensor(history, padding=0)


# By name of a structure: a function from columns to the structure, and one from a batch to a dict.
STRUCTURES = {
    "dict": (lambda c: c, lambda b: b),
    "tuple": (
        lambda c: (c["user"], c["item"], c["history"], c["label"]),
        lambda b: dict(zip(("user", "item", "history", "label"), b)),
    ),
    "nested": (
        lambda c: ({"who": {"user": c["user"]}, "what": (c["item"], c["history"])}, c["label"]),
        lambda b: {
            "user": b[0]["who"]["user"],
            "item": b[0]["what"][0],
            "history": b[0]["what"][1],
            "label": b[1],
        },
    ),
    "namedtuple": (
        lambda c: (Example(c["user"], c["history"], c["label"]), {"item": c["item"]}),
        lambda b: {**b[0]._asdict(), **b[1]},
    ),
    "sparse": (lambda c: {**c, "history": sparse(c["history"])}, lambda b: b),
    "ragged": (lambda c: {**c, "history": ragged(c["history"])}, lambda b: b),
}


def dataset_of(structure="dict", seed=0):
    data = tf.data.Dataset.from_tensor_slices(STRUCTURES[structure][0](columns(seed)))
    return data.shuffle(ROWS, seed=3).repeat().batch(BATCH)


def iterator_of(data, kind):
    make = {
        "initializable": tf.data.make_initializable_iterator,
        "one-shot": tf.data.make_one_shot_iterator,
    }
    return make[kind](data)


def table_of(name, **kwargs):
    initializer = tf.random_normal_initializer(seed=len(name))
    return rec.get_embedding_variable(name, 4, initializer=initializer, **kwargs)


def start(session, iterator, kind, modified):
    if modified:
        session.run(get_initializer(True))
    elif kind == "initializable":
        session.run(iterator.initializer)
    session.run(tf.global_variables_initializer())


def checkpoints(folder):
    """{checkpoint: {tensor: its type, shape and bytes}} of the checkpoints in a folder."""
    found = {}
    for index in sorted(pathlib.Path(folder).glob("model.ckpt-*.index")):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        found[index.stem] = {
            name: (array.dtype, array.shape, array.tobytes())
            for name, array in ((name, np.asarray(value)) for name, value in tensors.items())
        }
    return found


def assert_same(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)
