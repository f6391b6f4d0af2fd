# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that one table or variable refuses changes nothing in the session."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

BIG = 2**40
KEYS = [1, 2, BIG]
SAVERS = {
    "ours": rec.Saver,
    "stock": tf.train.Saver,
    "stock, sharded": lambda: tf.train.Saver(sharded=True),
    "stock, of a list": lambda: tf.train.Saver(
        [*tf.global_variables(), *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]
    ),
}


def build(shards=1, dim=2, key_dtype=tf.int64, rows=10, name="b", dense=tf.float32, weight="w"):
    """Tables a, b and c and a variable: (all that a restore changes, a train op)."""
    keys = tf.constant(KEYS if key_dtype == tf.int64 else KEYS[:2], key_dtype)
    partitioner = tf.fixed_size_partitioner(shards)
    a = rec.get_embedding_variable("a", 2, partitioner=partitioner)
    b = rec.get_embedding_variable(name, dim, key_dtype=key_dtype, partitioner=partitioner)
    c = rec.create_table(tf.int64, 2, "c", tf.ones_initializer(), device_vocabulary_size=rows)
    w = tf.get_variable(weight, [2], dense, initializer=tf.ones_initializer(), use_resource=True)
    vectors = [
        rec.embedding_lookup(a, KEYS),
        rec.embedding_lookup(b, keys),
        rec.sparse_lookup(c, tf.constant(KEYS[:rows], tf.int64), modify_graph=True),
    ]
    loss = tf.add_n([tf.reduce_sum(v) for v in vectors]) + tf.reduce_sum(tf.cast(w, tf.float32))
    step = tf.train.get_or_create_global_step()
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    sizes = [table.size() for table in (a, b, c)]
    return [step, tf.identity(w), *vectors, *sizes], train


def trained(folder, steps, saver=rec.Saver, **kwargs):
    """The prefix of a checkpoint of a model that has done so many steps."""
    with tf.Graph().as_default(), tf.Session() as session:
        _, train = build(**kwargs)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        return saver().save(session, f"{folder}/model")


REFUSALS = {
    "dim": ({"dim": 3}, tf.errors.InvalidArgumentError, "must have 3 columns"),
    "int32": ({"key_dtype": tf.int32}, tf.errors.InvalidArgumentError, f"int32, got {BIG}"),
    "rows": ({"rows": 2}, tf.errors.ResourceExhaustedError, "at most 2 rows, got 3"),
    "table": ({"name": "other"}, tf.errors.NotFoundError, "other.* must be in checkpoint"),
    "variable": (
        {"weight": "v"},
        tf.errors.NotFoundError,
        "without v, v/Adagrad: the model was another",
    ),
    "dtype": ({"dense": tf.float64}, tf.errors.InvalidArgumentError, "float64, got float32"),
}


@pytest.mark.each_value
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize(
    "saver, shards",
    [("ours", 1), ("ours", 2), ("stock", 1), ("stock, sharded", 2), ("stock, of a list", 1)],
)
def test_a_refused_checkpoint_changes_no_step_no_variable_and_no_table(
    tmp_path, saver, shards, refusal
):
    prefix = trained(tmp_path, 5)
    changed, error, message = REFUSALS[refusal]
    with tf.Graph().as_default(), tf.Session() as session:
        state, train = build(shards, **changed)
        session.run(tf.global_variables_initializer())
        session.run(train)
        before = session.run(state)
        opened = SAVERS[saver]()
        with pytest.raises(error, match=message if saver == "ours" else None):
            opened.restore(session, prefix)
        for old, new in zip(before, session.run(state)):
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "saver, shards",
    [("ours", 1), ("ours", 2), ("stock", 1), ("stock, sharded", 2), ("stock, of a list", 1)],
)
def test_a_checkpoint_that_fits_is_restored(tmp_path, saver, shards):
    prefix = trained(tmp_path, 5, SAVERS[saver])
    with tf.Graph().as_default(), tf.Session() as session:
        state, train = build(shards)
        session.run(tf.global_variables_initializer())
        session.run(train)
        SAVERS[saver]().restore(session, prefix)
        step, *_, a, b, c = session.run(state)
        assert (step, a, b, c) == (5, 3, 3, 3)


def with_optimizer(optimizer):
    """Builds a model of a table and a variable; returns its train op."""
    table = rec.get_embedding_variable("user", 2)
    weight = tf.get_variable("weight", [2], use_resource=True)
    loss = tf.reduce_sum(rec.embedding_lookup(table, [1]) * weight)
    return optimizer.minimize(loss, tf.train.get_or_create_global_step())


def run_estimator(folder, optimizer):
    def model_fn(features, labels, mode):
        del features, labels
        train_op = with_optimizer(optimizer())
        return rec.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=train_op)

    rec.RecEstimator(model_fn, folder).train(lambda: tf.data.Dataset.from_tensors(1), steps=1)


def run_session(folder, optimizer):
    with tf.Graph().as_default():
        train_op = with_optimizer(optimizer())
        with rec.MonitoredTrainingSession(checkpoint_dir=folder) as session:
            session.run(train_op)


@pytest.mark.long
@pytest.mark.parametrize("run", [run_estimator, run_session])
def test_a_run_with_another_optimizer_says_so_and_names_the_variables(tmp_path, run):
    run(str(tmp_path), lambda: rec.optimizers.AdagradOptimizer(0.1))
    message = (
        "without beta1_power, beta2_power, weight/Adam, weight/Adam_1: the optimizer was .*warm"
    )
    with pytest.raises(tf.errors.NotFoundError, match=message):
        run(str(tmp_path), lambda: rec.optimizers.AdamOptimizer(0.1))
