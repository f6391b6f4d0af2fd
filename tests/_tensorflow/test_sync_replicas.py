# SPDX-License-Identifier: Apache-2.0
"""Tests of whether a SyncReplicasOptimizer is applying gradients."""

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow.sync_replicas import is_applying_gradients


class Asking(tf.train.GradientDescentOptimizer):
    """Asks when SyncReplicasOptimizer calls it."""

    def compute_gradients(self, *args, **kwargs):
        self.answers = [is_applying_gradients(tf.get_default_graph())]
        return super().compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args, **kwargs):
        self.answers.append(is_applying_gradients(tf.get_default_graph()))
        return super().apply_gradients(*args, **kwargs)


def test_it_applies_gradients_from_its_first_op_until_they_are_applied():
    loss = tf.square(tf.get_variable("dense", []))
    step = tf.train.get_or_create_global_step()
    for _ in range(2):
        optimizer = Asking(0.1)
        with tf.name_scope("scope"):
            tf.train.SyncReplicasOptimizer(optimizer, 2, 2).minimize(loss, global_step=step)
        assert optimizer.answers == [False, True]
        assert not is_applying_gradients(tf.get_default_graph())


def test_other_optimizers_do_not_count():
    optimizer = Asking(0.1)
    optimizer.minimize(tf.square(tf.get_variable("dense", [])))
    assert optimizer.answers == [False, False]
