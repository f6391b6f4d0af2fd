# SPDX-License-Identifier: Apache-2.0
"""The op that brings rows from disk into memory ahead of the step."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops

DIM = 1000  # A page of the file holds one row.
KEYS = np.arange(3000)
NO_SLOTS = {"slot_names": [], "slot_widths": [], "slot_initials": []}
BANK = np.arange(2 * DIM, dtype=np.float32).reshape(2, DIM)


def handle(folder=None, name="t"):
    storage = {} if folder is None else dict(storage_paths=[str(folder)], memory_rows=64)
    return _ops.gen.rec_estimator_table_handle(shared_name=name, dim=DIM, **storage)


def bring_in(tables, keys, batches_ahead=3):
    return _ops.gen.rec_estimator_tables_bring_in(tables, keys, batches_ahead=batches_ahead)


def fill(session, table):
    session.run(_ops.gen.rec_estimator_table_initialize(table, BANK))
    reservation, _ = _ops.gen.rec_estimator_tables_reserve(
        [table],
        [KEYS],
        [[]],
        rule="GradientDescent",
        slot_names=[],
        slot_widths=[],
        slot_initials=[],
    )
    grads = [np.ones([len(KEYS), DIM], np.float32)]
    session.run(_ops.gen.rec_estimator_tables_apply(reservation, grads, 3, [0.5]))


def counts(session, table):
    """Rows in memory, rows on disk, and bytes that were read."""
    found = session.run(_ops.gen.rec_estimator_table_tier_counts(table))
    return int(found[0]), int(found[1]), int(found[5])


# ------------------------------------------------------------------ shape function and errors


def test_tables_must_be_scalars_when_the_graph_is_built():
    with pytest.raises(ValueError, match="Shape must be rank 0 but is rank 1"):
        bring_in([tf.stack([handle(), handle()])], [KEYS])


@pytest.mark.parametrize("batches_ahead", [0, -1])
def test_batches_ahead_below_one_are_refused_when_the_graph_is_built(batches_ahead):
    with pytest.raises(ValueError, match="batches_ahead"):
        bring_in([handle()], [KEYS], batches_ahead)


def test_a_handle_that_is_no_scalar_is_refused():
    two = tf.placeholder_with_default(tf.stack([handle(), handle()]), shape=None)
    with (
        tf.Session() as session,
        pytest.raises(
            tf.errors.InvalidArgumentError, match=r"table must be a handle of shape \[\], got"
        ),
    ):
        session.run(bring_in([two], [KEYS]))


# ------------------------------------------------------------------ what it does


def test_rows_come_into_memory_and_keep_their_values(tmp_path):
    table = handle(tmp_path)
    values = _ops.gen.rec_estimator_table_lookup(table, KEYS, dim=DIM)
    with tf.Session() as session:
        fill(session, table)
        before = session.run(values)
        assert counts(session, table)[:2] == (64, 2936)
        session.run(bring_in([table], [KEYS[:500]]))
        in_memory, on_disk, read = counts(session, table)
        assert in_memory >= 500 and in_memory + on_disk == 3000
        session.run(bring_in([table], [KEYS[:500]]))
        again, _, read_again = counts(session, table)
        assert read_again == read and 500 <= again <= in_memory, "they are there; others may leave"
        np.testing.assert_array_equal(session.run(values), before)


def test_lists_of_one_table_are_one_batch(tmp_path):
    tables = [handle(tmp_path), handle(tmp_path)]
    with tf.Session() as session:
        fill(session, tables[0])
        # With one batch ahead, another batch would give up the first list.
        session.run(bring_in(tables, [KEYS[:400], KEYS[400:800].reshape(2, -1)], 1))
        session.run(bring_in([tables[0]], [np.zeros([0], np.int64)], 2))
        assert counts(session, tables[0])[0] >= 800


def test_repeats_unknown_keys_and_edge_keys_are_allowed(tmp_path):
    edges = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
    table = handle(tmp_path)
    with tf.Session() as session:
        fill(session, table)
        session.run(bring_in([table], [np.array([*edges, *edges, 10**12, 7, 7])]))
        assert sum(counts(session, table)[:2]) == 3000, "no row was made"


def test_a_table_that_is_new_or_in_memory_is_left_alone(tmp_path):
    tables = [handle(tmp_path, "new"), handle(name="in memory")]
    with tf.Session() as session:
        fill(session, tables[1])
        session.run(bring_in(tables, [KEYS, KEYS]))
        assert counts(session, tables[0]) == (0, 0, 0)
        assert counts(session, tables[1]) == (3000, 0, 0)
