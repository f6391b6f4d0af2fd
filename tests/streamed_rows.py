# SPDX-License-Identifier: Apache-2.0
"""Schemas in a temporary folder, and the rows that data sets stream, in NumPy."""

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo import data
from model_zoo.data.measures import arrays


def load(folder, schema, **files):
    """The data set of a schema whose files have these contents, text or bytes."""
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name.replace("__", ".")).write_bytes(content)
    (folder / "schema.yaml").write_text(schema)
    return data.load(folder / "schema.yaml", cache_dir=folder / "cache")


def batches(dataset, part="train", batch_size=4, **arguments):
    """All batches of a part: a list of (features, labels)."""
    return list(arrays(lambda _: dataset.input_fn(part, batch_size, **arguments)()))


def rows(dataset, part="train", **arguments):
    """All rows of a part: columns and labels by name."""
    columns = {}
    for features, labels in batches(dataset, part, **arguments):
        labels = labels if isinstance(labels, dict) else {dataset.labels[0]: labels}
        for name, values in {**features, **labels}.items():
            columns.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in columns.items()}


def keys(*texts):
    """The keys of texts, as rec_estimator hashes them."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.strings.to_hash_bucket_fast(list(texts), 2**63 - 1)).tolist()
