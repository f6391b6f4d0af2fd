# SPDX-License-Identifier: Apache-2.0
"""Reads damaged files of grouped samples: bytes under their checksums, and records with good ones.

What is read must be what the records hold, up to the first one that is damaged, and then an error.
"""

import gzip
import pathlib

import numpy as np
import tensorflow.compat.v1 as tf
from fuzz.mutations import change_bytes, change_message, choose

import rec_estimator as rec

# What a damaged file may raise. The end of the data, OutOfRangeError, is none of these.
REFUSALS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)

USER = {
    "user": tf.io.FixedLenFeature([], tf.int64),
    "history": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
}
ITEM = {
    "item": tf.io.FixedLenFeature([], tf.int64),
    "words": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
    "price": tf.io.FixedLenFeature([2], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.float32),
}
BATCH = 3


def group(seed):
    """A record: a user with some history, and some candidates."""
    rng = np.random.default_rng(seed)
    record = tf.train.SequenceExample()
    record.context.feature["user"].int64_list.value.append(seed)
    record.context.feature["history"].int64_list.value.extend(rng.integers(0, 9, seed % 4).tolist())
    for _ in range(1 + seed % 3):
        lists = {name: record.feature_lists.feature_list[name].feature.add() for name in ITEM}
        lists["item"].int64_list.value.append(int(rng.integers(100)))
        lists["words"].bytes_list.value.extend([b"w%d" % i for i in range(rng.integers(3))])
        lists["price"].float_list.value.extend(rng.random(2).tolist())
        lists["label"].float_list.value.append(1.0)
    return record


def samples_of(record):
    """The samples of a record as the input gives them: {name: value} of each candidate."""
    context, lists = record.context.feature, record.feature_lists.feature_list
    (user_id,) = context["user"].int64_list.value
    user = {
        "user": user_id,
        "history": list(context["history"].int64_list.value),
    }
    columns = {
        "item": [value for f in lists["item"].feature for (value,) in [f.int64_list.value]],
        "words": [list(f.bytes_list.value) for f in lists["words"].feature],
        "price": [[a, b] for f in lists["price"].feature for a, b in [f.float_list.value]],
        "label": [value for f in lists["label"].feature for (value,) in [f.float_list.value]],
    }
    size = len(columns["item"])
    assert {len(column) for column in columns.values()} == {size}
    return [{**user, **{name: column[i] for name, column in columns.items()}} for i in range(size)]


def fast():
    """Options of a dataset that is read many times, each time for a moment."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


class Target:
    """Mutants of a file of ten groups, plain and compressed."""

    def __init__(self, folder):
        tf.disable_eager_execution()
        self._paths = {"": str(folder / "groups.tfrecord"), "GZIP": str(folder / "groups.gz")}
        self._records = [group(seed) for seed in range(10)]
        config = tf.ConfigProto()
        # Otherwise TensorFlow would optimize the functions of the input again for each seed.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = tf.Session(graph=tf.Graph(), config=config)
        self._batches = {}
        for kind, path in self._paths.items():
            self._write(path, kind, [record.SerializeToString() for record in self._records])
            with self._session.graph.as_default():
                input_fn = rec.inputs.grouped_tfrecord_input_fn(
                    path, USER, ITEM, label_column="label", batch_size=BATCH
                )
                batches = tf.data.make_initializable_iterator(input_fn().with_options(fast()))
                self._batches[kind] = batches.initializer, batches.get_next()
            assert self._read(kind) == ([s for r in self._records for s in samples_of(r)], None)

    def _write(self, path, kind, records):
        with tf.io.TFRecordWriter(path, kind) as writer:
            for record in records:
                writer.write(record)

    def run(self, seed):
        rng = np.random.default_rng(seed)
        kind = choose(rng, sorted(self._paths))
        path = pathlib.Path(self._paths[kind])
        records = [record.SerializeToString() for record in self._records]
        self._write(str(path), kind, records)
        way = choose(rng, ["file", "file", "inflated", "record", "message", "message"])
        good = [sample for record in self._records for sample in samples_of(record)]
        at = int(rng.integers(len(records)))
        if way == "file":
            path.write_bytes(change_bytes(rng, path.read_bytes()))
        elif way == "inflated":
            data = path.read_bytes()
            data = change_bytes(rng, gzip.decompress(data) if kind else data)
            path.write_bytes(gzip.compress(data) if kind else data)
        elif way == "record":
            records[at] = change_bytes(rng, records[at])
            self._write(str(path), kind, records)
        else:
            record = tf.train.SequenceExample.FromString(records[at])
            for _ in range(choose(rng, [1, 1, 2])):
                change_message(rng, record)
            records[at] = record.SerializeToString()
            self._write(str(path), kind, records)
            good = self._samples_with(at, record)
        read, error = self._read(kind)
        if way != "record" and good is not None:
            # As text: a message may hold a NaN, which does not equal itself.
            read, good = list(map(repr, read)), list(map(repr, good))
            assert read == good[: len(read)], f"{way}: {read} is not the start of {good}"
            is_cut = way in ("file", "inflated")  # A file may end after any record.
            assert error or is_cut or read == good, f"{way}: only {len(read)} of {len(good)}"
        assert good is not None or error is not None, f"{records[at]} is no group of samples"
        return "refused" if error else "accepted"

    def _samples_with(self, at, record):
        """The samples of all records if one is another; None if that one is none."""
        records = [*self._records[:at], record, *self._records[at + 1 :]]
        try:
            return [sample for record in records for sample in samples_of(record)]
        except (AssertionError, ValueError):
            return None

    def _read(self, kind):
        """Returns the samples that can be read, and the error, or None at the end."""
        initializer, batch = self._batches[kind]
        samples = []
        try:
            self._session.run(initializer)
            while True:
                samples += flat(*self._session.run(batch))
        except tf.errors.OutOfRangeError:
            return samples, None
        except REFUSALS as error:
            return samples, error


def flat(features, labels):
    """The samples of a grouped batch."""
    rows = np.repeat(np.arange(len(features["item_size"])), features["item_size"])
    assert len(rows) == len(labels) == len(features["item"]) <= BATCH
    words, history = features["words"].to_list(), features["history"].to_list()
    return [
        {
            "user": int(features["user"][row]),
            "history": history[row],
            "item": int(features["item"][i]),
            "words": words[i],
            "price": features["price"][i].tolist(),
            "label": float(labels[i]),
        }
        for i, row in enumerate(rows)
    ]
