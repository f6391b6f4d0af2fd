# SPDX-License-Identifier: Apache-2.0
"""The data of the ported scripts: small files in the vendors' forms, whose labels can be learnt."""

import pickle

import numpy as np
import tensorflow.compat.v1 as tf

SEED = 7


def labels_of(ids, rng):
    """0 or 1 per row: each id has a taste, and the sum of a row's decides nearly always."""
    tastes = np.random.default_rng(SEED).normal(size=2000)
    sums = tastes[ids].reshape(len(ids), -1).sum(axis=1)
    return (sums + rng.normal(scale=0.3, size=len(ids)) > 0).astype(np.int64)


def zipf_ids(rng, shape, vocabulary):
    """Ids in [0, vocabulary); small ones are frequent."""
    return np.minimum(rng.zipf(1.3, shape) - 1, vocabulary - 1)


def write_criteo_csv(folder, examples=640):
    """train.csv and eval.csv: a label, 3 numbers and 4 categories a line; Criteo has 13 and 26."""
    for name, rows, seed in (("train", examples, 1), ("eval", examples // 4, 2)):
        rng = np.random.default_rng(seed)
        ids = zipf_ids(rng, [rows, 4], 300)
        numbers = rng.integers(0, 9, [rows, 3])
        lines = [
            ",".join(
                [
                    str(label),
                    *map(str, number),
                    *(f"{field:x}_{id:04x}" for field, id in enumerate(row)),
                ]
            )
            for label, number, row in zip(labels_of(ids, rng), numbers, ids)
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def write_tf_records(folder, examples=640, lines=4):
    """train.tfrecord and test.tfrecord: each record has several lines, one after the other.

    A line has a label, a time in seconds that grows by 1 every 32 lines, 6 ids and 3 numbers.
    """
    for name, rows, seed in (("train", examples, 1), ("test", examples // 4, 2)):
        rng = np.random.default_rng(seed)
        ids = zipf_ids(rng, [rows, 6], 300)
        columns = {
            "label": labels_of(ids, rng),
            "time": 1_700_000_000 + np.arange(rows) // 32,
            "sparse_feature": ids,
        }
        numbers = rng.random([rows, 3]).astype(np.float32)
        with tf.io.TFRecordWriter(str(folder / f"{name}.tfrecord")) as writer:
            for first in range(0, rows, lines):
                part = slice(first, first + lines)
                feature = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=column[part].flat))
                    for name, column in columns.items()
                }
                feature["dense_feature"] = tf.train.Feature(
                    float_list=tf.train.FloatList(value=numbers[part].flat)
                )
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def write_amazon_pickle(folder, users=80, items=24, categories=6):
    """dataset.pkl: training samples, test samples, and the category of each item.

    A training sample is (user, history, item, label), a test sample (user, history, item that the
    user chose, another item). Users choose items of even numbers.
    """
    rng = np.random.default_rng(SEED)
    cate_list = np.arange(items) % categories
    even, odd = np.arange(0, items, 2), np.arange(1, items, 2)
    train, test = [], []
    for user in range(users):
        for _ in range(8):
            history = rng.choice(even, rng.integers(2, 7)).tolist()
            train.append((user, history, int(rng.choice(even)), 1))
            train.append((user, history, int(rng.choice(odd)), 0))
        test.append((user, history, int(rng.choice(even)), int(rng.choice(odd))))
    with open(folder / "dataset.pkl", "wb") as file:
        for part in (train, test, cate_list):
            pickle.dump(part, file)


def write_libsvm(folder, examples=640, fields=6):
    """tr.libsvm, va.libsvm and te.libsvm: a label and pairs of an id and a value in each line."""
    for name, rows, seed in (("tr", examples, 1), ("va", examples // 4, 2), ("te", 20, 3)):
        rng = np.random.default_rng(seed)
        ids = zipf_ids(rng, [rows, fields], 300)
        lines = [
            " ".join([str(label), *(f"{id}:1" for id in row)])
            for label, row in zip(labels_of(ids, rng), ids)
        ]
        (folder / f"{name}.libsvm").write_text("\n".join(lines) + "\n")
