# SPDX-License-Identifier: Apache-2.0
"""The models whose files are stored beside this module.

A change of a model needs the files of each release written again; see write_golden.py.
"""

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table import saveable

# The checkpoints of a chain: the first one is whole, the others are deltas.
STEPS = (4, 6, 8)

# Few initial vectors, so that the files are small.
INITIAL = rec.InitializerOption(tf.constant_initializer([1.0, 0.5]), default_value_dim=2)

FILTERS = {"counter": rec.CounterFilter(3), "bloom": rec.CBFFilter(3, 100, 0.01)}

# The names in the files of what the sketch of a CBFFilter holds, in its order.
CELLS = ("bloom_layout", "bloom_generations", "bloom_blocks", "bloom_counters")


class Tables:
    """A table with each filter, trained by Adagrad, with a dense variable beside them.

    Attributes:
      initialize: The op that initializes all variables.
    """

    def __init__(self):
        step = tf.train.get_or_create_global_step()
        self._keys = tf.placeholder(tf.int64, [None])
        # A restored shard has the Bloom cells of all shards, so only one shard keeps the bits.
        tables = [
            rec.get_embedding_variable(
                name,
                2,
                ev_option=rec.EmbeddingVariableOption(init_option=INITIAL, filter_option=option),
                partitioner=tf.fixed_size_partitioner(1 if name == "bloom" else 2),
            )
            for name, option in FILTERS.items()
        ]
        weight = tf.get_variable("weight", [2], initializer=tf.ones_initializer())
        vectors = tf.add_n([rec.embedding_lookup(table, self._keys) for table in tables])
        loss = tf.reduce_sum(tf.square(vectors * weight - 0.3))
        self._train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        self._contents = {"weight": weight, "global_step": step}
        for table in tables:
            for number, shard in enumerate(table):
                fields = saveable.export_shard(shard, shard.slots)._asdict()
                fields.update(zip(CELLS, fields.pop("sketch")))
                for field, tensors in fields.items():
                    for place, tensor in enumerate(tf.nest.flatten(tensors)):
                        self._contents[f"{table.name}-{number}-{field}-{place}"] = tensor
        self.initialize = tf.global_variables_initializer()

    def train(self, session, first, last):
        """Trains the steps after ``first`` up to ``last``; a step has its own keys."""
        for step in range(first + 1, last + 1):
            keys = np.random.RandomState(step).randint(-9, 9, 12, np.int64)
            keys[:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
            session.run(self._train, {self._keys: keys})

    def contents(self, session):
        """All rows, slots, counts, versions, filtered keys and Bloom cells, by name."""
        return session.run(self._contents)


# When the keys of TimedTable were trained, in seconds since 1970, and what each of them holds.
TRAINED_AT = {1: 1_700_000_000, 2: 1_700_000_060}
VALUE = 0.5


class TimedTable:
    """A table that evicts by seconds, so that its checkpoint has the unit of its versions.

    Attributes:
      initialize: The op that initializes all variables.
      versions: int64 [2]. Those of the keys of TRAINED_AT.
      evict: The op that evicts what is older than 30 seconds.
    """

    def __init__(self):
        self._keys, self._now = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [])
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, self._now)
        self.table = rec.create_table(
            tf.int64, 2, "timed", tf.constant_initializer(VALUE), device_vocabulary_size=8
        )
        vectors = rec.sparse_lookup(
            self.table,
            self._keys,
            modify_graph=True,
            is_train=True,
            access_and_evict_config={"access_threshold": 0, "eviction_threshold": 30},
        )
        optimizer = rec.optimizers.GradientDescentOptimizer(0.0)
        step = tf.train.get_or_create_global_step()
        self._train = optimizer.minimize(tf.reduce_sum(vectors), step)
        self.versions = self.table.get_version(list(TRAINED_AT))
        self.evict = self.table.evict()
        self.initialize = tf.global_variables_initializer()

    def train(self, session):
        """Trains each key of TRAINED_AT in a step at its second."""
        for key, now in TRAINED_AT.items():
            session.run(self._train, {self._keys: [key], self._now: now})


# The types of values and slots of small tables, by the table's name.
SMALL_DTYPES = {
    "bfloat16": (tf.bfloat16, tf.float32),
    "float16": (tf.float16, tf.float32),
    "slots": (tf.float32, tf.bfloat16),
}


class SmallTables:
    """Tables of values or slots of 16 bits, and steps whose rounding has the same bits everywhere.

    Attributes:
      initialize: The op that initializes all variables.
    """

    def __init__(self):
        self._keys = tf.placeholder(tf.int64, [None])
        init = rec.InitializerOption(tf.constant_initializer(VALUE), 2)
        tables = [
            rec.get_embedding_variable(
                name,
                5,
                value_dtype=value_dtype,
                slot_dtype=slot_dtype,
                ev_option=rec.EmbeddingVariableOption(init_option=init),
            )
            for name, (value_dtype, slot_dtype) in SMALL_DTYPES.items()
        ]
        vectors = [rec.embedding_lookup(table, self._keys) for table in tables]
        step = tf.train.get_or_create_global_step()
        optimizer = rec.optimizers.AdagradOptimizer(0.1)
        self._train = optimizer.minimize(tf.add_n(list(map(tf.reduce_sum, vectors))), step)
        self.initialize = tf.global_variables_initializer()

    def train(self, session):
        """Trains some keys by some steps."""
        for keys in ([1, 2, -3], [2, 2**62], [2, -3, 5]):
            session.run(self._train, {self._keys: keys})


# Rows of two numbers, their least and their greatest one, lose nothing in 8 bits.
INT8_MODEL = {"dim": 5, "kernel": np.linspace(-1, 1, 10)}


def estimator(folder, dim=2, kernel=1.0):
    """An Estimator of two declared features and a dense layer, whose kernel begins with numbers."""
    initializer = tf.constant_initializer(kernel)

    def model_fn(features, labels, mode):
        kernel = tf.get_variable("kernel", [2 * dim, 1], initializer=initializer)
        vectors = tf.concat([features["user"], features["item"]], axis=1)
        logits = tf.squeeze(tf.matmul(vectors, kernel), axis=1)
        predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
        outputs = {"serving_default": rec.PredictOutput(predictions)}
        if mode == rec.ModeKeys.PREDICT:
            return rec.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        loss = tf.losses.sigmoid_cross_entropy(labels, logits)
        optimizer = rec.optimizers.AdagradOptimizer(0.3)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    option = rec.EmbeddingVariableOption(init_option=INITIAL)
    features = [
        rec.EmbeddingFeature("user", dim, ev_option=option),
        rec.EmbeddingFeature("item", dim, ev_option=option, filter_option=rec.CounterFilter(2)),
    ]
    return rec.RecEstimator(model_fn, str(folder), embedding_features=features)


def training_data():
    """Two hundred samples; every third is a click."""
    rows = np.arange(200)
    columns = {"user": rows % 7, "item": rows**3 % 13}
    labels = (rows % 3 == 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((columns, labels)).batch(20)


def serving_input():
    """Placeholders of a request."""
    tensors = {name: tf.placeholder(tf.int64, [None], name) for name in ("user", "item")}
    return rec.ServingInputReceiver(tensors, tensors)


# Known keys, a filtered one, unknown ones.
REQUEST = {"user": np.array([0, 1, 6, 100]), "item": np.array([0, 1, 12, -5])}


def predictions(export_dir):
    """The outputs of a SavedModel for REQUEST, by name."""
    with tf.Session(graph=tf.Graph()) as session:
        meta_graph = tf.saved_model.load(session, ["serve"], str(export_dir))
        signature = meta_graph.signature_def["serving_default"]
        feed = {signature.inputs[name].name: ids for name, ids in REQUEST.items()}
        return session.run({name: out.name for name, out in signature.outputs.items()}, feed)


GROUPED_USER = {
    "user": tf.io.FixedLenFeature([], tf.int64),
    "history": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
}
GROUPED_ITEM = {
    "item": tf.io.FixedLenFeature([], tf.int64),
    "price": tf.io.FixedLenFeature([2], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.float32),
}


def grouped_samples():
    """Batches of samples that are grouped by user."""
    rows = np.arange(12)
    users = rows % 3
    histories = [[5, 6], [], [2**62]]
    features = {
        "user": users,
        "history": tf.ragged.constant([histories[user] for user in users], dtype=tf.int64),
        "item": rows**2,
        "price": (rows[:, None] / np.array([3, 7])).astype(np.float32),
    }
    flat = tf.data.Dataset.from_tensors((features, np.float32(rows % 2)))
    return rec.inputs.group_samples(flat, list(GROUPED_USER))


def batches(dataset):
    """The elements of a dataset, each as a list; ragged tensors as values and row splits."""
    element = tf.data.make_one_shot_iterator(dataset).get_next()
    tensors = tf.nest.flatten(element, expand_composites=True)
    found = []
    with tf.Session() as session:
        while True:
            try:
                found.append(session.run(tensors))
            except tf.errors.OutOfRangeError:
                return found
