# SPDX-License-Identifier: Apache-2.0
"""The ops that write rows: shape functions, edge keys, and initial rows that are refused."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops

EDGE_KEYS = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
BANK = np.zeros([1, 3], np.float32)
NONE = np.zeros([0], np.int64)


def handle(**kwargs):
    return _ops.gen.rec_estimator_table_handle(dim=3, shared_name="t", **kwargs)


def test_keys_and_rows_must_fit_when_the_graph_is_built():
    table, keys = handle(), tf.zeros([2], tf.int64)
    with pytest.raises(ValueError, match="must be equal"):
        _ops.gen.rec_estimator_table_assign(table, keys, tf.zeros([1, 3]), NONE, 0)
    with pytest.raises(ValueError, match="must be rank 2"):
        _ops.gen.rec_estimator_table_initialize_rows(table, BANK, keys, tf.zeros([2]))
    with pytest.raises(ValueError, match="must be rank 1"):
        _ops.gen.rec_estimator_table_erase(table, tf.zeros([2, 1], tf.int64), 0)
    assert _ops.gen.rec_estimator_table_erase(table, keys, 0).shape == []


def test_every_key_can_be_written_and_erased():
    table, rows = handle(), np.arange(12, dtype=np.float32).reshape(4, 3)
    initialize = _ops.gen.rec_estimator_table_initialize(table, BANK)
    assign = _ops.gen.rec_estimator_table_assign(table, EDGE_KEYS, rows, [4, 3, 2, 2**40], 7)
    erase = _ops.gen.rec_estimator_table_erase(table, EDGE_KEYS[:2], 8)
    lookup = _ops.gen.rec_estimator_table_lookup(table, EDGE_KEYS, dim=3, unknown="initial")
    counts = _ops.gen.rec_estimator_table_frequencies(table, EDGE_KEYS)
    versions = _ops.gen.rec_estimator_table_versions(table, EDGE_KEYS)
    with tf.Session() as session:
        session.run(initialize)
        session.run(assign)
        assert session.run(lookup).tolist() == rows.tolist()
        assert session.run(counts).tolist() == [4, 3, 2, 2**32 - 1]
        assert session.run(erase) == 2
        assert session.run(versions).tolist() == [-1, -1, 7, 7]
        assert session.run(lookup)[:2].tolist() == np.zeros([2, 3]).tolist()


def test_initial_rows_replace_all_rows_or_change_nothing():
    table = handle(max_rows=2, filter_freq=5)
    keys, rows = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, 3])
    fill = _ops.gen.rec_estimator_table_initialize_rows(table, BANK, keys, rows)
    size = _ops.gen.rec_estimator_table_stats(table).size
    counts = _ops.gen.rec_estimator_table_frequencies(table, [1, 2, 3])
    with tf.Session() as session:
        session.run(fill, {keys: [1], rows: np.ones([1, 3])})
        for bad, error in (([2, 2], "got 2 twice"), ([1, 2, 3], "in the file")):
            with pytest.raises(tf.errors.OpError, match=error):
                session.run(fill, {keys: bad, rows: np.ones([len(bad), 3])})
            assert session.run(size) == 1
        session.run(fill, {keys: [2, 3], rows: np.ones([2, 3])})
        assert session.run(counts).tolist() == [0, 5, 5]
