# SPDX-License-Identifier: Apache-2.0
"""Group lasso: rows become zero, and saves take them away."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from optimizer_rules import (
    initial_vectors,
    initialized_session,
    placeholders,
    random_batches,
    rows_of,
    table_from,
)

import rec_estimator as rec

ADAM, FTRL = rec.optimizers.GroupAdamOptimizer, rec.optimizers.GroupFtrlOptimizer
both = pytest.mark.parametrize("optimizer", [ADAM, FTRL])


def trained(optimizer, l21, batches, **arguments):
    """A table, and its session after a step for each (keys, gradients)."""
    table = table_from(initial_vectors(4), **arguments)
    keys, weights = placeholders(4)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys) * weights)
    step = tf.train.get_or_create_global_step()
    train = optimizer(0.1, l21_regularization_strength=l21).minimize(loss, step)

    def run(session):
        for batch in batches:
            session.run(train, dict(zip((keys, weights), batch)))

    return table, run


STRONG, WEAK = ([1, 2], np.full([2, 4], 10.0)), ([3, 4], np.full([2, 4], 1e-4))


@both
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_of_weak_gradients_become_zero_and_a_full_save_takes_them_away(
    optimizer, shards, tmp_path
):
    cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table, run = trained(optimizer, 0.05, [STRONG, WEAK], partitioner=cut)
    rows, saver = rows_of(table, [1, 2, 3, 4]), rec.Saver()
    with initialized_session() as session:
        run(session)
        values = session.run(rows)
        assert values[:2].all() and not values[2:].any()
        saver.save(session, str(tmp_path / "model"))
        assert session.run(table.size()) == 2
        np.testing.assert_array_equal(session.run(rows), [*values[:2], *initial_vectors(4)[3:5]])


def test_an_evicted_row_of_zeros_is_a_deletion_in_the_next_delta(tmp_path):
    table, run = trained(FTRL, 0.05, [STRONG, WEAK])
    saver, evict = rec.Saver(incremental=True), table.evict()
    path, size = str(tmp_path / "model"), table.size()
    with initialized_session() as session:
        session.run(tf.train.get_global_step().assign(1))
        saver.save(session, path, global_step=1)
        run(session)
        saver.save(session, path, global_step=2)
        assert session.run(size) == 4
        assert session.run(evict) == 2
        delta = saver.save(session, path, global_step=3)
        erased = tf.train.load_checkpoint(delta).get_tensor("table-keys_erased")
        assert sorted(erased) == [3, 4]
        saver.restore(session, delta)
        assert session.run(size) == 2


def test_another_optimizer_leaves_rows_of_zeros_in_a_save(tmp_path):
    table = table_from(np.zeros([1, 4], np.float32))
    train = rec.optimizers.FtrlOptimizer(0.1, l1_regularization_strength=1.0).minimize(
        tf.reduce_sum(rows_of(table, [1, 2]) * 0.1)
    )
    saver = rec.Saver()
    with initialized_session() as session:
        session.run(train)
        saver.save(session, str(tmp_path / "model"))
        assert session.run(table.size()) == 2


def test_group_adam_without_penalties_is_adam():
    bank = initial_vectors(5)
    tables = [table_from(bank, name) for name in ("group", "adam")]
    keys, weights = placeholders(5)
    # With so small an epsilon, it does not matter where the bias is corrected.
    optimizers = [rec.optimizers.GroupAdamOptimizer, rec.optimizers.AdamOptimizer]
    train = [
        optimizer(0.1, epsilon=1e-12).minimize(
            tf.reduce_sum(rec.embedding_lookup(table, keys) * weights), var_list=[table]
        )
        for optimizer, table in zip(optimizers, tables)
    ]
    with initialized_session() as session:
        for batch in random_batches(5, steps=20):
            session.run(train, dict(zip((keys, weights), batch)))
        group, adam = session.run([rows_of(table) for table in tables])
    # The value is computed anew from sums instead of being moved, so it rounds otherwise.
    np.testing.assert_allclose(group, adam, rtol=1e-4, atol=1e-5)


def test_group_ftrl_is_deeprecs_ftrl_of_a_table_with_l1():
    dim, rate, l1, l2 = 4, 0.1, 0.3, 0.02
    bank = initial_vectors(dim)
    table = table_from(bank)
    keys, weights = placeholders(dim)
    train = rec.optimizers.GroupFtrlOptimizer(
        rate, l2_regularization_strength=l2, l21_regularization_strength=l1 / np.sqrt(dim)
    ).minimize(tf.reduce_sum(rec.embedding_lookup(table, keys) * weights))
    value, squares, z = bank[7].astype(np.float64), np.full(dim, 0.1), np.zeros(dim)
    random = np.random.RandomState(0)
    with initialized_session() as session:
        for scale in (0.01, 1.0, 0.1, 3.0):
            gradient = scale * random.randn(dim)
            session.run(train, {keys: [7], weights: [gradient]})
            # The formula of KvSparseApplyFtrl in DeepRec's training_ali_ops.cc.
            sigma = (np.sqrt(squares + gradient**2) - np.sqrt(squares)) / rate
            squares = squares + gradient**2
            z = z + gradient - sigma * value
            norm = np.linalg.norm(z)
            scale = (l1 - norm) / ((np.sqrt(squares) / rate + 2 * l2) * norm)
            value = scale * z if norm > l1 else np.zeros(dim)
            # float32 beside float64.
            actual = session.run(rows_of(table, [7]))[0]
            np.testing.assert_allclose(actual, value, rtol=1e-4, atol=1e-6)
