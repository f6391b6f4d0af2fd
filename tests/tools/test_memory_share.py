# SPDX-License-Identifier: Apache-2.0
"""memory_share: its shares against a plain sum, its output and its errors."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.tools import key_counts
from rec_estimator.tools.memory_share import SHARES, main, missed


def test_misses_are_the_occurrences_of_the_keys_that_are_not_in_memory():
    frequency = np.random.default_rng(0).integers(0, 50, 1000)
    frequencies, keys = np.unique(frequency, return_counts=True)
    descending = np.sort(frequency)[::-1]
    for share, misses in zip(SHARES, missed(frequencies, keys, SHARES)):
        expected = descending[int(1000 * share) :].sum() / frequency.sum()
        np.testing.assert_allclose(misses, expected, rtol=1e-12, atol=1e-12)


def test_keys_that_never_occur_miss_nothing():
    assert missed(np.array([0]), np.array([7]), SHARES) == [0.0] * len(SHARES)


@pytest.fixture
def prefix(tmp_path):
    """A checkpoint: table a has 10 rows, of which key 0 was trained 91 times; b has none."""
    tables = [
        rec.get_embedding_variable("a", 4, partitioner=tf.fixed_size_partitioner(2)),
        rec.get_embedding_variable("b", 4),
    ]
    keys = [tf.placeholder(tf.int64, [None]) for _ in tables]
    values = [rec.embedding_lookup(table, ids) for table, ids in zip(tables, keys)]
    loss = tf.add_n([tf.reduce_sum(value) for value in values])
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys[0]: [0] * 91 + list(range(1, 10)), keys[1]: []})
        return rec.Saver().save(session, str(tmp_path / "model"), global_step=1)


def test_output_names_rows_bytes_and_misses(prefix, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(key_counts, "_ROWS", 3)
    assert main([prefix]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a: 10 rows of 32 bytes, trained 100 times"
    assert lines[1].split() == ["in", "memory", "bytes", "misses"]
    shares = {line.split(" %")[0].strip(): line.split()[-2] for line in lines[2:-1]}
    assert (shares["10"], shares["50"], shares["100"]) == ("9.0", "5.0", "0.0")
    assert lines[-1] == "b: no rows"
    assert main([str(tmp_path), "--table", "b"]) == 0
    assert capsys.readouterr().out == "b: no rows\n"


def test_bad_arguments_are_errors_with_a_message(prefix, capsys, tmp_path):
    assert main([prefix, "--table", "c"]) == 2
    assert "--table must be one of ['a', 'b'], got 'c'" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing")]) == 2
    assert "rec-estimator memory-share: error: " in capsys.readouterr().err
