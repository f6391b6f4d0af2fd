# SPDX-License-Identifier: Apache-2.0
"""Rules that TensorFlow does not have, compared with NumPy, on tables and dense variables."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    ALL_RULES,
    DIMS,
    LAZY_RULES,
    OWN_RULES,
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
)
from oracle import RULES

import rec_estimator as rec


def assert_within_2_ulp(actual, expected):
    # Here TensorFlow's kernels and graph rewrites do the arithmetic. The bits are equal if these
    # round each operation once, as NumPy does; TensorFlow does not guarantee that.
    np.testing.assert_array_max_ulp(actual, expected, maxulp=2)


def test_every_optimizer_is_among_the_rules_under_test():
    names = [name for name in rec.optimizers.__all__ if name.endswith(("Optimizer", "OptimizerV2"))]
    assert sorted({name for name, _ in ALL_RULES.values()}) == names


def train(rule, loss):
    step = tf.train.get_or_create_global_step()
    return ours(rule).minimize(loss, global_step=step)


def oracle_and_trained(rule, bank, read, train_op, keys, weights):
    oracle = RuleOracle(rule, bank)
    with initialized_session() as session:
        for batch_keys, batch_weights in random_batches(bank.shape[1]):
            session.run(train_op, {keys: batch_keys, weights: batch_weights})
            oracle.step(batch_keys, batch_weights)
        actual = session.run(read)
    assert not np.array_equal(actual, bank)
    return oracle.value, actual


@pytest.mark.each_value
@pytest.mark.parametrize("dim", DIMS)
@rules({**LAZY_RULES, **OWN_RULES})
def test_training_a_table_equals_the_oracle(rule, dim):
    bank = initial_vectors(dim)
    table = table_from(bank)
    keys, weights = placeholders(dim)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys) * weights)
    train_op = train(rule, loss)
    # Equal bits, although only 2 ulp are guaranteed: every operation is one of IEEE 754.
    assert_same_bits(*oracle_and_trained(rule, bank, rows_of(table), train_op, keys, weights))


@pytest.mark.each_value
@pytest.mark.parametrize(("dim", "use_resource"), [(5, True), (16, False)], ids=["resource", "ref"])
@rules({"lazy_adam": LAZY_RULES["lazy_adam"], **OWN_RULES})
def test_sparse_gradients_move_the_rows_of_a_dense_variable_as_a_tables(rule, dim, use_resource):
    bank = initial_vectors(dim)
    dense = tf.get_variable("dense", initializer=bank, use_resource=use_resource)
    keys, weights = placeholders(dim)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(dense, keys) * weights)
    train_op = train(rule, loss)
    assert_within_2_ulp(*oracle_and_trained(rule, bank, dense, train_op, keys, weights))


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("shape", "use_resource"),
    [([], True), ([6], False), ([6, 5], True), ([3, 2, 4], False)],
    ids=["scalar", "vector", "matrix", "cube"],
)
@rules(OWN_RULES)
def test_dense_gradients_move_all_rows(rule, shape, use_resource):
    random = np.random.RandomState(0)
    bank = np.asarray(random.randn(*shape), np.float32)
    rows = np.reshape(bank, [shape[0] if shape else 1, -1])
    dense = tf.get_variable("dense", initializer=bank, use_resource=use_resource)
    weights = tf.placeholder(tf.float32, shape)
    train_op = train(rule, tf.reduce_sum(dense * weights))
    oracle = RuleOracle(rule, rows)
    with initialized_session() as session:
        for _ in range(20):
            batch = np.asarray(random.randn(*shape), np.float32)
            session.run(train_op, {weights: batch})
            oracle.step(np.arange(len(rows)), batch.reshape(rows.shape), dense=True)
        actual = session.run(dense)
    assert actual.shape == bank.shape and not np.array_equal(actual, bank)
    assert_within_2_ulp(actual.reshape(rows.shape), oracle.value)


# ---- Checkpoints.


@pytest.mark.long
@rules(OWN_RULES)
def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(rule, tmp_path):
    bank = initial_vectors(5)
    batches = list(random_batches(5, steps=12))

    def run(batches, shards, saver_class=rec.Saver, restore=None, save=None):
        with tf.Graph().as_default():
            partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
            table = table_from(bank, partitioner=partitioner)
            dense = tf.get_variable("dense", initializer=bank)
            keys, weights = placeholders(5)
            vectors = rec.embedding_lookup(table, keys) + tf.nn.embedding_lookup(dense, keys)
            train_op = train(rule, tf.reduce_sum(vectors * weights))
            saver = saver_class()
            with initialized_session() as session:
                if restore:
                    saver.restore(session, restore)
                for batch in batches:
                    session.run(train_op, dict(zip((keys, weights), batch)))
                if save:
                    return saver.save(session, save)
                return session.run([rows_of(table), dense])

    prefix = run(batches[:6], 1, save=str(tmp_path / "model"))
    never_stopped = run(batches, 1)
    for shards, saver_class in ((1, tf.train.Saver), (3, rec.Saver)):
        stopped = run(batches[6:], shards, saver_class, restore=prefix)
        for actual, expected in zip(stopped, never_stopped):
            assert_same_bits(actual, expected)


# Slots that are not called as oracle.RULES calls them.
SLOT_NAMES = {"adam_async": {"Adam": "AdamAsync", "Adam_1": "AdamAsync_1"}}


@pytest.mark.parametrize("name", OWN_RULES)
def test_a_checkpoint_has_the_slots_under_deeprecs_names_in_their_widths(name, tmp_path):
    table = table_from(initial_vectors(5))
    renamed = SLOT_NAMES.get(name, {})
    expected = {
        renamed.get(slot, slot): [2, width]
        for slot, width, _ in RULES[ours(OWN_RULES[name]).table_rule].slots_of(5)
    }
    train_op = train(OWN_RULES[name], tf.reduce_sum(rows_of(table, [3, 4])))
    with initialized_session() as session:
        session.run(train_op)
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    slots = {
        tensor[len("table/") : -len("-values")]: shape
        for tensor, shape in shapes.items()
        if tensor.startswith("table/") and tensor.endswith("-values")
    }
    assert slots == expected


@rules({name: OWN_RULES[name] for name in ("adagrad_decay", "adagrad_decay_v2", "rowwise_adagrad")})
def test_slots_start_afresh_after_an_eviction(rule):
    table = table_from(np.ones([1, 5], np.float32), evict_option=rec.L2WeightEvict(1e9))
    train_op = train(rule, tf.reduce_sum(rows_of(table, [7])))
    evict, row = table.evict(), rows_of(table, [7])
    with initialized_session() as session:
        session.run(train_op)
        once = session.run(row)
        session.run(train_op)
        assert session.run(evict) == 1
        session.run(train_op)
        assert_same_bits(session.run(row), once)


# ---- Properties of single rules.


@pytest.mark.parametrize("version", ["AdagradDecayOptimizer", "AdagradDecayOptimizerV2"])
def test_a_row_that_was_away_is_discounted_for_every_period_it_missed(version):
    table = table_from(np.zeros([2, 1], np.float32))
    step = tf.train.get_or_create_global_step()
    key = tf.placeholder(tf.int64, [1])
    optimizer = getattr(rec.optimizers, version)(
        1.0, step, 1.0, accumulator_decay_step=2, accumulator_decay_rate=0.5
    )
    loss = 3.0 * tf.reduce_sum(rec.embedding_lookup(table, key))
    train_op = optimizer.minimize(loss, global_step=step)
    with initialized_session() as session:
        session.run(train_op, {key: [0]})  # a = 1 + 9
        for _ in range(4):  # Steps 2 to 5: two periods end.
            session.run(train_op, {key: [1]})
        before = session.run(rows_of(table, [0]))
        session.run(train_op, {key: [0]})  # The third ends: a = 10 / 8, then + 9.
        moved = before - session.run(rows_of(table, [0]))
        # A difference of two float32 rows.
        np.testing.assert_allclose(moved, 3 / np.sqrt(10 / 8 + 9), rtol=1e-6)
        for _ in range(20):
            session.run(train_op, {key: [1]})
        before = session.run(rows_of(table, [0]))
        session.run(train_op, {key: [0]})  # Never below where it began: a = 1 + 9.
        moved = before - session.run(rows_of(table, [0]))
        np.testing.assert_allclose(moved, 3 / np.sqrt(10), rtol=1e-6)


@pytest.mark.parametrize("of_graph", [True, False], ids=["graph", "given"])
def test_periods_are_of_the_step_that_is_given_or_else_the_graphs(of_graph, tmp_path):
    table = table_from(np.zeros([1, 1], np.float32))
    if of_graph:
        step, given = tf.train.create_global_step(), None
        start = step.assign(1000)
    else:
        step = given = tf.Variable(1000, name="mine", trainable=False)
        start = tf.no_op()
    optimizer = rec.optimizers.AdagradDecayOptimizer(1.0, given, 1.0, 500, 0.5)
    train_op = optimizer.minimize(tf.reduce_sum(rows_of(table, [0])), global_step=step)
    with initialized_session() as session:
        session.run(start)
        session.run(train_op)
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    ended = tf.train.load_checkpoint(prefix).get_tensor("table/AdagradDecay_1-values")
    np.testing.assert_array_equal(ended, [[2.0]])


def test_adagrad_decay_without_a_global_step_is_refused():
    table = table_from(np.zeros([1, 1], np.float32))
    optimizer = rec.optimizers.AdagradDecayOptimizer(1.0)
    with pytest.raises(ValueError, match="got no global_step, and the graph has none"):
        optimizer.minimize(tf.reduce_sum(rows_of(table, [0])))


def test_adam_async_counts_the_steps_of_each_table_and_variable_by_itself():
    tables = [
        table_from(np.zeros([1, 1], np.float32), "whole"),
        table_from(np.zeros([1, 1], np.float32), "parts", partitioner=tf.fixed_size_partitioner(2)),
    ]
    dense = tf.get_variable("dense", initializer=1.0)
    optimizer = rec.optimizers.AdamAsyncOptimizer(beta1=0.5, beta2=0.25)
    train_ops = [
        optimizer.minimize(tf.reduce_sum(rows_of(tables[0], [0])) * dense, var_list=[tables[0]]),
        optimizer.minimize(
            tf.reduce_sum(rows_of(tables[1], [0, 1])) * dense, var_list=[tables[1], dense]
        ),
    ]
    powers = {v.op.name: v for v in tf.global_variables() if v.op.name[-2:] in ("_2", "_3")}
    with initialized_session() as session:
        for train_op in (*train_ops, train_ops[1]):
            session.run(train_op)
        assert session.run(powers) == {
            "whole/AdamAsync_2": 0.5**2,
            "whole/AdamAsync_3": 0.25**2,
            "parts/AdamAsync_2": 0.5**3,
            "parts/AdamAsync_3": 0.25**3,
            "dense/AdamAsync_2": 0.5**3,
            "dense/AdamAsync_3": 0.25**3,
        }


WITH_WEIGHT_DECAY = {name: OWN_RULES[name] for name in ("weight_decay", "adam_w")}


@rules(WITH_WEIGHT_DECAY)
def test_weight_decay_may_be_zero(rule):
    bank = initial_vectors(3)
    tables = [table_from(bank, name) for name in ("decayed", "plain")]
    plain = "LazyAdamOptimizer" if rule[0] == "AdamWOptimizer" else rule[0]
    optimizers = [
        ours(rule, weight_decay=0.0),
        getattr(rec.optimizers, plain)(rule[1]["learning_rate"]),
    ]
    train_ops = [
        optimizer.minimize(tf.reduce_sum(tf.square(rows_of(table, [1, 2, 1]))), var_list=[table])
        for optimizer, table in zip(optimizers, tables)
    ]
    with initialized_session() as session:
        session.run(train_ops)
        assert_same_bits(*session.run([rows_of(table) for table in tables]))


@rules(WITH_WEIGHT_DECAY)
def test_weight_decay_is_a_tensor_or_a_function_as_well(rule):
    bank = initial_vectors(3)
    tables = [table_from(bank, name) for name in ("number", "tensor", "function")]
    tensor = tf.constant(0.01, tf.float64)
    train_ops = [
        ours(rule, weight_decay=weight_decay).minimize(
            tf.reduce_sum(tf.square(rows_of(table))), var_list=[table]
        )
        for weight_decay, table in zip((0.01, tensor, lambda: tensor), tables)
    ]
    with initialized_session() as session:
        session.run(train_ops)
        number, *others = session.run([rows_of(table) for table in tables])
    for other in others:
        assert_same_bits(other, number)


def values_after_steps(build_step, steps=5):
    """The values of tables and dense variables of each kind, trained by AdamW, by name."""
    with tf.Graph().as_default():
        banks = {
            name: initial_vectors(dim)
            for name, dim in dict(whole=3, parts=4, sparse=5, dense=6).items()
        }
        cut = tf.fixed_size_partitioner(2)
        trained = {
            "whole": table_from(banks["whole"], "whole"),
            "parts": table_from(banks["parts"], "parts", partitioner=cut),
            "sparse": tf.get_variable("sparse", initializer=banks["sparse"]),
            "dense": tf.get_variable("dense", initializer=banks["dense"], use_resource=False),
            "cut": tf.get_variable(
                "cut", [40, 2], initializer=tf.ones_initializer(), partitioner=cut
            ),
        }
        read = {
            **{name: rows_of(trained[name]) for name in ("whole", "parts")},
            **{name: tf.convert_to_tensor(trained[name]) for name in ("sparse", "dense", "cut")},
        }
        keys = [3, 1, 3]
        vectors = [
            *(rec.embedding_lookup(trained[name], keys) for name in ("whole", "parts")),
            tf.nn.embedding_lookup(trained["sparse"], keys),
            *(trained["dense"], trained["cut"]),
        ]
        loss = tf.add_n([tf.reduce_sum(tf.square(each)) for each in vectors])
        train_op = build_step(loss, trained)
        with initialized_session() as session:
            for _ in range(steps):
                session.run(train_op)
            return session.run(read)


def adam_w(weight_decay):
    return rec.optimizers.AdamWOptimizer(weight_decay, learning_rate=0.01)


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("how", ["minimize", "apply_gradients"])
@pytest.mark.parametrize(
    "decayed",
    [["whole"], ["parts", "dense"], ["sparse", "cut"], []],
    ids=lambda names: " and ".join(names) or "none",
)
def test_decay_var_list_says_what_adam_w_decays(decayed, how):
    def step(loss, trained):
        optimizer, some = adam_w(0.01), [trained[name] for name in decayed]
        if how == "minimize":
            return optimizer.minimize(loss, decay_var_list=some)
        return optimizer.apply_gradients(optimizer.compute_gradients(loss), decay_var_list=some)

    actual = values_after_steps(step)
    all_decayed, none_decayed = (
        values_after_steps(lambda loss, trained, decay=decay: adam_w(decay).minimize(loss))
        for decay in (0.01, 0.0)
    )
    for name, value in actual.items():
        assert not np.array_equal(all_decayed[name], none_decayed[name])
        assert_same_bits(value, (all_decayed if name in decayed else none_decayed)[name])


@pytest.mark.long
def test_decay_var_list_may_be_taken_from_a_collection_by_name():
    def step(loss, trained):
        some = [v for v in tf.trainable_variables() if not v.name.startswith(("dense", "parts"))]
        return adam_w(0.01).minimize(loss, decay_var_list=some)

    actual = values_after_steps(step)
    decayed = values_after_steps(
        lambda loss, trained: adam_w(0.01).minimize(
            loss, decay_var_list=[trained[name] for name in ("whole", "sparse", "cut")]
        )
    )
    for name, value in actual.items():
        assert_same_bits(value, decayed[name])


@pytest.mark.long
def test_decay_var_list_holds_for_one_call():
    used, fresh = adam_w(0.01), adam_w(0.01)
    values_after_steps(lambda loss, trained: used.minimize(loss, decay_var_list=[]), steps=1)
    after, expected = (
        values_after_steps(lambda loss, trained, optimizer=optimizer: optimizer.minimize(loss))
        for optimizer in (used, fresh)
    )
    for name, value in after.items():
        assert_same_bits(value, expected[name])


@pytest.mark.parametrize("kind", ["name", "number", "tensor"])
def test_a_decay_var_list_of_anything_else_is_refused(kind):
    bad = {"name": "dense", "number": 3, "tensor": tf.zeros([2])}[kind]
    loss = tf.reduce_sum(tf.square(rows_of(table_from(initial_vectors(3)))))
    with pytest.raises(TypeError, match="decay_var_list must have variables and tables, got"):
        adam_w(0.01).minimize(loss, decay_var_list=[bad])


@pytest.mark.parametrize("base", [rec.optimizers.AdamOptimizer, tf.train.AdamOptimizer])
def test_adam_extended_with_decoupled_weight_decay_is_adam_w(base):
    extended = rec.optimizers.extend_with_decoupled_weight_decay(base)
    assert issubclass(extended, rec.optimizers.AdamWOptimizer)
    with pytest.raises(ValueError, match="weight_decay must be finite and >= 0"):
        extended(-0.1)


@pytest.mark.parametrize(
    "base", [tf.train.MomentumOptimizer, rec.optimizers.FtrlOptimizer, tf.train.AdamOptimizer(0.1)]
)
def test_other_optimizers_cannot_be_extended_with_decoupled_weight_decay(base):
    with pytest.raises(ValueError, match="base_optimizer must be AdamOptimizer, got .*; no other"):
        rec.optimizers.extend_with_decoupled_weight_decay(base)


@pytest.mark.parametrize(
    ("rule", "argument", "value", "range_of_it"),
    [
        ("weight_decay", "weight_decay", -0.1, "finite and >= 0"),
        ("weight_decay", "weight_decay", float("nan"), "finite and >= 0"),
        ("adagrad_decay", "learning_rate", -1, "finite and >= 0"),
        ("adagrad_decay", "initial_accumulator_value", 0, "finite and > 0"),
        ("adagrad_decay", "accumulator_decay_step", 0, "finite and >= 1"),
        ("adagrad_decay", "accumulator_decay_step", 2**70, "finite and >= 1"),
        ("adagrad_decay", "accumulator_decay_step", "9", "an integer"),
        ("adagrad_decay", "accumulator_decay_step", float("nan"), "an integer"),
        ("adagrad_decay", "accumulator_decay_step", 2.5, "an integer"),
        ("adagrad_decay_v2", "accumulator_decay_rate", 1.0, "finite and > 0 and < 1"),
        ("adagrad_decay_v2", "accumulator_decay_rate", 0, "finite and > 0 and < 1"),
        ("rowwise_adagrad", "learning_rate", float("inf"), "finite and >= 0"),
        ("rowwise_adagrad", "initial_accumulator_value", 0.0, "finite and > 0"),
        ("adam_async", "learning_rate", -1, "finite and >= 0"),
        ("adam_async", "beta1", 1.0, "finite and >= 0 and < 1"),
        ("adam_async_rmsprop", "beta2", -0.1, "finite and >= 0 and < 1"),
        ("adam_async_rmsprop", "epsilon", -1, "finite and >= 0"),
        ("adam_w", "weight_decay", -1, "finite and >= 0"),
        ("adam_w", "beta2", 1, "finite and >= 0 and < 1"),
    ],
)
def test_a_hyperparameter_out_of_range_is_refused_when_the_object_is_built(
    rule, argument, value, range_of_it
):
    with pytest.raises(ValueError, match=rf"^{argument} must be {range_of_it}.*, got "):
        ours(OWN_RULES[rule], **{argument: value})
