# SPDX-License-Identifier: Apache-2.0
"""All rules over rows of 16 bits, compared with NumPy: each step rounds a number once."""

import zlib

import numpy as np
import oracle
import pytest
import tensorflow.compat.v1 as tf
from narrow_tables import NARROW_TYPES, Contents, trainer
from optimizer_rules import (
    ALL_RULES,
    RuleOracle,
    initial_vectors,
    initialized_session,
    ours,
    random_batches,
    rules,
    table_from,
)

import rec_estimator as rec

STEPS = 8
# Their slots of 16 bits are refused.
EXACT_SLOTS = {"AdagradDecay", "AMSGrad", "CenteredRMSProp"}
# What eight numbers lose by the CPU's estimate of a root, in float32.
ESTIMATE_ERROR = 2e-6


def numbers_of(row):
    """The value of a row of the oracle, then its slots."""
    return [row.value, *row.slots.values()]


def differ_at_most(found, expected, before, dtype):
    """The difference that the estimate of a root can make in one step: float32 [width]."""
    if dtype == tf.float32:
        return ESTIMATE_ERROR * (np.abs(expected) + np.abs(expected - before))
    # The other neighbour, if the float32 results are on both sides of what random bits decide.
    bits, least = (10, -14) if dtype == tf.float16 else (7, -126)
    largest = np.maximum(np.abs(found), np.abs(expected))
    return 2.0 ** (np.maximum(np.frexp(largest)[1] - 1, least) - bits)


def check_and_copy(contents, rows, before, types, is_exact):
    """Compares the rows of a table with those of the oracle, which then continue with the bits."""
    assert contents.keys() == rows.keys()
    for key, (value, slots, *_) in contents.items():
        row = rows[key]
        found, expected = [value, *slots.values()], numbers_of(row)
        assert len(found) == len(expected)
        for i, (mine, its) in enumerate(zip(found, expected)):
            if is_exact:
                np.testing.assert_array_equal(mine, its)
                continue
            old = before[key][i] if key in before else its
            dtype = types[min(i, 1)] if len(its) > 1 else tf.float32
            assert np.all(np.abs(mine - its) <= differ_at_most(mine, its, old, dtype))
        row.value, row.slots = value, dict(zip(row.slots, slots.values()))


@pytest.mark.each_value
@NARROW_TYPES
@pytest.mark.parametrize("dim", [5, 16])
@rules(ALL_RULES)
def test_a_rule_computes_in_float32_and_rounds_as_in_numpy(rule, dim, value_dtype, slot_dtype):
    """Bit for bit, but for eight numbers at a time of rules that estimate roots."""
    optimizer, bank = ours(rule), initial_vectors(dim)
    if optimizer.table_rule in EXACT_SLOTS:
        slot_dtype = tf.float32
    is_exact = dim < 8 or optimizer.table_rule not in oracle.ESTIMATED_ROOTS
    types = value_dtype, slot_dtype
    table = table_from(bank, value_dtype=value_dtype, slot_dtype=slot_dtype)
    train = trainer(table, optimizer)
    contents = Contents(table, optimizer)
    dtypes = oracle.RowTypes(*(each.as_numpy_dtype for each in types), zlib.crc32(b"table"))
    expected = RuleOracle(rule, bank, dtypes=dtypes)
    with initialized_session() as session:
        for batch in random_batches(dim, STEPS):
            before = {key: numbers_of(row) for key, row in expected.rows.items()}
            train(session, *batch)
            expected.step(*batch)
            check_and_copy(contents.of(session), expected.rows, before, types, is_exact)


@pytest.mark.parametrize("value_dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
def test_every_float_is_rounded_as_in_numpy(value_dtype):
    random = np.random.RandomState(4)
    n, dim = 1000, 16
    floats = random.randint(0, 2**32, [n, dim], np.uint64).astype(np.uint32).view(np.float32)
    # Half of them are near float16's numbers. TensorFlow's threads take denormal floats for 0.
    floats[::2] = random.randn(n // 2, dim) * 10.0 ** random.uniform(-9, 6, [n // 2, dim])
    floats[~np.isfinite(floats) | (np.abs(floats) < 2.0**-126)] = 0
    table = table_from(np.zeros([1, dim], np.float32), value_dtype=value_dtype)
    train = trainer(table, rec.optimizers.GradientDescentOptimizer(1.0))
    export = table.export()
    with initialized_session() as session:
        train(session, np.arange(n), -floats)
        found = session.run(export)
    for key, value in zip(found.keys, found.values):
        noise = oracle.rounding_noise(zlib.crc32(b"table"), int(key), 0, 0)
        expected = oracle.round_stochastically(floats[key], value_dtype.as_numpy_dtype, noise)
        np.testing.assert_array_equal(value, expected.astype(np.float32))
