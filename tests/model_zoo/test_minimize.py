# SPDX-License-Identifier: Apache-2.0
"""The training step of the zoo: optimizers, schedules, clipping and UPDATE_OPS."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import minimize
from model_zoo.minimize import Training

SGD = {"name": "gradient_descent", "learning_rate": 1.0}
KEYS = [7, 9, 7]


class Model:
    """A table and a dense variable, whose gradients are known.

    The loss is the sum of 3 x_7 + 4 x_9 + 12 w, where x_7 occurs twice: once in 1, once in 2.
    """

    def __init__(self, training):
        step = tf.train.get_or_create_global_step()
        ones = tf.ones_initializer()
        table = rec.get_embedding_variable("table", 1, initializer=ones)
        self.weight = tf.get_variable("weight", [1], initializer=ones)
        rows = rec.embedding_lookup(table, tf.constant(KEYS, tf.int64))[:, 0]
        loss = tf.reduce_sum(rows * [1.0, 4.0, 2.0]) + 12 * self.weight[0]
        self.fetches = {"step": step, "weight": self.weight[0], "rows": rows[:2]}
        self.op = minimize.train_op(loss, {"training": training})

    def values_after(self, steps):
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(self.op)
            values = session.run(self.fetches)
        return values["step"], [values["weight"], *values["rows"]]


def test_a_step_updates_tables_and_dense_variables_and_increments_the_step():
    step, values = Model(Training(optimizer=SGD)).values_after(1)
    assert step == 1
    assert values == [1 - 12, 1 - 3, 1 - 4]


def test_the_optimizer_of_tables_may_differ():
    training = Training(optimizer=SGD, table_optimizer={**SGD, "learning_rate": 0.5})
    assert training.has_two_optimizers
    step, values = Model(training).values_after(2)
    assert step == 2
    assert values == [1 - 2 * 12, 1 - 3, 1 - 4]


def test_equal_optimizers_are_one():
    training = Training(optimizer=SGD, table_optimizer=dict(SGD))
    assert not training.has_two_optimizers
    Model(training)
    names = [op.name for op in tf.get_default_graph().get_operations()]
    assert "GradientDescent" in names and "GradientDescent_1" not in names


@pytest.mark.long
def test_every_optimizer_trains_tables_and_dense_variables():
    for name in minimize.OPTIMIZERS:
        settings = {"name": name, "learning_rate": 0.1}
        settings.update(
            {"adam_w": {"weight_decay": 0.01}, "momentum": {"momentum": 0.9}}.get(name, {})
        )
        with tf.Graph().as_default():
            _, values = Model(Training(optimizer=settings)).values_after(1)
        assert all(value < 1 for value in values), name


@pytest.mark.parametrize("has_two", [False, True])
def test_a_schedule_starts_from_the_learning_rate_of_each_optimizer(has_two):
    schedule = {"name": "exponential_decay", "decay_steps": 1, "decay_rate": 0.5}
    table_optimizer = {**SGD, "learning_rate": 4.0} if has_two else None
    _, values = Model(
        Training(optimizer=SGD, table_optimizer=table_optimizer, schedule=schedule)
    ).values_after(3)
    of_table = 4 if has_two else 1
    decayed = 1 + 0.5 + 0.25
    assert values == [1 - 12 * decayed, 1 - 3 * of_table * decayed, 1 - 4 * of_table * decayed]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cosine_decay", {"decay_steps": 10}),
        ("cosine_decay_restarts", {"first_decay_steps": 10}),
        ("inverse_time_decay", {"decay_steps": 10, "decay_rate": 0.5}),
        ("linear_cosine_decay", {"decay_steps": 10}),
        ("natural_exp_decay", {"decay_steps": 10, "decay_rate": 0.5}),
        ("polynomial_decay", {"decay_steps": 10}),
    ],
)
def test_every_schedule_lowers_the_learning_rate(name, settings):
    model = Model(Training(optimizer=SGD, schedule={"name": name, **settings}))
    _, (weight, *_) = model.values_after(2)
    assert 1 - 2 * 12 < weight < 1 - 12


def test_gradients_are_clipped_by_the_norm_of_the_sums_of_each_row():
    # The gradient is (3, 4, 12), of norm 13. The slices are (1, 4, 2, 12), of another norm.
    _, values = Model(Training(optimizer=SGD, clip_norm=6.5)).values_after(1)
    np.testing.assert_allclose(values, [1 - 6, 1 - 1.5, 1 - 2], rtol=1e-6)


def test_smaller_gradients_are_not_clipped():
    _, values = Model(Training(optimizer=SGD, clip_norm=13.5)).values_after(1)
    assert values == [1 - 12, 1 - 3, 1 - 4]


@pytest.mark.parametrize("table_optimizer", [None, {**SGD, "learning_rate": 0.5}])
def test_update_ops_run_in_each_step(table_optimizer):
    count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(count, 1))
    model = Model(Training(optimizer=SGD, table_optimizer=table_optimizer))
    model.fetches["step"] = count
    assert model.values_after(3)[0] == 3


@pytest.mark.parametrize("has_two", [False, True])
def test_a_table_without_room_leaves_dense_variables_as_they_are(has_two):
    table = rec.create_table(tf.int64, 1, "full", tf.ones_initializer(), device_vocabulary_size=1)
    weight = tf.get_variable("weight", [1], initializer=tf.ones_initializer())
    tf.train.get_or_create_global_step()
    loss = (
        tf.reduce_sum(rec.sparse_lookup(table, tf.constant([1, 2], tf.int64), modify_graph=True))
        + weight[0]
    )
    table_optimizer = {**SGD, "learning_rate": 0.5} if has_two else None
    op = minimize.train_op(
        loss, {"training": Training(optimizer=SGD, table_optimizer=table_optimizer)}
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.ResourceExhaustedError):
            session.run(op)
        assert session.run(weight) == [1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": {"name": "adma"}}, "name of optimizer .*'adma'; did you mean 'adam'?"),
        ({"optimizer": "adam"}, "optimizer must have a name, one of adagrad, .*, got 'adam'"),
        ({"optimizer": {"name": "adam"}}, "optimizer must have a learning_rate, got"),
        (
            {"table_optimizer": {"name": "adam", "learning_rat": 1}},
            "settings of table_optimizer 'adam' .*; did you mean 'learning_rate'?",
        ),
        ({"schedule": {"name": "cosine_decay"}}, "schedule must have a decay_steps"),
        (
            {"schedule": {"name": "cosine_decay", "decay_steps": 1, "learning_rate": 1}},
            "settings of schedule 'cosine_decay' must be among .*, got 'learning_rate'",
        ),
        ({"clip_norm": 0}, "clip_norm must be above 0, got 0"),
        ({"clip_norm": float("nan")}, "clip_norm must be above 0, got nan"),
    ],
)
def test_settings_are_checked_before_the_graph_is_built(settings, message):
    with pytest.raises(ValueError, match=message):
        Training(**settings)
