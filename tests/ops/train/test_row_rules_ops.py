# SPDX-License-Identifier: Apache-2.0
"""Row limits, the padding key and frozen keys: agreement of the kernels with the oracle."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import RULES, TableOracle, TooManyRows
from table_steps import reserve_op

from rec_estimator import _ops

EDGE_KEYS = [0, 1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
DIM = 3
BANK = np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM) + 1
DEFAULT = -7.0
SLOTS = [("Adagrad", DIM, 0.1)]


def train(table, keys, counted_keys=(), **kwargs):
    grads = np.ones([len(keys), DIM], np.float32)
    table.apply("Adagrad", [0.5], keys, grads, counted_keys, slots=SLOTS, **kwargs)


class Pair:
    """A table and its oracle. Each step is applied to both."""

    def __init__(self, make_table, max_rows=0, frozen=(), threshold=0, coefficient=1):
        self.table = make_table(
            DIM,
            BANK,
            default_value=DEFAULT,
            filter_freq=threshold,
            filter_coefficient=coefficient,
            max_rows=max_rows,
            has_padding_key=True,
            frozen_keys=list(frozen),
        )
        self.oracle = TableOracle(
            BANK,
            DEFAULT,
            threshold,
            coefficient,
            max_rows=max_rows,
            has_padding=True,
            frozen_keys=frozen,
        )

    def step(self, keys, grads, counted_keys, version, rule="Adagrad"):
        """Applies a step to both. Returns whether there was room for it."""
        step = [rule, [0.5], keys, grads, counted_keys, version]
        try:
            self.oracle.check_room([*keys, *counted_keys])
        except TooManyRows:
            with pytest.raises(tf.errors.ResourceExhaustedError, match="table t must have at most"):
                self.table.check_room(keys, counted_keys)
            with pytest.raises(tf.errors.ResourceExhaustedError, match="table t must have at most"):
                self.table.apply(*step, RULES[rule].slots_of(DIM))
            return False
        self.table.check_room(keys, counted_keys)
        self.table.apply(*step, RULES[rule].slots_of(DIM))
        self.oracle.apply(*step)
        return True

    def check(self, keys):
        table, oracle = self.table, self.oracle
        for unknown in ("initial", "default"):
            np.testing.assert_array_equal(table.lookup(keys, unknown), oracle.lookup(keys, unknown))
        for method in ("frequencies", "versions", "admits", "contains"):
            np.testing.assert_array_equal(
                getattr(table, method)(keys), getattr(oracle, method)(keys), err_msg=method
            )
        exported = table.export(SLOTS)
        for name, value in oracle.export(SLOTS).items():
            np.testing.assert_array_equal(exported[name], value, err_msg=name)


@pytest.mark.parametrize("threshold, coefficient", [(0, 1), (3, 1), (7, 3), (2, 5)])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_steps_agree_with_the_oracle(make_table, threshold, coefficient, seed):
    rng = np.random.default_rng(seed)
    frozen = [3, 40, EDGE_KEYS[2]]
    pair = Pair(make_table, 60, frozen, threshold, coefficient)
    pool = np.array([*range(-2, 100), *EDGE_KEYS, *frozen])
    refused = 0
    for step in range(60):
        most = 4 if step % 3 else 40
        keys, counted = (rng.choice(pool, rng.integers(most)) for _ in range(2))
        grads = rng.normal(size=[len(keys), DIM]).astype(np.float32)
        refused += not pair.step(keys, grads, counted, step)
        if step % 15 == 14:
            pair.check(pool)
            evicted = pair.table.evict(step, steps_to_live=10)
            assert evicted == pair.oracle.evict_older(10, step)
    pair.check(pool)
    assert 0 < refused < 60, "steps with room and without"


def test_a_step_of_many_keys_is_refused_as_one(make_table):
    table = make_table(DIM, BANK, max_rows=50_000, has_padding_key=True)
    train(table, np.arange(30_000))
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        train(table, np.arange(20_000, 50_001), counted_keys=[-1, 7, 60_000])
    assert "table t must have at most 50000 rows, got 50002 with this step" in error.value.message
    assert "host_vocabulary_size or ssd_vocabulary_size of create_table" in error.value.message
    assert table.stats().size == 30_000
    np.testing.assert_array_equal(table.frequencies([7, 25_000, 45_000]), [1, 1, 0])
    train(table, np.arange(20_000, 50_000), counted_keys=[-1, 7])
    assert table.stats().size == 50_000
    train(table, np.arange(50_000))  # The table is full, but no key is new.
    with pytest.raises(tf.errors.ResourceExhaustedError, match="got 50001"):
        train(table, [50_000])


def test_a_refused_step_leaves_slots_as_they_are(make_table):
    table = make_table(DIM, BANK, max_rows=2)
    train(table, [1, 2])
    before = table.export(SLOTS)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        train(table, [1, 2, 3], version=9)
    for name, value in table.export(SLOTS).items():
        np.testing.assert_array_equal(value, before[name])


def test_keys_that_are_only_counted_take_no_room(make_table):
    table = make_table(DIM, BANK, max_rows=1, filter_freq=2)
    train(table, [1, 2, 3, 4])
    train(table, [1])
    assert table.stats().size == 1
    with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 1 rows, got 2"):
        table.check_room([2])


def test_an_evicted_row_makes_room(make_table):
    table = make_table(DIM, BANK, max_rows=2)
    train(table, [1, 2], version=0)
    train(table, [2], version=5)
    assert table.evict(6, steps_to_live=3) == 1
    train(table, [3], version=6)
    assert table.stats().size == 2


def test_padding_is_a_key_like_others_without_has_padding_key(make_table):
    table = make_table(DIM, BANK, default_value=DEFAULT)
    np.testing.assert_array_equal(table.lookup([-1]), BANK[[3]])
    train(table, [-1])
    np.testing.assert_array_equal(table.frequencies([-1]), [1])
    assert table.contains([-1, 5]).tolist() == [True, False]


@pytest.mark.parametrize("rule", ["Adagrad", "GradientDescent"])
def test_frozen_keys_are_inserted_and_keep_their_values(make_table, rule):
    table = make_table(DIM, BANK, frozen_keys=[6, 9])
    keys, grads = [6, 6, 2], np.ones([3, DIM], np.float32)
    for _ in range(2):
        table.apply(rule, [0.5], keys, grads, slots=RULES[rule].slots_of(DIM))
    np.testing.assert_array_equal(table.lookup([6]), BANK[[2]])
    assert (table.lookup([2]) != BANK[[2]]).all()
    assert table.contains([6, 9]).tolist() == [True, False]
    if rule == "Adagrad":
        exported = table.export(SLOTS)
        np.testing.assert_array_equal(exported["keys"], [2, 6])
        np.testing.assert_array_equal(exported["Adagrad"][1], np.full(DIM, 8.1, np.float32))


def test_only_new_leaves_an_initialized_table_as_it_is(make_table):
    table = make_table(DIM)
    table.call("initialize", BANK, only_new=True)
    train(table, [4])
    table.call("initialize", BANK + 1, only_new=True)
    assert table.stats().size == 1
    np.testing.assert_array_equal(table.lookup([1]), BANK[[1]])
    table.call("initialize", BANK + 1)
    assert table.stats().size == 0


# ------------------------------------------------------------------ restores


def test_a_checkpoint_with_more_rows_than_the_limit_changes_nothing(make_table, tmp_path):
    source = make_table(DIM, BANK, name="source")
    train(source, [1, 2, 3])
    source.save(tmp_path / "ckpt", slots=SLOTS)
    table = make_table(DIM, BANK + 1, max_rows=2)
    train(table, [8])
    before = table.export(SLOTS)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="got 3 in the checkpoint"):
        table.restore(tmp_path / "ckpt", BANK, slots=SLOTS)
    for name, value in table.export(SLOTS).items():
        np.testing.assert_array_equal(value, before[name])
    np.testing.assert_array_equal(table.lookup([1]), (BANK + 1)[[1]])
    roomy = make_table(DIM, name="roomy", max_rows=3)
    roomy.restore(tmp_path / "ckpt", BANK, slots=SLOTS)
    assert roomy.stats().size == 3


def test_keys_admitted_by_a_lower_threshold_count_for_the_limit(make_table, tmp_path):
    source = make_table(DIM, BANK, name="source", filter_freq=5)
    train(source, [1, 2, 3] * 2)
    source.save(tmp_path / "ckpt", slots=SLOTS)
    table = make_table(DIM, max_rows=2, filter_freq=2)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="got 3 in the checkpoint"):
        table.restore(tmp_path / "ckpt", BANK, slots=SLOTS)
    assert table.stats().total_count == 0


def test_a_padding_key_in_a_checkpoint_is_not_restored(make_table, tmp_path):
    source = make_table(DIM, BANK, name="source")
    train(source, [-1, 5])
    source.save(tmp_path / "ckpt", slots=SLOTS)
    table = make_table(DIM, default_value=DEFAULT, max_rows=1, has_padding_key=True)
    table.restore(tmp_path / "ckpt", BANK, slots=SLOTS)
    assert table.contains([-1, 5]).tolist() == [False, True]
    np.testing.assert_array_equal(table.lookup([-1]), np.full([1, DIM], DEFAULT))


# ------------------------------------------------------------------ attributes and shapes


def handle(**attrs):
    return _ops.gen.rec_estimator_table_handle(**{"shared_name": "t", "dim": DIM, **attrs})


def test_shape_functions():
    contains = _ops.gen.rec_estimator_table_contains
    assert contains(handle(), tf.zeros([2, 0, 5], tf.int64)).shape == [2, 0, 5]
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 2"):
        reserve_op([handle()], [np.zeros([1, 1], np.int64)], [np.zeros([1], np.int64)])
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 0"):
        reserve_op([handle()], [np.zeros([1], np.int64)], [np.int64(1)])


def test_bad_attributes_are_refused(session):
    with pytest.raises(ValueError, match="max_rows"):
        handle(max_rows=-1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="frozen_keys must be distinct, got 5"):
        session.run(handle(frozen_keys=[5, 6, 5]).op)


@pytest.mark.parametrize(
    "first, second, message",
    [
        ({"max_rows": 3}, {"max_rows": 4}, "max_rows of table t must be 3, .* got 4"),
        ({"has_padding_key": True}, {}, "has_padding_key of table t must be 1, .* got 0"),
        ({"frozen_keys": [1]}, {"frozen_keys": [2]}, r"frozen_keys of table t must be \[1\]"),
    ],
    ids=["max_rows", "has_padding_key", "frozen_keys"],
)
def test_one_name_with_two_row_rules_is_an_error_with_both(session, first, second, message):
    session.run(handle(**first).op)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(handle(**second).op)
