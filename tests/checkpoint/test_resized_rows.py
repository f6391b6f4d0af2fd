# SPDX-License-Identifier: Apache-2.0
"""init_from_checkpoint(resize_rows=True): tables that have another dim than their checkpoint."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import warm_start
from rec_estimator.table import saveable

KEYS = [5, -7, 5, 1003, 4]
FRESH = 77
# Initial value and whether a slot is of the row, by optimizer.
OPTIMIZERS = {
    "adagrad": (lambda: rec.optimizers.AdagradOptimizer(0.1, 0.3), {"accumulator": (0.3, False)}),
    "adam": (
        lambda: rec.optimizers.AdamOptimizer(0.1),
        {"m": (0.0, False), "v": (0.0, False)},
    ),
    "rowwise": (
        lambda: rec.optimizers.RowwiseAdagradOptimizer(0.1, 0.3),
        {"accumulator": (0.3, True)},
    ),
}


def bank_of(dim, rows, seed):
    return np.random.RandomState(seed).randn(rows, dim).astype(np.float32)


class Model:
    """A table of a dim, its optimizer and the ops that read both."""

    def __init__(
        self, dim, optimizer="adagrad", shards=1, rows=6, filter_freq=0, scope="s", dtype=None
    ):
        self.bank = bank_of(dim, rows, seed=dim)
        option = rec.EmbeddingVariableOption(
            init_option=rec.InitializerOption(tf.constant_initializer(self.bank), rows),
            filter_option=rec.CounterFilter(filter_freq) if filter_freq else None,
        )
        cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
        make, self.slots = OPTIMIZERS[optimizer]
        with tf.variable_scope(scope):
            self.table = rec.get_embedding_variable(
                "t", dim, ev_option=option, partitioner=cut, value_dtype=dtype
            )
        vectors = rec.embedding_lookup(self.table, tf.constant(KEYS, tf.int64))
        optimizer = make()
        self.train = optimizer.minimize(tf.reduce_sum(tf.square(vectors)))
        keys = tf.constant([*sorted(set(KEYS)), FRESH], tf.int64)
        self.read = [
            rec.embedding_lookup(self.table, keys),
            self.table.get_frequency(keys),
            {name: optimizer.get_slot(self.table, name).lookup(keys) for name in self.slots},
        ]


def saved(path, *deltas, **arguments):
    """Writes a checkpoint of a trained model: (prefix, what it reads, its bank)."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        model = Model(**arguments)
        saver = rec.Saver(incremental=True) if deltas else rec.Saver()
        session.run(tf.global_variables_initializer())
        session.run(model.train)
        prefix = saver.save(session, str(path), global_step=1)
        for step in deltas:
            session.run(model.train)
            prefix = saver.save(session, str(path), global_step=step)
        return prefix, session.run(model.read), model.bank


def resized(rows, to, fill):
    """Rows [n, w] cut, or longer by the last elements of fill [n, to]."""
    kept = min(rows.shape[1], to)
    return np.concatenate([rows[:, :kept], fill[:, kept:to]], axis=1)


def assert_resized(prefix, before, bank, model, session):
    """The model has the rows of before, as NumPy resizes them."""
    dim = model.bank.shape[1]
    new_bank = resized(bank, dim, model.bank[np.arange(len(bank)) % len(model.bank)])
    keys = [*sorted(set(KEYS)), FRESH]
    values, counts, slots = session.run(model.read)
    initial = new_bank[np.array(keys) % len(new_bank)]
    np.testing.assert_array_equal(values, resized(before[0], dim, initial))
    np.testing.assert_array_equal(counts, before[1])
    for name, (value, is_of_row) in model.slots.items():
        width = 1 if is_of_row else dim
        fill = np.full([len(keys), width], value, np.float32)
        np.testing.assert_array_equal(slots[name], resized(before[2][name], width, fill))


@pytest.mark.parametrize(
    ("dims", "optimizer", "shards"),
    [
        ((4, 7), "adagrad", (1, 1)),
        ((7, 4), "adam", (3, 1)),
        ((4, 9), "rowwise", (1, 2)),
        ((5, 1), "rowwise", (1, 1)),
        ((1, 5), "adam", (2, 3)),
        ((5, 1), "adam", (1, 1)),
    ],
    ids=str,
)
def test_rows_and_slots_become_longer_or_shorter(tmp_path, dims, optimizer, shards):
    prefix, *before = saved(
        tmp_path / "model", dim=dims[0], optimizer=optimizer, shards=shards[0], rows=4
    )
    model = Model(dims[1], optimizer, shards[1])
    rec.init_from_checkpoint(prefix, {"s/": "s/"}, resize_rows=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert_resized(prefix, *before, model, session)
        session.run(model.train)  # Training goes on.


@pytest.mark.parametrize(
    ("dims", "dtypes"),
    [
        ((4, 7), (tf.bfloat16, tf.bfloat16)),
        ((7, 4), (tf.float32, tf.float16)),
        ((5, 8), (tf.float16, tf.float32)),
    ],
    ids=str,
)
def test_rows_of_16_bits_become_longer_or_shorter(tmp_path, dims, dtypes):
    prefix, before, bank = saved(tmp_path / "model", dim=dims[0], dtype=dtypes[0])
    model = Model(dims[1], dtype=dtypes[1])
    rec.init_from_checkpoint(prefix, {"s/": "s/"}, resize_rows=True)
    # What a table reads is rounded already; its bank is rounded when rows are made of it.
    narrow = [dtype.as_numpy_dtype for dtype in dtypes]
    bank = bank.astype(narrow[0]).astype(np.float32)
    bank = resized(bank, dims[1], model.bank[np.arange(len(bank))])
    keys = np.array([*sorted(set(KEYS)), FRESH])
    initial = bank.astype(narrow[1])[keys % len(bank)]
    expected = resized(before[0], dims[1], initial.astype(np.float32)).astype(narrow[1])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(model.read[0]), expected.astype(np.float32))
        session.run(model.train)  # Training goes on.


def test_a_warm_start_resizes_rows_and_slots_if_its_settings_say_so(tmp_path):
    prefix, *before = saved(tmp_path / "model", dim=4)
    model = Model(6)
    tf.train.warm_start(
        *warm_start.as_settings(rec.WarmStartSettings(prefix, [".*"], resize_rows=True))
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert_resized(prefix, *before, model, session)


def test_a_chain_of_deltas_with_a_filter_is_resized(tmp_path):
    prefix, *before = saved(tmp_path / "model", 2, 3, dim=4, filter_freq=2)
    model = Model(6, filter_freq=2)
    rec.init_from_checkpoint(prefix, {"s/": "s/"}, resize_rows=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values, counts, _ = session.run(model.read)
    np.testing.assert_array_equal(counts, before[0][1])
    np.testing.assert_array_equal(values[:-1, :4], before[0][0][:-1])


def test_without_the_option_another_dim_is_an_error_with_both_numbers(tmp_path):
    prefix, *_ = saved(tmp_path / "model", dim=4)
    Model(6)
    message = r"'s/t' of .* must have dim 6, .* got values of shape \[4, 4\]; pass resize_rows=True"
    with pytest.raises(ValueError, match=message):
        rec.init_from_checkpoint(prefix, {"s/": "s/"})


def test_the_same_dim_is_restored_as_without_the_option(tmp_path):
    prefix, *before = saved(tmp_path / "model", dim=4)
    model = Model(4)
    rec.init_from_checkpoint(prefix, {"s/": "s/"}, resize_rows=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert_resized(prefix, *before, model, session)


@pytest.mark.parametrize("widths", [[4], [4, 0], [4, 4, 4], [-1, 4], [4, 1 << 40]], ids=str)
def test_the_op_refuses_widths_that_are_not_those_of_a_row_and_its_slots(tmp_path, widths):
    prefix, *_ = saved(tmp_path / "model", dim=4)
    model = Model(4)
    shard = model.table.shards[0]
    restore = saveable.build_restore(shard, prefix, stored_widths=widths)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="stored_widths must be none or 2"):
            session.run(restore)
