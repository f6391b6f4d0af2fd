# SPDX-License-Identifier: Apache-2.0
"""The handle of a table, its initialization, statistics, frequencies and versions."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops

EDGE_KEYS = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
BANK = np.arange(12, dtype=np.float32).reshape(4, 3)


def handle(dim=3, **kwargs):
    kwargs.setdefault("shared_name", "t")
    return _ops.gen.rec_estimator_table_handle(dim=dim, **kwargs)


def train(table, keys, version=0, learning_rate=1.0):
    grads = np.ones([len(keys), table.dim])
    table.apply("GradientDescent", [learning_rate], keys, grads, version=version)


# ------------------------------------------------------------------ shape functions


def test_handle_and_stats_are_scalars():
    stats = _ops.gen.rec_estimator_table_stats(handle())
    assert handle().shape == []
    assert [output.shape for output in stats] == [[]] * 4
    assert _ops.gen.rec_estimator_table_is_initialized(handle()).shape == []


@pytest.mark.parametrize("op", ["frequencies", "versions"])
def test_per_key_outputs_have_the_shape_of_keys(op):
    function = getattr(_ops.gen, f"rec_estimator_table_{op}")
    assert function(handle(), tf.zeros([2, 0, 5], tf.int64)).shape == [2, 0, 5]
    assert function(handle(), tf.placeholder(tf.int64)).shape.rank is None


def test_bank_must_be_a_matrix_when_the_graph_is_built():
    with pytest.raises(ValueError, match="Shape must be rank 2 but is rank 1"):
        _ops.gen.rec_estimator_table_initialize(handle(), tf.zeros([3]))


@pytest.mark.parametrize("op", ["stats", "is_initialized"])
def test_table_must_be_a_scalar_when_the_graph_is_built(op):
    handles = tf.stack([handle(), handle()])
    with pytest.raises(ValueError, match="Shape must be rank 0 but is rank 1"):
        getattr(_ops.gen, f"rec_estimator_table_{op}")(handles)


@pytest.mark.parametrize("dim", [0, -1])
def test_dim_below_one_is_refused_when_the_graph_is_built(dim):
    with pytest.raises(ValueError, match="dim"):
        handle(dim=dim)


def test_activity_and_saved_rows_have_their_shapes():
    assert _ops.gen.rec_estimator_table_activity(handle()).shape == [9]
    found = _ops.gen.rec_estimator_table_saved_rows(handle())
    assert found.norms.shape.as_list() == found.keys.shape.as_list() == [None]
    assert found.non_finite.shape == found.first.shape == []


# ------------------------------------------------------------------ run-time errors


def test_one_name_with_two_dims_is_an_error_with_both(session):
    session.run(handle(dim=3).op)
    with pytest.raises(tf.errors.InvalidArgumentError, match="dim of table t must be 3,.* got 4"):
        session.run(handle(dim=4).op)


def test_one_name_with_two_default_values_is_an_error_with_both(session):
    session.run(handle(default_value=0.5).op)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"default_value of table t must be 0.5,.* got 0.25"
    ):
        session.run(handle(default_value=0.25).op)


def test_a_refused_handle_leaves_the_table_as_it_was(make_table):
    table = make_table(3, BANK)
    with pytest.raises(tf.errors.InvalidArgumentError):
        table.session.run(handle(dim=4).op)
    np.testing.assert_array_equal(table.lookup([1]), BANK[1:2])


def test_a_dim_above_the_limit_is_an_error(session):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"dim must be in \[1, 16777216\]"):
        session.run(handle(dim=2**31).op)


def test_a_handle_of_something_else_is_an_error(session):
    queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.int64])
    with pytest.raises(tf.errors.InvalidArgumentError, match="resource"):
        session.run(_ops.gen.rec_estimator_table_stats(queue))


def test_several_handles_in_one_tensor_are_an_error(session):
    handles = tf.placeholder_with_default(tf.stack([handle(), handle()]), shape=None)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table must be .* shape \[2\]"):
        session.run(_ops.gen.rec_estimator_table_stats(handles))


@pytest.mark.parametrize("shape", [[0, 3], [4, 2], [3], [], [1, 4, 3]], ids=str)
def test_a_bank_of_the_wrong_shape_is_an_error(make_table, shape):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bank of table t must be \[b, dim\]"):
        make_table(3, np.zeros(shape))


def test_a_refused_bank_leaves_the_table_as_it_was(make_table):
    table = make_table(3, BANK)
    train(table, [1])
    with pytest.raises(tf.errors.InvalidArgumentError):
        table.initialize(np.zeros([1, 4]))
    assert table.size() == 1
    np.testing.assert_array_equal(table.lookup([2]), BANK[2:3])


# ------------------------------------------------------------------ the life of a table


def test_a_table_is_initialized_by_its_bank(make_table):
    table = make_table(3)
    assert not table.call("is_initialized")
    table.initialize(BANK)
    assert table.call("is_initialized")


def test_two_handles_of_one_name_are_one_table(make_table):
    one, other = make_table(3, BANK), make_table(3)
    train(one, [7])
    np.testing.assert_array_equal(other.lookup([7]), BANK[3:] - 1)


def test_other_names_and_other_containers_are_other_tables(session, make_table):
    one, other = make_table(3, BANK), make_table(3, name="u")
    train(one, [7])
    assert other.size() == 0
    elsewhere = handle(container="elsewhere")
    assert session.run(_ops.gen.rec_estimator_table_stats(elsewhere)).size == 0


def test_two_sessions_share_nothing(graph, make_table):
    table = make_table(3, BANK)
    train(table, [7])
    with tf.Session(graph=graph) as other:
        assert not other.run(_ops.gen.rec_estimator_table_is_initialized(table.handle))
        assert other.run(_ops.gen.rec_estimator_table_stats(table.handle)).size == 0
    assert table.size() == 1


def test_the_handle_of_a_destroyed_table_makes_a_new_one(session, make_table):
    table = make_table(3, BANK)
    for _ in range(2):
        assert table.call("is_initialized")
        session.run(tf.raw_ops.DestroyResourceOp(resource=table.handle))
        assert not table.call("is_initialized")
        table.initialize(BANK)
        train(table, [7])
        assert table.size() == 1


def test_a_nan_default_value_equals_itself(make_table):
    make_table(3, BANK, default_value=float("nan"))
    assert np.isnan(make_table(3, default_value=float("nan")).lookup([1], unknown="default")).all()


def test_initializing_again_empties_the_table_and_takes_the_new_bank(make_table):
    table = make_table(3, BANK)
    train(table, [1, 2], version=5)
    table.initialize(BANK + 100)
    assert table.stats()[:2] == (0, 0)
    np.testing.assert_array_equal(table.lookup([1, 2]), BANK[1:3] + 100)
    np.testing.assert_array_equal(table.frequencies([1, 2]), [0, 0])
    np.testing.assert_array_equal(table.versions([1, 2]), [-1, -1])


def test_stats_count_rows_and_their_memory(make_table):
    table = make_table(3, BANK)
    empty = table.stats()
    assert empty[:2] == (0, 0)
    train(table, np.arange(20000))
    stats = table.stats()
    assert stats.size == stats.total_count == 20000
    assert stats.capacity >= 20000
    assert stats.memory_bytes >= 20000 * (3 * 4 + 24)  # Values, and 24 bytes per key at least.


# ------------------------------------------------------------------ frequencies and versions


@pytest.mark.parametrize("shape", [[0], [], [2, 0, 3], [2, 2]], ids=str)
def test_frequencies_and_versions_have_the_shape_of_keys(make_table, shape):
    table = make_table(3, BANK)
    train(table, [9], version=4)
    keys = np.full(shape, 9)
    np.testing.assert_array_equal(table.frequencies(keys), np.full(shape, 1))
    np.testing.assert_array_equal(table.versions(keys), np.full(shape, 4))


def test_frequencies_count_occurrences_and_versions_are_the_last(make_table):
    table = make_table(3, BANK)
    train(table, [5, 6, 5], version=1)
    train(table, [5], version=8)
    np.testing.assert_array_equal(table.frequencies([5, 6, 7]), [3, 1, 0])
    np.testing.assert_array_equal(table.versions([5, 6, 7]), [8, 1, -1])


def test_reading_unknown_keys_inserts_nothing(make_table):
    table = make_table(3, BANK)
    np.testing.assert_array_equal(table.frequencies(EDGE_KEYS), [0] * 4)
    np.testing.assert_array_equal(table.versions(EDGE_KEYS), [-1] * 4)
    assert table.stats()[:2] == (0, 0)


def test_edge_keys_are_keys_like_any_other(make_table):
    table = make_table(3, BANK)
    train(table, EDGE_KEYS, version=2)
    train(table, EDGE_KEYS[1:3], version=3)
    np.testing.assert_array_equal(table.frequencies(EDGE_KEYS), [1, 2, 2, 1])
    np.testing.assert_array_equal(table.versions(EDGE_KEYS), [2, 3, 3, 2])
    assert table.size() == 4


def test_frequencies_of_a_large_batch_are_exact(make_table):
    table = make_table(3, BANK)
    keys = np.random.default_rng(0).integers(-50, 50, 5000)
    train(table, keys, version=1)
    values, counts = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(table.frequencies(values), counts)


# ------------------------------------------------------------------ what steps have done


def test_activity_counts_occurrences_and_those_whose_key_had_a_row(make_table):
    table = make_table(3, BANK, filter_freq=2)
    expected = np.zeros(9, np.int64)
    for keys, rows, entries, found in (
        ([1, 1, 2], 1, 2, 0),
        ([1, 2, 3], 2, 3, 1),
        (EDGE_KEYS, 2, 7, 0),
        ([1, 2, 2, 0], 3, 7, 3),
    ):
        train(table, keys)
        expected += [0, 0, 0, len(keys), found, 0, 0, 0, 0]
        activity = table.call("activity")
        assert activity[2] > 0
        np.testing.assert_array_equal(activity[[0, 1]], [rows, entries])
        np.testing.assert_array_equal(activity[3:], expected[3:])


def test_activity_counts_the_same_in_small_and_large_batches(make_table):
    table = make_table(3, BANK)
    rng = np.random.default_rng(0)
    seen, looked_up, found = set(), 0, 0
    for size in (1, 100, 5000, 30_000):
        keys = rng.integers(0, 20_000, size)
        train(table, keys)
        looked_up += size
        found += sum(key in seen for key in keys.tolist())
        seen.update(keys.tolist())
        activity = table.call("activity")
        assert activity[[0, 3, 4]].tolist() == [len(seen), looked_up, found]


def test_removed_rows_are_those_that_were_evicted(make_table):
    table = make_table(3, BANK, filter_freq=2)
    train(table, [1, 1, 2, 2, 3], version=1)
    train(table, [2], version=5)
    table.call("evict", np.int64(5), steps_to_live=2, l2_weight_threshold=-1.0)
    activity = table.call("activity")
    assert activity[[0, 1, 5]].tolist() == [1, 1, 1]  # Key 3 had no row.


def test_a_table_that_was_never_saved_has_found_nothing(make_table):
    norms, keys, non_finite, first = make_table(3, BANK).call("saved_rows")
    assert (len(norms), len(keys), non_finite, first) == (0, 0, 0, b"")
