# SPDX-License-Identifier: Apache-2.0
"""A file of a checkpoint that is no regular file is refused. To open a FIFO would wait for ever."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import ADAGRAD, BANK, DIM, contents, rows_of, train, write

import rec_estimator as rec
from rec_estimator import _ops


def replace_by_fifo(path):
    os.remove(path)
    os.mkfifo(path)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("has_rows", [False, True])
def test_a_restore_refuses_a_fifo(make_table, tmp_path, suffix, has_rows):
    path = write(tmp_path / "c", {**rows_of([1, 2]), "t/default_values": BANK})
    replace_by_fifo(f"{path}{suffix}")
    table = make_table(DIM, BANK)
    train(table, [20, 21] if has_rows else [])
    before = contents(table)
    with pytest.raises(tf.errors.DataLossError, match=f"{suffix} must be a regular file"):
        table.restore(path, BANK, slots=ADAGRAD)
    assert contents(table) == before


def test_checksums_of_a_fifo_are_refused(session, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    one = np.zeros([1], np.int64)
    matches = _ops.gen.rec_estimator_checkpoint_ranges_match(str(tmp_path / "fifo"), one, one, one)
    with pytest.raises(tf.errors.DataLossError, match="must be a regular file"):
        session.run(matches)


@pytest.mark.parametrize("saver", [rec.Saver, tf.train.Saver])
def test_a_saver_of_tables_and_variables_refuses_a_fifo(tmp_path, saver):
    rec.get_embedding_variable("user", 2)
    weight = tf.get_variable("weight", [2])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        opened = saver()
        prefix = opened.save(session, f"{tmp_path}/model")
        replace_by_fifo(next(str(path) for path in tmp_path.glob("model.data-*")))
        before = session.run(weight)
        with pytest.raises(tf.errors.DataLossError, match="must be a regular file"):
            opened.restore(session, prefix)
        np.testing.assert_array_equal(session.run(weight), before)
