# SPDX-License-Identifier: Apache-2.0
"""Graphs in which ops mix rows, or may seem to: outputs must stay the same."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import INT, SIZES, F, both, expect_equal, uniform


def per_row_functions(user, item):
    mapped = tf.map_fn(lambda row: tf.cumsum(row) * 2, user)
    vectorized = tf.vectorized_map(lambda row: tf.reduce_sum(row) * row, user)
    folded = tf.foldl(lambda total, row: total + row, user)
    return mapped, vectorized, folded, tf.scan(lambda total, row: total + row, user)


def python_functions(user, item):
    return tf.py_func(lambda x: x - x.mean(0), [user], F) + item


def functions(user, item):
    centred = tf.function(lambda x: x - tf.reduce_mean(x, axis=0))
    return centred(user), centred(user * 2) + item


def comparisons(user, item):
    whole = tf.round(user)

    def equal(a, b):
        return tf.raw_ops.Equal(x=a, y=b, incompatible_shape_error=False)

    return (
        equal(whole, tf.constant(0, F)),
        equal(whole, tf.round(user * 1.0)),
        equal(whole, tf.zeros([4, 7], F)),
        equal(user, item),
    )


def sets(user, item):
    values, places = tf.unique(tf.reshape(tf.cast(user * 3, INT), [-1]))
    same = tf.reshape(tf.gather(values, places), tf.shape(user))
    return values, same, tf.dynamic_partition(user, tf.cast(user[:, 0] > 0, tf.int32), 2)


def masks(user, item):
    places = tf.where(user > 0)
    return tf.boolean_mask(user, user[:, 0] > 0), places, tf.size(places)


def numbers_of_entries(user, item):
    whole = tf.abs(user) + 1
    places = tf.where(whole > 0)  # All of them.
    values = tf.gather_nd(whole, places)
    return (
        tf.reshape(user, tf.shape(values)),
        tf.reshape(user, [tf.size(values)]) + tf.ones([tf.shape(places)[0]], F),
        tf.reshape(values, tf.shape(user)) + item,
        tf.ones(tf.shape(values), F) * values,
    )


def moments(user, item):
    mean, variance = tf.nn.moments(user, [0])
    return (user - mean) / tf.sqrt(variance + 1), tf.nn.moments(user, [1])


def branches(user, item):
    total = tf.reduce_sum(user)
    return (
        tf.case([(total > 100, lambda: user)], default=lambda: user * 3),
        tf.switch_case(tf.constant(1), [lambda: user, lambda: -user]) * item,
    )


def recurrent_network(user, item):
    steps = tf.transpose(tf.stack([user, user * 2, user - 1], axis=1), [1, 0, 2])
    inputs = tf.TensorArray(F, 3).unstack(steps)
    outputs = tf.TensorArray(F, 3)
    kernel = tf.constant(uniform(2, 2))

    def body(step, state, outputs):
        state = tf.tanh(tf.matmul(state, kernel) + inputs.read(step))
        return step + 1, state, outputs.write(step, state)

    start = [0, tf.zeros([tf.shape(user)[0], 2], F), outputs]
    _, state, outputs = tf.while_loop(lambda step, *_: step < 3, body, start)
    return state * item, tf.transpose(outputs.stack(), [1, 0, 2])


def gradients(user, item):
    kernel = tf.get_variable("kernel", [4, 2], F)
    total = tf.reduce_sum(tf.tanh(tf.matmul(tf.concat([user, item], axis=1), kernel)))
    return total, tf.gradients(total, [kernel, item])


def segments(user, item):
    pairs = tf.range(tf.shape(user)[0]) // 2
    return (
        tf.math.segment_sum(user, pairs),
        tf.math.unsorted_segment_max(user[:, 0], tf.cast(user[:, 1] > 0, tf.int32), 2),
    )


def assertions(user, item):
    small = tf.debugging.assert_less(user, tf.constant(100, F))
    same = tf.debugging.assert_equal(tf.shape(user)[0], tf.shape(item)[0])
    with tf.control_dependencies([small, same]):
        return tf.identity(user) * 2


def scalars(user, item):
    largest = tf.reduce_max(user)
    return largest, user * largest, largest * 2 + item


def sizes(user, item):
    rows = tf.shape(item)[0]
    return (
        tf.reshape(user, [rows, 2]),
        tf.reshape(user, tf.stack([rows, 1, 2])),
        tf.tile(user[:, tf.newaxis], [1, 3, 1]) / tf.cast(rows, F),
        tf.broadcast_to(user[:, :1], [rows, 5]),
        tf.ones([rows, 3], F) * user[:, :1],
        tf.reshape(item, tf.shape(user)),
        tf.fill([tf.shape(user)[0], 2], tf.constant(2, F)) + tf.zeros_like(user),
        tf.size(user) * 2,
    )


def constants_of_a_row_each(user, item):
    ones = tf.ones([SIZES.sum(), 2], F)
    columns = [user[:, 0], tf.ones([tf.shape(user)[0]], F)]
    return tf.concat([user, ones], axis=1), user + ones * 3, tf.stack(columns, axis=1)


def other_rows(user, item):
    return (
        tf.concat([user, user[::-1]], axis=1),
        tf.gather(user, tf.argsort(user[:, 0], stable=True)),
        tf.roll(user, 1, 0),
        tf.slice(user, [0, 0], [-1, 1]),
        tf.slice(user, [0, 0], [2, 1]),
        user[1:],
        user[tf.newaxis],
        user[:, tf.newaxis] - user[tf.newaxis],
    )


def squeezes(user, item):
    return tf.squeeze(user[:, :1]), tf.squeeze(user[:, :1], 1), tf.squeeze(user[tf.newaxis], 0)


def einsums(user, item):
    return (
        tf.einsum("bi,bj->ij", user, user),
        tf.einsum("bi,cj->bcij", user, user),
        tf.einsum("bi,bj->bij", user, item),
        tf.einsum("bi->ib", user),
        tf.einsum("...i,ij->...j", user, tf.constant(uniform(2, 3))),
    )


def products(user, item):
    both_sides = tf.concat([user, item], axis=1)
    return (
        tf.matmul(tf.constant(uniform(2, 2)), user, transpose_b=True),
        tf.matmul(item, user, transpose_b=True),
        tf.matmul(user[:, tf.newaxis], item[:, :, tf.newaxis]),
        tf.matmul(user[:, :, tf.newaxis], item[:, tf.newaxis]),
        tf.matmul(both_sides, tf.constant(uniform(3, 4)), transpose_b=True),
        tf.matmul(tf.concat([item, user, item], axis=1), tf.constant(uniform(6, 3))),
    )


MODELS = (
    per_row_functions, python_functions, functions, comparisons, sets, masks, moments, branches,
    numbers_of_entries, recurrent_network, gradients, segments, assertions, scalars, sizes,
    constants_of_a_row_each, other_rows, squeezes, einsums, products,
)  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_outputs_stay_the_same(model):
    for request in (SIZES, np.array([6], np.int32)):
        users, items = [uniform(len(request), 2)], [uniform(6, 2)]
        expected, got, _ = both(lambda u, i: model(u[0], i[0]), users, items, request)
        expect_equal(expected, got, 1e-12)


@pytest.mark.parametrize("model", [per_row_functions, branches, recurrent_network])
def test_outputs_stay_the_same_under_either_control_flow(model, version):
    expected, got, _ = both(lambda u, i: model(u[0], i[0]), [uniform(4, 2)], [uniform(6, 2)])
    expect_equal(expected, got, 1e-12)
