# SPDX-License-Identifier: Apache-2.0
"""Tables that store values or slots in 16 bits, and their contents after some steps."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import initial_vectors, initialized_session

import rec_estimator as rec

DIM = 5
BANK = initial_vectors(DIM, 8)


def _name(dtype):
    return dtype.name


# For tests of what is the same with values of each type.
VALUE_DTYPES = pytest.mark.parametrize(
    "value_dtype", [tf.float32, tf.bfloat16, tf.float16], ids=_name
)
# The types of rows that have something of 16 bits.
NARROW_TYPES = pytest.mark.parametrize(
    ("value_dtype", "slot_dtype"),
    [
        (tf.bfloat16, tf.float32),
        (tf.float16, tf.float32),
        (tf.float32, tf.bfloat16),
        (tf.bfloat16, tf.bfloat16),
        (tf.float16, tf.bfloat16),
    ],
    ids=_name,
)


def make_table(value_dtype=None, dim=DIM, shards=None, slot_dtype=None, **options):
    bank = BANK if dim == DIM else initial_vectors(dim, 8)
    return rec.get_embedding_variable(
        "t",
        dim,
        value_dtype=value_dtype,
        slot_dtype=slot_dtype,
        partitioner=tf.fixed_size_partitioner(shards) if shards else None,
        ev_option=rec.EmbeddingVariableOption(
            init_option=rec.InitializerOption(tf.constant_initializer(bank), len(bank)), **options
        ),
    )


def adagrad():
    return rec.optimizers.AdagradOptimizer(0.05)


def trainer(table, optimizer):
    """A function of a session, keys and their gradients that runs one step."""
    keys = tf.placeholder(tf.int64, [None])
    gradients = tf.placeholder(tf.float32, [None, table.dim])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys) * gradients)
    train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return lambda session, *batch: session.run(train, dict(zip((keys, gradients), batch)))


def random_batches(n, dim=DIM, seed=1):
    random = np.random.RandomState(seed)
    for _ in range(n):
        keys = random.randint(-20, 20, 60)
        yield keys, random.randn(len(keys), dim).astype(np.float32)


class Contents:
    """What a session has in a table that an optimizer trains."""

    def __init__(self, table, optimizer):
        names = [slot.name for slot in optimizer.table_slots()]
        self._rows = table.export()
        self._slots = {name: optimizer.get_slot(table, name).export() for name in names}

    def of(self, session):
        """{key: (value, {name: slot}, count, version)}."""
        rows, slots = session.run([self._rows, self._slots])
        by_key = {name: dict(zip(slot.keys, slot.values)) for name, slot in slots.items()}
        return {
            key: (value, {name: slot[key] for name, slot in by_key.items()}, freq, version)
            for key, value, version, freq in zip(rows.keys, rows.values, rows.versions, rows.freqs)
        }

    def bits(self, session):
        """The same, to be compared by ==."""
        return {
            key: (value.tobytes(), {name: slot.tobytes() for name, slot in slots.items()}, *others)
            for key, (value, slots, *others) in self.of(session).items()
        }


def after_steps(steps=4, batches=random_batches, **options):
    """The bits of a table after some steps of Adagrad."""
    with tf.Graph().as_default():
        table, optimizer = make_table(**options), adagrad()
        train = trainer(table, optimizer)
        contents = Contents(table, optimizer)
        with initialized_session() as session:
            for batch in batches(steps):
                train(session, *batch)
            return contents.bits(session)


def many_keys(steps):
    """Batches of more keys than a small tier keeps in memory."""
    random = np.random.RandomState(2)
    for _ in range(steps):
        keys = random.randint(0, 4000, 1000)
        yield keys, random.randn(len(keys), DIM).astype(np.float32)


# Rows whose rounding to 16 bits is special: halfway to a neighbour, too small or too large for
# float16, denormal there, without a sign or with one.
SPECIAL_ROWS = np.array(
    [
        [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, -0.0],
        [1e-5, 3e-6, 2**-24, 2**-25, -1e-9],
        [65504, 65519, 65520, 1e5, -1e30],
    ],
    np.float32,
)
LARGEST_OF_BOTH = 65280  # Of the numbers that both types of 16 bits have.


def special_rows(*dtypes):
    """SPECIAL_ROWS, within the range of float16 if it is among the types."""
    largest = LARGEST_OF_BOTH if tf.float16 in dtypes else np.inf
    return np.clip(SPECIAL_ROWS, -largest, largest)


def save_and_restore(folder, make_saver, saved, restored):
    """A reader of a checkpoint, what was saved in it and what was restored from it.

    Rows are trained by Adagrad; others are special_rows.

    Args:
      saved, restored: Arguments of make_table.
    """
    prefix = str(folder / "model.ckpt")
    with tf.Graph().as_default():
        table, optimizer = make_table(**saved), adagrad()
        train, saver = trainer(table, optimizer), make_saver()
        contents = Contents(table, optimizer)
        rows = special_rows(saved.get("value_dtype"), restored.get("value_dtype"))
        assign = table.assign(np.arange(len(rows)) + 100, rows)
        with initialized_session() as session:
            for batch in random_batches(2):
                train(session, *batch)
            session.run(assign)
            saver.save(session, prefix)
            before = contents.of(session)
    with tf.Graph().as_default():
        table, optimizer = make_table(**restored), adagrad()
        trainer(table, optimizer)
        contents, saver = Contents(table, optimizer), make_saver()
        with initialized_session() as session:
            saver.restore(session, prefix)
            after = contents.of(session)
    assert before.keys() == after.keys()
    return tf.train.load_checkpoint(prefix), before, after


def memory_of_rows(make_optimizer, n, **options):
    """The bytes of a table of n rows that an optimizer trains."""
    with tf.Graph().as_default():
        table = make_table(**options)
        train = trainer(table, make_optimizer(0.1))
        with initialized_session() as session:
            train(session, np.arange(n), np.ones([n, table.dim], np.float32))
            return session.run(table.memory_bytes())
