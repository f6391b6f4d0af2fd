# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's factories, and its way to train dense variables and tables separately."""

import importlib
import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    assert_same_bits,
    initial_vectors,
    initialized_session,
    rows_of,
    table_from,
)

import rec_estimator as rec

# By module: the factory, the defaults that Rec SDK documents (... if there is none), and the
# optimizer that a call with learning_rate=0.1 and these defaults makes.
optimizers = rec.optimizers
ADAM = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
FACTORIES = {
    "lazy_adam": (
        "create_hash_optimizer",
        {**ADAM, "name": "LazyAdam", "use_fusion_optim": False},
        lambda: optimizers.LazyAdamOptimizer(0.1, name="LazyAdam"),
    ),
    "lazy_adam_by_addr": (
        "create_hash_optimizer_by_address",
        {**ADAM, "name": "LazyAdamByAddress", "use_fusion_optim": False},
        lambda: optimizers.LazyAdamOptimizer(0.1, name="LazyAdamByAddress"),
    ),
    "adagrad": (
        "create_hash_optimizer",
        {
            "learning_rate": 0.001,
            "initial_accumulator_value": 0.9,
            "use_locking": False,
            "name": "Adagrad",
        },
        lambda: optimizers.AdagradOptimizer(0.1, 0.9),
    ),
    "adagrad_by_addr": (
        "create_hash_optimizer_by_address",
        {"learning_rate": 0.001, "initial_accumulator_value": 0.9, "name": "Adagrad"},
        lambda: optimizers.AdagradOptimizer(0.1, 0.9),
    ),
    "ftrl": (
        "create_hash_optimizer",
        {
            "learning_rate": ...,
            "use_locking": False,
            "name": "Ftrl",
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "accum_name": None,
            "linear_name": None,
        },
        lambda: optimizers.FtrlOptimizer(0.1),
    ),
    "gradient_descent": (
        "create_hash_optimizer",
        {
            "learning_rate": ...,
            "use_locking": False,
            "name": "GradientDescent",
            "use_fusion_optim": False,
            "weight_decay": None,
        },
        lambda: optimizers.GradientDescentOptimizer(0.1),
    ),
    "gradient_descent_by_addr": (
        "create_hash_optimizer_by_addr",
        {
            "learning_rate": ...,
            "weight_decay": 0.0001,
            "use_locking": False,
            "name": "GradientDescentByAddr",
        },
        lambda: optimizers.GradientDescentOptimizer(
            0.1, name="GradientDescentByAddr", weight_decay=0.0001
        ),
    ),
    "momentum": (
        "create_hash_optimizer",
        {
            "learning_rate": 0.001,
            "mom": 0.9,
            "use_locking": False,
            "name": "momentum",
            "enable_nesterov": False,
        },
        lambda: optimizers.MomentumOptimizer(0.1, 0.9, name="momentum"),
    ),
}


def factory(module):
    # As a script imports it.
    imported = importlib.import_module(f"rec_estimator.optimizers.{module}")
    return getattr(imported, FACTORIES[module][0])


def step_of(optimizer):
    """Trains two steps from the same vectors; (values, names of the slots)."""
    with tf.Graph().as_default():
        table = table_from(initial_vectors(5))
        train_op = optimizer.minimize(tf.reduce_sum(tf.square(rows_of(table, [1, 2, 1]))))
        with initialized_session() as session:
            session.run(train_op)
            session.run(train_op)
            return session.run(rows_of(table)), table.shards[0].slots


@pytest.mark.parametrize("module", FACTORIES)
def test_a_factory_has_rec_sdks_arguments_in_its_order(module):
    parameters = inspect.signature(factory(module)).parameters
    assert {
        name: ... if each.default is each.empty else each.default
        for name, each in parameters.items()
    } == FACTORIES[module][1]
    assert list(parameters) == list(FACTORIES[module][1])


@pytest.mark.parametrize("module", FACTORIES)
def test_a_factory_makes_the_optimizer_of_its_rule(module):
    rows, slots = step_of(factory(module)(learning_rate=0.1))
    expected_rows, expected_slots = step_of(FACTORIES[module][2]())
    assert_same_bits(rows, expected_rows)
    assert slots == expected_slots


def test_what_a_factory_is_given_reaches_the_rule():
    for module, given, expected in (
        (
            "lazy_adam",
            {"beta1": 0.5, "beta2": 0.25, "epsilon": 0.1, "use_fusion_optim": True},
            optimizers.LazyAdamOptimizer(0.1, 0.5, 0.25, 0.1, name="LazyAdam"),
        ),
        (
            "ftrl",
            {
                "learning_rate_power": -0.7,
                "initial_accumulator_value": 0.5,
                "l1_regularization_strength": 0.1,
                "l2_regularization_strength": 0.2,
                "l2_shrinkage_regularization_strength": 0.3,
                "accum_name": "n",
                "linear_name": "z",
            },
            optimizers.FtrlOptimizer(0.1, -0.7, 0.5, 0.1, 0.2, False, "Ftrl", "n", "z", 0.3),
        ),
        (
            "gradient_descent",
            {"weight_decay": 1e-3},
            optimizers.GradientDescentOptimizer(0.1, weight_decay=1e-3),
        ),
        (
            "momentum",
            {"mom": 0.5, "enable_nesterov": True},
            optimizers.MomentumOptimizer(0.1, 0.5, name="momentum", use_nesterov=True),
        ),
    ):
        rows, slots = step_of(factory(module)(learning_rate=0.1, **given))
        expected_rows, expected_slots = step_of(expected)
        assert_same_bits(rows, expected_rows)
        assert slots == expected_slots


RANGES = [
    ("lazy_adam", "learning_rate", -1e-9, "finite and >= 0 and <= 10"),
    ("lazy_adam", "learning_rate", 10.1, "finite and >= 0 and <= 10"),
    ("lazy_adam", "learning_rate", 1, "a float"),
    ("lazy_adam", "learning_rate", "0.1", "a float"),
    ("lazy_adam", "learning_rate", None, "a float"),
    ("lazy_adam", "beta1", 0.0, "finite and > 0 and < 1"),
    ("lazy_adam", "beta1", True, "a float"),
    ("lazy_adam_by_addr", "beta1", 1.0, "finite and > 0 and < 1"),
    ("lazy_adam_by_addr", "beta2", -0.1, "finite and >= 0 and < 1"),
    ("lazy_adam", "epsilon", 0.0, "finite and > 0 and <= 1"),
    ("lazy_adam", "epsilon", 1.1, "finite and > 0 and <= 1"),
    ("lazy_adam", "epsilon", float("nan"), "finite and > 0 and <= 1"),
    ("lazy_adam", "name", "", "a string of 1 to 200"),
    ("lazy_adam", "name", "n" * 201, "a string of 1 to 200"),
    ("lazy_adam", "name", 7, "a string of 1 to 200"),
    ("lazy_adam", "use_fusion_optim", 1, "a bool"),
    ("adagrad", "initial_accumulator_value", 0.0, "finite and > 0 and <= 1"),
    ("adagrad_by_addr", "initial_accumulator_value", 1.1, "finite and > 0 and <= 1"),
    ("adagrad", "use_locking", "no", "a bool"),
    ("ftrl", "learning_rate_power", 0.1, "finite and <= 0"),
    ("ftrl", "initial_accumulator_value", 0.0, "finite and > 0 and <= 1"),
    ("ftrl", "l1_regularization_strength", -1.0, "finite and >= 0 and <= 10000"),
    ("ftrl", "l2_regularization_strength", 10000.5, "finite and >= 0 and <= 10000"),
    ("ftrl", "l2_shrinkage_regularization_strength", 0, "a float"),
    ("ftrl", "accum_name", "", "a string of 1 to 255"),
    ("ftrl", "linear_name", "n" * 256, "a string of 1 to 255"),
    ("gradient_descent", "weight_decay", 0.0, "finite and >= 1e-05 and <= 0.01"),
    ("gradient_descent", "weight_decay", 0.02, "finite and >= 1e-05 and <= 0.01"),
    ("gradient_descent_by_addr", "weight_decay", -0.1, "finite and >= 0 and <= 1"),
    ("gradient_descent_by_addr", "weight_decay", 1.5, "finite and >= 0 and <= 1"),
    ("gradient_descent_by_addr", "weight_decay", None, "a float"),
    ("gradient_descent", "use_locking", 0, "a bool"),
    ("momentum", "mom", -0.1, "finite and >= 0"),
    ("momentum", "enable_nesterov", None, "a bool"),
]


@pytest.mark.parametrize(("module", "argument", "value", "range_of_it"), RANGES)
def test_an_argument_out_of_rec_sdks_range_is_a_value_error(module, argument, value, range_of_it):
    with pytest.raises(ValueError, match=rf"^{argument} must be {range_of_it}.*, got "):
        factory(module)(**{"learning_rate": 0.1, argument: value})


@pytest.mark.parametrize("module", FACTORIES)
def test_the_ends_of_rec_sdks_ranges_are_in_them(module):
    for rate in (0.0, 10.0):
        factory(module)(learning_rate=rate, name="n" * 200)


@pytest.mark.parametrize("module", FACTORIES)
def test_a_factorys_learning_rate_may_be_a_tensor(module):
    table = table_from(initial_vectors(3))
    rate = tf.placeholder(tf.float32, [])
    optimizer = factory(module)(learning_rate=rate)
    train_op = optimizer.minimize(tf.reduce_sum(rows_of(table, [1])))
    with initialized_session() as session:
        session.run(train_op, {rate: 0.0})
        still = session.run(rows_of(table))
        session.run(train_op, {rate: 0.5})
        moved = session.run(rows_of(table))
    np.testing.assert_array_equal(np.flatnonzero((still != moved).any(axis=1)), [1])


def test_dense_variables_and_tables_are_listed_apart():
    whole = table_from(initial_vectors(3), "whole")
    parts = table_from(initial_vectors(3), "parts", partitioner=tf.fixed_size_partitioner(2))
    table_from(initial_vectors(3), "fixed", trainable=False)
    dense = tf.get_variable("dense", initializer=1.0)
    tf.get_variable("fixed_dense", initializer=1.0, trainable=False)
    dense_variables, sparse_variables = rec.get_dense_and_sparse_variable()
    assert [v.op.name for v in dense_variables] == [dense.op.name]
    assert sparse_variables == [whole, *parts.shards]


@pytest.mark.parametrize("get_gradients", ["tf.gradients", "compute_gradients"])
def test_two_optimizers_train_dense_variables_and_tables_as_one_does(get_gradients):
    results = []
    for explicit in (True, False):
        with tf.Graph().as_default():
            tables = [
                table_from(initial_vectors(3), "whole"),
                table_from(initial_vectors(3), "parts", partitioner=tf.fixed_size_partitioner(2)),
            ]
            dense = tf.get_variable("dense", initializer=1.0)
            loss = dense * sum(tf.reduce_sum(tf.square(rows_of(table))) for table in tables)
            if explicit:
                dense_variables, sparse_variables = rec.get_dense_and_sparse_variable()
                sparse_optimizer = factory("lazy_adam")(learning_rate=0.1)
                if get_gradients == "tf.gradients":
                    grads = tf.gradients(loss, sparse_variables)
                else:
                    pairs = sparse_optimizer.compute_gradients(loss, sparse_variables)
                    grads = [gradient for gradient, _ in pairs]
                dense_optimizer = tf.train.AdamOptimizer(0.1)
                # All gradients before the first update.
                with tf.control_dependencies([g.values for g in grads]):
                    dense_op = dense_optimizer.minimize(loss, var_list=dense_variables)
                with tf.control_dependencies([dense_op]):
                    train_op = sparse_optimizer.apply_gradients(zip(grads, sparse_variables))
            else:
                train_op = optimizers.LazyAdamOptimizer(0.1).minimize(loss)
            with initialized_session() as session:
                session.run(train_op)
                session.run(train_op)
                results.append(session.run([dense, *(rows_of(table) for table in tables)]))
    for actual, expected in zip(*results):
        assert_same_bits(actual, expected)
