# SPDX-License-Identifier: Apache-2.0
"""An observer of a graph sees what lookups and optimizers build there, and may answer."""

import inspect

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes import observers
from rec_estimator.graph_passes.graph_observer import GraphObserver


class Recorder(GraphObserver):
    """Keeps the calls of all methods in order, and doubles what is counted."""

    def __init__(self):
        self.calls = []

    def features_looked_up(self, inputs, outputs, keys):
        self.calls.append(("features_looked_up", len(outputs)))

    def before_gradients(self, loss, grad_loss):
        self.calls.append(("before_gradients", grad_loss))
        return 2 * loss, grad_loss

    def lookup_gradient_built(self, keys, slices):
        self.calls.append(("lookup_gradient_built", slices.dtype))

    def gradients_built(self, gradients):
        self.calls.append(("gradients_built", len(gradients)))

    def before_updates(self):
        self.calls.append(("before_updates", None))

    def counted_keys(self, gradient_keys, others):
        self.calls.append(("counted_keys", len(others)))
        return [*others, gradient_keys]

    def optimizer_ops_built(self, ops):
        self.calls.append(("optimizer_ops_built", {op.type for op in ops}))


def train(observer=None):
    """Trains a table of two keys by one step: (values, counts)."""
    if observer is not None:
        observers.register(observer)
    feature = rec.EmbeddingFeature("user", 1, initializer=tf.ones_initializer())
    looked_up = rec.features.lookup_features({"user": tf.constant([7, 9], tf.int64)}, [feature])
    loss = tf.reduce_sum(looked_up["user"])
    train_op = rec.optimizers.GradientDescentOptimizer(0.25).minimize(loss)
    (table,) = tf.get_collection("embedding_variables")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        values = session.run(rec.embedding_lookup(table, [7, 9]))
        return values.ravel().tolist(), session.run(table.get_frequency([7, 9])).tolist()


def test_methods_are_called_in_the_order_of_the_class():
    recorder = Recorder()
    train(recorder)
    calls = [name for name, _ in recorder.calls]
    defined = [name for name, _ in inspect.getmembers(Recorder, inspect.isfunction)]
    order = [name for name in vars(GraphObserver) if name in defined]
    # The ops that compute gradients are reported apart from those that apply them.
    assert calls == [*order[:3], order[-1], *order[3:]]


def test_answers_change_the_step():
    assert train() == ([0.75, 0.75], [1, 1])
    with tf.Graph().as_default():
        # Twice the loss; each key counted once more.
        assert train(Recorder()) == ([0.5, 0.5], [2, 2])


def test_ops_of_an_optimizer_are_those_that_it_builds():
    recorder = Recorder()
    train(recorder)
    gradients, updates = (ops for name, ops in recorder.calls if name == "optimizer_ops_built")
    assert "RecEstimator>TableGroupLookupGrad" in gradients
    assert "RecEstimator>TablesApply" in updates - gradients


def test_observers_belong_to_one_graph(graph):
    recorder = Recorder()
    observers.register(recorder)
    with tf.Graph().as_default():
        train()
        assert observers.observers() == []
    assert recorder.calls == []
    assert observers.observers() == [recorder]
    assert not tf.train.export_meta_graph(graph=graph).collection_def
