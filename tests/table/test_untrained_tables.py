# SPDX-License-Identifier: Apache-2.0
"""Warnings of tables that a loss depends on and that nothing updates: at a save alone."""

import logging

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table import untrained_tables

WARNING = "no optimizer updates table 'ids', on which the loss depends"


def model():
    """A table, a kernel, and the loss of both."""
    table = rec.get_embedding_variable("ids", 4)
    kernel = tf.get_variable("kernel", [4, 1])
    return table, kernel, tf.reduce_sum(tf.matmul(rec.embedding_lookup(table, [3, 5]), kernel))


@pytest.fixture
def prefix(tmp_path):
    """A checkpoint, so that a session needs no initializer."""
    with tf.Graph().as_default(), tf.Session() as session:
        model()
        session.run(tf.global_variables_initializer())
        return rec.Saver().save(session, str(tmp_path / "model"))


@pytest.fixture
def warnings():
    """Returns the number of warnings so far."""
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logger, level = tf.get_logger(), tf.get_logger().level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    yield lambda: sum(WARNING in message for message in messages)
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "ours"])
def test_a_saver_of_a_graph_with_an_untrained_table_warns_without_an_initializer(
    prefix, warnings, tmp_path, saver
):
    _, kernel, loss = model()
    tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=[kernel], name="train")
    assert warnings() == 0
    own = saver([v for v in tf.global_variables() if "Adagrad" not in v.name])
    with tf.Session() as session:
        own.restore(session, prefix)
        own.save(session, str(tmp_path / "own"))
        own.save(session, str(tmp_path / "own"))
    assert warnings() == 1


def test_a_save_warns_although_the_saver_is_older_than_the_optimizer(prefix, warnings, tmp_path):
    table, kernel, loss = model()
    saver = rec.Saver()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[kernel])
    with tf.Session(graph=table.graph) as session:
        saver.restore(session, prefix)
        tf.get_default_graph().finalize()
        session.run(train)
        assert warnings() == 0
        saver.save(session, str(tmp_path / "own"), write_meta_graph=False)
        assert warnings() == 1
        saver.save(session, str(tmp_path / "own"), write_meta_graph=False)
    assert warnings() == 1


def test_a_save_does_not_warn_of_a_table_that_is_trained(prefix, warnings, tmp_path):
    _, _, loss = model()
    saver = rec.Saver()
    rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        saver.restore(session, prefix)
        saver.save(session, str(tmp_path / "own"))
    assert warnings() == 0


@pytest.mark.parametrize("trains", [False, True], ids=["read", "trained"])
def test_a_graph_is_searched_once_for_all_shards_of_a_table_and_not_if_all_are_trained(
    monkeypatch, trains
):
    searches = []
    search = untrained_tables.untrained_tables
    monkeypatch.setattr(
        untrained_tables, "untrained_tables", lambda graph: searches.append(graph) or search(graph)
    )
    table = rec.get_embedding_variable("ids", 4, partitioner=tf.fixed_size_partitioner(9))
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.range(5, dtype=tf.int64)))
    if trains:
        rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    tf.train.Saver()
    tf.global_variables_initializer()
    tf.report_uninitialized_variables()
    assert len(searches) == (0 if trains else 3)
