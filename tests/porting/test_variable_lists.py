# SPDX-License-Identifier: Apache-2.0
"""Scripts that choose what they train out of TRAINABLE_VARIABLES, as TensorFlow 1's do."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

KEYS = np.array([3, 5, 3, 9], np.int64)
LABELS = np.array([[1], [0], [1], [0]], np.float32)
TABLE = tf.GraphKeys.TRAINABLE_VARIABLES


def model(shards=1, scope="dnn"):
    """A table and a kernel in one scope: (table, loss)."""
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    with tf.variable_scope(scope):
        table = rec.get_embedding_variable("ids", 4, partitioner=partitioner)
        kernel = tf.get_variable("kernel", [4, 1])
        logits = tf.matmul(rec.embedding_lookup(table, tf.constant(KEYS)), kernel)
    return table, tf.losses.sigmoid_cross_entropy(LABELS, logits)


def rows_after(train_op, table, steps=3):
    """How many rows the table has after some steps, and whether the values moved."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(rec.embedding_lookup(table, KEYS))
        for _ in range(steps):
            session.run(train_op)
        after = session.run(rec.embedding_lookup(table, KEYS))
        assert not np.array_equal(before, after) or not session.run(table.size())
        return session.run(table.size())


def scoped_minimize(loss, optimizer):
    return optimizer.minimize(loss, var_list=tf.get_collection(TABLE, scope="dnn"))


def gradients_of_trainable_variables(loss, optimizer):
    return optimizer.apply_gradients(optimizer.compute_gradients(loss, tf.trainable_variables()))


def clipped_gradients(loss, optimizer):
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 5.0)
    return optimizer.apply_gradients(zip(gradients, variables))


def scope_and_all_others(loss, optimizer):
    dnn = tf.trainable_variables("dnn")
    others = [variable for variable in tf.trainable_variables() if variable not in dnn]
    assert len(dnn) + len(others) == len(tf.trainable_variables())
    return optimizer.minimize(loss, var_list=[*others, *dnn])


def tables_in_a_list_of_their_own(loss, optimizer):
    dense, sparse = rec.get_dense_and_sparse_variable()
    return optimizer.apply_gradients(optimizer.compute_gradients(loss, [*dense, sparse]))


WAYS = [
    scoped_minimize,
    tables_in_a_list_of_their_own,
    gradients_of_trainable_variables,
    clipped_gradients,
    scope_and_all_others,
]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_list_out_of_the_collection_trains_the_tables_in_it(way, shards):
    table, loss = model(shards)
    assert rows_after(way(loss, rec.optimizers.AdagradOptimizer(0.1)), table) == 3


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_list_out_of_the_collection_trains_as_minimize_does(way):
    values = []
    for train in (way, lambda loss, optimizer: optimizer.minimize(loss)):
        with tf.Graph().as_default():
            tf.set_random_seed(7)
            table, loss = model()
            train_op = train(loss, rec.optimizers.GradientDescentOptimizer(0.1))
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                session.run(train_op)
                values.append(session.run([table.export().values, *tf.trainable_variables()[1:]]))
    for one, other in zip(*values):
        # Clipping multiplies by 1 where no norm is above its limit.
        np.testing.assert_array_equal(one, other)


def test_two_optimizers_train_a_scope_each():
    linear, linear_loss = model(scope="linear")
    deep, deep_loss = model(scope="dnn")
    loss = linear_loss + deep_loss
    train_op = tf.group(
        rec.optimizers.FtrlOptimizer(0.1).minimize(loss, var_list=tf.trainable_variables("linear")),
        rec.optimizers.AdagradOptimizer(0.1).minimize(loss, var_list=tf.trainable_variables("dnn")),
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run([linear.size(), deep.size()]) == [3, 3]
    assert [slot.name for slot in linear.shards[0].slots] == ["Ftrl", "Ftrl_1"]


def test_a_table_that_is_not_trainable_is_in_no_list():
    table = rec.get_embedding_variable("ids", 4, trainable=False)
    assert tf.trainable_variables() == []
    assert rec.get_dense_and_sparse_variable() == ([], [])
    assert table in tf.get_collection(rec.EMBEDDING_VARIABLES)


@pytest.mark.parametrize(
    "way",
    [lambda loss, optimizer: optimizer.minimize(loss), *WAYS],
    ids=lambda way: way.__name__,
)
def test_a_stock_optimizer_refuses_the_table_by_name(way):
    _, loss = model()
    with pytest.raises((AttributeError, TypeError), match=r"'dnn/ids'.*rec_estimator\.optimizers"):
        way(loss, tf.train.AdagradOptimizer(0.1))


def test_a_stock_optimizer_trains_the_dense_variables_beside_ours():
    table, loss = model()
    dense, sparse = rec.get_dense_and_sparse_variable()
    train_op = tf.group(
        tf.train.AdamOptimizer(0.1).minimize(loss, var_list=dense),
        rec.optimizers.AdagradOptimizer(0.1).minimize(loss, var_list=sparse),
    )
    assert rows_after(train_op, table) == 3


class TestListsThatScriptsReadOtherwise:
    def test_shapes_names_and_types_can_be_counted(self):
        model(shards=2)
        shapes = {v.name: v.get_shape().as_list() for v in tf.trainable_variables()}
        assert shapes == {"dnn/ids/part_0": [4], "dnn/ids/part_1": [4], "dnn/kernel:0": [4, 1]}
        assert {v.dtype.base_dtype for v in tf.trainable_variables()} == {tf.float32}

    @pytest.mark.parametrize(
        "use",
        [
            lambda v: tf.nn.l2_loss(v),
            lambda v: tf.summary.histogram("values", v),
            lambda v: tf.train.ExponentialMovingAverage(0.9).apply([v]),
            lambda v: tf.identity(v),
        ],
        ids=["l2_loss", "histogram", "moving average", "identity"],
    )
    def test_a_use_as_a_tensor_is_refused_by_name(self, use):
        table, _ = model()
        with pytest.raises(TypeError, match=r"table 'dnn/ids'"):
            use(table)

    @pytest.mark.parametrize("shards", [1, 2])
    def test_a_stock_saver_of_the_list_saves_the_rows(self, tmp_path, shards):
        table, loss = model(shards)
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        saver = tf.train.Saver(tf.trainable_variables())
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            saver.save(session, str(tmp_path / "model"))
            session.run(table.initializer)
            assert session.run(table.size()) == 0
            saver.restore(session, str(tmp_path / "model"))
            assert session.run(table.size()) == 3

    def test_a_meta_graph_has_the_dense_variables_in_the_list(self):
        model()
        meta_graph = tf.train.Saver().export_meta_graph()
        with tf.Graph().as_default():
            tf.train.import_meta_graph(meta_graph)
            assert [v.name for v in tf.trainable_variables()] == ["dnn/kernel:0"]


UNTRAINED = r"no optimizer updates table 'dnn/ids', on which the loss depends"


def untrained():
    """A graph whose loss depends on a table that nothing updates."""
    table, loss = model()
    step = tf.train.get_or_create_global_step()
    kernel = [v for v in tf.trainable_variables() if v.name == "dnn/kernel:0"]
    return table, loss, step, kernel


@pytest.mark.parametrize("module", [tf.train, rec.optimizers], ids=["stock", "ours"])
class TestAnUntrainedTable:
    def test_is_an_error_when_a_monitored_session_begins(self, module):
        _, loss, step, kernel = untrained()
        module.AdagradOptimizer(0.1).minimize(loss, step, var_list=kernel)
        with pytest.raises(ValueError, match=UNTRAINED):
            tf.train.MonitoredTrainingSession()

    def test_is_an_error_in_a_stock_estimator(self, module, tmp_path):
        def model_fn(features, labels, mode):
            del features, labels
            _, loss, step, kernel = untrained()
            train_op = module.AdagradOptimizer(0.1).minimize(loss, step, var_list=kernel)
            return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

        with pytest.raises(ValueError, match=UNTRAINED):
            rec.Estimator(model_fn, str(tmp_path)).train(
                lambda: tf.data.Dataset.from_tensors((1, 1)), steps=1
            )

    def test_is_a_warning_when_a_session_initializes_or_saves(self, module, caplog, tmp_path):
        _, loss, step, kernel = untrained()
        module.AdagradOptimizer(0.1).minimize(loss, step, var_list=kernel)
        logger = tf.get_logger()
        logger.addHandler(caplog.handler)
        try:
            with caplog.at_level(logging.WARNING, logger.name), tf.Session() as session:
                session.run(tf.global_variables_initializer())
                rec.Saver().save(session, str(tmp_path / "model"))
        finally:
            logger.removeHandler(caplog.handler)
        assert "no optimizer updates table 'dnn/ids'" in caplog.text

    def test_is_none_if_another_optimizer_of_ours_updates_it(self, module):
        table, loss, step, kernel = untrained()
        train_op = tf.group(
            module.AdagradOptimizer(0.1).minimize(loss, step, var_list=kernel),
            rec.optimizers.AdagradOptimizer(0.1).minimize(loss, var_list=[table]),
        )
        with tf.train.MonitoredTrainingSession() as session:
            session.run(train_op)

    def test_is_none_if_the_loss_does_not_depend_on_it(self, module):
        step = untrained()[2]
        other = tf.get_variable("other", [], initializer=tf.ones_initializer())
        train_op = module.AdagradOptimizer(0.1).minimize(other * other, step, var_list=[other])
        with tf.train.MonitoredTrainingSession() as session:
            session.run(train_op)

    def test_is_none_behind_a_stopped_gradient(self, module):
        table = rec.get_embedding_variable("ids", 4)
        kernel = tf.get_variable("kernel", [4, 1])
        values = tf.stop_gradient(rec.embedding_lookup(table, KEYS))
        step = tf.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.matmul(values, kernel))
        train_op = module.AdagradOptimizer(0.1).minimize(loss, step, var_list=[kernel])
        with tf.train.MonitoredTrainingSession() as session:
            session.run(train_op)

    def test_is_none_where_nothing_is_trained(self, module):
        untrained()
        with tf.train.MonitoredTrainingSession():
            pass


@pytest.mark.long
def test_a_table_looked_up_outside_of_the_loss_is_no_error_in_rec_estimator(tmp_path):
    def model_fn(features, labels, mode):
        del labels
        loss = model()[1]
        other = rec.get_embedding_variable("other", 2)
        seen = tf.reduce_sum(rec.embedding_lookup(other, features))
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"seen": seen})

    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    data = lambda: tf.data.Dataset.from_tensors((KEYS, LABELS)).repeat()  # noqa: E731
    estimator.train(data, steps=2)
    assert estimator.get_variable_value("dnn/ids-keys").tolist() == [3, 5, 9]
