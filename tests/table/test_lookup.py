# SPDX-License-Identifier: Apache-2.0
"""Lookups compared with TensorFlow's lookups of a dense variable with the same rows."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

VOCABULARY, DIM = 50, 5


def make_pair(shards=1, dim=DIM, name="t"):
    """(table, variable) with the same vectors for keys 0 to VOCABULARY-1."""
    rows = np.random.default_rng(0).normal(size=(VOCABULARY, dim)).astype(np.float32)
    init = rec.InitializerOption(tf.constant_initializer(rows), default_value_dim=VOCABULARY)
    table = rec.get_embedding_variable(
        name,
        dim,
        partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
        ev_option=rec.EmbeddingVariableOption(init_option=init),
    )
    dense = tf.get_variable(f"dense_{name}", initializer=rows, use_resource=True)
    return table, dense


def ragged_ids(lengths=(3, 1, 0, 20, 8, 2), seed=1):
    rng = np.random.default_rng(seed)
    return tf.ragged.constant(
        [rng.integers(0, VOCABULARY, n).tolist() for n in lengths], dtype=tf.int64, ragged_rank=1
    )


def like_values(ids, seed=2):
    """Weights for ragged ids."""
    weights = np.random.default_rng(seed).uniform(0.1, 2, size=ids.flat_values.shape.as_list())
    return ids.with_flat_values(tf.constant(weights, tf.float32))


def run(fetches):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


def assert_within_2_ulp(actual, expected):
    # Sums of a few rows: TensorFlow adds in groups of eight (reference: its embedding_lookup_sparse
    # kernel), ours left to right; the contract is 2 units in the last place of the largest term.
    scale = np.max(np.abs(expected), axis=-1, keepdims=True)
    assert actual.shape == expected.shape
    assert np.all(np.abs(actual - expected) <= 2 * np.spacing(scale))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("shape", [[], [0], [7], [2, 3], [2, 0, 3], [1, 2, 3]])
def test_dense_lookup_equals_tensorflow(shards, shape):
    table, dense = make_pair(shards)
    ids = tf.constant(np.random.default_rng(1).integers(0, VOCABULARY, shape), tf.int64)
    values = rec.embedding_lookup(table, ids)
    assert values.shape == shape + [DIM]
    actual, expected = run([values, tf.nn.embedding_lookup(dense, ids)])
    np.testing.assert_array_equal(actual, expected)


def test_shape_of_unknown_ids_is_known_in_the_last_axis():
    table, _ = make_pair()
    assert rec.embedding_lookup(table, tf.placeholder(tf.int64, [None, 4])).shape[1:] == [4, DIM]
    assert rec.embedding_lookup(table, tf.placeholder(tf.int64)).shape.rank is None


def test_int32_ids_are_widened():
    table, dense = make_pair()
    ids = tf.constant([1, 2, 1], tf.int32)
    actual, expected = run([rec.embedding_lookup(table, ids), tf.nn.embedding_lookup(dense, ids)])
    np.testing.assert_array_equal(actual, expected)


def test_ragged_ids_give_ragged_values():
    table, dense = make_pair()
    ids = ragged_ids()
    values = rec.embedding_lookup(table, ids)
    assert isinstance(values, tf.RaggedTensor)
    actual, expected = run([values.flat_values, tf.nn.embedding_lookup(dense, ids.flat_values)])
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_max_norm_clips_as_tensorflow(max_norm):
    table, dense = make_pair()
    ids = tf.range(20)
    actual, expected = run(
        [
            rec.embedding_lookup(table, ids, max_norm=max_norm),
            tf.nn.embedding_lookup(dense, ids, max_norm=max_norm),
        ]
    )
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.each_value
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_sparse_lookup_and_gradient_equal_tensorflow(combiner, weighted, max_norm, shards):
    table, dense = make_pair(shards)
    ids = ragged_ids(lengths=(3, 1, 20, 8, 2))  # TensorFlow wants no empty rows.
    weights = like_values(ids) if weighted else None
    sparse = ids.to_sparse(), weights.to_sparse() if weighted else None
    actual = rec.embedding_lookup_sparse(table, *sparse, combiner=combiner, max_norm=max_norm)
    expected = tf.nn.embedding_lookup_sparse(dense, *sparse, combiner=combiner, max_norm=max_norm)
    assert actual.shape == [5, DIM]
    factor = np.random.default_rng(3).normal(size=(5, DIM)).astype(np.float32)
    xs = list(table)
    grads = tf.gradients(tf.reduce_sum(actual * factor), xs)
    # Adding slices into zeros gives the gradient of each row, whatever the number of slices.
    actual_grad = tf.add_n(
        [tf.math.unsorted_segment_sum(g.values, g.indices, VOCABULARY) for g in grads]
    )
    (grad,) = tf.gradients(tf.reduce_sum(expected * factor), dense)
    expected_grad = tf.math.unsorted_segment_sum(grad.values, grad.indices, VOCABULARY)
    values, expected_values, rows, expected_rows = run(
        [actual, expected, actual_grad, expected_grad]
    )
    assert_within_2_ulp(values, expected_values)
    np.testing.assert_allclose(rows, expected_rows, rtol=1e-5, atol=1e-6)  # Sums of many terms.


@pytest.mark.parametrize(
    "weights, row, message",
    [([0.5], 0, "one weight per id"), ([0.5, 1.0, 1.5], -1, r"rows in \[0, 2\)")],
    ids=["one for all", "negative row"],
)
def test_weights_and_rows_that_do_not_fit_are_an_error(weights, row, message):
    table, _ = make_pair()
    unknown = tf.placeholder_with_default(np.int64([[row, 0], [0, 1], [1, 0]]), [None, 2])
    values = tf.placeholder_with_default(np.float32(weights), [None])
    ids = tf.SparseTensor(unknown, tf.placeholder_with_default(np.int64([1, 2, 3]), [None]), [2, 2])
    combined = rec.embedding_lookup_sparse(table, ids, tf.SparseTensor(unknown, values, [2, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(combined)


def test_gradient_of_weights_equals_tensorflow():
    table, dense = make_pair()
    ids = ragged_ids(lengths=(3, 1, 8)).to_sparse()
    weights = tf.constant(np.linspace(0.5, 2, 12), tf.float32)
    sp_weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
    grads = [
        tf.gradients(tf.reduce_sum(tf.square(lookup(x, ids, sp_weights, combiner="mean"))), weights)
        for lookup, x in [
            (rec.embedding_lookup_sparse, table),
            (tf.nn.embedding_lookup_sparse, dense),
        ]
    ]
    (actual,), (expected,) = run(grads)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)  # Float sums of 5 terms.


@pytest.mark.parametrize("dim", [1, 3, 16, 33, 100])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_weighted_lookup_has_the_bits_of_products_and_a_segment_sum(combiner, dim):
    table = rec.get_embedding_variable("table", dim, initializer=tf.random_normal_initializer())
    random = np.random.default_rng(dim)
    rows = np.sort(random.integers(0, 9, 500) ** 2)  # Some are empty, others long.
    indices = np.stack([rows, np.arange(500)], axis=1)
    weights = random.normal(size=500).astype(np.float32)
    weights[rows == 4] = 0
    keys = tf.constant(random.integers(0, 50, 500))
    values = rec.embedding_lookup(table, keys)
    products = values * weights[:, np.newaxis]
    expected = tf.math.unsorted_segment_sum(products, rows, 70)
    if combiner != "sum":
        powers = weights if combiner == "mean" else np.square(weights)
        divisor = tf.math.unsorted_segment_sum(powers, rows, 70)
        divisor = divisor if combiner == "mean" else tf.sqrt(divisor)
        expected = tf.math.divide_no_nan(expected, divisor[:, tf.newaxis])
    ids = tf.SparseTensor(indices, keys, [70, 500])
    actual = rec.embedding_lookup_sparse(
        table, ids, tf.SparseTensor(indices, weights, [70, 500]), combiner=combiner
    )
    factor = random.normal(size=[70, dim]).astype(np.float32)
    of_actual, of_expected = (tf.gradients(x * factor, table)[0] for x in (actual, expected))
    distinct, places = tf.unique(keys)
    sums = tf.math.unsorted_segment_sum(of_expected.values, places, tf.size(distinct))
    grads = [of_actual.values, sums]
    (found, of_keys), (wanted, wanted_of_keys) = run(list(zip([actual, expected], grads)))
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))
    # Equal numbers: a weight of 0 may give -0, which an update adds to 0.
    np.testing.assert_array_equal(of_keys, wanted_of_keys)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_empty_rows_give_zeros_and_trailing_ones_are_kept(combiner, weighted):
    table, _ = make_pair()
    ids = ragged_ids(lengths=(0, 2, 0, 0))
    weights = like_values(ids) if weighted else None
    values = run(rec.embedding_lookup_sparse(table, ids, weights, combiner=combiner))
    assert values.shape == (4, DIM)
    assert np.all(values[[0, 2, 3]] == 0) and np.all(values[1] != 0)


@pytest.mark.parametrize("weighted", [False, True])
def test_wholly_empty_batch_gives_zeros(weighted):
    table, _ = make_pair()
    indices = np.zeros([0, 2], np.int64)
    ids = tf.SparseTensor(indices, np.zeros([0], np.int64), [3, 4])
    weights = tf.SparseTensor(indices, np.zeros([0], np.float32), [3, 4]) if weighted else None
    values = rec.embedding_lookup_sparse(table, ids, weights)
    (grad,) = tf.gradients(tf.reduce_sum(values), table)
    result, slices = run([values, grad])
    assert result.tolist() == np.zeros([3, DIM]).tolist()
    assert slices.values.shape == (0, DIM)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("row, problem", [(5, "got 5 at 1"), (-1, "got -1 at 1"), (0, "after 1")])
def test_rows_that_are_not_in_order_or_in_the_shape_are_an_error(row, problem, weighted, shards):
    table, _ = make_pair(shards)
    indices = tf.placeholder_with_default(np.int64([[1, 0], [row, 0]]), [None, 2])
    ids = tf.SparseTensor(indices, tf.constant([1, 2], tf.int64), [2, 2])
    weights = tf.SparseTensor(indices, tf.constant([1.0, 2.0]), [2, 2]) if weighted else None
    values = rec.embedding_lookup_sparse(table, ids, weights)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"rows in \[0, 2\).*{problem}"):
        run(values)


@pytest.mark.parametrize("default_id", [None, 7])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_safe_lookup_equals_tensorflow(combiner, default_id):
    table, dense = make_pair()
    ids = tf.SparseTensor(
        [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 0], [1, 1, 2]], [3, -1, -5, 9, 4], [2, 2, 3]
    )
    ids = tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64), ids.dense_shape)
    weights = tf.SparseTensor(ids.indices, tf.constant([1.0, 2, 3, -1, 0.5]), ids.dense_shape)
    actual, expected = run(
        [
            rec.safe_embedding_lookup_sparse(table, ids, weights, combiner, default_id),
            tf.nn.safe_embedding_lookup_sparse([dense], ids, weights, combiner, default_id),
        ]
    )
    assert actual.shape == (2, 2, DIM)
    assert_within_2_ulp(actual, expected)


def test_safe_lookup_keeps_negative_keys_when_asked():
    table, _ = make_pair()
    ids = tf.ragged.constant([[-1], []], dtype=tf.int64)
    values = run(rec.safe_embedding_lookup_sparse(table, ids, combiner="sum", prune=False))
    expected = run(rec.embedding_lookup(table, [-1, -1]))
    np.testing.assert_array_equal(values, expected * [[1], [0]])


def test_group_lookup_equals_single_lookups():
    tables = [make_pair(dim=dim, name=f"t{dim}")[0] for dim in (1, 4, 8)]
    tables = [*tables, tables[0]]
    ids = [ragged_ids(seed=i) for i in range(2)] + [tf.constant([[1, 2], [3, 4]], tf.int64)]
    ids.append(ragged_ids(seed=5).to_sparse())
    combiners = ["sum", "mean", None, "sqrtn"]
    grouped = rec.group_embedding_lookup_sparse(tables, ids, combiners)
    singles = [
        rec.embedding_lookup(t, i) if c is None else rec.embedding_lookup_sparse(t, i, combiner=c)
        for t, i, c in zip(tables, ids, combiners)
    ]
    assert [value.shape.as_list() for value in grouped] == [v.shape.as_list() for v in singles]
    loss = [
        tf.add_n([tf.reduce_sum(tf.square(v)) for v in values]) for values in (grouped, singles)
    ]
    grads = [tf.gradients(each, tables[:3]) for each in loss]
    actual, expected, grad, expected_grad = run([grouped, singles, *grads])
    for a, e in zip(actual, expected):
        np.testing.assert_array_equal(a, e)
    for a, e in zip(grad, expected_grad):
        assert sorted(a.indices) == sorted(e.indices)
        np.testing.assert_array_equal(np.sort(a.values, axis=0), np.sort(e.values, axis=0))


def test_group_lookup_mixes_weighted_and_partitioned_lookups():
    table, dense = make_pair(name="one")
    parts, dense_parts = make_pair(shards=3, name="many")
    ids = ragged_ids(lengths=(2, 3))
    weights = like_values(ids)
    grouped = rec.group_embedding_lookup_sparse(
        [table, table, parts, parts],
        [ids, ids, ids, tf.constant([4, 5], tf.int64)],
        ["mean", "mean", "sum", None],
        sp_weights=[None, weights, None, None],
    )
    sparse, sparse_weights = ids.to_sparse(), weights.to_sparse()
    expected = [
        tf.nn.embedding_lookup_sparse(dense, sparse, None, combiner="mean"),
        tf.nn.embedding_lookup_sparse(dense, sparse, sparse_weights, combiner="mean"),
        tf.nn.embedding_lookup_sparse(dense_parts, sparse, None, combiner="sum"),
        tf.nn.embedding_lookup(dense_parts, [4, 5]),
    ]
    for actual, want in zip(*run([grouped, expected])):
        assert_within_2_ulp(actual, want)


def test_empty_group_is_an_empty_list():
    assert rec.group_embedding_lookup_sparse([], [], []) == []
    assert rec.group_embedding_lookup([], []) == []


@pytest.mark.parametrize("weighted", [False, True])
def test_group_lookup_takes_dense_variables_among_tables(weighted):
    table, dense = make_pair()
    ids = ragged_ids()
    weights = like_values(ids) if weighted else None
    params = [dense, table] * 4
    combiners = ["sum", "sum", "mean", "mean", "sqrtn", "sqrtn", None, None]
    found = rec.group_embedding_lookup_sparse(
        params,
        [ids] * 6 + [tf.constant([[1, 2]], tf.int64)] * 2,
        combiners,
        sp_weights=[weights] * 6 + [None] * 2,
    )
    losses = [tf.add_n([tf.reduce_sum(tf.square(v)) for v in found[i::2]]) for i in range(2)]
    gradients = [
        tf.math.unsorted_segment_sum(each.values, each.indices, VOCABULARY)
        for each in (tf.gradients(loss, p)[0] for loss, p in zip(losses, (dense, table)))
    ]
    values, (of_dense, of_table) = run([found, gradients])
    # Also zeros for an example without ids, as of a table.
    for combiner, of_variable, expected in zip(combiners[::2], values[::2], values[1::2]):
        if combiner is None:
            np.testing.assert_array_equal(of_variable, expected)
        else:
            assert_within_2_ulp(of_variable, expected)
    np.testing.assert_allclose(of_dense, of_table, rtol=1e-6, atol=1e-6)


def test_group_lookup_reads_a_partitioned_variable_with_its_strategy():
    cut = tf.fixed_size_partitioner(2)
    dense = tf.get_variable("cut", initializer=tf.reshape(tf.range(8.0), [4, 2]), partitioner=cut)
    ids = tf.constant([0, 3, 1])
    by_strategy = [
        rec.group_embedding_lookup([dense], [ids], strategy)[0] for strategy in ("div", "mod")
    ]
    expected = [tf.nn.embedding_lookup(dense, ids, strategy) for strategy in ("div", "mod")]
    actual, expected = run([by_strategy, expected])
    np.testing.assert_array_equal(actual, expected)
    assert not np.array_equal(*actual)


def test_group_lookup_of_dense_ids_equals_single_lookups():
    tables = [make_pair(dim=dim, name=f"t{dim}")[0] for dim in (1, 4)]
    ids = [tf.constant([[1, 2], [3, 4]], tf.int64), tf.constant([7])]
    grouped = rec.group_embedding_lookup(tables, ids)
    singles = [rec.embedding_lookup(table, each) for table, each in zip(tables, ids)]
    for actual, expected in zip(*run([grouped, singles])):
        np.testing.assert_array_equal(actual, expected)


def test_group_lookup_without_combiners_takes_means():
    table, _ = make_pair()
    found = rec.group_embedding_lookup_sparse([table], [ragged_ids()], None)
    (actual,), expected = run([found, rec.embedding_lookup_sparse(table, ragged_ids())])
    np.testing.assert_array_equal(actual, expected)


# ------------------------------------------------------------------ counts of distinct ids


def step_over(table, values):
    loss = tf.add_n([tf.reduce_sum(tf.square(each)) for each in values])
    return rec.optimizers.AdagradOptimizer(0.1).minimize(loss, var_list=[table])


def filtered_table(name, shards, filter_freq=3):
    cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
    option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(filter_freq))
    return rec.get_embedding_variable(name, 2, partitioner=cut, ev_option=option)


@pytest.mark.parametrize("shards", [1, 3])
def test_counts_of_distinct_ids_count_as_their_occurrences(shards):
    batch = tf.constant([1, 2, 1, 3, 1, 2001, 2, -4, -4, -4], tf.int64)
    unique = tf.unique_with_counts(batch)
    tables = [filtered_table(name, shards) for name in ("distinct", "repeated")]
    distinct = rec.embedding_lookup(tables[0], unique.y, counts=unique.count)
    steps = [
        step_over(tables[0], [tf.gather(distinct, unique.idx)]),
        step_over(tables[1], [rec.embedding_lookup(tables[1], batch)]),
    ]
    keys = [1, 2, 3, 2001, -4, 5]
    counted = [table.get_frequency(keys) for table in tables]
    exported = [table.export() for table in tables]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(steps)
        assert session.run(counted[0]).tolist() == [3, 2, 1, 1, 3, 0]
        assert sorted(session.run(exported[0]).keys) == [-4, 1]
        session.run(steps)
        np.testing.assert_array_equal(*session.run(counted))
        np.testing.assert_array_equal(*(each.keys for each in session.run(exported)))


def test_counts_are_those_of_the_lookups_that_train():
    table = filtered_table("t", 1)
    trained = rec.embedding_lookup(table, [1, 2], counts=[2, 5])
    rec.embedding_lookup(table, [1, 2], counts=[7, 7])
    train = step_over(table, [trained, rec.embedding_lookup(table, [2])])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(trained)
        assert session.run(table.total_count())[0] == 0
        session.run(train)
        assert session.run(table.get_frequency([1, 2])).tolist() == [2, 6]


def test_counts_hold_for_a_lookup_without_gradient_and_for_ragged_ids():
    table = filtered_table("t", 1)
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    ids = tf.RaggedTensor.from_row_lengths([1, 2, 3], [2, 0, 1])
    values = rec.embedding_lookup(table, ids, counts=ids.with_flat_values([4, 1, 2]))
    loss = weight * tf.reduce_sum(tf.stop_gradient(values.flat_values))
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(table.get_frequency([1, 2, 3])).tolist() == [4, 1, 2]


@pytest.mark.parametrize(
    "ids, counts, message",
    [([1, 2], [1, 0], "counts must be 1 or more"), ([1, 2], [1], "the shape of ids")],
)
def test_counts_that_do_not_fit_fail_the_step(ids, counts, message):
    table = filtered_table("t", 1)
    fed = [tf.placeholder(tf.int64), tf.placeholder(tf.int64)]
    train = step_over(table, [rec.embedding_lookup(table, fed[0], counts=fed[1])])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(train, dict(zip(fed, (ids, counts))))
        assert session.run(table.total_count())[0] == 0


def test_output_that_the_loss_does_not_reach_gets_no_gradient():
    tables = [make_pair(name=name)[0] for name in ("a", "b")]
    a, b = rec.group_embedding_lookup_sparse(tables, [[1, 2], [3]], [None, None])
    grads = tf.gradients(tf.reduce_sum(a), tables)
    assert grads[1] is None
    optimizer = rec.optimizers.MomentumOptimizer(1.0, 0.9)
    train = optimizer.minimize(tf.reduce_sum(a), var_list=tables[:1])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([train, b])
        assert session.run([t.size() for t in tables]) == [2, 0]


def test_lookups_without_training_change_nothing():
    table, _ = make_pair()
    fetches = [
        rec.embedding_lookup(table, [99, 3]),
        rec.embedding_lookup_sparse(table, ragged_ids()),
        table.get_frequency([1, 2]),
        table.get_version([1]),
        table.export(),
    ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(fetches)
        assert session.run([table.size(), table.total_count()[0]]) == [0, 0]


@pytest.mark.parametrize("construct", ["cond", "while_loop"])
def test_training_lookup_in_control_flow_is_an_error(construct, version):
    table, _ = make_pair()
    with pytest.raises(ValueError, match="training lookup must be outside tf.cond, "):
        value = rec.embedding_lookup(table, [1])
        if construct == "cond":
            value = tf.cond(
                tf.placeholder_with_default(True, []),
                lambda: rec.embedding_lookup(table, [1]),
                lambda: value,
            )
        else:
            _, value = tf.while_loop(
                lambda i, v: i < 2,
                lambda i, v: (i + 1, v + rec.embedding_lookup(table, [1])),
                (tf.constant(0), value),
            )
        rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(value))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda t: rec.embedding_lookup(t, [1.0]),
            TypeError,
            "ids must be int64 or int32, got float32",
        ),
        (lambda t: rec.embedding_lookup(t, ["a"]), TypeError, "got string; hash strings with"),
        (lambda t: rec.embedding_lookup(3, [1]), ValueError, "params must be a table.*got 3"),
        (lambda t: rec.embedding_lookup([], [1]), ValueError, "params must be a table"),
        (
            lambda t: rec.embedding_lookup(t, [1], ev_init_value=tf.ones([1, 5])),
            ValueError,
            "ev_init_value must be None, got .*; give the table its initial vectors",
        ),
        (
            lambda t: rec.embedding_lookup(t, [1], blocknums=[2]),
            ValueError,
            r"blocknums must be None, got \[2\]; .* make a table for each dimension",
        ),
        (
            lambda t: rec.embedding_lookup(t, [1], counts=[2.0]),
            TypeError,
            "counts must be integers, got float32",
        ),
        (
            lambda t: rec.embedding_lookup(t, [1, 2], counts=[2]),
            ValueError,
            r"counts must have the shape of ids, got \(1,\) for \(2,\)",
        ),
        (
            lambda t: rec.embedding_lookup_sparse(t, ragged_ids(), blocknums=[2]),
            ValueError,
            "blocknums must be None",
        ),
        (
            lambda t: rec.embedding_lookup_sparse([[0.0, 0.0]], ragged_ids()),
            ValueError,
            "params must be a table",
        ),
        (
            lambda t: rec.group_embedding_lookup_sparse(
                [t], [ragged_ids()], ["sum"], is_sequence=True
            ),
            ValueError,
            "is_sequence must be False, got True; look up padded dense ids",
        ),
        (
            lambda t: rec.group_embedding_lookup_sparse([t], [ragged_ids()], ["sum"], "mod"),
            TypeError,
            "sp_weights must be a list or None, got 'mod'; pass partition_strategy by name",
        ),
        (
            lambda t: rec.group_embedding_lookup([tf.zeros([3, 2])], [[1.0]]),
            TypeError,
            "sp_ids must be int64 or int32, got float32",
        ),
        (lambda t: rec.group_embedding_lookup(["t"], [[1]]), ValueError, "params must be a table"),
        (
            lambda t: rec.group_embedding_lookup([t], [ragged_ids()]),
            TypeError,
            "sp_ids must be dense where the combiner is None",
        ),
        (
            lambda t: rec.embedding_lookup(t, ragged_ids().to_sparse()),
            TypeError,
            "ids must be dense or ragged, got a SparseTensor",
        ),
        (
            lambda t: rec.embedding_lookup_sparse(t, [[1]]),
            TypeError,
            "sp_ids must be a SparseTensor or RaggedTensor",
        ),
        (
            lambda t: rec.embedding_lookup_sparse(t, ragged_ids(), combiner="max"),
            ValueError,
            "combiner must be one of sum, mean, sqrtn, got 'max'",
        ),
        (
            lambda t: rec.embedding_lookup_sparse(t, ragged_ids(), tf.ones([3])),
            TypeError,
            "sp_weights must be a SparseTensor or RaggedTensor",
        ),
        (
            lambda t: rec.embedding_lookup_sparse(t, ragged_ids(), ragged_ids()),
            TypeError,
            "sp_weights must be float, got int64",
        ),
        (
            lambda t: rec.group_embedding_lookup_sparse([t], [[1]], []),
            ValueError,
            "must be of one length, got 1, 1, 0 and 1",
        ),
        (
            lambda t: rec.group_embedding_lookup_sparse([t], [ragged_ids()], [None]),
            TypeError,
            "sp_ids must be dense where the combiner is None",
        ),
    ],
)
def test_bad_argument_is_an_error_that_names_it(call, error, message):
    table, _ = make_pair()
    with pytest.raises(error, match=message):
        call(table)
