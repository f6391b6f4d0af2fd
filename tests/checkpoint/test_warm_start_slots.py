# SPDX-License-Identifier: Apache-2.0
"""Warm starts bring the slots of tables where TensorFlow brings those of a variable next to it."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    ALL_RULES,
    EXACT_RULES,
    assert_same_bits,
    initial_vectors,
    initialized_session,
    ours,
    rows_of,
    rules,
    table_from,
    tensorflows,
)

import rec_estimator as rec
from rec_estimator.checkpoint import warm_start

DIM = 4
KEYS = np.array([3, 5, 3, 30, 7])
WEIGHTS = np.linspace(-1.0, 2.0, 5 * DIM).astype(np.float32).reshape(5, DIM)
ADAGRAD = EXACT_RULES["adagrad"]


class Model:
    """A table and a dense variable with the same vectors, trained alike: they end alike, too."""

    def __init__(self, rule=ADAGRAD, shards=1, scope="s", stock=True, train=True):
        bank = initial_vectors(DIM)
        cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
        with tf.variable_scope(scope):
            self.table = table_from(bank, partitioner=cut)
            # A table that is not partitioned has a variable beside it that is not either.
            self.dense = tf.get_variable("dense", initializer=bank)
        self.rule, self.stock = rule, stock
        self.values = rows_of(self.table), self.dense
        if train:
            self.build_updates()

    def build_updates(self):
        # A gradient without constants: TensorFlow would multiply them by the learning rate first,
        # which rounds differently.
        weights = tf.placeholder_with_default(WEIGHTS, WEIGHTS.shape)
        losses = [
            tf.reduce_sum(tf.tanh(lookup(variable, KEYS)) * weights)
            for lookup, variable in (
                (rec.embedding_lookup, self.table),
                (tf.nn.embedding_lookup, self.dense),
            )
        ]
        self.train = [ours(self.rule).minimize(losses[0], var_list=[self.table])]
        if self.stock:
            optimizer = tensorflows(self.rule)
            self.train.append(optimizer.minimize(losses[1], var_list=[self.dense]))

    def step(self, session):
        session.run(self.train)
        return session.run(self.values)


def trained(path, steps=3, **settings):
    """Trains, saves, and trains another step: (prefix, values of both after that step)."""
    with tf.Graph().as_default():
        model = Model(**settings)
        with initialized_session() as session:
            for _ in range(steps):
                model.step(session)
            prefix = rec.Saver().save(session, str(path / "model"))
            return prefix, model.step(session)


@pytest.mark.each_value
@pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 2)], ids=str)
@rules(EXACT_RULES)
def test_a_scope_continues_a_table_with_its_slots_as_a_variable(tmp_path, rule, shards):
    prefix, expected = trained(tmp_path, rule=rule, shards=shards[0])
    model = Model(rule, shards[1])
    rec.init_from_checkpoint(prefix, {"s/": "s/"})
    with initialized_session() as session:
        actual = model.step(session)
    assert_same_bits(actual[0], expected[0])
    assert_same_bits(actual[0], actual[1])


@rules(ALL_RULES)
def test_a_list_of_expressions_continues_every_rule(tmp_path, rule):
    prefix, expected = trained(tmp_path, rule=rule, stock=False)
    model = Model(rule, stock=False)
    everything = rec.WarmStartSettings(prefix, [".*"])
    tf.train.warm_start(*warm_start.as_settings(everything))
    with initialized_session() as session:
        assert_same_bits(model.step(session)[0], expected[0])


# What a script asks for. TensorFlow decides what that means for the variable beside the table.


def by_name(prefix, model):
    rec.init_from_checkpoint(prefix, {"s/table": "s/table", "s/dense": "s/dense"})


def by_object(prefix, model):
    rec.init_from_checkpoint(prefix, {"s/table": model.table, "s/dense": model.dense})


def by_trainable_variables(prefix, model):
    rec.init_from_checkpoint(prefix, {v.op.name: v for v in tf.trainable_variables()})


def by_global_variables(prefix, model):
    rec.init_from_checkpoint(prefix, {v.op.name: v for v in tf.global_variables()})


def by_names_of_slots(prefix, model):
    # TensorFlow finds a slot by a name that ends in "/".
    names = [f"s/{name}{slot}" for name in ("table", "dense") for slot in ("", "/Adagrad/")]
    rec.init_from_checkpoint(prefix, [(name.rstrip("/"), name) for name in reversed(names)])


def by_root(prefix, model):
    rec.init_from_checkpoint(prefix, {"/": "/"})


def by_scope_and_then_name(prefix, model):
    rec.init_from_checkpoint(prefix, {"s/": "s/", "s/table": "s/table", "s/dense": "s/dense"})


def settings_way(*chosen):
    def way(prefix, model):
        objects = {"globals": tf.global_variables(), "objects": [model.table, model.dense]}
        vars_to_warm_start = objects.get(chosen[0], list(chosen))
        if chosen[0].startswith("string "):
            vars_to_warm_start = chosen[0][len("string ") :]
        settings = rec.WarmStartSettings(prefix, vars_to_warm_start)
        tf.train.warm_start(*warm_start.as_settings(settings))

    way.__name__ = f"settings {chosen}"
    return way


WAYS = [
    (by_name, False),
    (by_object, False),
    (by_trainable_variables, False),
    (by_global_variables, True),
    (by_names_of_slots, True),
    (by_root, True),
    (by_scope_and_then_name, True),
    (settings_way("string .*"), False),
    (settings_way("string s/"), False),
    (settings_way(".*"), True),
    (settings_way("s/table", "s/dense"), True),
    (settings_way("s/table$", "s/dense:0$"), False),
    (settings_way("s/table$", "s/dense:0$", ".*Adagrad"), True),
    (settings_way("objects"), False),
    (settings_way("globals"), True),
]


@pytest.mark.parametrize("way, continues", WAYS, ids=lambda way: getattr(way, "__name__", None))
def test_slots_of_a_table_come_along_where_those_of_a_variable_do(tmp_path, way, continues):
    prefix, expected = trained(tmp_path)
    model = Model()
    way(prefix, model)
    with initialized_session() as session:
        before = session.run(model.values)
        actual = model.step(session)
    assert_same_bits(actual[0], actual[1])
    assert np.array_equal(actual[1], expected[1]) == continues
    assert not np.array_equal(before[0], initial_vectors(DIM))


@pytest.mark.parametrize(
    "chosen, continues", [("s/table", True), ("s/table/part_", True), ("s/table/part_.:0$", False)]
)
def test_expressions_match_the_parts_of_a_table_as_those_of_a_variable(tmp_path, chosen, continues):
    def model():
        cut = tf.fixed_size_partitioner(2)
        with tf.variable_scope("s"):
            table = table_from(initial_vectors(DIM), partitioner=cut)
            dense = tf.get_variable(
                "dense", initializer=tf.ones_initializer(), shape=[4, DIM], partitioner=cut
            )
        loss = tf.reduce_sum(rec.embedding_lookup(table, KEYS))
        loss += tf.reduce_sum(tf.nn.embedding_lookup(dense, [0, 1, 2, 3]))
        train = rec.optimizers.AdagradOptimizer(0.5).minimize(loss)
        return train, rows_of(table, KEYS), tf.convert_to_tensor(dense)

    with tf.Graph().as_default():
        train, *_ = model()
        with initialized_session() as session:
            session.run(train)
            prefix = rec.Saver().save(session, str(tmp_path / "model"))
    train, *values = model()
    settings = rec.WarmStartSettings(prefix, [chosen, chosen.replace("table", "dense")])
    tf.train.warm_start(*warm_start.as_settings(settings))
    with initialized_session() as session:
        before = session.run(values)
        session.run(train)
        steps = [(a - b)[0, 0] for a, b in zip(before, session.run(values))]
    # The first steps of fresh accumulators of 0.1, with gradients 2 and 1. If the accumulators came
    # along, the steps are smaller. 1 % is far more than the rounding of float32.
    fresh = 0.5 * np.array([2.0, 1.0]) / np.sqrt(0.1 + np.array([4.0, 1.0]))
    assert [step < 0.99 * full for step, full in zip(steps, fresh)] == [continues] * 2


def test_slots_that_do_not_exist_yet_start_fresh_as_those_of_a_variable(tmp_path):
    prefix, expected = trained(tmp_path)
    model = Model(train=False)
    rec.init_from_checkpoint(prefix, {"s/": "s/"})
    model.build_updates()
    with initialized_session() as session:
        actual = model.step(session)
    assert_same_bits(actual[0], actual[1])
    assert not np.array_equal(actual[0], expected[0])


def test_a_scope_continues_under_another_name(tmp_path):
    prefix, expected = trained(tmp_path)
    model = Model(scope="other/deep")
    rec.init_from_checkpoint(prefix, {"s/": "other/deep/"})
    with initialized_session() as session:
        assert_same_bits(model.step(session)[0], expected[0])


def test_slots_that_the_checkpoint_lacks_start_fresh_with_a_warning(tmp_path, caplog):
    prefix, _ = trained(tmp_path, rule=EXACT_RULES["gradient_descent"], stock=False)
    model = Model(stock=False)
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, logger.name):
            rec.init_from_checkpoint(prefix, {"s/table": tf.global_variables()[0]})
    finally:
        logger.removeHandler(caplog.handler)
    assert "has no slots Adagrad of it, so that they start fresh" in caplog.text
    with tf.Graph().as_default():
        fresh = Model(stock=False)
        rec.init_from_checkpoint(prefix, {"s/table": "s/table"})
        with initialized_session() as session:
            expected = fresh.step(session)[0]
    with initialized_session() as session:
        assert_same_bits(model.step(session)[0], expected)


@pytest.mark.parametrize(
    "mapping",
    [
        {"s/table/Adagrad": "s/table/Adagrad"},
        {"s/table/Adagrad": "s/table/Adagrad/"},
        {"s/table": "s/table", "s/dense/Adagrad": "s/table/Adagrad"},
        {"s/table": "s/table/Adagrad"},
    ],
    ids=["alone", "with a slash", "of another variable", "of rows"],
)
def test_a_slot_comes_with_its_table_only(tmp_path, mapping):
    prefix, _ = trained(tmp_path)
    model = Model()
    before = model.table.initializer
    with pytest.raises(ValueError, match="slot 'Adagrad' from one table, got .*; slots come with"):
        rec.init_from_checkpoint(prefix, mapping)
    assert model.table.initializer is before


def test_a_slot_of_another_width_is_an_error(tmp_path):
    prefix, _ = trained(tmp_path, rule=ALL_RULES["rowwise_adagrad"], stock=False)
    with tf.variable_scope("s"):
        table = table_from(initial_vectors(DIM))
    loss = tf.reduce_sum(rec.embedding_lookup(table, KEYS))
    optimizer = rec.optimizers.AdagradOptimizer(0.1, name="RowwiseAdagrad")
    optimizer.minimize(loss, var_list=[table])
    message = r"slot 's/table/RowwiseAdagrad' of .* must have width 4, .* got values of shape"
    with pytest.raises(ValueError, match=message):
        rec.init_from_checkpoint(prefix, {"s/": "s/"})


def test_a_part_is_no_source(tmp_path):
    prefix, _ = trained(tmp_path, shards=3)
    model = Model()
    message = "must be a whole table of .*, got the part 's/table/part_1'; name 's/table'"
    with pytest.raises(ValueError, match=message):
        rec.init_from_checkpoint(prefix, {"s/table/part_1": model.table})
