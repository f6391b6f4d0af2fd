# SPDX-License-Identifier: Apache-2.0
"""Tests of the slices of gradients: their norms are those of a variable in the same program."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes.walk import ancestors

VOCABULARY, DIM = 10, 3
ROWS = np.random.default_rng(0).normal(size=(VOCABULARY, DIM)).astype(np.float32)
OPTION = rec.EmbeddingVariableOption(
    init_option=rec.InitializerOption(tf.constant_initializer(ROWS), default_value_dim=VOCABULARY)
)
# Key 7 occurs five times, in one example twice; key 3 three times.
IDS = np.array([[7, 7, 3], [7, 1, -1], [3, 7, 9], [7, 3, -1]])
MASK = IDS >= 0
WEIGHTS = np.random.default_rng(1).uniform(0.2, 2, IDS.shape).astype(np.float32)
FACTORS = np.random.default_rng(2).normal(size=(len(IDS), DIM)).astype(np.float32)
OCCURRENCES = [np.sum(key == IDS) for key in range(VOCABULARY)]


def make_table(name="table", shards=1, **options):
    return rec.get_embedding_variable(
        name,
        DIM,
        partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
        ev_option=rec.EmbeddingVariableOption(init_option=OPTION.init_option, **options),
    )


def make_variable(name="dense"):
    return tf.get_variable(name, initializer=ROWS, use_resource=True)


def sparse(values, mask=MASK):
    return tf.SparseTensor(np.argwhere(mask), values[mask], IDS.shape)


def sparse_ids():
    return sparse(IDS.astype(np.int64))


def loss_of(*combined):
    return tf.add_n(
        [tf.reduce_sum(tf.sin(each * (i + 1)) * FACTORS) for i, each in enumerate(combined)]
    )


def run(fetches):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(fetches)


def norm(loss, variables):
    return tf.global_norm(tf.gradients(loss, variables))


def assert_norms_equal(norms):
    """Compares pairs of norms by the names of their cases."""
    for case, (ours, theirs) in run(norms).items():
        # The squares are added in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=case)


@pytest.mark.each_value
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize(
    "lookup, max_norm, shards",
    [
        ("embedding_lookup_sparse", None, 1),
        ("embedding_lookup_sparse", 1.0, 3),
        ("safe_embedding_lookup_sparse", None, 1),
    ],
)
def test_norms_of_combining_lookups_are_tensorflows(lookup, max_norm, shards, combiner):
    table, dense = make_table(shards=shards), make_variable()
    arguments = {"combiner": combiner, "max_norm": max_norm}
    ids = sparse_ids()
    norms = {}
    for case, weights in {"weighted": sparse(WEIGHTS), "unweighted": None}.items():
        ours = getattr(rec, lookup)(table, ids, weights, **arguments)
        theirs = getattr(tf.nn, lookup)(dense, ids, weights, **arguments)
        norms[case] = [norm(loss_of(ours), list(table)), norm(loss_of(theirs), [dense])]
    assert_norms_equal(norms)


@pytest.mark.parametrize("partitioned", [False, True])
def test_norms_of_a_group_are_tensorflows_for_tables_and_dense_variables(partitioned):
    partitioner = tf.fixed_size_partitioner(2) if partitioned else None
    table = make_table(shards=2 if partitioned else 1)
    among, dense = (
        tf.get_variable(name, [VOCABULARY, DIM], use_resource=True, partitioner=partitioner,
                        initializer=tf.ones_initializer())
        for name in ("among", "dense")
    )  # fmt: skip
    ids, weights = sparse_ids(), sparse(WEIGHTS)
    table_out, weighted_out, among_out = rec.group_embedding_lookup_sparse(
        [table, table, among], [ids] * 3, ["sum", "mean", "sqrtn"], [None, weights, None]
    )
    variable = make_variable("variable")
    expected = [
        tf.nn.embedding_lookup_sparse(variable, ids, None, combiner="sum"),
        tf.nn.embedding_lookup_sparse(variable, ids, weights, combiner="mean"),
    ]
    of_dense = tf.nn.embedding_lookup_sparse(dense, ids, None, combiner="sqrtn")
    parts = [list(each) if partitioned else [each] for each in (among, dense)]
    assert_norms_equal(
        {
            "table": [
                norm(loss_of(table_out, weighted_out), list(table)),
                norm(loss_of(*expected), [variable]),
            ],
            "dense": [norm(loss_of(among_out), parts[0]), norm(loss_of(of_dense), parts[1])],
        }
    )


def test_norm_of_several_lookups_is_tensorflows():
    # TensorFlow sums repeated ids within a lookup that combines, not over lookups.
    table, dense = make_table(), make_variable()
    ids = sparse_ids()
    first = tf.constant(IDS[:, 0], tf.int64)
    losses = [
        loss_of(
            of.embedding_lookup_sparse(params, ids, None, combiner="sum"),
            of.embedding_lookup(params, first),
            of.embedding_lookup_sparse(params, ids, sparse(WEIGHTS), combiner="mean"),
        )
        for of, params in ((rec, table), (tf.nn, dense))
    ]
    assert_norms_equal({"all": [norm(losses[0], [table]), norm(losses[1], [dense])]})


@pytest.mark.parametrize("kind", ["one", "weighted", "shared", "linear"])
def test_norm_of_a_column_is_tensorflows(kind):
    batch = {"f": sparse_ids(), "g": sparse_ids(), "w": sparse(WEIGHTS)}
    norms = []
    for scope, of in (("ours", rec), ("theirs", tf.feature_column)):
        if of is rec:
            sources = [rec.categorical_column_with_embedding(key, tf.int64) for key in "fg"]
        else:
            sources = [of.categorical_column_with_identity(key, VOCABULARY) for key in "fg"]
        if kind == "weighted":
            sources[0] = tf.feature_column.weighted_categorical_column(sources[0], "w")
        with tf.variable_scope(scope):
            init = tf.constant_initializer(ROWS)
            if kind == "linear":
                outputs = of.linear_model(batch, sources)
            elif kind == "shared":
                columns = of.shared_embedding_columns(
                    sources, DIM, initializer=init, shared_embedding_collection_name=scope
                )
                outputs = tf.feature_column.input_layer(batch, columns)
            else:
                columns = [of.embedding_column(sources[0], DIM, initializer=init)]
                outputs = tf.feature_column.input_layer(batch, columns)
        xs = [each for each in tf.trainable_variables(scope) if "bias" not in each.name]
        norms.append(norm(tf.reduce_sum(tf.sin(outputs + 1)), xs))
    assert_norms_equal({kind: norms})


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_penalty_on_the_norm_has_tensorflows_gradient(combiner):
    # TensorFlow has no second gradient of lookups without weights.
    ones = sparse(np.ones_like(WEIGHTS))
    found = []
    for of, params, weights in ((rec, make_table(), None), (tf.nn, make_variable(), ones)):
        combined = of.embedding_lookup_sparse(params, sparse_ids(), weights, combiner=combiner)
        (gradient,) = tf.gradients(tf.square(norm(loss_of(combined), [params])), [params])
        found.append(tf.math.unsorted_segment_sum(gradient.values, gradient.indices, VOCABULARY))
    ours, theirs = run(found)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)  # Sums in another order.


CLIPS = {
    "global norm": lambda gradients: tf.clip_by_global_norm(gradients, 0.5)[0],
    "norm": lambda gradients: [tf.clip_by_norm(each, 0.3) for each in gradients],
    "none": list,
}


def clipped_step(optimizer, loss, var_list, clip):
    pairs = optimizer.compute_gradients(loss, var_list)
    gradients, variables = zip(*pairs)
    step = tf.train.get_or_create_global_step()
    return optimizer.apply_gradients(zip(CLIPS[clip](gradients), variables), step)


@pytest.mark.parametrize(
    "name, shards, clip",
    [
        ("GradientDescent", 1, "global norm"),
        ("Adagrad", 3, "global norm"),
        ("Momentum", 1, "norm"),
        ("Ftrl", 1, "none"),
        ("Adagrad", 3, "none"),
    ],
)
def test_clipped_training_is_tensorflows_and_counts_all_occurrences(name, shards, clip):
    arguments = (0.1, 0.9) if name == "Momentum" else (0.1,)
    table, dense = make_table(shards=shards), make_variable()
    ids = sparse_ids()
    steps = []
    for of, params, library in ((rec, table, rec.optimizers), (tf.nn, dense, tf.train)):
        weighted = of.embedding_lookup_sparse(params, ids, sparse(WEIGHTS), combiner="mean")
        loss = loss_of(of.embedding_lookup_sparse(params, ids, None, combiner="sum"), weighted)
        optimizer = getattr(library, f"{name}Optimizer")(*arguments)
        steps.append(clipped_step(optimizer, loss, [params], clip))
    keys = tf.range(VOCABULARY, dtype=tf.int64)
    rows, counts = rec.embedding_lookup(table, keys), table.get_frequency(keys)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(5):
            session.run(steps)
        found, expected, found_counts = session.run([rows, dense, counts])
    np.testing.assert_array_equal(found_counts, 10 * np.array(OCCURRENCES))
    # Sums of up to ten numbers below 3 in another order, over five steps.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gate", [tf.train.Optimizer.GATE_OP, tf.train.Optimizer.GATE_GRAPH])
def test_every_gate_counts_all_occurrences(gate):
    table = make_table()
    loss = loss_of(rec.embedding_lookup_sparse(table, sparse_ids(), None, combiner="sum"))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    step = optimizer.minimize(loss, gate_gradients=gate)
    counts = table.get_frequency(np.arange(VOCABULARY))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_array_equal(session.run(counts), OCCURRENCES)


@pytest.mark.parametrize("reads_norm", [False, True])
def test_a_step_does_without_sums_unless_the_gradient_was_changed(reads_norm):
    table = make_table(shards=2)
    ids = sparse_ids()
    loss = loss_of(
        rec.embedding_lookup_sparse(table, ids, None, combiner="sum"),
        rec.embedding_lookup_sparse(table, ids, sparse(WEIGHTS), combiner="sum"),
    )
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    if reads_norm:
        tf.global_norm([gradient for gradient, _ in pairs])
    step = optimizer.apply_gradients(pairs)
    assert not any(op.type.startswith("Unique") for op in ancestors([step]))


def test_a_filter_admits_by_all_occurrences_of_a_clipped_step():
    table = make_table(filter_option=rec.CounterFilter(3))
    loss = loss_of(rec.embedding_lookup_sparse(table, sparse_ids(), None, combiner="sum"))
    step = clipped_step(rec.optimizers.AdagradOptimizer(0.1), loss, [table], "global norm")
    size, counts = table.size(), table.get_frequency(np.arange(VOCABULARY))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        assert session.run(size) == 2  # Keys 3 and 7.
        np.testing.assert_array_equal(session.run(counts), OCCURRENCES)
