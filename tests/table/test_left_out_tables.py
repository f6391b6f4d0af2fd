# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own functions to start from a checkpoint do not lose the rows of tables silently."""

import logging

import pytest
import tensorflow.compat.v1 as tf
import tf_behavior

import rec_estimator as rec

SAID = "does not start from checkpoint"


class Messages(logging.Handler):
    """The messages of that kind which TensorFlow's logger gets in a ``with`` block."""

    def __enter__(self):
        self.texts, self.before = [], tf.logging.get_verbosity()
        tf.logging.set_verbosity(tf.logging.WARN)
        tf.get_logger().addHandler(self)
        return self.texts

    def __exit__(self, *_):
        tf.get_logger().removeHandler(self)
        tf.logging.set_verbosity(self.before)

    def emit(self, record):
        if SAID in record.getMessage():
            self.texts.append(record.getMessage())


def model(scope="net", shards=1, names=("t",)):
    """Tables and two variables, one of them partitioned: (tables, train op)."""
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    with tf.variable_scope(scope):
        tables = [rec.get_embedding_variable(n, 4, partitioner=partitioner) for n in names]
        weight = tf.get_variable("w", [4], initializer=tf.zeros_initializer())
        parts = tf.get_variable("p", [4], partitioner=tf.fixed_size_partitioner(2))
        rows = tf.add_n([rec.embedding_lookup(table, [1, 2, 3]) for table in tables])
    loss = tf.reduce_sum(rows * (weight + tf.convert_to_tensor(parts)))
    step = tf.train.get_or_create_global_step()
    return tables, rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)


@pytest.fixture(name="source", scope="module")
def of_source(tmp_path_factory):
    """A checkpoint of the model in the scope "net", with three rows."""
    with tf.Graph().as_default(), tf.Session() as session:
        _, train = model()
        session.run(tf.global_variables_initializer())
        session.run(train)
        return rec.Saver().save(session, str(tmp_path_factory.mktemp("source") / "m"))


def initialize():
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())


@pytest.mark.each_value
@pytest.mark.parametrize("is_resource", [False, True])
@pytest.mark.parametrize(
    "scope, shards, start",
    [
        ("net", 1, lambda p: tf.train.init_from_checkpoint(p, {"net/": "net/"})),
        ("net", 3, lambda p: tf.train.init_from_checkpoint(p, {"net/": "net/"})),
        ("new", 1, lambda p: tf.train.init_from_checkpoint(p, {"net/": "new/"})),
        ("a/b", 1, lambda p: tf.train.init_from_checkpoint(p, [("net/", "a/b/")])),
        ("net", 1, lambda p: tf.train.init_from_checkpoint(p, {"net/w": "net/w"})),
        ("net", 1, lambda p: tf.train.init_from_checkpoint(p, {"net/p": "net/p"})),
        ("net", 1, lambda p: tf.train.warm_start(p, "net/w")),
        ("net", 1, lambda p: tf.train.warm_start(p, ["net/w:0", "net/p"])),
    ],
    ids=["scope", "shards", "renamed", "deeper", "name", "partitioned", "warm", "warm-list"],
)
def test_tables_that_tensorflow_leaves_out_are_named(source, scope, shards, start, is_resource):
    with tf_behavior.resource_variables(is_resource), Messages() as messages:
        model(scope, shards)
        start(source)
        initialize()
        initialize()
    assert len(messages) == 1
    assert f"Table '{scope}/t' {SAID} {source}" in messages[0]
    assert "rec_estimator.init_from_checkpoint" in messages[0]


def test_the_root_scope_and_a_monitored_session_are_seen(source):
    # With the root, TensorFlow wants the checkpoint to have every variable of the store.
    with Messages() as messages:
        model(names=("t",))
        tf.train.init_from_checkpoint(source, {"/": "/"})
        with tf.train.MonitoredTrainingSession():
            pass
    assert [f"Table 'net/t' {SAID}" in message for message in messages] == [True]


@pytest.mark.long
def test_only_tables_that_the_checkpoint_has_and_that_start_afresh_are_named(source):
    with Messages() as messages:
        model(names=("other",))
        tf.train.init_from_checkpoint(source, {"net/": "net/"})
        initialize()
    assert not messages
    with tf.Graph().as_default(), Messages() as messages:
        (table,), _ = model()
        rec.init_from_checkpoint(source, {"net/t": table})
        tf.train.init_from_checkpoint(source, {"net/": "net/"})
        initialize()
    assert not messages
    with tf.Graph().as_default(), Messages() as messages:
        # Our function was told which tables: here none.
        model()
        rec.init_from_checkpoint(source, {"net/w": "net/w"})
        initialize()
    assert not messages
    with tf.Graph().as_default(), Messages() as messages:
        model()
        initialize()
    assert not messages


@pytest.mark.long
def test_an_estimator_that_warm_starts_variables_only_is_not_warned(source, tmp_path):
    def model_fn(features, labels, mode):
        (table,), train = model()
        return rec.EstimatorSpec(mode, loss=tf.reduce_sum(table.size()), train_op=train)

    class StopAtOnce(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            coord.request_stop()

    for kind in (rec.RecEstimator, rec.Estimator):
        warm = rec.WarmStartSettings(source, "net/w")
        with Messages() as messages:
            kind(model_fn, str(tmp_path / kind.__name__), warm_start_from=warm).train(
                lambda: tf.data.Dataset.from_tensors(1), hooks=[StopAtOnce()]
            )
        assert not messages


@pytest.mark.parametrize(
    "start, error",
    [
        (tf.train.warm_start, "use_rec_estimator.init_from_checkpoint"),
        (lambda p: tf.train.init_from_checkpoint(p, {"net/t": "net/t"}), "net/t"),
        (
            lambda p: tf.train.init_from_checkpoint(p, {"net/t": rec_table()}),
            "Tensor net/t is not found",
        ),
    ],
    ids=["warm", "name", "table"],
)
def test_naming_a_table_to_tensorflow_is_an_error(source, start, error):
    model()
    with pytest.raises(ValueError, match=error):
        start(source)


def rec_table():
    return tf.get_collection(rec.EMBEDDING_VARIABLES)[0]


def test_a_checkpoint_object_refuses_tables_by_name(tmp_path):
    (table,), _ = model()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for each in (table, table.shards[0]):
            with pytest.raises(ValueError, match="table 'net/t' must be saved .*rec_estimator.Sav"):
                tf.train.Checkpoint(rows=each).save(str(tmp_path / "object"), session=session)
        # A checkpoint of variables works as ever.
        weight = tf.trainable_variables()[1]
        tf.train.Checkpoint(w=weight).save(str(tmp_path / "object"), session=session)
