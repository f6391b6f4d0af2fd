# SPDX-License-Identifier: Apache-2.0
"""rec-estimator tune: its choices against NumPy, a table's memory, its output and its errors."""

import numpy as np
import pyarrow
import pytest
import tensorflow.compat.v1 as tf
from pyarrow import parquet

import rec_estimator as rec
from rec_estimator.tools.key_counts import Frequencies
from rec_estimator.tools.tune_filter import CANDIDATES, choices, main, proposed


def frequencies_of(counts):
    return Frequencies(*np.unique(counts, return_counts=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_choice_leaves_the_keys_that_reach_its_threshold(seed):
    counts = (np.random.default_rng(seed).random(2000) ** -0.9).astype(np.int64)
    of = choices(frequencies_of(counts), 64)
    assert [each.filter_freq for each in of] == [0, *CANDIDATES]
    for each in of:
        left = counts[counts >= each.filter_freq]
        assert each.rows == len(left)
        assert each.rows_share == len(left) / len(counts)
        assert each.covered == left.sum() / counts.sum()
        assert each.counter_bytes == len(left) * 64 + len(counts) * 40


@pytest.mark.parametrize(
    ("counts", "cover", "filter_freq"),
    [
        ([100] * 50 + [1] * 50, 0.5, 10),
        ([100] * 51 + [1] * 49, 0.5, 0),  # More than half of the keys are left.
        ([1] * 1000, 0.5, 0),  # Nothing would be left.
        ([4] * 100 + [1] * 200, 0.5, 3),
        ([4] * 100 + [1] * 200, 0.7, 0),
        ([9] * 10 + [2] * 10 + [1] * 30, 0.6, 5),
    ],
)
def test_the_highest_threshold_that_covers_enough_and_pays_is_proposed(counts, cover, filter_freq):
    assert proposed(choices(frequencies_of(counts), 64), cover) == filter_freq


@pytest.mark.parametrize("kind", ["none", "counter", "bloom"])
def test_memory_is_about_that_of_a_table(kind):
    rows, keys, dim = 20_000, 100_000, 16
    option = {
        "none": None,
        "counter": rec.CounterFilter(2),
        "bloom": rec.CBFFilter(2, keys, 0.01),
    }[kind]
    table = rec.get_embedding_variable(
        "t", dim, ev_option=rec.EmbeddingVariableOption(filter_option=option)
    )
    ids = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, ids))
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(table.memory_bytes())
        session.run(train, {ids: np.arange(keys)})
        session.run(train, {ids: np.arange(rows)})
        there = session.run(table.memory_bytes()) - before
    counts = np.where(np.arange(keys) < rows, 2, 1)
    none, two = choices(frequencies_of(counts), 4 * dim * 2)[:2]
    about = {
        "none": none.counter_bytes,
        "counter": two.counter_bytes,
        "bloom": two.bloom_bytes,
    }[kind]
    assert 0.75 * there < about < 1.25 * there


def test_a_file_gets_a_table_and_a_proposal_that_can_be_pasted(tmp_path, capsys):
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n" + "7,1\n" * 20 + "8,2\n9,\n")
    assert main([str(path), "--column", "user", "--dim", "1", "--slots", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "user: 22 occurrences of 3 keys"
    assert lines[2].split() == ["none", "3", "100.0", "%", "100.0", "%", "132", "B"]
    assert lines[3].split()[:6] == ["2", "1", "33.3", "%", "90.9", "%"]
    assert [eval("rec." + line.split(": ")[1]) for line in lines[-2:]] == [
        rec.CounterFilter(10),
        rec.CBFFilter(10, 3, 0.01),
    ]
    assert main([str(path), "--column", "user", "--occurrences", "44"]) == 0
    assert "max_element_size=6," in capsys.readouterr().out  # One batch gives a bound.
    assert main([str(path), "--column", "user", "item", "--cover", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "proposed: no filter"


def test_a_checkpoint_gives_the_counts_of_rows_and_filtered_keys(tmp_path, capsys):
    filters = {"a": rec.CounterFilter(3), "b": rec.CBFFilter(3, 100, 0.01), "c": None}
    tables = [
        rec.get_embedding_variable(
            name,
            4,
            partitioner=tf.fixed_size_partitioner(2),
            ev_option=rec.EmbeddingVariableOption(filter_option=option),
        )
        for name, option in filters.items()
    ]
    values = [rec.embedding_lookup(table, [7] * 10 + [8, 8, 9]) for table in tables[:2]]
    values.append(rec.embedding_lookup(tables[2], np.zeros(0, np.int64)))
    loss = tf.add_n([tf.reduce_sum(each) for each in values])
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        prefix = rec.Saver().save(session, str(tmp_path / "model"))
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a: 13 occurrences of 3 keys"
    assert lines[3].split()[:3] == ["2", "2", "66.7"]
    assert lines[-2].startswith("b: has a CBFFilter, which does not know")
    assert lines[-1] == "c: 0 occurrences of 0 keys"
    assert main([prefix, "--table", "c"]) == 0
    assert capsys.readouterr().out == "c: 0 occurrences of 0 keys\n"
    assert main([prefix, "--table", "d"]) == 2
    assert "--table must be one of ['a', 'b', 'c'], got 'd'" in capsys.readouterr().err
    assert main([prefix, "--occurrences", "9"]) == 2
    assert "--occurrences must be given for a sample" in capsys.readouterr().err


def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("user,item\n1,2\n3\n")
    np.save(tmp_path / "a.npy", np.ones(3))
    table, no_parquet = tmp_path / "a.parquet", tmp_path / "b.parquet"
    parquet.write_table(pyarrow.table({"user": [1], "price": [0.5]}), table)
    no_parquet.write_text("user")
    for arguments, message in (
        ([str(path), "--column", "users"], "must be one of ['user', 'item'], the header of"),
        ([str(path), "--column", "item"], "line 3 of"),
        ([str(path)], "must have one column, got 2; pass --column"),
        ([str(path), "--column", "user", "--cover", "2"], "--cover must be in [0, 1], got 2.0"),
        ([str(path), "--column", "user", "--dim", "0"], "--dim must be an integer in [1, "),
        ([str(path), "--column", "user", "--slots", "-1"], "--slots must be an integer in [0, "),
        ([str(path), "--column", "user", "--occurrences", "0"], "--occurrences must be an integer"),
        ([str(path), "--column", "user", "--cover", "nan"], "--cover must be in [0, 1], got nan"),
        ([str(path), "--column", "user", "--delimiter", ";;"], "--delimiter must be one"),
        ([str(tmp_path / "a.npy")], "must hold integers or strings, got float64"),
        ([str(table), "--column", "item"], "must be one of ['user', 'price'], the columns of"),
        ([str(table), "--column", "price"], "column 'price' must hold integers or strings, got"),
        ([str(table)], "must have one column, got ['user', 'price']; pass --column"),
        ([str(no_parquet)], "must be a complete Parquet file"),
        ([str(tmp_path / "nothing")], "No such file"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
