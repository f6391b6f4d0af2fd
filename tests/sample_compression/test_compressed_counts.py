# SPDX-License-Identifier: Apache-2.0
"""Training with embedding_lookup(counts=) on compressed batches: the counts of the flat batches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import graph_optimizer

SIZES = np.array([2, 1, 3], np.int32)
USERS = {"user": np.array([7, 8, 7]), "counts": np.array([1, 3, 2])}
ITEMS = np.array([1, 2, 1, 3, 1, 5])
KEYS = [1, 2, 3, 5, 7, 8, 9]


def of_distinct(table, ids):
    unique = tf.unique_with_counts(ids, out_idx=tf.int64)
    return tf.gather(rec.embedding_lookup(table, unique.y, counts=unique.count), unique.idx)


def of_pairs(table, user, counts):
    """Two keys a user, ragged, each with the user's count."""
    pairs = tf.RaggedTensor.from_tensor(tf.stack([user, user + 1], 1))
    both = tf.reshape(tf.stack([counts, counts], 1), [-1])
    vectors = rec.embedding_lookup(table, pairs, counts=pairs.with_flat_values(both))
    return tf.reduce_sum(vectors.to_tensor(), axis=1)


# By name: what is looked up, and how often it counts each of KEYS in a flat batch.
LOOKUPS = {
    "counts of the users": (
        lambda t, user, counts, item: rec.embedding_lookup(t, user, counts=counts),
        [0, 0, 0, 0, 8, 3, 0],
    ),
    "counts of ragged ids": (
        lambda t, user, counts, item: of_pairs(t, user, counts),
        [0, 0, 0, 0, 8, 11, 3],
    ),
    "counts of distinct users": (
        lambda t, user, counts, item: of_distinct(t, user),
        [0, 0, 0, 0, 5, 1, 0],
    ),
    "counts of distinct items": (
        lambda t, user, counts, item: of_distinct(t, item),
        [3, 1, 1, 1, 0, 0, 0],
    ),
}


def train(look_up, has_gradient, compressed):
    """Two steps. Returns (how often each of KEYS was counted, the rows of KEYS)."""
    with tf.Graph().as_default():
        user, counts, item = (tf.placeholder(tf.int64, [None]) for _ in range(3))
        feed = {user: USERS["user"], counts: USERS["counts"], item: ITEMS}
        if compressed:
            item_size = tf.placeholder(tf.int32, [None])
            graph_optimizer.enable_sample_awared_graph_compression(
                [user, counts], [item], item_size
            )
            feed[item_size] = SIZES
        else:
            feed.update({each: np.repeat(feed[each], SIZES) for each in (user, counts)})
        normal = tf.random_normal_initializer(seed=1)
        table, other = (rec.get_embedding_variable(n, 2, initializer=normal) for n in "ab")
        vectors = look_up(table, user, counts, item)
        if not has_gradient:
            vectors = tf.stop_gradient(vectors)
        scores = tf.reduce_sum(vectors * rec.embedding_lookup(other, item), axis=1)
        optimizer = rec.optimizers.AdagradOptimizer(0.1)
        step = optimizer.minimize(tf.reduce_sum(tf.square(scores)))
        found = [table.get_frequency(KEYS), rec.embedding_lookup(table, KEYS)]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(2):
                session.run(step, feed)
            return session.run(found)


@pytest.mark.each_value
@pytest.mark.parametrize("has_gradient", [True, False])
@pytest.mark.parametrize("name", LOOKUPS)
def test_a_compressed_step_counts_what_the_flat_batch_counts(name, has_gradient):
    look_up, in_a_batch = LOOKUPS[name]
    counted, rows = train(look_up, has_gradient, compressed=True)
    assert counted.tolist() == [2 * count for count in in_a_batch]
    flat_counted, flat_rows = train(look_up, has_gradient, compressed=False)
    np.testing.assert_array_equal(counted, flat_counted)
    # A user's gradients are added up in another order.
    np.testing.assert_allclose(rows, flat_rows, rtol=1e-5, atol=1e-6)


def train_clipped(look_up, compressed):
    """A step with clipped gradients. Returns (the norm, counts and rows of KEYS)."""
    with tf.Graph().as_default():
        user, item = (tf.placeholder(tf.int64, [None]) for _ in range(2))
        feed = {user: USERS["user"], item: ITEMS}
        if compressed:
            item_size = tf.placeholder(tf.int32, [None])
            graph_optimizer.enable_sample_awared_graph_compression([user], [item], item_size)
            feed[item_size] = SIZES
        else:
            feed[user] = np.repeat(feed[user], SIZES)
        table = rec.get_embedding_variable("t", 2, initializer=tf.ones_initializer())
        users = look_up(table, tf.RaggedTensor.from_tensor(tf.stack([user, user, user + 1], 1)))
        scores = tf.reduce_sum(users, axis=1) * tf.cast(item, tf.float32)
        optimizer = rec.optimizers.AdagradOptimizer(0.1)
        pairs = optimizer.compute_gradients(tf.reduce_sum(tf.square(scores)))
        gradients, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.5)
        step = optimizer.apply_gradients(zip(gradients, [table]))
        found = [table.get_frequency(KEYS), rec.embedding_lookup(table, KEYS)]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            norm, _ = session.run([norm, step], feed)
            return norm, *session.run(found)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_clipped_gradients_of_users_that_combine_are_those_of_the_flat_batch(combiner):
    def look_up(table, ids):
        return rec.embedding_lookup_sparse(table, ids, combiner=combiner)

    norm, counts, rows = train_clipped(look_up, compressed=True)
    flat_norm, flat_counts, flat_rows = train_clipped(look_up, compressed=False)
    assert counts.tolist() == flat_counts.tolist() == [0, 0, 0, 0, 10, 7, 1]
    # A user's gradients are added up in another order.
    np.testing.assert_allclose(norm, flat_norm, rtol=1e-6)
    np.testing.assert_allclose(rows, flat_rows, rtol=1e-6)
