# SPDX-License-Identifier: Apache-2.0
"""Parts of random graphs that consist of many ops: loops, branches, sparse and ragged ids."""

import tensorflow.compat.v1 as tf

F, INT = tf.float64, tf.int64

# Added before a comparison or a rounding, so that no sum of products of short decimals lies on a
# tie: there, additions in another order would give another integer.
AWAY = 1e-4 / 3.141592653589793


def integers(g):
    """An integer for each element, 0, 1 or 2, of a number that is far from a tie."""
    x = g.dense(2)
    return tf.cast(tf.floor(tf.math.floormod(tf.round((x + AWAY) * 1e3) + 0.5, 3.0)), INT)


def cond(g):
    a, b = g.pair()
    return tf.cond(
        tf.reduce_sum(a) > tf.reduce_sum(b) + 0.123 + AWAY, lambda: a * 1.0 + b, lambda: a - b
    )


def while_loop(g):
    x = g.dense(2)
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.tanh(y) + x), [0, x])[1]


def sparse_sum(g):
    x = g.dense(2)
    sparse = tf.sparse.from_dense(tf.where(x > 0.05 + AWAY, x, tf.zeros_like(x)))
    out = tf.sparse.reduce_sum(sparse, axis=1)
    return tf.reshape(out, [-1])[:, tf.newaxis]


def sparse_embedding(g):
    ids = integers(g)
    sparse = tf.sparse.from_dense(ids + tf.cast(tf.equal(ids, 0), INT) * 3)
    return tf.nn.embedding_lookup_sparse(g.constant([4, 2]), sparse, None, combiner="mean")


def id_lists(g):
    """A sparse tensor of ids from -1 to 3 with some empty rows, and its weights."""
    ids = integers(g) - tf.cast(g.dense(2)[:, :1] > 0.4 + AWAY, INT)
    places = tf.where(ids < 2 + g.rng.randint(2))
    sparse = tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, out_type=INT))
    weights = 0.5 + tf.cast(tf.math.floormod(sparse.values, 2), F)
    return sparse, tf.SparseTensor(places, weights, sparse.dense_shape)


def combiner(g):
    return ["sum", "mean", "sqrtn"][g.rng.randint(3)]


def safe_lookup(g):
    ids, weights = id_lists(g)
    return tf.nn.safe_embedding_lookup_sparse(
        g.constant([4, 2]), ids, weights if g.rng.randint(2) else None, combiner=combiner(g)
    )


def weighted_lookup(g):
    # No row is empty, so that the op returns a row for the last user.
    ids = tf.abs(integers(g))
    places = tf.where(ids >= 0)
    values = tf.gather_nd(ids, places)
    shape = tf.shape(ids, out_type=INT)
    weights = tf.SparseTensor(places, 0.5 + tf.cast(values, F), shape)
    ids = tf.SparseTensor(places, values, shape)
    out = tf.nn.embedding_lookup_sparse(g.constant([4, 2]), ids, weights, combiner=combiner(g))
    return tf.sin(out)


def indicator(g):
    ids, _ = id_lists(g)
    dense = tf.sparse.to_dense(ids, default_value=-1)
    return tf.reduce_sum(tf.one_hot(dense, 3, dtype=F), axis=1)


def distinct_ids(g):
    ids, _ = id_lists(g)
    found = tf.unique(ids.values)
    vectors = tf.gather(tf.sin(tf.gather(g.constant([5, 2]), found.y + 1)), found.idx)
    sums = tf.math.unsorted_segment_sum(vectors, ids.indices[:, 0], tf.shape(ids)[0])
    return tf.cast(tf.size(found.y), F) * 0 + sums


def recurrent(g):
    """A recurrent network, as tf.nn.dynamic_rnn builds it."""
    x = g.dense(3)
    length, width = x.shape.as_list()[1:]
    steps = tf.TensorArray(F, length).unstack(tf.transpose(x, [1, 0, 2]))
    states = tf.TensorArray(F, length)
    kernel = g.constant([width, width])
    rows = tf.shape(x)[0] if g.rng.randint(2) else tf.shape(g.dense(2))[0]

    def step(time, state, states):
        state = tf.tanh(tf.matmul(state, kernel) + steps.read(time))
        return time + 1, state, states.write(time, state)

    start = [0, tf.zeros([rows, width], F), states]
    _, state, states = tf.while_loop(lambda time, *_: time < length, step, start)
    if g.rng.randint(2):
        return state
    out = tf.transpose(states.stack(), [1, 0, 2])
    out.set_shape(x.shape)
    return out


def loop_over_rows(g):
    """A loop of as many rounds as rows: it must not run on users' rows."""
    x = g.dense(2)
    _, out = tf.while_loop(
        lambda i, y: i < tf.minimum(tf.shape(x)[0], 5),
        lambda i, y: (i + 1, tf.tanh(y) + x * 0.5),
        [0, x],
    )
    return out


def mixing_loop(g):
    x = g.dense(2)
    body = [
        lambda i, y: (i + 1, y + tf.reduce_sum(x, axis=0)),
        lambda i, y: (i + 1, y * tf.cast(tf.shape(x)[0], F) * 0.1),
        lambda i, y: (i + 1, x + tf.reshape(tf.transpose(y), tf.shape(y))),
        lambda i, y: (i + 1, tf.reshape(y, [tf.shape(x)[0], x.shape.as_list()[1]]) + x),
    ][g.rng.randint(4)]
    out = tf.while_loop(lambda i, y: i < 2, body, [0, x])[1]
    out.set_shape(x.shape)
    return tf.tanh(out)


def branch_of_users(g):
    a, b = g.pair()
    which = tf.cast(tf.reduce_max(a) > 0.3 + AWAY, tf.int32)
    return tf.switch_case(which, [lambda: a + tf.sin(b), lambda: tf.reverse(b, [0]) + a * 0])


def inner_softmax(g):
    """A softmax along an axis that is not the last one, as in attention over entries."""
    x = g.dense(3)
    return tf.reduce_sum(tf.nn.softmax(x, axis=1) * x, axis=1)


def heads(g):
    """Attention with two heads between two tensors of equally many entries."""
    keys = g.dense(3)

    def fits(t):
        return t.dtype == F and t.shape.rank == 3 and t.shape.as_list() == keys.shape.as_list()

    queries = g.take(fits) if any(map(fits, g.pool)) else keys
    width = 2 * keys.shape.as_list()[2]

    def split(x):
        x = tf.tensordot(x, g.constant([x.shape.as_list()[2], width]), 1)
        rows, length = tf.shape(x)[0], tf.shape(x)[1]
        return tf.transpose(tf.reshape(x, [rows, length, 2, width // 2]), [0, 2, 1, 3])

    weights = tf.nn.softmax(tf.matmul(split(queries), split(keys), transpose_b=True))
    weights *= tf.linalg.band_part(tf.ones([keys.shape.as_list()[1]] * 2, F), -1, 0)
    out = tf.transpose(tf.matmul(weights, split(keys)), [0, 2, 1, 3])
    out = tf.reshape(out, [tf.shape(out)[0], tf.shape(out)[1], width])
    return tf.ensure_shape(out, [None, keys.shape.as_list()[1], width])[:, :, :4]


def reversed_history(g):
    x = g.dense(3)
    lengths = tf.minimum(integers(g)[:, 0], x.shape.as_list()[1])
    return tf.reverse_sequence(x, lengths, seq_axis=1)


def masked_mean(g):
    """A mask as long as the longest history of all rows."""
    x = g.dense(3)
    lengths = 1 + tf.minimum(integers(g)[:, 0], x.shape.as_list()[1] - 1)
    mask = tf.cast(tf.sequence_mask(lengths), F)[..., tf.newaxis]
    return tf.reduce_sum(x[:, : tf.shape(mask)[1]] * mask, axis=1) / tf.reduce_sum(mask, axis=1)


def guarded(g):
    """A tensor that waits for an assertion."""
    x = tf.concat([g.dense(2), g.dense(2)], axis=1)
    kernel = g.kernel(x.shape.as_list()[1])
    with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(1e300, F))]):
        return tf.tanh(
            tf.matmul(tf.concat([x, x], axis=1)[:, : x.shape.as_list()[1]] * 1.0, kernel)
        )


def function(g):
    a, b = g.pair()
    return tf.function(lambda a, b: tf.tanh(a) * 2 + b)(a, b)


def where_gather(g):
    x = g.dense(2)
    places = tf.where(x > 0.05 + AWAY)
    values = tf.gather_nd(x, places) * 2.0
    out = tf.scatter_nd(places, values, tf.shape(x, out_type=INT))
    out.set_shape(x.shape)
    return out


def entry_sizes(g):
    x = g.dense(2)
    values = tf.gather_nd(x, tf.where(tf.abs(x) < 1e300))  # All of them.
    out = tf.reshape(tf.reshape(tf.sin(x), tf.shape(values)) * values, tf.shape(x))
    out.set_shape(x.shape)
    return out


def ragged_sum(g):
    x = g.dense(2)
    ragged = tf.ragged.boolean_mask(x, x > 0.05 + AWAY)
    return tf.reduce_sum(ragged, axis=1)[:, tf.newaxis]
