# SPDX-License-Identifier: Apache-2.0
"""What the tests of input_fns read with, and a file of numbered rows to read."""

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import inputs


def batches(input_fn, limit=1000):
    """The values of the batches that an input_fn gives in a graph and session of its own."""
    with tf.Graph().as_default():
        tf.set_random_seed(5)
        iterator = tf.data.make_initializable_iterator(input_fn())
        batch = iterator.get_next()
        found = []
        # The optimizer of graphs takes longer than these small ones run.
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Session(config=config) as session:
            session.run(iterator.initializer)
            while len(found) < limit:
                try:
                    found.append(session.run(batch))
                except tf.errors.OutOfRangeError:
                    break
        return found


def column(found, name):
    """A feature over all batches."""
    values = [features[name] for features, _ in found]
    if hasattr(values[0], "to_list"):
        return [row for value in values for row in value.to_list()]
    return np.concatenate(values).tolist()


def labels(found):
    return np.concatenate([label for _, label in found]).tolist()


def numbered(count, start=0):
    """A CSV file of `count` rows; the label of a row is its number."""
    rows = [f"{i},u{i},{i / 2}" for i in range(start, start + count)]
    return "\n".join(["label,user,price", *rows]) + "\n"


def read(path, **kwargs):
    kwargs = {"label_column": "label", "batch_size": 4, **kwargs}
    return inputs.csv_input_fn(path, **kwargs)
