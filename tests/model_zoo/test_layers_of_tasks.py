# SPDX-License-Identifier: Apache-2.0
"""The layers of several labels and of two towers against their formulas in NumPy."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo import layers


def evaluate(tensors):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(tensors)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_logits_of_a_product_are_those_of_the_product():
    a, b = (each.ravel() for each in np.meshgrid(np.linspace(-4, 4, 9), np.linspace(-4, 4, 9)))
    logits = layers.product_logits(tf.constant(a, tf.float32), tf.constant(b, tf.float32))
    # One rounding to float32 of logits of at most 8.
    np.testing.assert_allclose(sigmoid(evaluate(logits)), sigmoid(a) * sigmoid(b), rtol=3e-6)


def test_the_logits_of_a_product_have_gradients_where_probabilities_round_to_0_or_1():
    a, b = tf.constant([-90.0, 90.0, 90.0]), tf.constant([-90.0, 80.0, -200.0])
    logits = layers.product_logits(a, b)
    values, gradients = evaluate([logits, tf.gradients(logits, [a, b])])
    # log(sigmoid(90) sigmoid(80) / (1 - ...)) = -log(exp(-90) + exp(-80) + exp(-170)).
    np.testing.assert_allclose(values, [-180, 80, -200], rtol=1e-4)
    np.testing.assert_allclose(gradients, [[1, 0, 0], [1, 1, 1]], atol=1e-4)


def test_each_label_has_a_network_of_its_own():
    inputs = tf.constant(np.ones([2, 3]), tf.float32)
    logits = layers.task_towers({"like": inputs, "love": inputs}, [4])
    assert {label: each.shape.as_list() for label, each in logits.items()} == {
        "like": [2],
        "love": [2],
    }
    for label in logits:
        variables = tf.trainable_variables(f"tower_{label}/")
        assert len(variables) == 4
        assert None not in tf.gradients(logits[label], variables)


def test_a_model_of_two_labels_says_so():
    data = types.SimpleNamespace(name="shop", labels=("buy",))
    message = "mmoe must have 2 labels, got buy of shop; choose a model of one label, such as dcnv2"
    with pytest.raises(ValueError, match=message):
        layers.check_labels(data, "mmoe")
    data.labels = ("buy", "bulk")
    assert layers.check_labels(data, "mmoe") == ("buy", "bulk")


def test_scores_of_two_towers_are_cosines_over_the_temperature():
    users, items = np.eye(2, dtype=np.float32), np.array([[0.6, 0.8]], np.float32)
    scores = evaluate(layers.cosine_scores(tf.constant(users), tf.constant(items), 0.5))
    np.testing.assert_allclose(scores, [[1.2], [1.6]], rtol=1e-6)


def sampled_softmax_oracle(scores, rows, candidates, log_q):
    losses = []
    for row, right in enumerate(rows):
        kept = (candidates != candidates[right]) | (np.arange(len(candidates)) == right)
        corrected = scores[row] - log_q
        losses.append(np.log(np.sum(np.exp(corrected[kept]))) - corrected[right])
    return losses


def test_the_sampled_softmax_subtracts_log_q_and_leaves_out_accidental_hits():
    rng = np.random.default_rng(0)
    scores, log_q = rng.standard_normal([3, 6]), np.log(rng.random(6))
    rows, candidates = np.array([0, 1, 4]), np.array([7, 8, 9, 7, 7, 8])
    losses = layers.sampled_softmax_losses(
        tf.constant(scores, tf.float32),
        tf.constant(rows),
        tf.constant(candidates),
        tf.constant(log_q, tf.float32),
    )
    expected = sampled_softmax_oracle(scores, rows, candidates, log_q)
    np.testing.assert_allclose(evaluate(losses), expected, rtol=1e-5)


def test_the_correction_makes_the_sampled_loss_estimate_the_full_one():
    rng = np.random.default_rng(0)
    items, draws = 50, 20_000
    scores, probability = rng.standard_normal(items), rng.dirichlet(np.ones(items))
    full = np.log(np.sum(np.exp(scores))) - scores[3]
    # The right candidate, then a sample of all items by their probability.
    sampled = rng.choice(items, size=draws, p=probability)
    candidates = np.append(sampled[sampled != 3], 3)
    q = np.append(draws * probability[sampled[sampled != 3]], 1)
    loss = layers.sampled_softmax_losses(
        tf.constant(scores[None, candidates], tf.float32),
        tf.constant([len(candidates) - 1], tf.int64),
        tf.constant(candidates),
        tf.constant(np.log(q), tf.float32),
    )
    assert evaluate(loss)[0] == pytest.approx(full, abs=0.02)
