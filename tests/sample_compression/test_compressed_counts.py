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
