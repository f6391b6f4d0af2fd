# SPDX-License-Identifier: Apache-2.0
"""Functions that run input_fns, and a file of numbered rows for them."""

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import inputs


def batches(input_fn, limit=1000):
    """Runs an input_fn in its own graph and session; returns the values of its batches."""
    with tf.Graph().as_default():
        tf.set_random_seed(5)
        iterator = tf.data.make_initializable_iterator(input_fn())
        batch = iterator.get_next()
        found = []
        # Optimizing these small graphs takes longer than running them.
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
    """The values of a feature in all batches."""
    values = [features[name] for features, _ in found]
    if hasattr(values[0], "to_list"):
        return [row for value in values for row in value.to_list()]
    return np.concatenate(values).tolist()


def labels(found):
    return np.concatenate([label for _, label in found]).tolist()


def numbered(count, start=0):
    """Writes a CSV file with `count` rows; the label of a row is its number."""
    rows = [f"{i},u{i},{i / 2}" for i in range(start, start + count)]
    return "\n".join(["label,user,price", *rows]) + "\n"


def read(path, **kwargs):
    kwargs = {"label_column": "label", "batch_size": 4, **kwargs}
    return inputs.csv_input_fn(path, **kwargs)
