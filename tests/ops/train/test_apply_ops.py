# SPDX-License-Identifier: Apache-2.0
"""TablesReserve and TablesApply: what a training step counts, inserts and updates."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import ESTIMATED_ROOTS, RULES, TableOracle
from session_threads import OP_THREADS, session_with_threads
from table_steps import apply_op, apply_ops, reserve_op

from rec_estimator import _ops

EDGE_KEYS = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]

# Their difference after the steps of these tests.
RELATIVE_ERROR = dict.fromkeys(ESTIMATED_ROOTS, 2e-6)


def slots_of(rule, dim):
    return RULES[rule].slots_of(dim)


def slot_attributes(slots):
    names, widths, initials = zip(*slots) if slots else ((), (), ())
    return {"slot_names": names, "slot_widths": widths, "slot_initials": initials}


def step_op(**changed):
    arguments = {
        "table": _ops.gen.rec_estimator_table_handle(shared_name="t", dim=3),
        "keys": tf.placeholder(tf.int64, [None]),
        "grads": tf.placeholder(tf.float32, [None, 3]),
        "counted_keys": tf.placeholder(tf.int64, [None]),
        "version": tf.constant(0, tf.int64),
        "hyper": [tf.constant(0.5)],
        "rule": "GradientDescent",
        "slot_names": [],
        "slot_widths": [],
        "slot_initials": [],
    }
    arguments.update(changed)
    return apply_op(**arguments)


# ------------------------------------------------------------------ shape function


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"keys": np.zeros([2, 2], np.int64)}, "Shape must be rank 1 but is rank 2"),
        ({"grads": np.zeros([2], np.float32)}, "Shape must be rank 2 but is rank 1"),
        ({"counted_keys": np.int64(2)}, "Shape must be rank 1 but is rank 0"),
        ({"version": np.zeros([1, 1], np.int64)}, "Shape must be at most rank 1 but is rank 2"),
        ({"hyper": [np.zeros([1, 1], np.float32)]}, "Shape must be at most rank 1 but is rank 2"),
    ],
    ids=["keys", "grads", "counted_keys", "version", "hyper"],
)
def test_shapes_are_checked_when_the_graph_is_built(changed, message):
    with pytest.raises(ValueError, match=message):
        step_op(**changed)


# ------------------------------------------------------------------ run-time errors

ATTR_ERRORS = {
    "unknown rule": ({"rule": "Magic"}, f"rule must be one of {', '.join(RULES)}, got 'Magic'"),
    "two hyperparameters": (
        {"hyper": [0.5, 0.5]},
        r"hyper of GradientDescent must be 1 tensors \(learning_rate\), got 2",
    ),
    "no slot": ({"rule": "Adagrad"}, "slot_names must be the 1 slots of Adagrad, got 0"),
    "widths missing": (
        {"rule": "Adagrad", "slot_names": ["a"], "slot_initials": [0.0]},
        "slot_names, slot_initials and, .* slot_widths must be of equal length, got 1, 1 and 0",
    ),
    "width zero": (
        {"rule": "Adagrad", "slot_names": ["a"], "slot_widths": [0], "slot_initials": [0.0]},
        "slot_widths must be >= 1 .* got 0 for slot a",
    ),
    "width absurd": (
        {"rule": "Adagrad", "slot_names": ["a"], "slot_widths": [2**62], "slot_initials": [0.0]},
        "slot_widths must be >= 1 and at most 16777216 in sum",
    ),
    "name twice": (
        {"slot_names": ["a", "a"], "slot_widths": [3, 3], "slot_initials": [0.0, 0.0]},
        "slot_names must be distinct and not empty, got 'a' at 1",
    ),
}


@pytest.mark.parametrize("changed, message", ATTR_ERRORS.values(), ids=ATTR_ERRORS)
def test_invalid_attributes_are_an_error(make_table, session, changed, message):
    make_table(3, np.zeros([1, 3]))
    op = step_op(keys=[1], grads=[[1.0] * 3], counted_keys=[], **changed)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(op)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_the_hyperparameters_of_its_oracle_in_their_order(make_table, session, rule):
    make_table(3, np.zeros([1, 3]))
    hyper = list(RULES[rule].hyper)
    slots = slot_attributes(slots_of(rule, 3))
    op = step_op(keys=[1], grads=[[1.0] * 3], counted_keys=[], rule=rule, hyper=[0.5] * 10, **slots)
    message = rf"hyper of {rule} must be {len(hyper)} tensors \({', '.join(hyper)}\), got 10"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(op)


INPUT_ERRORS = {
    "keys of rank 2": (
        [[1]],
        np.zeros([1, 3]),
        [],
        0,
        [0.5],
        r"keys of table t must be \[n\], got .*\[1,1\]",
    ),
    "keys of rank 0": (1, np.zeros([1, 3]), [], 0, [0.5], r"keys of table t must be \[n\]"),
    "other dim": ([1], np.zeros([1, 4]), [], 0, [0.5], r"grads of table t .* = \[1,3\].*\[1,4\]"),
    "fewer grads": ([1, 2], np.zeros([1, 3]), [], 0, [0.5], r"= \[2,3\], got shape \[1,3\]"),
    "grads of rank 1": ([1], np.zeros([3]), [], 0, [0.5], r"grads of table t must be \[n, dim\]"),
    "counted of rank 0": (
        [1],
        np.zeros([1, 3]),
        5,
        0,
        [0.5],
        r"counted_keys of table t must",
    ),
    "two versions": ([1], np.zeros([1, 3]), [], [0, 1], [0.5], r"version must be \[\] or, for 1"),
    "two rates": ([1], np.zeros([1, 3]), [], 0, [[0.5] * 2], r"hyper learning_rate must be \[\]"),
    "hyper nan": (
        [1],
        np.zeros([1, 3]),
        [],
        0,
        [np.nan],
        "learning_rate of Grad.* finite, got nan",
    ),
    "hyper infinite": ([1], np.zeros([1, 3]), [], 0, [np.inf], "must be finite, got inf"),
}


@pytest.mark.parametrize(
    "keys, grads, counted_keys, version, hyper, message", INPUT_ERRORS.values(), ids=INPUT_ERRORS
)
def test_a_refused_step_names_its_reason_and_applies_nothing(
    make_table, keys, grads, counted_keys, version, hyper, message
):
    table = make_table(3, np.zeros([1, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        table.call(
            "apply",
            np.asarray(keys, np.int64),
            np.asarray(grads, np.float32),
            np.asarray(counted_keys, np.int64),
            np.asarray(version, np.int64),
            [np.asarray(h, np.float32) for h in hyper],
            rule="GradientDescent",
            slot_names=[],
            slot_widths=[],
            slot_initials=[],
        )
    assert table.size() == 0


def test_training_before_initialization_names_table_and_remedy(make_table):
    message = "table t must be initialized before it is trained.*global_variables_initializer"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        make_table(3).apply("GradientDescent", [0.5], [1], np.zeros([1, 3]))


def test_a_slot_of_another_width_than_the_table_is_an_error(make_table):
    table = make_table(3, np.zeros([1, 3]))
    message = "slot_widths of Adagrad must be 3 for slot Adagrad of table t of dim 3, got 4"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        table.apply("Adagrad", [0.5], [1], np.zeros([1, 3]), slots=[("Adagrad", 4, 0.1)])
    message = "slot_widths of RowwiseAdagrad must be 1 for slot a of table t of dim 3, got 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        table.apply("RowwiseAdagrad", [0.5], [1], np.zeros([1, 3]), slots=[("a", 3, 0.1)])
    assert table.size() == 0


def test_a_second_optimizer_is_an_error_and_leaves_the_slots_alone(make_table):
    table = make_table(3, np.zeros([1, 3]))
    table.apply("Adagrad", [0.5], [1], np.ones([1, 3]), slots=slots_of("Adagrad", 3))
    before = table.export(slots_of("Adagrad", 3))
    message = r"slots of table t must be those of Adam \(Adam, Adam_1\), got Adagrad"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        table.apply("Adam", RULES["Adam"].example, [1], np.ones([1, 3]), slots=slots_of("Adam", 3))
    table.apply("Adagrad", [0.5], [], np.ones([0, 3]), slots=slots_of("Adagrad", 3))
    after = table.export(slots_of("Adagrad", 3))
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def test_an_optimizer_without_slots_may_follow_one_with_slots(make_table):
    table = make_table(3, np.zeros([1, 3]))
    table.apply("Adagrad", [0.5], [1], np.ones([1, 3]), slots=slots_of("Adagrad", 3))
    value = table.lookup([1])
    table.apply("GradientDescent", [0.5], [1], np.ones([1, 3]))
    np.testing.assert_array_equal(table.lookup([1]), value - np.float32(0.5))


# ------------------------------------------------------------------ batches


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_batch_changes_nothing(make_table, rule):
    table = make_table(3, np.zeros([1, 3]))
    table.apply(rule, RULES[rule].example, [], np.zeros([0, 3]), slots=slots_of(rule, 3))
    assert table.stats()[:2] == (0, 0)


@pytest.mark.parametrize("rule", RULES)
def test_one_key_takes_one_step_from_its_initial_vector(make_table, rule):
    bank = np.arange(15, dtype=np.float32).reshape(5, 3)
    table, oracle = make_table(3, bank), TableOracle(bank)
    grads = np.array([[1, -2, 3]], np.float32)
    table.apply(rule, RULES[rule].example, [12], grads, version=7, slots=slots_of(rule, 3))
    oracle.apply(rule, RULES[rule].example, [12], grads, version=7)
    np.testing.assert_array_equal(table.lookup([12]), oracle.lookup([12]))
    assert (table.lookup([12]) != bank[2]).all()


def test_repeats_are_summed_before_a_rule_with_slots_updates(make_table):
    bank = np.zeros([1, 2], np.float32)
    repeated, summed = make_table(2, bank, name="a"), make_table(2, bank, name="b")
    slots = slots_of("Adagrad", 2)
    repeated.apply("Adagrad", [0.5], [4, 9, 4], [[1, 2], [5, 5], [3, 4]], slots=slots)
    summed.apply("Adagrad", [0.5], [4, 9], [[4, 6], [5, 5]], slots=slots)
    np.testing.assert_array_equal(repeated.lookup([4, 9]), summed.lookup([4, 9]))


def test_gradient_descent_subtracts_each_occurrence_as_tensorflow_does(make_table):
    # 1 - 2^-25 rounds to 1 in float32, so eight such steps keep 1. Subtracting their sum would not.
    table = make_table(1, np.ones([1, 1]))
    table.apply("GradientDescent", [1.0], [4] * 8, np.full([8, 1], 2.0**-25))
    np.testing.assert_array_equal(table.lookup([4]), [[1.0]])


def test_counted_keys_are_inserted_and_counted_but_not_updated(make_table):
    bank = np.arange(4, dtype=np.float32).reshape(2, 2)
    table = make_table(2, bank)
    table.apply("GradientDescent", [1.0], [8], [[1, 1]], counted_keys=[3, 8, 3], version=6)
    np.testing.assert_array_equal(table.lookup([3, 8]), [bank[1], bank[0] - 1])
    np.testing.assert_array_equal(table.frequencies([3, 8]), [2, 2])
    np.testing.assert_array_equal(table.versions([3, 8]), [6, 6])
    assert table.size() == 2


def test_edge_keys_train_like_any_other(make_table):
    bank = np.random.default_rng(0).normal(size=[7, 3]).astype(np.float32)
    table, oracle = make_table(3, bank), TableOracle(bank)
    for step in range(3):
        keys = EDGE_KEYS[step:] + EDGE_KEYS
        grads = np.random.default_rng(step).normal(size=[len(keys), 3]).astype(np.float32)
        table.apply("GradientDescent", [0.5], keys, grads, EDGE_KEYS, version=step)
        oracle.apply("GradientDescent", [0.5], keys, grads, EDGE_KEYS, version=step)
    np.testing.assert_array_equal(table.lookup(EDGE_KEYS), oracle.lookup(EDGE_KEYS))
    np.testing.assert_array_equal(table.frequencies(EDGE_KEYS), oracle.frequencies(EDGE_KEYS))
    assert table.size() == 4


def test_a_nan_gradient_changes_only_its_own_row(make_table):
    table = make_table(2, np.zeros([1, 2]))
    table.apply("GradientDescent", [1.0], [1, 2, 3], [[np.nan, 1], [1, 1], [np.inf, 1]])
    np.testing.assert_array_equal(table.lookup([1, 2, 3]), [[np.nan, -1], [-1, -1], [-np.inf, -1]])


@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_batch_of_two_to_the_31_keys_is_refused(make_table, has_gradient):
    table = make_table(2, np.ones([1, 2], np.float32))
    with table.session.graph.as_default():
        # Addresses only: nobody writes to this memory.
        many = tf.reshape(tf.raw_ops.Empty(shape=[2**16, 2**15], dtype=tf.int64), [-1])
        lists = [many, tf.zeros([0], tf.int64)]
        keys, counted = lists if has_gradient else reversed(lists)
        # TensorFlow's own error where the system does not promise 16 GiB.
        message = "table t must fit into memory, .* 2147483648 keys|OOM when allocating"
        with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
            table.session.run(reserve_op([table.handle], [keys], [counted]).rows)
    assert table.size() == 0


@pytest.mark.parametrize("version", [-1, 0, 2**31, np.iinfo(np.int64).max])
def test_any_global_step_is_kept_as_version(make_table, version):
    table = make_table(2, np.zeros([1, 2]))
    table.apply("GradientDescent", [1.0], [5], [[1, 1]], version=version)
    np.testing.assert_array_equal(table.versions([5]), [version])


# ------------------------------------------------------------------ random sequences


@pytest.mark.parametrize("dim", [1, 5, 16, 33])
@pytest.mark.parametrize("rule", RULES)
def test_random_steps_agree_with_the_oracle(make_table, rule, dim):
    rng = np.random.default_rng(dim)
    bank = rng.normal(size=[11, dim]).astype(np.float32)
    table, oracle = make_table(dim, bank), TableOracle(bank)
    slots = slots_of(rule, dim)
    for step in range(25):
        keys = rng.integers(-40, 40, rng.choice([0, 1, 30, 300]))
        counted = rng.integers(-60, 60, rng.choice([0, 5]))
        grads = rng.normal(size=[len(keys), dim]).astype(np.float32)
        table.apply(rule, RULES[rule].example, keys, grads, counted, version=step, slots=slots)
        oracle.apply(rule, RULES[rule].example, keys, grads, counted, version=step)
    actual, expected = table.export(slots), oracle.export(slots)
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        if array.dtype == np.float32 and dim >= 8 and rule in RELATIVE_ERROR:
            tolerance = RELATIVE_ERROR[rule]
            np.testing.assert_allclose(actual[name], array, tolerance, tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(actual[name], array, err_msg=name)


def test_slots_that_come_later_start_from_their_initial_value(make_table):
    table = make_table(3, np.zeros([1, 3]))
    keys = np.arange(500)
    table.apply("GradientDescent", [1.0], keys, np.ones([500, 3]))
    table.apply("Adagrad", [1.0], [0], np.ones([1, 3]), slots=slots_of("Adagrad", 3))
    out = table.export(slots_of("Adagrad", 3))
    np.testing.assert_array_equal(out["Adagrad"][1:], np.full([499, 3], 0.1, np.float32))
    np.testing.assert_array_equal(out["Adagrad"][0], np.full([3], 0.1, np.float32) + 1)
    np.testing.assert_array_equal(out["values"][1:], np.full([499, 3], -1))


# ------------------------------------------------------------------ threads


def test_two_threads_lose_neither_update_nor_count(make_table, session):
    # Integers up to 2^24 add exactly in any order, so a wrong sum reveals a lost update.
    table = make_table(8, np.zeros([1, 8]))
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, 3000, [20, 4000]) for _ in range(2)]
    table.apply("GradientDescent", [1.0], [], np.zeros([0, 8]))  # Builds the op before the threads.
    table.lookup([0])
    errors = []

    def train(keys_of_steps):
        try:
            for keys in keys_of_steps:
                table.apply("GradientDescent", [1.0], keys, -np.ones([4000, 8]))
                values = table.lookup(keys)
                assert (values.min(axis=1) >= 1).all(), "a thread sees what it applied itself"
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=[batch]) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert errors == [] and not any(thread.is_alive() for thread in threads)
    keys, counts = np.unique(np.concatenate(batches), return_counts=True)
    np.testing.assert_array_equal(table.frequencies(keys), counts)
    np.testing.assert_array_equal(table.lookup(keys), np.repeat(counts[:, np.newaxis], 8, axis=1))
    assert table.size() == len(keys)


def test_the_number_of_threads_does_not_change_a_bit(graph):
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 500, 20000)
    grads = rng.normal(size=[20000, 16]).astype(np.float32)
    results = []
    for threads in OP_THREADS:
        with session_with_threads(*threads, graph=graph) as session:
            table = _ops.gen.rec_estimator_table_handle(shared_name="t", dim=16)
            session.run(_ops.gen.rec_estimator_table_initialize(table, np.zeros([1, 16])))
            step = step_op(
                table=table,
                keys=keys,
                grads=grads,
                counted_keys=[],
                rule="Adagrad",
                slot_names=["Adagrad"],
                slot_widths=[16],
                slot_initials=[0.1],
            )
            session.run(step)
            session.run(step)
            results.append(
                session.run(_ops.gen.rec_estimator_table_lookup(table, np.arange(500), dim=16))
            )
    for others in results[1:]:
        np.testing.assert_array_equal(results[0], others)


# ------------------------------------------------------------------ several tables


def tables_of(make_table, dims, **kwargs):
    rng = np.random.default_rng(len(dims))
    return [
        make_table(dim, rng.normal(size=[7, dim]), name=f"t{i}", **kwargs)
        for i, dim in enumerate(dims)
    ]


def adagrad(dims):
    return {
        "rule": "Adagrad",
        "slot_names": ["Adagrad"],
        "slot_widths": dims,
        "slot_initials": [0.1],
    }


def contents(tables):
    return [table.export([("Adagrad", table.dim, 0.1)]) for table in tables]


def test_one_step_of_several_tables_is_that_of_each_bit_for_bit(make_table, session):
    dims = [1, 4, 16, 33]
    rng = np.random.default_rng(3)
    sizes = [200, 6000, 0, 31]  # Below and above the size at which a batch is split.
    keys = [rng.integers(-50, 50, size) for size in sizes]
    grads = [rng.normal(size=[size, dim]).astype(np.float32) for size, dim in zip(sizes, dims)]
    counted = [rng.integers(0, 99, 20) for _ in dims]
    together = tables_of(make_table, dims)
    handles = [table.handle for table in together]
    version, rates = np.array([3, 4, 5, 6]), np.array([0.5, 1, 2, 4], np.float32)
    for _ in range(2):
        session.run(apply_ops(handles, keys, grads, counted, version, [rates], **adagrad(dims)))
    results = contents(together)
    for i, table in enumerate(tables_of(make_table, dims)):
        for _ in range(2):
            slots = [("Adagrad", table.dim, 0.1)]
            table.apply("Adagrad", [rates[i]], keys[i], grads[i], counted[i], version[i], slots)
        for name, value in contents([table])[0].items():
            np.testing.assert_array_equal(results[i][name], value, err_msg=name)


REFUSALS = {
    "a full table": ({}, "table t1 must have at most 4 rows, got 5 with this step, nothing"),
    "gradients of another dim": (
        {"grads": [np.ones([2, 3]), np.ones([5, 2]), np.ones([2, 3])]},
        r"grads of table t1 must be \[n, dim\] = \[5,3\], got shape \[5,2\]",
    ),
    "too few gradients": (
        {"grads": [np.ones([2, 3]), np.ones([5, 3])]},
        "grads must be one for each of the 3 tables of the reservation, got 2",
    ),
    "a table twice": ({"tables": [0, 1, 0]}, "tables must be distinct, got t0 twice"),
    "a rate that is not finite": ({"hyper": [np.float32([1, 2, np.nan])]}, "must be finite, got"),
    "rates for two tables": (
        {"hyper": [np.float32([1, 2])]},
        r"hyper learning_rate must be \[\] or, for 3 tables, \[3\], got shape \[2\]",
    ),
    "the slots of another rule": (
        {"rule": "Momentum", "slot_names": ["Momentum"], "hyper": [1.0, 1.0, 0.0]},
        r"slots of table t0 must be those of Momentum \(Momentum\), got Adagrad",
    ),
}


@pytest.mark.parametrize("changed, message", REFUSALS.values(), ids=REFUSALS)
def test_a_step_that_one_table_refuses_changes_none(make_table, session, changed, message):
    dims = [3, 3, 3]
    tables = tables_of(make_table, dims, max_rows=4)
    step = {
        "tables": [0, 1, 2],
        "keys": [[1, 2], [1, 2, 3, 4, 5], [8, 9]],
        "grads": [np.ones([2, 3]), np.ones([5, 3]), np.ones([2, 3])],
        "counted_keys": [[7], [], []],
        "version": 5,
        "hyper": [0.5],
        **adagrad(dims),
    }
    if changed:
        step["keys"][1] = [1, 2, 3, 1, 2]
    for table in tables:
        table.apply("Adagrad", [0.5], [1], np.ones([1, 3]), slots=[("Adagrad", 3, 0.1)])
    before = contents(tables)
    step.update(changed)
    step["tables"] = [tables[i].handle for i in step["tables"]]
    with pytest.raises(tf.errors.OpError, match=message):
        session.run(apply_ops(**step))
    for table, old in zip(contents(tables), before):
        for name in old:
            np.testing.assert_array_equal(table[name], old[name], err_msg=name)


def test_a_reservation_alone_changes_nothing_and_is_used_once(make_table, session):
    (table,) = tables_of(make_table, [3])
    reservation, _ = reserve_op([table.handle], [[5, 6]], [[7]])
    session.run(reservation.op)
    assert table.stats().total_count == 0
    applies = [
        _ops.gen.rec_estimator_tables_apply(reservation, [np.ones([2, 3])], 1, [0.5])
        for _ in range(2)
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match="reservation must be used once"):
        session.run(applies)
    session.run(applies[0])
    assert table.size() == 3


def test_what_is_no_reservation_is_refused(session):
    empty = tf.raw_ops.EmptyTensorList(
        element_shape=[-1], max_num_elements=0, element_dtype=tf.float32
    )
    op = _ops.gen.rec_estimator_tables_apply(empty, [np.ones([2, 3])], 1, [0.5])
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be the output of TablesReserve"):
        session.run(op)
