# SPDX-License-Identifier: Apache-2.0
"""Filters, admission and eviction: agreement of the kernels with the oracle, and errors."""

from typing import get_args

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import RULES, TableOracle

from rec_estimator import _ops
from rec_estimator.options import Filter

EDGE_KEYS = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
BANK = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
DEFAULT = -7.0

SIZE_RULE = r"max_element_size must be an integer in \[1, 1099511627776\]"
RATE_RULE = r"false_positive_probability must be in \(0, 1\)"


def bloom_of(size, rate):
    text = f"counting_bloom_filter max_element_size={size} false_positive_probability={rate!r}"
    return {"sketch": text}


def older_bloom_of(size, rate):
    """The attributes in graphs of older releases."""
    return {"max_element_size": size, "false_positive_probability": rate}


# The filter has room for many more keys than a test uses, so there are no false positives.
BLOOM = bloom_of(10**6, 1e-6)


def handle(**attrs):
    return _ops.gen.rec_estimator_table_handle(**{"shared_name": "t", "dim": 3, **attrs})


class Pair:
    """A table and its oracle. Each step is applied to both."""

    def __init__(self, make_table, threshold, coefficient=1, bloom=False):
        attrs = {"filter_freq": threshold, "filter_coefficient": coefficient}
        self.table = make_table(3, BANK, default_value=DEFAULT, **attrs, **(BLOOM if bloom else {}))
        self.oracle = TableOracle(BANK, DEFAULT, threshold, coefficient, bloom)
        self.cells = bloom

    def step(self, keys, grads=None, counted_keys=(), version=0, rule="Adagrad"):
        grads = np.ones([len(keys), 3], np.float32) if grads is None else grads
        slots = RULES[rule].slots_of(3)
        self.table.apply(rule, [0.5], keys, grads, counted_keys, version, slots)
        self.oracle.apply(rule, [0.5], keys, grads, counted_keys, version)

    def check(self, keys):
        table, oracle = self.table, self.oracle
        for unknown in ("initial", "default"):
            np.testing.assert_array_equal(table.lookup(keys, unknown), oracle.lookup(keys, unknown))
        np.testing.assert_array_equal(table.frequencies(keys), oracle.frequencies(keys))
        np.testing.assert_array_equal(table.versions(keys), oracle.versions(keys))
        np.testing.assert_array_equal(table.admits(keys), oracle.admits(keys))
        stats = table.stats()
        assert stats.size == len(oracle.rows)
        assert stats.total_count == len(oracle.rows) + len(oracle.filtered)
        slots = [("Adagrad", 3, 0.1)]
        wide = self.cells and oracle.threshold > 255
        cell_type = {"bloom_type": tf.uint16 if oracle.threshold < 65536 else tf.uint32}
        exported = table.export(slots, **(cell_type if wide else {}))
        expected = oracle.export(slots)
        for name, value in expected.items():
            np.testing.assert_array_equal(exported[name], value, err_msg=name)


COUNTERS = pytest.mark.parametrize("bloom", [False, True], ids=["counter", "bloom"])

# ------------------------------------------------------------------ shape functions and attributes


def test_admits_has_the_shape_of_keys_and_what_was_evicted_are_scalars():
    admits = _ops.gen.rec_estimator_table_admits
    nothing = np.zeros([0], np.int64)
    assert admits(handle(), tf.zeros([2, 0, 5], tf.int64), nothing).shape == [2, 0, 5]
    assert admits(handle(), tf.placeholder(tf.int64), nothing).shape.rank is None
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 0"):
        admits(handle(), nothing, np.int64(1))
    evict = _ops.gen.rec_estimator_table_evict
    assert [each.shape for each in evict(handle(), np.int64(3), steps_to_live=1)] == [[]] * 3
    with pytest.raises(ValueError, match="Shape must be rank 0 but is rank 1"):
        evict(handle(), np.zeros([1], np.int64), steps_to_live=1)


@pytest.mark.parametrize("attr", ["filter_freq", "max_element_size"])
def test_negative_numbers_are_refused_when_the_graph_is_built(attr):
    with pytest.raises(ValueError, match=attr):
        handle(**{attr: -1})


@pytest.mark.parametrize(
    "attrs, message",
    [
        ({"filter_freq": 2**31}, r"filter_freq must be in \[0, 2147483647\], got 2147483648"),
        ({"filter_coefficient": 2**31}, r"filter_coefficient must be in \[1, 2147483647\]"),
        *(
            ({"filter_freq": 3, **attrs}, message)
            for size, rate, message in [
                (2**40 + 1, 0.5, f"{SIZE_RULE}, got 1099511627777"),
                (5, 0.0, f"{RATE_RULE}, got 0"),
                (0, 0.5, f"{SIZE_RULE}, got 0"),
                (5, 1.0, f"{RATE_RULE}, got 1"),
                (5, -1.0, f"{RATE_RULE}, got -1"),
                (5, float("nan"), f"{RATE_RULE}, got -?nan"),
            ]
            for attrs in (bloom_of(size, rate), older_bloom_of(size, rate))
        ),
        (BLOOM, "filter_freq must be >= 1 with a sketch, got 0 with counting_bloom_filter"),
        ({"sketch": "bloom"}, "sketch must be one of counting_bloom_filter.*, got bloom"),
        ({"sketch": "counting_bloom_filter a=b"}, "sketch must be a name and numbers, .*, got 'c"),
        ({"sketch": "counting_bloom_filter a=1"}, "must be max_element_size and .*, got a"),
        ({**BLOOM, "max_element_size": 5}, "must be 0 with a sketch, got 5 and 0 with counting"),
    ],
    ids=str,
)
def test_an_invalid_filter_is_an_error(session, attrs, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(handle(**attrs).op)


# For each attribute of a filter: the attributes of a table, and another value of this one.
FILTER_ATTRS = {
    "filter_freq": ({"filter_freq": 3}, 4),
    "filter_coefficient": ({"filter_coefficient": 1}, 2),
    "sketch": ({"filter_freq": 3, **bloom_of(9, 0.5)}, bloom_of(9, 0.25)["sketch"]),
}


@pytest.mark.parametrize("attr", FILTER_ATTRS)
def test_one_name_with_two_filters_is_an_error_with_both(session, attr):
    attrs, given = FILTER_ATTRS[attr]
    session.run(handle(**attrs).op)
    session.run(handle(**attrs).op)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        session.run(handle(**{**attrs, attr: given}).op)
    present, other = (sorted(str(each).split()) for each in (attrs[attr], given))
    found = raised.value.message.split(f"{attr} of table t must be ")[1].splitlines()[0]
    first, second = found.split(", the value it was created with, got ")
    assert (sorted(first.split()), sorted(second.split())) == (present, other)


def test_a_graph_of_an_older_release_has_the_same_filter(session):
    session.run(handle(filter_freq=3, **bloom_of(1000, 0.01)).op)
    session.run(handle(filter_freq=3, **older_bloom_of(1000, 0.01)).op)
    message = "sketch of table t must be .*=0.01 .*=1000, the value .*, got .*=0.02 .*=1000"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(handle(filter_freq=3, **older_bloom_of(1000, 0.02)).op)


@pytest.mark.parametrize("kind", get_args(Filter))
def test_every_attribute_of_a_filter_is_compared(kind):
    assert set(kind().handle_attrs()) <= set(FILTER_ATTRS)


@pytest.mark.parametrize(
    "attrs, step, message",
    [
        (
            {},
            3,
            "exactly one of steps_to_live, l2_weight_threshold, seconds_to_live must be given, "
            "got -1, -1, -1",
        ),
        ({"steps_to_live": 3, "l2_weight_threshold": 0.5}, 3, "must be given, got 3, 0.5, -1"),
        ({"steps_to_live": -2}, 3, "steps_to_live must be >= 0, got -2"),
        ({"l2_weight_threshold": 0.0}, 3, "l2_weight_threshold must be finite and > 0, got 0"),
        ({"l2_weight_threshold": float("inf")}, 3, "finite and > 0, got inf"),
        ({"l2_weight_threshold": float("nan")}, 3, "finite and > 0, got -?nan"),
        (
            {"steps_to_live": 3},
            -1,
            "global_step must be >= 0 for eviction by steps_to_live, got -1",
        ),
    ],
    ids=str,
)
def test_an_invalid_eviction_is_an_error_and_evicts_nothing(make_table, attrs, step, message):
    pair = Pair(make_table, 0)
    pair.step([1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        pair.table.evict(step, **attrs)
    pair.check([1, 2])


def test_global_step_must_be_a_scalar(make_table):
    table = make_table(3, BANK)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"global_step must be \[\], got"):
        table.call("evict", np.zeros([2], np.int64), steps_to_live=1)


# ------------------------------------------------------------------ admission


@COUNTERS
def test_admits_counts_the_occurrences_in_its_input(make_table, bloom):
    """Rec SDK's timing: the batch that reaches the threshold already reads the row."""
    pair = Pair(make_table, 4, coefficient=2, bloom=bloom)
    admits = pair.table.admits
    assert admits([5, 6, 5]).tolist() == [True, False, True]
    assert admits([[5], [6]]).tolist() == [[False], [False]]
    assert admits(np.zeros([0, 2])).shape == (0, 2)
    assert admits([5, 6], [5, 7, 7]).tolist() == [True, False]
    assert admits([6, 7], [7]).tolist() == [False, True]
    assert admits([], [5, 5]).tolist() == []
    assert pair.table.stats()[:2] == (0, 0), "admits must not count"
    pair.step([6])
    assert admits([5, 6]).tolist() == [False, True]
    pair.step([6, 5])
    assert admits([5, 6]).tolist() == [True, True]
    pair.check([5, 6, 7])


def test_a_table_without_a_filter_admits_everything(make_table):
    assert make_table(3, BANK).admits(EDGE_KEYS).all()


def test_the_largest_counts_saturate(make_table):
    pair = Pair(make_table, 2**31 - 1, coefficient=2**31 - 1)
    pair.step([1])
    pair.step([1])
    pair.check([1])
    pair.step([1])
    assert pair.table.frequencies([1]).tolist() == [2**32 - 1]
    pair.step([1, 1, 1])
    pair.check([1])
    assert pair.table.frequencies([1]).tolist() == [2**32 - 1]


@COUNTERS
@pytest.mark.parametrize("threshold", [0, 1, 2, 20, 300, 70000])
def test_random_steps_equal_the_oracle(make_table, bloom, threshold):
    bloom = bloom and threshold > 0
    # Thresholds below and above what 4, 8 and 16 bits hold. The coefficient makes them reachable.
    coefficient = max(1, threshold // 7)
    pair = Pair(make_table, threshold, coefficient, bloom)
    rng = np.random.default_rng(threshold)
    keys = np.concatenate([EDGE_KEYS, rng.integers(-(2**62), 2**62, 40), np.arange(-20, 20)])
    for step in range(25):
        batch = rng.choice(keys, rng.integers(0, 60))
        # Whole numbers: sums are the same in any order.
        grads = rng.integers(-3, 4, [len(batch), 3]).astype(np.float32)
        counted = rng.choice(keys, rng.integers(0, 5))
        pair.step(batch, grads, counted, version=step, rule="GradientDescent")
        if step == 12:
            evicted = pair.oracle.evict_older(3, step)
            assert pair.table.evict(step, steps_to_live=3) == evicted
        if step == 18:
            evicted = pair.oracle.evict_smaller(20.0)
            assert pair.table.evict(l2_weight_threshold=20.0) == evicted
        pair.check(keys)


@pytest.mark.long
@COUNTERS
def test_admits_of_a_large_batch_equals_the_oracle(make_table, bloom):
    pair = Pair(make_table, 3, bloom=bloom)
    rng = np.random.default_rng(5)
    keys = np.arange(-8000, 8000)
    for step in range(3):
        batch = rng.choice(keys, 20000)
        grads = rng.integers(-3, 4, [len(batch), 3])
        pair.step(batch, grads, version=step, rule="GradientDescent")
    pair.check(keys)
    # The queried batch is large too, with some keys twice.
    batch = rng.choice(keys, 20000)
    np.testing.assert_array_equal(pair.table.admits(batch), pair.oracle.admits(batch))
    counted = rng.choice(keys, 20000)
    expected = pair.oracle.admits(batch, counted)
    np.testing.assert_array_equal(pair.table.admits(batch, counted), expected)


# ------------------------------------------------------------------ eviction


@pytest.mark.parametrize("bloom", [False, True])
def test_eviction_resets_versions_above_the_global_step(make_table, bloom):
    pair = Pair(make_table, 2, bloom=bloom)
    pair.step([1, 1, 2], version=1000)
    pair.step([3, 3], version=7)
    assert pair.table.evict(5, steps_to_live=3) == pair.oracle.evict_older(3, 5) == 0
    pair.check([1, 2, 3])
    assert pair.table.versions([1, 3]).tolist() == [5, 5]
    pair.step([3], version=6)
    assert pair.table.evict(8, steps_to_live=3) == pair.oracle.evict_older(3, 8) == 0
    assert pair.table.evict(9, steps_to_live=3) == pair.oracle.evict_older(3, 9) == 2 - bloom
    pair.check([1, 2, 3])


def test_steps_to_live_of_zero_keeps_the_keys_of_the_current_step(make_table):
    pair = Pair(make_table, 0)
    pair.step([1], version=4)
    assert pair.table.evict(4, steps_to_live=0) == 0
    assert pair.table.evict(5, steps_to_live=0) == 1


@pytest.mark.parametrize("steps", [0, 2**62, 2**63 - 1])
def test_no_number_of_steps_overflows(make_table, steps):
    pair = Pair(make_table, 0)
    pair.step([1], version=2**63 - 1)
    assert pair.table.evict(2**63 - 1, steps_to_live=steps) == 0
    assert pair.table.evict(0, steps_to_live=steps) == pair.oracle.evict_older(steps, 0) == 0
    pair.check([1])


def test_eviction_by_values_compares_half_the_squared_norm(make_table):
    pair = Pair(make_table, 2)
    # Rows 0 and 1 of the bank minus 0.5 in each element: half squared norms 4.375 and about 37.4.
    pair.step([0, 0, 1, 1, 2], grads=np.full([5, 3], 0.5), rule="GradientDescent")
    squares = 0.5 * np.square(pair.table.lookup([0, 1])).sum(axis=1)
    assert pair.table.evict(l2_weight_threshold=squares[0]) == 0, "equal is not smaller"
    above = float(np.nextafter(squares[0], np.float32(np.inf)))
    assert pair.table.evict(l2_weight_threshold=above) == pair.oracle.evict_smaller(above) == 1
    pair.check([0, 1, 2])
    assert pair.table.frequencies([2]).tolist() == [1], "counted keys have no value"
