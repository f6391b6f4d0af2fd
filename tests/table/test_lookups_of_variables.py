# SPDX-License-Identifier: Apache-2.0
"""Lookups of dense variables, as scripts have them where they compare tables with variables."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf_behavior import resource_variables

import rec_estimator as rec

ROWS = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


def variable():
    return tf.get_variable("v", initializer=ROWS)


def partitioned_variable():
    cut = tf.fixed_size_partitioner(2)
    return tf.get_variable("p", ROWS.shape, initializer=tf.ones_initializer(), partitioner=cut)


def list_of_variables():
    return [tf.get_variable(f"l{i}", initializer=ROWS[i::2]) for i in range(2)]


def sparse_ids():
    return tf.sparse.from_dense(tf.constant([[1, 7, 1], [9, 0, 0], [2, 5, 0]], tf.int64))


def sparse_weights():
    return sparse_ids().with_values(tf.constant([0.5, 2.0, 1.0, 0.25, 3.0, 1.5]))


def run(fetches):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("params", [variable, partitioned_variable, list_of_variables])
@pytest.mark.parametrize(
    "strategy, max_norm, is_resource", [("mod", None, False), ("div", 1.0, True)]
)
def test_lookups_and_gradients_of_variables_are_tensorflows(
    params, strategy, max_norm, is_resource
):
    with resource_variables(is_resource):
        params = params()
    ids, weights = sparse_ids(), sparse_weights()
    results = []
    for lookups in (rec, tf.nn):
        values = [
            lookups.embedding_lookup(params, [[1, 7], [1, 0]], strategy, max_norm=max_norm),
            lookups.embedding_lookup_sparse(params, ids, None, strategy, "name", "sum", max_norm),
            lookups.embedding_lookup_sparse(
                params, ids, weights, strategy, combiner="sqrtn", max_norm=max_norm
            ),
            lookups.safe_embedding_lookup_sparse(
                params, ids, weights, "mean", None, "name", strategy, max_norm
            ),
        ]
        loss = tf.add_n([tf.reduce_sum(tf.square(each)) for each in values])
        variables = [params] if hasattr(params, "ref") else list(params)
        gradients = [tf.convert_to_tensor(each) for each in tf.gradients(loss, variables)]
        results.append([*values, *gradients])
    for actual, expected in zip(*run(results)):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "params", [variable, lambda: tf.constant(ROWS)], ids=["variable", "tensor"]
)
def test_ragged_ids_of_a_variable_are_looked_up_as_tensorflow_does(params):
    params, ids = params(), tf.ragged.constant([[1, 7], [9]], dtype=tf.int64)
    pairs = [
        (rec.embedding_lookup(params, ids), tf.nn.embedding_lookup(params, ids)),
        (
            rec.embedding_lookup_sparse(params, ids, combiner="sum"),
            tf.nn.embedding_lookup_sparse(params, ids, None, combiner="sum"),
        ),
    ]
    assert isinstance(pairs[0][0], tf.RaggedTensor)
    actual, expected = run([pairs[0][0].flat_values, pairs[0][1].flat_values])
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(*run(pairs[1]))


def test_a_safe_lookup_of_a_variable_takes_keywords_default_id_and_invalid_ids():
    ids = tf.sparse.from_dense(tf.constant([[1, -1], [0, 0]], tf.int64))
    arguments = {"embedding_weights": variable(), "sparse_ids": ids, "default_id": 4, "name": "x"}
    values = rec.safe_embedding_lookup_sparse(**arguments)
    assert values.op.name.startswith("x")
    np.testing.assert_array_equal(*run([values, tf.nn.safe_embedding_lookup_sparse(**arguments)]))


def test_counts_do_not_matter_to_a_variable():
    values = rec.embedding_lookup(variable(), [1, 7], counts=[2, 1])
    np.testing.assert_array_equal(run(values), ROWS[[1, 7]])


def test_groups_take_lists_of_variables_as_well():
    parts, ids = list_of_variables(), tf.constant([3, 8])
    (read,) = rec.group_embedding_lookup([parts], [ids])
    (summed,) = rec.group_embedding_lookup_sparse([parts], [sparse_ids()], ["sum"])
    expected = tf.nn.embedding_lookup_sparse(parts, sparse_ids(), None, combiner="sum")
    read, summed, expected = run([read, summed, expected])
    np.testing.assert_array_equal(read, ROWS[[3, 8]])
    # The sum of at most three rows: one rounding more or less.
    np.testing.assert_allclose(summed, expected, rtol=3e-7)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t, v: rec.embedding_lookup([t, v], [1]), "params must be a table.*variables"),
        (lambda t, v: rec.embedding_lookup_sparse([v, t], sparse_ids()), "params must be a table"),
        (
            lambda t, v: rec.safe_embedding_lookup_sparse(v, sparse_ids(), prune=False),
            "prune must be True for a dense variable, got False; it has no negative ids",
        ),
        (
            lambda t, v: rec.embedding_lookup(v, [1], ev_init_value=1.0),
            "ev_init_value must be None",
        ),
        (lambda t, v: rec.embedding_lookup_sparse(v, sparse_ids(), blocknums=[1]), "blocknums"),
    ],
)
def test_arguments_that_do_not_fit_a_variable_are_refused_by_name(call, message):
    table = rec.get_embedding_variable("t", 3)
    with pytest.raises(ValueError, match=message):
        call(table, variable())
