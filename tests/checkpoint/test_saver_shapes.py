# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose variables have other shapes than those of the graph."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

KEYS = [1, 2]


def build(shape, partitioner=None, is_known=True):
    """A table and a variable: (what reads both, a train op)."""
    table = rec.get_embedding_variable("user", 2, initializer=tf.ones_initializer())
    weight = tf.get_variable(
        "weight",
        shape if is_known else None,
        initializer=tf.ones_initializer()
        if is_known
        else tf.placeholder_with_default(tf.ones(shape), None),
        partitioner=partitioner,
        use_resource=True,
        validate_shape=is_known,
    )
    vectors = rec.embedding_lookup(table, tf.constant(KEYS, tf.int64))
    whole = tf.convert_to_tensor(weight)
    loss = tf.reduce_sum(vectors) + tf.reduce_sum(whole)
    return [vectors, whole], rec.optimizers.GradientDescentOptimizer(0.5).minimize(loss)


def write(folder, shape, **kwargs):
    with tf.Graph().as_default(), tf.Session() as session:
        _, train = build(shape, **kwargs)
        session.run(tf.global_variables_initializer())
        session.run(train)
        return rec.Saver().save(session, f"{folder}/model")


@pytest.mark.parametrize("stored", [[3, 2], [6], [2, 3, 1], []])
def test_a_variable_of_another_shape_is_refused_before_a_table_changes(tmp_path, stored):
    prefix = write(tmp_path, stored)
    with tf.Graph().as_default(), tf.Session() as session:
        both, _ = build([2, 3])
        session.run(tf.global_variables_initializer())
        before = session.run(both)
        message = rf"'weight' of checkpoint .* \[2, 3\], got {re.escape(str(stored))}; "
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            rec.Saver().restore(session, prefix)
        for old, new in zip(before, session.run(both)):
            np.testing.assert_array_equal(new, old)


def test_slices_of_a_variable_of_another_shape_are_refused(tmp_path):
    halves = tf.fixed_size_partitioner(2)
    prefix = write(tmp_path, [4, 3], partitioner=halves)
    with tf.Graph().as_default(), tf.Session() as session:
        both, _ = build([6, 3], partitioner=halves)
        session.run(tf.global_variables_initializer())
        before = session.run(both)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[6, 3\], got \[4, 3\]"):
            rec.Saver(sharded=True).restore(session, prefix)
        for old, new in zip(before, session.run(both)):
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("stored", [2, 3])
def test_slices_restore_what_other_slices_saved(tmp_path, stored):
    prefix = write(tmp_path, [6, 3], partitioner=tf.fixed_size_partitioner(stored))
    with tf.Graph().as_default(), tf.Session() as session:
        both, _ = build([6, 3], partitioner=tf.fixed_size_partitioner(2))
        rec.Saver().restore(session, prefix)
        np.testing.assert_array_equal(session.run(both)[1], np.full([6, 3], 0.5))


def test_reshape_restores_the_elements(tmp_path):
    prefix = write(tmp_path, [6])
    with tf.Graph().as_default(), tf.Session() as session:
        both, _ = build([2, 3])
        rec.Saver(reshape=True).restore(session, prefix)
        np.testing.assert_array_equal(session.run(both)[1], np.full([2, 3], 0.5))


def test_a_variable_without_a_static_shape_takes_the_stored_one(tmp_path):
    prefix = write(tmp_path, [6])
    with tf.Graph().as_default(), tf.Session() as session:
        both, _ = build([2, 3], is_known=False)
        rec.Saver().restore(session, prefix)
        np.testing.assert_array_equal(session.run(both)[1], np.full([6], 0.5))
