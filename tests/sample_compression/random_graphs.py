# SPDX-License-Identifier: Apache-2.0
"""Random graphs over user and item inputs, for the property test of sample-aware compression.

``build`` makes the same graph for the same seed, compressed or not: what is drawn depends on static
shapes only, and those are the same.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from random_structures import (
    AWAY,
    F,
    branch_of_users,
    cond,
    distinct_ids,
    entry_sizes,
    function,
    guarded,
    heads,
    indicator,
    inner_softmax,
    integers,
    loop_over_rows,
    masked_mean,
    mixing_loop,
    ragged_sum,
    recurrent,
    reversed_history,
    safe_lookup,
    sparse_embedding,
    sparse_sum,
    weighted_lookup,
    where_gather,
    while_loop,
)

WIDTHS = (1, 2, 3, 4)


class Graph:
    """The graph under construction. `pool` holds its tensors."""

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.pool = []

    def take(self, test=lambda t: True):
        found = [t for t in self.pool if test(t)]
        assert found
        # Newer tensors are taken more often, so that graphs grow deep.
        weights = np.arange(1, len(found) + 1, dtype=float)
        return found[self.rng.choice(len(found), p=weights / weights.sum())]

    def dense(self, rank=None, static=True):
        """A float tensor with unknown rows on axis 0; if static, its other sizes are known."""

        def fits(t):
            if t.dtype != F or t.shape.rank is None or t.shape.rank < 1:
                return False
            if rank is not None and t.shape.rank != rank:
                return False
            return not static or (
                None not in t.shape.as_list()[1:] and t.shape.as_list()[0] is None
            )

        if rank is not None and not any(fits(t) for t in self.pool):
            base = self.dense(2) if rank != 2 else self.take(lambda t: t.name.startswith("seed"))
            return base[:, 0] if rank == 1 else tf.stack([base, base * 0.5], axis=2)
        return self.take(fits)

    def pair(self):
        """Two float tensors that broadcast row by row."""
        a = self.dense()

        def fits(t):
            if t.dtype != F or t.shape.rank is None or t.shape.rank != a.shape.rank:
                return False
            tail = t.shape.as_list()[1:]
            pairs = list(zip(tail, a.shape.as_list()[1:]))
            return t.shape.as_list()[0] is None and all(
                None not in p and (p[0] == p[1] or 1 in p) for p in pairs
            )

        return a, self.take(fits)

    def constant(self, shape):
        return tf.constant(np.round(self.rng.uniform(-1, 1, shape), 3), F)

    def kernel(self, n):
        return self.constant([n, int(self.rng.choice(WIDTHS))])


def unary(function):
    return lambda g: function(g.dense(static=g.rng.rand() < 0.7))


def binary(function):
    return lambda g: function(*g.pair())


def with_constant(function):
    def make(g):
        x = g.dense()
        shape = x.shape.as_list()[1:]
        kind = g.rng.randint(3)
        return function(x, g.constant([[], shape, [1, *shape]][kind]))

    return make


def reduction(function):
    def make(g):
        x = g.dense(int(g.rng.choice([2, 3])))
        axis = int(g.rng.choice([-1, 1, 1, 1, 0]))
        return function(x, axis=axis, keepdims=bool(g.rng.randint(2)))

    return make


def dense_layer(g):
    x = g.dense(int(g.rng.choice([2, 3])))
    kernel = g.kernel(x.shape.as_list()[-1])
    flat = tf.matmul(tf.reshape(x, [-1, x.shape.as_list()[-1]]), kernel)
    flat = tf.nn.bias_add(flat, g.constant([kernel.shape.as_list()[1]]))
    out = tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [kernel.shape.as_list()[1]]], axis=0))
    out.set_shape([*x.shape.as_list()[:-1], kernel.shape.as_list()[1]])
    return tf.tanh(out)


def concat_layer(g):
    parts = [g.dense(2) for _ in range(g.rng.randint(2, 5))]
    x = tf.concat(parts, axis=g.rng.choice([1, -1]))
    return tf.tanh(tf.matmul(x, g.kernel(x.shape.as_list()[-1])) + g.constant([]))


def attention(g):
    history, query = g.dense(3), g.dense(2)
    width = min(history.shape.as_list()[2], query.shape.as_list()[1])
    history, query = history[:, :, :width], query[:, :width]
    queries = tf.broadcast_to(query[:, tf.newaxis, :], tf.shape(history))
    if g.rng.randint(2):
        queries = tf.tile(query[:, tf.newaxis, :], [1, history.shape.as_list()[1], 1])
    queries.set_shape(history.shape)
    pairs = tf.concat([history, queries, history - queries, history * queries], axis=-1)
    hidden = tf.matmul(tf.reshape(pairs, [-1, 4 * width]), g.constant([4 * width, 2]))
    hidden = tf.nn.relu(tf.nn.bias_add(hidden, g.constant([2])))
    scores = tf.reshape(tf.matmul(hidden, g.constant([2, 1])), [-1, history.shape.as_list()[1]])
    weights = tf.nn.softmax(scores)
    return tf.reduce_sum(history * weights[..., tf.newaxis], axis=1)


def product_layer(g):
    """A layer over products of entries with a query, and over sums of such products."""
    history, query = g.dense(3), g.dense(2)
    width = min(history.shape.as_list()[2], query.shape.as_list()[1])
    history, query = history[:, :, :width], query[:, tf.newaxis, :width]
    entries = [history, history[:, :1], history * 0.5][g.rng.randint(3)]
    parts = [entries * query, history, query + history, query - entries * query]
    parts = [parts[i] for i in g.rng.permutation(4)[: g.rng.randint(1, 5)]]
    parts = [part + tf.zeros_like(history) if g.rng.randint(2) else part for part in parts]
    parts = [
        part if part.shape.as_list()[1] == history.shape.as_list()[1] else part + history
        for part in parts
    ]
    kernel = g.kernel(width * len(parts))
    return tf.tanh(
        tf.tensordot(tf.concat(parts, axis=2), kernel, 1) + g.constant([kernel.shape.as_list()[1]])
    )


def dot_products(g):
    history, query = g.dense(3), g.dense(2)
    width = min(history.shape.as_list()[2], query.shape.as_list()[1])
    product = history[:, :, :width] * query[:, tf.newaxis, :width]
    return tf.reduce_sum(product, axis=2, keepdims=bool(g.rng.randint(2)))


def pooling(g):
    history, weights = g.dense(3), g.dense(2)
    length = min(history.shape.as_list()[1], weights.shape.as_list()[1])
    product = weights[:, :length, tf.newaxis] * history[:, :length]
    return tf.reduce_sum(product, axis=1, keepdims=bool(g.rng.randint(2)))


def difference_layer(g):
    a, b = g.pair()
    if a.shape.rank == 1:
        a, b = a[:, tf.newaxis], b[:, tf.newaxis]
    a += tf.zeros_like(b)  # b may be the wider one.
    x = tf.concat([a - b, a, b + a, g.constant([]) * a], axis=-1)
    return tf.tanh(tf.tensordot(x, g.kernel(x.shape.as_list()[-1]), 1) + g.constant([]))


def einsum_layer(g):
    a, b = g.pair()
    a += tf.zeros_like(b)
    b += tf.zeros_like(a)
    x = tf.concat([a, b, a * b], axis=-1) if a.shape.rank > 1 else tf.stack([a, b, a * b], 1)
    labels = "bt"[: x.shape.rank - 1]
    return tf.einsum(f"{labels}d,dh->{labels}h", x, g.kernel(x.shape.as_list()[-1]))


def sum_of_many(g):
    a, b = g.pair()
    both = [a, b, g.dense(a.shape.rank), a]
    return tf.add_n([x for x in both if x.shape.as_list() == a.shape.as_list()])


def shape_chain(g):
    x = g.dense(3)
    batch, time, width = tf.unstack(tf.shape(x))
    kind = g.rng.randint(4)
    if kind == 0:
        out = tf.reshape(x, [batch, time * width])
    elif kind == 1:
        out = tf.reshape(x, tf.stack([batch, -1]))
    elif kind == 2:
        out = tf.reshape(tf.reshape(x, [batch * time, width]), [batch, time * width])
    else:
        out = tf.reshape(x, [tf.shape(g.dense(2))[0], -1])
    out.set_shape([None, x.shape.as_list()[1] * x.shape.as_list()[2]])
    return out


def mixed_rows_reshape(g):
    x = g.dense(2)
    flat = tf.reshape(x, [-1])
    return tf.concat([flat, flat], axis=0)[: tf.shape(x)[0]]


def filled(g):
    x = g.dense(2)
    out = tf.fill(tf.shape(x), tf.constant(0.25, F)) + tf.zeros([tf.shape(x)[0], 1], F)
    out.set_shape(x.shape)
    return out


def row_numbers(g):
    x = g.dense(2)
    return x + tf.cast(tf.range(tf.shape(x)[0]), F)[:, tf.newaxis]


def batch_mean(g):
    x = g.dense(2)
    return x - tf.reduce_sum(x, axis=0) / (tf.cast(tf.shape(x)[0], F) + 1)


def gram(g):
    x = g.dense(2)
    return tf.matmul(tf.matmul(x, x, transpose_b=True), x) * 0.01


def time_major(g):
    x = tf.transpose(g.dense(3), [1, 0, 2])
    y = tf.transpose(tf.cumsum(x, axis=0) * 0.5, [1, 0, 2])
    return y


def matmul_rows(g):
    a, b = g.dense(3), g.dense(3)
    if a.shape.as_list()[2] == b.shape.as_list()[2]:
        return tf.matmul(a, b, transpose_b=True)
    return tf.matmul(a, a, transpose_a=True)


def gather_embedding(g):
    return tf.gather(g.constant([3, 2]), integers(g)[:, 0])


def gather_batch(g):
    x = g.dense(2)
    return tf.gather(x, tf.math.floormod(integers(g)[:, :1], x.shape.as_list()[1]), batch_dims=1)


def gather_columns(g):
    x = g.dense(2)
    return tf.gather(x, g.rng.randint(0, x.shape.as_list()[1], 2), axis=1)


def one_hot(g):
    return tf.one_hot(integers(g)[:, 0], 3, dtype=F)


def lookup_string(g):
    text = tf.as_string(integers(g)[:, 0])
    joined = tf.strings.join([text, "x"])
    return tf.cast(tf.strings.to_hash_bucket_fast(joined, 5), F)[:, tf.newaxis]


def einsum(g):
    x = g.dense(3)
    kind = g.rng.randint(3)
    if kind == 0:
        return tf.einsum("btd,dh->bth", x, g.kernel(x.shape.as_list()[2]))
    if kind == 1:
        return tf.einsum("btd,bsd->bts", x, x)
    return tf.einsum("btd,btd->bd", x, x * 0.5)


def split_parts(g):
    x = g.dense(2)
    first, second = tf.split(tf.concat([x, x], axis=1), 2, axis=1)
    return first - tf.sin(second)


def unstack(g):
    x = g.dense(3)
    return tf.add_n(tf.unstack(x, axis=1))


def pad(g):
    return tf.pad(g.dense(2), [[0, 0], [1, int(g.rng.randint(2))]])


def pad_rows(g):
    x = g.dense(2)
    return tf.pad(x, [[1, 0], [0, 0]])[1:] + x


def tile(g):
    x = g.dense(2)
    return tf.tile(x, [1, 2])


def tile_rows(g):
    x = g.dense(2)
    return tf.tile(x, [2, 1])[: tf.shape(x)[0]] + x


def made_rows(g):
    x = g.dense(2)
    out = tf.tile(g.constant([1, 2]), [tf.shape(x)[0], 1])
    out.set_shape([None, 2])
    return out


def conv(g):
    x = g.dense(3)
    return tf.nn.conv1d(x, g.constant([2, x.shape.as_list()[2], 2]), stride=1, padding="SAME")


def batch_norm(g):
    x = tf.cast(g.dense(2), tf.float32)
    n = x.shape.as_list()[1]
    y, _, _ = tf.nn.fused_batch_norm(
        x[:, tf.newaxis, tf.newaxis, :],
        *[tf.fill([n], v) for v in (1.5, 0.5)],
        mean=tf.fill([n], 0.1),
        variance=tf.fill([n], 0.7),
        is_training=False,
    )
    return tf.cast(y[:, 0, 0, :], F)


def sequence_mask(g):
    lengths = integers(g)[:, 0]
    return tf.cast(tf.sequence_mask(lengths, 3), F)


def top(g):
    return tf.nn.top_k(g.dense(2), k=1).values


def argmax(g):
    x = g.dense(2)
    return tf.cast(
        tf.argmax(
            tf.round((x + AWAY) * 1e3) + tf.range(x.shape.as_list()[1], dtype=F) * 0.1, axis=1
        ),
        F,
    )[:, tf.newaxis]


def sort_rows(g):
    return tf.sort(g.dense(2), axis=int(g.rng.choice([0, 1])))


def select_v1(g):
    a, b = g.pair()
    same = a + b * 0
    return tf.raw_ops.Select(
        condition=tf.reduce_any(same > 0.05 + AWAY, axis=list(range(1, same.shape.rank)) or None)
        if same.shape.rank > 1
        else same > 0.05 + AWAY,
        x=same,
        y=same * 2,
    )


def strided(g):
    x = g.dense(3)
    kind = g.rng.randint(4)
    return [x[:, 0], x[..., :1], x[:, ::-1, tf.newaxis][:, :, 0], x[:, -1:, 0]][kind]


def every_other_row(g):
    x = g.dense(2)
    return tf.concat([x[::2], x[1::2]], axis=0)


def unknown_rank(g):
    x = g.dense(2)
    y = tf.placeholder_with_default(x, None)
    out = tf.exp(y * 0.1)
    return tf.ensure_shape(out, [None, x.shape.as_list()[1]])


def identity_n(g):
    return tf.identity_n([g.dense(2), g.dense(1)])[0]


def tensordot(g):
    x = g.dense(3)
    return tf.tensordot(x, g.kernel(x.shape.as_list()[-1]), 1)


def stack(g):
    a, b = g.pair()
    both = a + b
    return tf.reduce_sum(tf.stack([both, both * 2], axis=-1), axis=-1)


def scalar_of_rows(g):
    x = g.dense(2)
    return x / (1.0 + tf.cast(tf.size(x), F))


KINDS = {
    **{f.__name__: unary(f) for f in (tf.abs, tf.nn.relu, tf.sigmoid, tf.tanh, tf.square, tf.sin)},
    **{f.__name__: unary(f) for f in (tf.nn.softplus, tf.nn.elu, tf.stop_gradient, tf.identity)},
    "softmax": lambda g: tf.nn.softmax(g.dense(int(g.rng.choice([2, 3])))),
    "log_softmax": lambda g: tf.nn.log_softmax(g.dense(2)),
    "softmax_over_rows": lambda g: tf.nn.softmax(g.dense(2), axis=0),
    "add": binary(tf.add),
    "subtract": binary(tf.subtract),
    "multiply": binary(tf.multiply),
    "maximum": binary(tf.maximum),
    "squared_difference": binary(tf.math.squared_difference),
    "where": binary(lambda a, b: tf.where_v2(a > b + 0.0123 + AWAY, a, b)),
    "logical": binary(lambda a, b: tf.cast(tf.logical_and(a > 0.05 + AWAY, b < 0.5 + AWAY), F)),
    "add_constant": with_constant(tf.add),
    "multiply_constant": with_constant(tf.multiply),
    "clip": lambda g: tf.clip_by_value(g.dense(), -0.7, 0.7),
    "reduce_sum": reduction(tf.reduce_sum),
    "reduce_mean": reduction(tf.reduce_mean),
    "reduce_max": reduction(tf.reduce_max),
    "norm": lambda g: tf.norm(g.dense(2), axis=1, keepdims=True),
    "l2_normalize": lambda g: tf.nn.l2_normalize(g.dense(2), axis=1, epsilon=0.1),
    "cumsum": lambda g: tf.cumsum(g.dense(2), axis=int(g.rng.choice([0, 1]))),
    "reverse": lambda g: tf.reverse(g.dense(2), [int(g.rng.choice([0, 1]))]),
    "expand_dims": lambda g: tf.expand_dims(g.dense(2), int(g.rng.choice([1, 2, -1]))),
    "squeeze": lambda g: tf.squeeze(tf.expand_dims(g.dense(2), 1), [1]),
    "transpose": lambda g: tf.transpose(g.dense(3), [0, 2, 1]),
    "matmul": lambda g: (lambda x: tf.matmul(x, g.kernel(x.shape.as_list()[-1])))(g.dense(2)),
    "tensordot": tensordot,
    "dense_layer": dense_layer,
    "concat_layer": concat_layer,
    "concat": lambda g: tf.concat([g.dense(2), g.dense(2)], axis=1),
    "concat_rows": lambda g: (lambda x: tf.concat([x, x], axis=0)[: tf.shape(x)[0]])(g.dense(2)),
    **{
        f.__name__: f
        for f in (
            product_layer,
            attention, dot_products, pooling, difference_layer, einsum_layer, sum_of_many,
            shape_chain, entry_sizes, mixed_rows_reshape, filled, row_numbers, batch_mean, gram,
            time_major, matmul_rows, gather_embedding, gather_batch, gather_columns, one_hot,
            lookup_string, einsum, cond, while_loop, sparse_sum, sparse_embedding, where_gather,
            ragged_sum, split_parts, unstack, pad, pad_rows, tile, tile_rows, made_rows, conv,
            batch_norm, sequence_mask, top, argmax, sort_rows, select_v1, strided, every_other_row,
            unknown_rank, identity_n, stack, scalar_of_rows, safe_lookup, weighted_lookup,
            indicator, distinct_ids, recurrent, loop_over_rows, mixing_loop, branch_of_users,
            function, guarded, heads, inner_softmax, masked_mean, reversed_history,
        )
    },
}  # fmt: skip


def build(seed, enable=None, nodes=12):
    """Builds the graph of a seed.

    Args:
      seed: Of all random choices.
      enable: Called with (users, items, item_size) before the model is built.

    Returns:
      (users, items, item_size, the kinds used, the tensors built)
    """
    g = Graph(seed)
    item_size = tf.placeholder(tf.int32, [None], name="item_size")
    users, items = [], []
    for side, tensors in (("user", users), ("item", items)):
        for rank in (2, 3) if g.rng.randint(2) else (2,):
            shape = [None, *[int(n) for n in g.rng.choice(WIDTHS, rank - 1)]]
            tensors.append(tf.placeholder(F, shape, name=f"{side}_{rank}"))
    if enable is not None:
        enable(users, items, item_size)
    g.pool = [tf.identity(t, name="seed") for t in [*users, *items]]
    kinds = []
    # Layers that the linear split works on come more often.
    layers = ["attention", "concat_layer", "dense_layer", "difference_layer", "product_layer"]
    names = sorted(KINDS) + 3 * [*layers, "dot_products", "einsum_layer", "pooling", "sum_of_many"]
    for _ in range(nodes):
        kind = names[g.rng.randint(len(names))]
        made = KINDS[kind](g)
        kinds.append(kind)
        g.pool.append(made)
    return users, items, item_size, kinds, g.pool


def values(seed, users, items):
    """(values of user tensors, values of item tensors, item_size) for a graph."""
    rng = np.random.RandomState(seed + 10**6)
    count = int(rng.choice([1, 1, 2, 3, 4]))
    sizes = rng.choice([0, 1, 1, 2, 3, 5], count)
    if not sizes.any():
        sizes[0] = 1
    total = int(sizes.sum())

    def feed(tensors, rows):
        return [rng.uniform(-1, 1, [rows, *t.shape.as_list()[1:]]) for t in tensors]

    return feed(users, count), feed(items, total), sizes.astype(np.int32)
