# SPDX-License-Identifier: Apache-2.0
"""The optimizers under test, and the tables and batches that they train.

A new optimizer is one line in one of the three dictionaries below. Every test that is parametrized
with the dictionary then runs it. OWN_RULES and LAZY_RULES are compared with oracle.RULES.
"""

import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import RULES, TableOracle

import rec_estimator as rec

VOCABULARY = 40
STEPS = 50
DIMS = [1, 5, 8, 16, 33]

RATE = {"learning_rate": 0.1}
PENALTIES = {"l1_regularization_strength": 0.02, "l2_regularization_strength": 0.3}
WEAK_PENALTIES = {
    "l1_regularization_strength": 1e-4,
    "l2_regularization_strength": 0.3,
    "l21_regularization_strength": 1e-3,
}

# Rules that equal TensorFlow's bit for bit: name of the class here and in tf.compat.v1.train, and
# its arguments.
EXACT_RULES = {
    "gradient_descent": ("GradientDescentOptimizer", {"learning_rate": 0.1}),
    "momentum": ("MomentumOptimizer", {"learning_rate": 0.1, "momentum": 0.9}),
    "nesterov": (
        "MomentumOptimizer",
        {"learning_rate": 0.1, "momentum": 0.9, "use_nesterov": True},
    ),
    "adagrad": ("AdagradOptimizer", {"learning_rate": 0.05}),
    "adagrad_named": (
        "AdagradOptimizer",
        {"learning_rate": 0.3, "initial_accumulator_value": 1e-3, "name": "Mine"},
    ),
    "ftrl": ("FtrlOptimizer", {"learning_rate": 0.1}),
    "ftrl_regularized": (
        "FtrlOptimizer",
        {
            "learning_rate": 0.1,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.3,
            "l2_shrinkage_regularization_strength": 0.02,
            "beta": 0.7,
        },
    ),
    "ftrl_power": (
        "FtrlOptimizer",
        {
            "learning_rate": 0.1,
            "learning_rate_power": -0.7,
            "l1_regularization_strength": 0.05,
            "l2_shrinkage_regularization_strength": 0.02,
            "initial_accumulator_value": 0.0,
            "accum_name": "n",
            "linear_name": "z",
        },
    ),
    "ftrl_whole_power": ("FtrlOptimizer", {"learning_rate": 0.1, "learning_rate_power": -1.0}),
    "rmsprop": ("RMSPropOptimizer", {"learning_rate": 0.01}),
    "rmsprop_centered": (
        "RMSPropOptimizer",
        {"learning_rate": 0.01, "decay": 0.8, "momentum": 0.9, "epsilon": 1e-3, "centered": True},
    ),
    "adadelta": ("AdadeltaOptimizer", {"learning_rate": 1.0}),
    "proximal_gradient_descent": ("ProximalGradientDescentOptimizer", {**RATE, **PENALTIES}),
    "proximal_adagrad": ("ProximalAdagradOptimizer", {**RATE, **PENALTIES}),
    "adagrad_da": ("AdagradDAOptimizer", {**RATE, **PENALTIES}),
}

# Rules that are lazy, unlike TensorFlow's: name of the class, and its arguments.
LAZY_RULES = {
    "adam": ("AdamOptimizer", {"learning_rate": 0.01}),
    "adam_betas": (
        "AdamOptimizer",
        {"learning_rate": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3, "name": "Mine"},
    ),
    "lazy_adam": ("LazyAdamOptimizer", {"learning_rate": 0.01}),
}

# Rules that TensorFlow does not have.
OWN_RULES = {
    "weight_decay": ("GradientDescentOptimizer", {"learning_rate": 0.1, "weight_decay": 0.01}),
    "adagrad_decay": (
        "AdagradDecayOptimizer",
        {"learning_rate": 0.05, "accumulator_decay_step": 7, "accumulator_decay_rate": 0.3},
    ),
    "adagrad_decay_v2": (
        "AdagradDecayOptimizerV2",
        {"learning_rate": 0.05, "accumulator_decay_step": 3},
    ),
    "rowwise_adagrad": ("RowwiseAdagradOptimizer", {"learning_rate": 0.05}),
    "adam_async": ("AdamAsyncOptimizer", {"learning_rate": 0.01}),
    "adam_async_rmsprop": (
        "AdamAsyncOptimizer",
        {"learning_rate": 0.01, "beta1": 0.5, "epsilon": 1e-3, "apply_sparse_rmsprop": True},
    ),
    "adam_w": ("AdamWOptimizer", {"learning_rate": 0.01, "weight_decay": 0.003}),
    "amsgrad": ("AMSGradOptimizer", {"learning_rate": 0.01, "beta2": 0.9}),
    # So weak that no row becomes zero, which a save would evict: see test_group_lasso.py.
    "group_adam": ("GroupAdamOptimizer", {"learning_rate": 0.01, **WEAK_PENALTIES}),
    "group_ftrl": ("GroupFtrlOptimizer", {**RATE, **WEAK_PENALTIES}),
}

# Those that differ from another line in their settings only, not in rule and slots.
OTHER_SETTINGS = {
    *("nesterov", "adagrad_named", "adam_betas"),
    *("ftrl_regularized", "ftrl_power", "ftrl_whole_power"),
}

# One line for each rule, for tests of what all rules have in common.
ALL_RULES = {
    name: rule
    for name, rule in {**EXACT_RULES, **LAZY_RULES, **OWN_RULES}.items()
    if name not in OTHER_SETTINGS
}


# TensorFlow 2.20 computes the powers of dense variables with another function than the C library's.
# The square roots of Ftrl's default power are exact in every release.
POWERS_HAVE_TENSORFLOWS_BITS = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 20)


def rules(table):
    return pytest.mark.parametrize("rule", table.values(), ids=table.keys())


def ours(rule, **changes):
    name, arguments = rule
    if name.startswith("AdagradDecay"):
        tf.train.get_or_create_global_step()
    return getattr(rec.optimizers, name)(**{**arguments, **_step_of(name), **changes})


def tensorflows(rule):
    name, arguments = rule
    return getattr(tf.train, name)(**arguments, **_step_of(name))


def _step_of(name):
    needs_step = name == "AdagradDAOptimizer"
    return {"global_step": tf.train.get_or_create_global_step()} if needs_step else {}


def initial_vectors(dim, rows=VOCABULARY):
    return np.random.RandomState(dim).randn(rows, dim).astype(np.float32)


def table_from(bank, name="table", evict_option=None, **arguments):
    """A table in which the initial vector of key k is bank[k % len(bank)]."""
    init = rec.InitializerOption(tf.constant_initializer(bank), default_value_dim=len(bank))
    option = rec.EmbeddingVariableOption(init_option=init, evict_option=evict_option)
    return rec.get_embedding_variable(name, bank.shape[1], ev_option=option, **arguments)


def rows_of(table, keys=None):
    keys = np.arange(VOCABULARY) if keys is None else keys
    return rec.embedding_lookup(table, tf.constant(keys, tf.int64))


def random_batches(dim, steps=STEPS, seed=7):
    """Batches of keys, some far more frequent than others, and weights of mixed size."""
    random = np.random.RandomState(seed)
    for _ in range(steps):
        n = random.randint(1, 64)
        keys = (VOCABULARY * random.rand(n) ** 2).astype(np.int64)
        yield keys, (random.randn(n, dim) * 10 ** random.uniform(-2, 1)).astype(np.float32)


def placeholders(dim):
    return tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, dim])


def initialized_session():
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


class RuleOracle:
    """A rule in NumPy, float32, for rows of one table or variable."""

    def __init__(self, rule, bank, make_table=TableOracle, **settings):
        with tf.Graph().as_default():
            self._name = ours(rule).table_rule
        class_name, given = rule
        constructor = inspect.signature(getattr(rec.optimizers, class_name))
        defaults = {name: each.default for name, each in constructor.parameters.items()}
        self._arguments = {**defaults, **given}
        self._table = make_table(bank, **settings)
        self._bank = bank
        self._step = 0
        betas = [np.float32(self._arguments.get(beta, 0)) for beta in ("beta1", "beta2")]
        self._betas, self._powers = betas, list(betas)

    def step(self, keys, gradients, dense=False):
        """Runs one step; dense: for a variable whose gradient is a tensor."""
        version, self._step = self._step, self._step + 1
        self._table.apply(*self._rule(dense), keys, gradients, version=version)
        self._powers = [power * beta for power, beta in zip(self._powers, self._betas)]

    def _rule(self, dense):
        """The rule's name in oracle.RULES and its hyperparameters in this step."""
        arguments = self._arguments
        name = self._name
        if name == "AdamAsyncRmsprop" and dense:
            name = "Adam"
        # Hyperparameters that are not arguments of the class under the same name.
        derived = {f"beta{i}_power": power for i, power in enumerate(self._powers, 1)}
        derived["step"] = self._step
        for penalty in ("l1", "l2", "l21"):
            derived[penalty] = arguments.get(f"{penalty}_regularization_strength")
        derived["l2_shrinkage"] = arguments.get("l2_shrinkage_regularization_strength")
        if "accumulator_decay_step" in arguments:
            derived["decay_rate"] = arguments["accumulator_decay_rate"]
            derived["baseline"] = arguments["initial_accumulator_value"]
            derived["periods"] = self._step // arguments["accumulator_decay_step"]
        return name, [{**arguments, **derived}[hyper] for hyper in RULES[name].hyper]

    @property
    def rows(self):
        return self._table.rows

    @property
    def value(self):
        return self._table.lookup(np.arange(len(self._bank)))
