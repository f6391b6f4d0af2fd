# SPDX-License-Identifier: Apache-2.0
"""Regularizers of tables: what training with each equals, and where it is the same bits."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    DIMS,
    EXACT_RULES,
    LAZY_RULES,
    OWN_RULES,
    POWERS_HAVE_TENSORFLOWS_BITS,
    VOCABULARY,
    RuleOracle,
    assert_same_bits,
    initial_vectors,
    initialized_session,
    ours,
    placeholders,
    random_batches,
    rows_of,
    rules,
    table_from,
    tensorflows,
)
from oracle import TableOracle

import rec_estimator as rec
from rec_estimator.features import check_declarations, lookup_features

SCALE, RATE = 0.02, 0.003
BOTH = {"l2": rec.L2Regularizer(SCALE), "decay": rec.LazyDecay(RATE)}
DECAYING = {
    name: rule
    for name, rule in {**EXACT_RULES, **LAZY_RULES, **OWN_RULES}.items()
    if not getattr(rec.optimizers, rule[0]).computes_values_from_slots
    and name != "adagrad_named"  # oracle.RULES begins slots at 0.1.
}
regularizers = pytest.mark.parametrize("regularizer", BOTH.values(), ids=BOTH.keys())


def train_op_of(rule, loss):
    return ours(rule).minimize(loss, global_step=tf.train.get_or_create_global_step())


def l2_gradients(variable, keys, weights):
    """The gradient of sum(rows * weights) + SCALE * tf.nn.l2_loss(distinct rows)."""
    distinct = tf.unique(keys).y
    loss = tf.reduce_sum(tf.gather(variable, keys) * weights)
    penalty = SCALE * tf.nn.l2_loss(tf.gather(variable, distinct))
    parts = [tf.gradients(each, variable)[0] for each in (loss, penalty)]
    values = tf.concat([part.values for part in parts], 0)
    return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], 0))


@pytest.mark.each_value
@pytest.mark.parametrize("dim", DIMS)
@rules(EXACT_RULES)
def test_l2_equals_a_loss_of_the_distinct_rows_of_a_variable(rule, dim):
    bank = initial_vectors(dim)
    table = table_from(bank, regularizer=BOTH["l2"])
    dense = tf.get_variable("dense", initializer=bank, use_resource=True)
    keys, weights = placeholders(dim)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys) * weights)
    gradient = l2_gradients(dense, keys, weights)
    train = [ours(rule).minimize(loss), tensorflows(rule).apply_gradients([(gradient, dense)])]
    with initialized_session() as session:
        for batch in random_batches(dim):
            session.run(train, dict(zip((keys, weights), batch)))
        actual, expected = session.run([rows_of(table), dense])
    name, arguments = rule
    if name.startswith("GradientDescent"):
        # TensorFlow subtracts each occurrence and then the penalty. The table subtracts their sum.
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    elif POWERS_HAVE_TENSORFLOWS_BITS or arguments.get("learning_rate_power", -0.5) == -0.5:
        assert_same_bits(actual, expected)


@pytest.mark.each_value
@pytest.mark.parametrize("dim", [1, 16])
@rules({**LAZY_RULES, **OWN_RULES})
def test_l2_of_the_other_rules_equals_the_oracle(rule, dim):
    bank = initial_vectors(dim)
    table = table_from(bank, regularizer=BOTH["l2"])
    oracle = RuleOracle(rule, bank, l2_scale=SCALE)
    keys, weights = placeholders(dim)
    train = train_op_of(rule, tf.reduce_sum(rec.embedding_lookup(table, keys) * weights))
    with initialized_session() as session:
        for batch in random_batches(dim):
            session.run(train, dict(zip((keys, weights), batch)))
            oracle.step(*batch)
        assert_same_bits(session.run(rows_of(table)), oracle.value)


class DecayOfAllRows(TableOracle):
    """A table that decays each of its rows in every step, in float64 between two updates."""

    def initial(self, key):
        return (super().initial(key) * np.float64(1 - RATE)).astype(np.float32)

    def apply(self, *step, **arguments):
        for row in self.rows.values():
            row.value = row.value * np.float64(1 - RATE)
        for key in map(int, step[2]):
            if key in self.rows:
                self.rows[key].value = self.rows[key].value.astype(np.float32)
        super().apply(*step, **arguments)


@pytest.mark.long
@rules(DECAYING)
def test_lazy_decay_equals_a_decay_of_all_rows_when_a_row_is_trained_again(rule):
    dim = 5
    bank = initial_vectors(dim)
    table = table_from(bank, regularizer=BOTH["decay"])
    # The slots of the exact rules are those of oracle.RULES as well.
    eager = RuleOracle(rule, bank, make_table=DecayOfAllRows)
    keys, weights = placeholders(dim)
    train = train_op_of(rule, tf.reduce_sum(rec.embedding_lookup(table, keys) * weights))
    with initialized_session() as session:
        for batch in random_batches(dim):
            session.run(train, dict(zip((keys, weights), batch)))
            eager.step(*batch)
            trained = np.unique(batch[0])
            actual = session.run(rec.embedding_lookup(table, tf.constant(trained)))
            # Each of the two rounds at other moments, some units of the last place a step.
            np.testing.assert_allclose(actual, eager.value[trained], rtol=1e-4, atol=1e-5)


@rules({"adam": LAZY_RULES["adam"]})
def test_lazy_decay_with_adam_is_adam_w_for_rows_of_every_batch(rule):
    bank = initial_vectors(8)
    weights = tf.placeholder(tf.float32, bank.shape)
    decayed = table_from(bank, "decayed", regularizer=BOTH["decay"])
    other = table_from(bank, "other")
    train = [
        train_op_of(rule, tf.reduce_sum(rows_of(decayed) * weights)),
        rec.optimizers.AdamWOptimizer(RATE, 0.01).minimize(tf.reduce_sum(rows_of(other) * weights)),
    ]
    random = np.random.RandomState(0)
    with initialized_session() as session:
        for _ in range(20):
            session.run(train, {weights: random.randn(*bank.shape)})
        # Adam subtracts decay and step one after the other, AdamW their sum.
        np.testing.assert_allclose(*session.run([rows_of(decayed), rows_of(other)]), rtol=1e-5)


def test_lazy_decay_with_gradient_descent_is_an_l2_loss_of_the_whole_variable():
    dim, learning_rate = 4, 0.1
    bank = initial_vectors(dim)
    table = table_from(bank, regularizer=rec.LazyDecay(RATE))
    dense = tf.get_variable("dense", initializer=bank)
    keys, weights = placeholders(dim)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys) * weights)
    dense_loss = tf.reduce_sum(tf.gather(dense, keys) * weights)
    dense_loss += RATE / learning_rate * tf.nn.l2_loss(dense)
    step = tf.train.get_or_create_global_step()
    train = [
        rec.optimizers.GradientDescentOptimizer(learning_rate).minimize(loss, global_step=step),
        tf.train.GradientDescentOptimizer(learning_rate).minimize(dense_loss, var_list=[dense]),
    ]
    everything = (np.arange(VOCABULARY), np.ones([VOCABULARY, dim], np.float32))
    with initialized_session() as session:
        # The variable has all its rows from the first step on.
        for batch in [everything, *random_batches(dim), everything]:
            session.run(train, dict(zip((keys, weights), batch)))
        np.testing.assert_allclose(*session.run([rows_of(table), dense]), rtol=2e-4, atol=1e-5)


def test_lookups_read_a_row_as_its_last_step_left_it():
    table = table_from(np.ones([1, 1], np.float32), regularizer=rec.LazyDecay(0.5))
    key = tf.placeholder(tf.int64, [1])
    read = rec.embedding_lookup(table, key)
    step = tf.train.get_or_create_global_step()
    optimizer = rec.optimizers.GradientDescentOptimizer(0.0)
    train = optimizer.minimize(tf.reduce_sum(read), global_step=step)
    with initialized_session() as session:
        seen = [session.run([read, train], {key: [k]})[0].item() for k in (7, 8, 8, 7, 7, 7)]
        assert seen == [1, 1, 0.5, 0.5, 0.0625, 0.03125]
        assert session.run(read, {key: [8]}) == 0.25


def test_the_reported_loss_has_no_penalty():
    table = table_from(np.ones([1, 2], np.float32), regularizer=rec.L2Regularizer(100.0))
    loss = tf.reduce_sum(rows_of(table, [1, 2]))
    train = rec.optimizers.GradientDescentOptimizer(0.001).minimize(loss)
    with initialized_session() as session:
        assert session.run([loss, train])[0] == 4.0


# ---- Settings.


def test_the_optimizer_makes_the_global_step_that_a_decay_needs():
    table = table_from(np.ones([1, 1], np.float32), regularizer=rec.LazyDecay(0.5))
    optimizer = rec.optimizers.GradientDescentOptimizer(0.0)
    train = optimizer.minimize(tf.reduce_sum(rows_of(table, [3])))
    with initialized_session() as session:
        for _ in range(3):
            session.run(train)
        assert session.run(rows_of(table, [3])) == 0.125
        assert session.run(tf.train.get_global_step()) == 3


def test_ftrl_refuses_a_decay_that_it_would_undo():
    table = table_from(np.ones([1, 1], np.float32), regularizer=rec.LazyDecay(0.5))
    message = r"regularizer of table 'table' must not be LazyDecay\(rate=0.5\) with FtrlOptimizer"
    with pytest.raises(ValueError, match=message):
        rec.optimizers.FtrlOptimizer(0.1).minimize(tf.reduce_sum(rows_of(table, [3])))


def keras_like():
    kind = type("L2", (), {"__module__": "keras.regularizers", "__call__": lambda self, x: x})
    return kind()


@pytest.mark.parametrize("value", [keras_like(), tf.nn.l2_loss, 1e-5, rec.L2Regularizer])
@pytest.mark.parametrize(
    "declare",
    [
        lambda value: rec.get_embedding_variable("t", 2, regularizer=value),
        lambda value: rec.EmbeddingFeature("t", 2, regularizer=value),
        lambda value: rec.EmbeddingVariableOption(regularizer=value),
    ],
    ids=["get_embedding_variable", "EmbeddingFeature", "EmbeddingVariableOption"],
)
def test_a_function_of_the_whole_table_is_refused_with_the_remedy(declare, value):
    with pytest.raises(TypeError, match=r"regularizer must be a .*L2Regularizer\(2 \* l2\)"):
        declare(value)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: rec.L2Regularizer(-1e-5), ValueError, "scale must be a finite number >= 0, got"),
        (lambda: rec.L2Regularizer(1e300), ValueError, "scale must be a finite number >= 0, got"),
        (lambda: rec.L2Regularizer(float("nan")), ValueError, "scale must be a finite number"),
        (lambda: rec.L2Regularizer("1e-5"), TypeError, "scale must be a number, got '1e-5'"),
        (lambda: rec.LazyDecay(1), ValueError, r"rate must be in \[0, 1\), got 1"),
        (lambda: rec.LazyDecay(1 - 1e-12), ValueError, r"rate must be in \[0, 1\), got 0.99"),
        (lambda: rec.LazyDecay(-0.1), ValueError, r"rate must be in \[0, 1\), got -0.1"),
        (lambda: rec.LazyDecay(tf.constant), TypeError, "rate must be a number, got"),
    ],
)
def test_a_setting_out_of_range_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_regularizer_is_part_of_the_tables_identity():
    table = rec.get_embedding_variable("t", 2, regularizer=rec.L2Regularizer(1))
    option = rec.EmbeddingVariableOption(regularizer=rec.L2Regularizer(1.0))
    assert rec.get_embedding_variable("t", 2, ev_option=option) is table
    for other in (None, rec.L2Regularizer(2.0), rec.LazyDecay(0.5)):
        with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
            rec.get_embedding_variable("t", 2, regularizer=other)
    with pytest.raises(ValueError, match="regularizer must be given once"):
        rec.get_embedding_variable("t", 2, ev_option=option, regularizer=rec.LazyDecay(0.5))


def test_features_of_a_table_give_its_regularizer_once_or_equally():
    user, friend = (
        rec.EmbeddingFeature(name, 2, table="user", source=name, **given)
        for name, given in (("user", {"regularizer": rec.L2Regularizer(0.5)}), ("friend", {}))
    )
    ids = tf.constant([1, 2], tf.int64)
    lookup_features({"user": ids, "friend": ids}, [user, friend])
    (table,) = tf.get_collection(rec.EMBEDDING_VARIABLES)
    assert table.regularizer == rec.L2Regularizer(0.5)
    other = rec.EmbeddingFeature("other", 2, table="user", regularizer=rec.LazyDecay(0.5))
    with pytest.raises(ValueError, match="table 'user' must have one regularizer for all"):
        check_declarations([user, other])


def test_feature_columns_take_the_regularizer_in_their_option():
    option = rec.EmbeddingVariableOption(regularizer=rec.L2Regularizer(0.5))
    source = rec.categorical_column_with_embedding("user", tf.int64, ev_option=option)
    column = rec.embedding_column(source, 2, initializer=tf.ones_initializer())
    inputs = tf.feature_column.input_layer({"user": tf.constant([[7, 7]], tf.int64)}, [column])
    (table,) = tf.get_collection(rec.EMBEDDING_VARIABLES)
    optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
    train = optimizer.minimize(0.0 * tf.reduce_sum(inputs))
    with initialized_session() as session:
        session.run(train)
        np.testing.assert_array_equal(session.run(rows_of(table, [7])), [[0.75, 0.75]])


def created(regularizer):
    initializer = tf.ones_initializer()
    return rec.create_table(tf.int64, 2, "t", initializer, 100, regularizer=regularizer)


def test_create_table_takes_a_regularizer():
    table = created(rec.L2Regularizer(0.5))
    assert created(rec.L2Regularizer(0.5)) is table
    with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
        created(None)
    read = rec.sparse_lookup(table, tf.constant([7, 7], tf.int64), modify_graph=True)
    train = rec.optimizers.GradientDescentOptimizer(0.5).minimize(0.0 * tf.reduce_sum(read))
    with initialized_session() as session:
        session.run(train)
        np.testing.assert_array_equal(session.run(read), np.full([2, 2], 0.75))


def test_a_decay_by_steps_is_refused_for_a_table_whose_versions_are_seconds():
    config = {"eviction_threshold": 60, "access_threshold": 1}
    table = created(rec.LazyDecay(0.5))
    read = rec.sparse_lookup(
        table, tf.constant([7], tf.int64), access_and_evict_config=config, modify_graph=True
    )
    optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
    with pytest.raises(ValueError, match="with an eviction_threshold or TimeEvict, with"):
        optimizer.minimize(tf.reduce_sum(read))
