# SPDX-License-Identifier: Apache-2.0
"""The optimizers compared, rule by rule, with TensorFlow's optimizers on dense variables."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    ALL_RULES,
    DIMS,
    EXACT_RULES,
    POWERS_HAVE_TENSORFLOWS_BITS,
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

import rec_estimator as rec

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def loss_of(vectors, weights):
    """A loss whose gradient, weights + vectors, depends on what was trained before."""
    return tf.reduce_sum(vectors * weights + 0.5 * tf.square(vectors))


# ---- Equal to TensorFlow's.


def table_and_dense_variable(rule, dim):
    """A table and a variable with the same vectors, their train ops, and the placeholders."""
    bank = initial_vectors(dim)
    table, dense = table_from(bank), tf.get_variable("dense", initializer=bank)
    keys, weights = placeholders(dim)
    loss = loss_of(rec.embedding_lookup(table, keys), weights)
    dense_loss = loss_of(tf.nn.embedding_lookup(dense, keys), weights)
    train = [
        ours(rule).minimize(loss, var_list=[table]),
        tensorflows(rule).minimize(dense_loss, var_list=[dense]),
    ]
    return table, dense, train, (keys, weights)


@pytest.mark.each_value
@pytest.mark.parametrize("dim", DIMS)
@rules(EXACT_RULES)
def test_training_a_table_equals_training_a_dense_variable_bit_for_bit(rule, dim):
    table, dense, train, inputs = table_and_dense_variable(rule, dim)
    rows = rows_of(table)
    with initialized_session() as session:
        for batch in random_batches(dim):
            session.run(train, dict(zip(inputs, batch)))
        actual, expected = session.run([rows, dense])
    assert not np.array_equal(expected, initial_vectors(dim))
    if rule is EXACT_RULES["ftrl_power"] and not POWERS_HAVE_TENSORFLOWS_BITS:
        # 50 steps with powers that differ by some ulps each.
        largest = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * largest)
    else:
        assert_same_bits(actual, expected)


def test_adagrad_da_equals_tensorflows_while_its_step_grows():
    rule, dim = EXACT_RULES["adagrad_da"], 9
    table, dense, train, inputs = table_and_dense_variable(rule, dim)
    with tf.control_dependencies(train):
        train = tf.train.get_global_step().assign_add(1)
    rows = rows_of(table)
    with initialized_session() as session:
        for batch in random_batches(dim):
            session.run(train, dict(zip(inputs, batch)))
        assert_same_bits(*session.run([rows, dense]))


@rules(EXACT_RULES)
def test_slots_have_the_names_and_values_of_tensorflows_in_a_checkpoint(rule, tmp_path):
    _, _, train, inputs = table_and_dense_variable(rule, dim=5)
    with initialized_session() as session:
        for batch in random_batches(dim=5, steps=3):
            session.run(train, dict(zip(inputs, batch)))
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    reader = tf.train.load_checkpoint(prefix)
    names = set(reader.get_variable_to_shape_map())
    slots = {name[len("dense/") :] for name in names if name.startswith("dense/")}
    of_table = {name for name in names if name.startswith("table/") and name.endswith("-values")}
    assert of_table - {"table/default_values"} == {f"table/{slot}-values" for slot in slots}
    trained = reader.get_tensor("table-keys")
    for slot in slots:
        assert_same_bits(
            reader.get_tensor(f"table/{slot}-values"), reader.get_tensor(f"dense/{slot}")[trained]
        )


@rules(ALL_RULES)
def test_several_lookups_of_a_table_in_a_step_make_one_update(rule):
    bank = initial_vectors(4)
    table, together = table_from(bank), table_from(bank, name="together")
    first, second = np.array([3, 5, 3]), np.array([[5, 8], [3, 9]])
    parts = [rec.embedding_lookup(table, tf.constant(keys)) for keys in (first, second)]
    both = np.concatenate([first, second.ravel()])
    loss = sum(tf.reduce_sum(tf.square(part)) for part in parts)
    loss += tf.reduce_sum(tf.square(rec.embedding_lookup(together, tf.constant(both))))
    train = ours(rule).minimize(loss)
    with initialized_session() as session:
        session.run(train)
        session.run(train)
        actual, expected = session.run([rows_of(table), rows_of(together)])
        assert list(session.run(table.get_frequency([3, 5, 8, 9, 1]))) == [6, 4, 2, 2, 0]
    assert_same_bits(actual, expected)


@rules(EXACT_RULES)
def test_one_minimize_trains_dense_variables_as_tensorflows_optimizer_does(rule):
    bank = initial_vectors(4)
    table = table_from(bank)
    variables = [tf.get_variable(name, initializer=bank[0]) for name in ("ours", "tensorflows")]
    looked_up = rec.embedding_lookup(table, tf.constant([1, 2, 1], tf.int64))
    losses = [tf.reduce_sum(tf.stop_gradient(looked_up) * tf.square(v)) for v in variables]
    train = tf.group(
        ours(rule).minimize(losses[0] + tf.reduce_sum(looked_up), var_list=[variables[0], table]),
        tensorflows(rule).minimize(losses[1], var_list=[variables[1]]),
    )
    with initialized_session() as session:
        session.run(train)
        actual, expected, rows = session.run([*variables, rows_of(table)])
    assert_same_bits(actual, expected)
    assert not np.array_equal(actual, bank[0])
    assert not np.array_equal(rows[1], bank[1])
    np.testing.assert_array_equal(rows[3:], bank[3:])


# ---- Lazy rules.


def test_adam_moves_all_rows_of_a_dense_variable_as_tensorflows_does():
    bank = initial_vectors(4)
    variables = [tf.get_variable(name, initializer=bank) for name in ("ours", "tensorflows")]
    losses = [tf.reduce_sum(tf.nn.embedding_lookup(v, [1, 2])) for v in variables]
    train = tf.group(
        rec.optimizers.AdamOptimizer().minimize(losses[0], var_list=[variables[0]]),
        tf.train.AdamOptimizer().minimize(losses[1], var_list=[variables[1]]),
    )
    with initialized_session() as session:
        session.run(train)
        session.run(train)
        assert_same_bits(*session.run(variables))


# ---- Graphs with tables only; variables that exist once.


@rules(ALL_RULES)
def test_a_graph_of_tables_only_is_trained(rule):
    bank = initial_vectors(3)
    table = table_from(bank)
    step = tf.train.get_or_create_global_step()
    train = ours(rule).minimize(tf.reduce_sum(rows_of(table, [1, 2])), global_step=step)
    with initialized_session() as session:
        session.run(train)
        session.run(train)
        assert session.run([step, table.size()]) == [2, 2]
        changed = np.flatnonzero((session.run(rows_of(table)) != bank).any(axis=1))
    np.testing.assert_array_equal(changed, [1, 2])


@pytest.mark.parametrize("has_dense", [True, False], ids=["dense", "tables_only"])
def test_the_powers_of_beta_exist_once_under_tensorflows_names(has_dense):
    loss = tf.reduce_sum(rows_of(table_from(initial_vectors(3), "a")))
    loss += tf.reduce_sum(rows_of(table_from(initial_vectors(3), "b")))
    if has_dense:
        loss *= tf.get_variable("dense", initializer=1.0)
    train = rec.optimizers.AdamOptimizer(beta1=0.5, beta2=0.25).minimize(loss)
    powers = {v.op.name: v for v in tf.global_variables() if "power" in v.op.name}
    assert sorted(powers) == ["beta1_power", "beta2_power"]
    with initialized_session() as session:
        session.run(train)
        assert session.run(powers) == {"beta1_power": 0.25, "beta2_power": 0.0625}


# ---- The step: counts, versions, order.


@rules(ALL_RULES)
def test_frequency_counts_occurrences_and_version_is_the_step_before_its_increment(rule):
    table = table_from(initial_vectors(3))
    step = tf.train.get_or_create_global_step()
    keys = tf.placeholder(tf.int64, [None])
    train = ours(rule).minimize(tf.reduce_sum(rec.embedding_lookup(table, keys)), step)
    with initialized_session() as session:
        for batch in ([4, 4, 5], [5], [6, 5, 6, 6]):
            session.run(train, {keys: batch})
        frequency, version = table.get_frequency([4, 5, 6, 7]), table.get_version([4, 5, 6, 7])
        assert list(session.run(frequency)) == [2, 3, 3, 0]
        assert list(session.run(version)) == [0, 2, 2, -1]


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32], ids=["int64", "int32"])
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_every_update_reads_the_global_step_before_it_is_incremented(use_resource, dtype):
    tables = [table_from(initial_vectors(dim), f"table{dim}") for dim in (2, 3, 4)]
    step = tf.get_variable(
        "step", initializer=tf.constant(10, dtype), use_resource=use_resource, trainable=False
    )
    dense = tf.get_variable("dense", initializer=1.0)
    loss = dense * sum(tf.reduce_sum(rows_of(table, [1])) for table in tables)
    increment = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    # The graph guarantees it: the increment waits for the updates, and they wait for the read.
    before = ancestors(increment)
    updates = [op for op in before if op.type == "RecEstimator>TablesApply"]
    assert len(updates) == 1
    assert all(increment not in ancestors(update) for update in updates)
    versions = [table.get_version([1]) for table in tables]
    with initialized_session() as session:
        for expected in range(10, 40):
            session.run(increment)
            assert np.ravel(session.run(versions)).tolist() == [expected] * len(tables)


def ancestors(op):
    """All ops that op waits for."""
    seen, stack = set(), [op]
    while stack:
        for before in [tensor.op for tensor in stack[-1].inputs] + stack.pop().control_inputs:
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return seen


@pytest.mark.parametrize("made_by", ["create_global_step", "Variable", None])
def test_version_is_the_graphs_global_step_where_minimize_gets_none_and_else_minus_one(made_by):
    table = table_from(initial_vectors(3))
    if made_by == "create_global_step":
        tf.train.create_global_step()
    elif made_by == "Variable":
        tf.Variable(0, name="global_step", trainable=False)
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows_of(table, [1])))
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.get_version([1])) == [0 if made_by else -1]


@pytest.mark.each_value
@pytest.mark.parametrize(
    "keys", [[], [INT64_MIN, INT64_MAX, -1, 0, -1]], ids=["no_keys", "extreme_keys"]
)
@rules(ALL_RULES)
def test_any_batch_of_keys_is_trained(rule, keys):
    table = table_from(initial_vectors(3))
    train = ours(rule).minimize(tf.reduce_sum(rows_of(table, keys)))
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.size()) == len(set(keys))


# ---- Partitioned tables.


@rules(ALL_RULES)
def test_a_partitioned_table_is_trained_as_a_whole_one(rule):
    bank = initial_vectors(5)
    whole = table_from(bank, "whole")
    parts = table_from(bank, "parts", partitioner=tf.fixed_size_partitioner(3))
    keys, weights = placeholders(5)
    loss = sum(loss_of(rec.embedding_lookup(table, keys), weights) for table in (whole, parts))
    train = ours(rule).minimize(loss)
    with initialized_session() as session:
        for batch_keys, batch_weights in random_batches(5, steps=10):
            session.run(train, {keys: batch_keys, weights: batch_weights})
        actual, expected = session.run([rows_of(parts), rows_of(whole)])
        frequencies = session.run([t.get_frequency(np.arange(40)) for t in (parts, whole)])
    assert_same_bits(actual, expected)
    np.testing.assert_array_equal(*frequencies)


def test_compute_gradients_gives_a_whole_table_once_and_a_partitioned_one_by_shard():
    whole = table_from(initial_vectors(3), "whole")
    parts = table_from(initial_vectors(3), "parts", partitioner=tf.fixed_size_partitioner(2))
    fixed = table_from(initial_vectors(3), "fixed", trainable=False)
    dense = tf.get_variable("dense", initializer=1.0)
    loss = dense * sum(tf.reduce_sum(rows_of(table)) for table in (whole, parts, fixed))
    pairs = rec.optimizers.AdagradOptimizer(0.1).compute_gradients(loss)
    assert [variable for _, variable in pairs] == [dense, whole, *parts]
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient, _ in pairs[1:])


# ---- Arguments.


def test_var_list_says_which_tables_and_shards_are_trained():
    bank = initial_vectors(3)
    names = ("table", "shard", "fixed", "left")
    tables = {name: table_from(bank, name, trainable=name != "fixed") for name in names}
    dense = tf.get_variable("dense", initializer=1.0)
    loss = dense * sum(tf.reduce_sum(rows_of(table)) for table in tables.values())
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(
        loss, var_list=[tables["table"], tables["shard"].shards[0], tables["fixed"]]
    )
    sizes = {name: table.size() for name, table in tables.items()}
    with initialized_session() as session:
        session.run(train)
        assert session.run(sizes) == {"table": 40, "shard": 40, "fixed": 40, "left": 0}
        assert session.run(dense) == 1.0


TAKE_FLOAT32_ONLY = (
    "AdagradDAOptimizer",
    "FtrlOptimizer",
    "GroupFtrlOptimizer",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
)


@pytest.mark.each_value
@pytest.mark.parametrize("given", ["tensor", "float64", "callable", "placeholder"])
@rules(ALL_RULES)
def test_learning_rate_is_a_tensor_or_a_function_as_well(rule, given):
    if rule[0] in TAKE_FLOAT32_ONLY and given in ("callable", "float64"):
        given = "tensor"  # TensorFlow's optimizer takes neither.
    bank = initial_vectors(4)
    rate = rule[1]["learning_rate"]
    if given == "placeholder":
        tensor = tf.placeholder(tf.float32, [])
    else:
        tensor = tf.constant(rate, tf.float64 if given == "float64" else tf.float32)
    as_number, as_given = table_from(bank, "as_number"), table_from(bank, "as_given")
    optimizers = [
        ours(rule),
        ours(rule, learning_rate=(lambda: tensor) if given == "callable" else tensor),
    ]
    train = [
        optimizer.minimize(tf.reduce_sum(rows_of(table)), var_list=[table])
        for optimizer, table in zip(optimizers, (as_number, as_given))
    ]
    with initialized_session() as session:
        session.run(train, {tensor: rate} if given == "placeholder" else {})
        assert_same_bits(*session.run([rows_of(as_given), rows_of(as_number)]))


@pytest.mark.parametrize("gate", ["GATE_NONE", "GATE_OP", "GATE_GRAPH"])
def test_gates_do_not_change_what_a_step_does(gate):
    bank = initial_vectors(4)
    table = table_from(bank)
    # If a gradient needs the value of the other variable, GATE_NONE may read the new value.
    loss = 2.0 * tf.reduce_sum(rows_of(table)) + tf.get_variable("dense", initializer=1.0)
    train = rec.optimizers.GradientDescentOptimizer(0.5).minimize(
        loss,
        gate_gradients=getattr(tf.train.Optimizer, gate),
        aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE,
        colocate_gradients_with_ops=True,
        grad_loss=tf.constant(3.0),
    )
    with initialized_session() as session:
        session.run(train)
        np.testing.assert_array_equal(session.run(rows_of(table)), bank - np.float32(3))


def test_gradients_may_be_changed_between_computing_and_applying():
    bank = initial_vectors(4)
    table = table_from(bank)
    optimizer = rec.optimizers.GradientDescentOptimizer(1.0)
    gradients, variables = zip(*optimizer.compute_gradients(tf.reduce_sum(rows_of(table, [1, 2]))))
    clipped, norm = tf.clip_by_global_norm(gradients, 1e-3)
    train = optimizer.apply_gradients(zip(clipped, variables))
    with initialized_session() as session:
        assert session.run([norm, train])[0] == np.sqrt(np.float32(8))
        moved = bank - session.run(rows_of(table))
    # Each float changes by 4e-4. A value near 1 keeps three digits of that.
    np.testing.assert_allclose(np.linalg.norm(moved), 1e-3, rtol=1e-3)


def test_an_optimizer_object_trains_one_graph_after_another():
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    results = []
    for _ in range(2):
        with tf.Graph().as_default():
            table = table_from(initial_vectors(3))
            train = optimizer.minimize(tf.reduce_sum(rows_of(table)))
            with initialized_session() as session:
                session.run(train)
                results.append(session.run(rows_of(table)))
    assert_same_bits(*results)


# ---- No gradient, and errors.


@rules(ALL_RULES)
def test_a_table_without_gradient_is_counted_and_inserted_with_one_warning(rule, monkeypatch):
    warnings = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *args: warnings.append(text % args))
    bank = initial_vectors(3)
    table = table_from(bank, partitioner=tf.fixed_size_partitioner(2))
    vectors = rows_of(table, [3, 4, 4])
    dense = tf.get_variable("dense", initializer=1.0)
    step = tf.train.get_or_create_global_step()
    train = ours(rule).minimize(dense * tf.reduce_sum(tf.stop_gradient(vectors)), step)
    assert len(warnings) == 1 and "'table'" in warnings[0]
    with initialized_session() as session:
        session.run(train)
        session.run(train)
        assert list(session.run(table.get_frequency([3, 4, 5]))) == [2, 4, 0]
        assert list(session.run(table.get_version([3, 4, 5]))) == [1, 1, -1]
        assert session.run(table.size()) == 2
        np.testing.assert_array_equal(session.run(rows_of(table)), bank)


def test_a_table_that_is_not_looked_up_is_left_alone(monkeypatch):
    warnings = []
    monkeypatch.setattr(tf.logging, "warning", lambda *args: warnings.append(args))
    table = table_from(initial_vectors(3))
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.get_variable("dense", initializer=1.0))
    assert not warnings and table.shards[0].updated_by is None
    assert not [op for op in ancestors(train) if op.type == "RecEstimator>TablesApply"]


def test_a_second_update_of_a_table_is_refused_with_the_remedy_and_adds_no_update():
    table = table_from(initial_vectors(3))
    loss = tf.reduce_sum(rows_of(table))
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    message = (
        r"table 'table' must be updated once per step, got .*'Adam' after 'Adagrad'; minimize the "
        "sum of the losses; if .* a var_list without the table, .* third optimizer of the sum$"
    )
    with pytest.raises(ValueError, match=message):
        rec.optimizers.AdamOptimizer(0.1).minimize(loss)
    ops = [op.type for op in tf.get_default_graph().get_operations()]
    assert ops.count("RecEstimator>TablesReserve") == ops.count("RecEstimator>TablesApply") == 1
    assert [slot.name for slot in table.shards[0].slots] == ["Adagrad"]


def of_rec_sdk(name):
    return rec.create_table(tf.int64, 2, name, tf.ones_initializer(), device_vocabulary_size=99)


def lookups_of_rec_sdk(table, keys):
    """Two training lookups that decide together which keys are admitted."""
    admission = {"access_threshold": 3}
    return [
        rec.sparse_lookup(table, keys, modify_graph=True, access_and_evict_config=admission)
        for _ in range(2)
    ]


def of_deeprec(name):
    return rec.get_embedding_variable(name, 2, initializer=tf.ones_initializer())


def lookups_of_deeprec(table, keys):
    return [rec.embedding_lookup(table, keys)]


def with_all_tables(optimizer, loss, tables):
    del tables
    return optimizer.minimize(loss)


def with_gradients_of_all_tables(optimizer, loss, tables):
    return optimizer.apply_gradients(list(zip(tf.gradients(loss, tables), tables)))


def with_its_table(optimizer, loss, tables):
    (own,) = [t for t, g in zip(tables, tf.gradients(loss, tables)) if g is not None]
    return optimizer.minimize(loss, var_list=[own])


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("make", "look_up"), [(of_rec_sdk, lookups_of_rec_sdk), (of_deeprec, lookups_of_deeprec)]
)
@pytest.mark.parametrize("train", [with_all_tables, with_gradients_of_all_tables])
@pytest.mark.parametrize("key_shape", [[None], [3]], ids=str)
def test_two_losses_train_a_table_each_whatever_lists_their_optimizers_get(
    make, look_up, train, key_shape
):
    def steps(train):
        with tf.Graph().as_default(), tf.Session() as session:
            tables = [make("first"), make("second")]
            keys = tf.placeholder(tf.int64, key_shape)
            losses = [tf.reduce_sum(tf.square(tf.add_n(look_up(table, keys)))) for table in tables]
            train_ops = [
                train(rec.optimizers.AdagradOptimizer(rate), loss, tables)
                for rate, loss in zip((0.1, 0.2), losses)
            ]
            found = [[t.export(), t.get_frequency(list(range(9)))] for t in tables]
            session.run(tf.global_variables_initializer())
            for step in range(4):
                session.run(train_ops, {keys: [step, step, step + 1]})
            session.run(train_ops[0], {keys: [7, 7, 8]})
            return session.run(found)

    for actual, expected in zip(steps(train), steps(with_its_table)):
        for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
            np.testing.assert_array_equal(one, other)


def test_a_dense_gradient_of_a_table_is_refused():
    table = table_from(initial_vectors(3))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    with pytest.raises(TypeError, match=r"table 'table' must be tf.IndexedSlices"):
        optimizer.apply_gradients([(tf.zeros([40, 3]), table)])


def test_one_gradient_for_a_partitioned_table_is_refused():
    table = table_from(initial_vectors(3), partitioner=tf.fixed_size_partitioner(2))
    gradient = tf.IndexedSlices(tf.zeros([1, 3]), tf.zeros([1], tf.int64))
    with pytest.raises(ValueError, match=r"'table' must be one for each of its 2 shards"):
        rec.optimizers.AdagradOptimizer(0.1).apply_gradients([(gradient, table)])


def test_a_loss_that_reaches_nothing_is_refused_as_tensorflow_does():
    table_from(initial_vectors(3))
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        rec.optimizers.AdagradOptimizer(0.1).minimize(tf.constant(1.0))


@pytest.mark.parametrize(
    ("rule", "argument", "value", "range_of_it"),
    [
        ("gradient_descent", "learning_rate", -0.1, ">= 0"),
        ("gradient_descent", "learning_rate", float("nan"), ">= 0"),
        ("momentum", "learning_rate", float("inf"), ">= 0"),
        ("momentum", "momentum", -1, ">= 0"),
        ("adagrad", "learning_rate", np.float32(-1), ">= 0"),
        ("adagrad", "initial_accumulator_value", 0, "> 0"),
        ("adam", "learning_rate", -1, ">= 0"),
        ("adam", "beta1", 1.0, ">= 0 and < 1"),
        ("adam", "beta2", -0.5, ">= 0 and < 1"),
        ("lazy_adam", "epsilon", -1e-8, ">= 0"),
        ("ftrl", "learning_rate", -1, ">= 0"),
        ("ftrl", "learning_rate_power", 0.5, "<= 0"),
        ("ftrl", "initial_accumulator_value", -1, ">= 0"),
        ("ftrl", "l1_regularization_strength", -1, ">= 0"),
        ("ftrl", "l2_regularization_strength", -1, ">= 0"),
        ("ftrl", "l2_shrinkage_regularization_strength", -1, ">= 0"),
        ("ftrl", "beta", -1, ">= 0"),
        ("rmsprop", "decay", 1.5, ">= 0 and <= 1"),
        ("adadelta", "rho", -0.1, ">= 0 and <= 1"),
        ("adagrad_da", "learning_rate", 0, "> 0"),
        ("proximal_adagrad", "l1_regularization_strength", -1, ">= 0"),
        ("proximal_gradient_descent", "l2_regularization_strength", -1, ">= 0"),
        ("group_adam", "epsilon", 0, "> 0"),
        ("group_ftrl", "l21_regularization_strength", -1, ">= 0"),
    ],
)
def test_a_hyperparameter_out_of_range_is_refused_when_the_object_is_built(
    rule, argument, value, range_of_it
):
    with pytest.raises(ValueError, match=rf"^{argument} must be finite and {range_of_it}, got "):
        ours(ALL_RULES[rule], **{argument: value})


def test_a_text_is_no_hyperparameter():
    with pytest.raises(ValueError, match="learning_rate must be a number, .*, got '0.1'"):
        rec.optimizers.AdagradOptimizer("0.1")


@pytest.mark.parametrize("num_shards", [1, 2])
def test_an_optimizer_of_tensorflow_that_gets_a_table_says_which_one_to_use(num_shards):
    table = rec.get_embedding_variable("t", 2, partitioner=tf.fixed_size_partitioner(num_shards))
    loss = tf.reduce_sum(rec.embedding_lookup(table, [1]))
    message = "optimizers and Savers cannot take table 't.*'; use .* rec_estimator.optimizers"
    with pytest.raises(AttributeError, match=message):
        tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=list(table))
