# SPDX-License-Identifier: Apache-2.0
"""The regularization of TablesReserve: an L2 gradient and a decay of the rows of a step."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import ESTIMATED_ROOTS, RULES, TableOracle
from session_threads import OP_THREADS, session_with_threads
from table_steps import apply_op, apply_ops, reserve_op

from rec_estimator import _ops


def slot_attributes(slots):
    names, widths, initials = map(list, zip(*slots)) if slots else ([], [], [])
    return {"slot_names": names, "slot_widths": widths, "slot_initials": initials}


# By setting of the oracle: a value, and the attribute of the op.
SETTINGS = {"l2_scale": (0.03, "l2_scales"), "decay_rate": (0.02, "decay_rates")}

# Rows of 8 and more floats, whose square roots and powers TensorFlow approximates: the error of the
# test without regularization, in test_apply_ops.py.
RELATIVE_ERROR = {**dict.fromkeys(ESTIMATED_ROOTS, 2e-6), "Ftrl": 2e-5, "GroupFtrl": 2e-5}


def assert_same_rows(actual, expected, rule, dim):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        if array.dtype == np.float32 and dim >= 8 and rule in RELATIVE_ERROR:
            tolerance = RELATIVE_ERROR[rule]
            np.testing.assert_allclose(actual[name], array, tolerance, tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(actual[name], array, err_msg=name)


@pytest.mark.parametrize("dim", [1, 5, 16])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", RULES)
def test_random_steps_agree_with_the_oracle(make_table, rule, setting, dim):
    rng = np.random.default_rng(dim)
    bank = rng.normal(size=[11, dim]).astype(np.float32)
    value, attr = SETTINGS[setting]
    table = make_table(dim, bank, filter_freq=2, frozen_keys=[3, 7])
    oracle = TableOracle(bank, threshold=2, frozen_keys=[3, 7], **{setting: value})
    slots = RULES[rule].slots_of(dim)
    # Steps that are far apart, one after the other, equal, as of asynchronous workers, and earlier.
    for version in [0, 1, 5, 6, 6, 300, 299, 301, 10_000, 10_001]:
        keys = rng.integers(-40, 40, rng.choice([1, 30, 300]))
        counted = rng.integers(-60, 60, rng.choice([0, 5]))
        grads = rng.normal(size=[len(keys), dim]).astype(np.float32)
        step = (rule, RULES[rule].example, keys, grads, counted, version)
        table.apply(*step, slots, **{attr: [value]})
        oracle.apply(*step)
    assert_same_rows(table.export(slots), oracle.export(slots), rule, dim)


def test_a_key_gets_the_l2_gradient_once_however_often_it_occurs(make_table):
    table = make_table(2, np.array([[8.0, -4.0]]))
    for rule in ("GradientDescent", "Momentum"):
        hyper, slots = RULES[rule].example, RULES[rule].slots_of(2)
        before = table.lookup([6])
        table.apply(rule, hyper, [6] * 5, np.zeros([5, 2]), slots=slots, l2_scales=[0.5])
        np.testing.assert_array_equal(table.lookup([6]), before - hyper[0] * 0.5 * before)


def test_a_key_without_gradient_gets_no_l2_gradient_but_decays(make_table):
    table = make_table(1, np.ones([1, 1]))
    nothing = ([], np.zeros([0, 1]), [4])
    table.apply("GradientDescent", [0.5], *nothing, version=0, l2_scales=[0.5])
    np.testing.assert_array_equal(table.lookup([4]), [[1.0]])
    table.apply("GradientDescent", [0.5], *nothing, version=2, decay_rates=[0.5])
    np.testing.assert_array_equal(table.lookup([4]), [[0.25]])


def test_a_row_decays_from_the_step_that_made_it(make_table):
    table = make_table(1, np.full([1, 1], 8.0), filter_freq=3)
    for version in (0, 50, 90):  # Counted, counted, admitted.
        table.apply("GradientDescent", [0.5], [4], [[0.0]], version=version, decay_rates=[0.5])
    np.testing.assert_array_equal(table.lookup([4]), [[4.0]])
    table.apply("GradientDescent", [0.5], [4], [[0.0]], version=92, decay_rates=[0.5])
    np.testing.assert_array_equal(table.lookup([4]), [[1.0]])


def test_a_rate_that_float32_cannot_subtract_from_1_decays_all_the_same(make_table):
    table = make_table(1, np.ones([1, 1]))
    for version in (0, 1_000_000):
        table.apply("GradientDescent", [0.5], [4], [[0.0]], version=version, decay_rates=[1e-8])
    # 1 - 1e-8 is 1 in float32.
    np.testing.assert_allclose(table.lookup([4]), [[np.exp(-0.01)]], rtol=1e-7)


def test_versions_at_the_ends_of_int64_leave_finite_rows(make_table):
    table = make_table(1, np.ones([1, 1]))
    ends = np.iinfo(np.int64)
    for version in (ends.min, ends.max, ends.min, ends.max - 1):
        table.apply("GradientDescent", [0.5], [4], [[0.0]], version=version, decay_rates=[0.1])
    np.testing.assert_array_equal(table.lookup([4]), [[0.0]])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", ["GradientDescent", "Adagrad"])
def test_the_bits_do_not_depend_on_the_threads(graph, rule, setting):
    slots = slot_attributes(RULES[rule].slots_of(8))
    value, attr = SETTINGS[setting]
    rng = np.random.default_rng(0)
    bank = rng.normal(size=[64, 8]).astype(np.float32)
    steps = [
        (rng.integers(0, 3000, 20_000), rng.normal(size=[20_000, 8]).astype(np.float32), version)
        for version in (0, 3, 4)
    ]
    results = []
    for threads in OP_THREADS:
        with session_with_threads(*threads, graph=graph) as session:
            table = _ops.gen.rec_estimator_table_handle(shared_name="t", dim=8)
            session.run(_ops.gen.rec_estimator_table_initialize(table, bank))
            for keys, grads, version in steps:
                step = (table, keys, grads, [], version, RULES[rule].example)
                session.run(apply_op(*step, rule=rule, **slots, **{attr: [value]}))
            lookup = _ops.gen.rec_estimator_table_lookup(table, np.arange(3000), dim=8)
            results.append(session.run(lookup).tobytes())
    assert len(set(results)) == 1


def test_tables_of_one_step_have_settings_of_their_own(make_table, session):
    bank = np.ones([1, 2], np.float32)
    tables = [make_table(2, bank, name=name) for name in "abc"]
    handles, grads = [table.handle for table in tables], [np.zeros([1, 2], np.float32)] * 3
    settings = {"l2_scales": [0.0, 0.5, 0.0], "decay_rates": [0.0, 0.0, 0.5]}
    session.run(apply_ops(handles, [[5]] * 3, grads, [[]] * 3, np.int64(1), [0.5], **settings))
    rows = [table.lookup([5])[0, 0] for table in tables]
    np.testing.assert_array_equal(rows, [1.0, 0.75, 0.5])


@pytest.mark.parametrize(
    "attrs, message",
    [
        ({"l2_scales": [0.1, 0.1]}, "l2_scales must be none or, for 1 tables, 1, got 2"),
        ({"l2_scales": [-0.1]}, r"l2_scales must be in \[0, inf\), got -0.1"),
        ({"l2_scales": [np.inf]}, r"l2_scales must be in \[0, inf\), got inf"),
        ({"decay_rates": [1.0]}, r"decay_rates must be in \[0, 1\), got 1"),
        ({"decay_rates": [np.nan]}, r"decay_rates must be in \[0, 1\), got -?nan"),
    ],
)
def test_settings_out_of_range_are_refused(make_table, session, attrs, message):
    table = make_table(2, np.ones([1, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(reserve_op([table.handle], [[5]], [[]], **attrs).rows)
