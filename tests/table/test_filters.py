# SPDX-License-Identifier: Apache-2.0
"""Feature filters end to end: what a key reads, when it is admitted, which occurrences count."""

from typing import get_args

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from filter_rules import FILTERS, LARGE, WITH_ENTRIES

import rec_estimator as rec
from rec_estimator.options import Filter

BANK = np.arange(12, dtype=np.float32).reshape(6, 2) + 1
NO_PERMISSION = -9.0
EVERY_FILTER = pytest.mark.parametrize("make_filter", FILTERS.values(), ids=FILTERS)
ALSO_PARTITIONED = pytest.mark.parametrize("shards", [1, 3])


def option(filter_option):
    init = rec.InitializerOption(tf.constant_initializer(BANK), len(BANK), NO_PERMISSION)
    return rec.EmbeddingVariableOption(filter_option=filter_option, init_option=init)


def make_table(filter_option, shards=1, name="t"):
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    return rec.get_embedding_variable(
        name, 2, ev_option=option(filter_option), partitioner=partitioner
    )


def minimize(loss, learning_rate=1.0):
    step = tf.train.get_or_create_global_step()
    optimizer = rec.optimizers.GradientDescentOptimizer(learning_rate)
    return optimizer.minimize(loss, global_step=step)


def initialized_session():
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def state(session, table, keys):
    """Everything that a table reports."""
    return session.run(
        {
            "values": rec.embedding_lookup(table, tf.constant(keys, tf.int64)),
            "freqs": table.get_frequency(keys),
            "versions": table.get_version(keys),
            "size": table.size(),
            "total_count": table.total_count()[0],
            "export": table.export(),
        }
    )


# ------------------------------------------------------------------ DeepRec's timing


@EVERY_FILTER
@ALSO_PARTITIONED
def test_fourth_lookup_reads_the_row_that_the_third_step_trained(make_filter, shards):
    table = make_table(make_filter(3), shards)
    values = rec.embedding_lookup(table, tf.constant([5], tf.int64))
    # The gradient of step n is n, so the row shows which steps were applied.
    train = minimize(tf.reduce_sum(values) * tf.placeholder_with_default(1.0, [], "g"))
    read = []
    with initialized_session() as session:
        for step in range(1, 6):
            value, _ = session.run([values, train], {"g:0": float(step)})
            read.append(value[0].tolist())
        initial = BANK[5]
        # Steps 1 and 2 were dropped; step 3 was applied, to the initial vector.
        assert read[:3] == [[NO_PERMISSION] * 2] * 3
        assert read[3:] == [(initial - 3).tolist(), (initial - 3 - 4).tolist()]
        assert session.run(table.get_frequency([5])).tolist() == [5], "true counts go on"


@EVERY_FILTER
@ALSO_PARTITIONED
def test_occurrences_of_one_batch_are_counted(make_filter, shards):
    table = make_table(make_filter(3), shards)
    keys = tf.constant([1, 1, 1, 1, 2, 2, 2, 3, 3, 4], tf.int64)
    train = minimize(tf.reduce_sum(rec.embedding_lookup(table, keys)))
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.get_frequency([1, 2, 3, 4, 5])).tolist() == [4, 3, 2, 1, 0]
        assert sorted(session.run(table.export()).keys) == [1, 2]
        assert session.run(table.size()) == 2
        entries = 4 if isinstance(table.filter, WITH_ENTRIES) else 2
        assert session.run(table.total_count()[0]) == entries


@EVERY_FILTER
@ALSO_PARTITIONED
def test_all_lookups_of_a_step_are_counted_together(make_filter, shards):
    """Dense, sparse, grouped and weighted lookups of one table, and one without gradient."""
    table = make_table(make_filter(6), shards)
    ids = tf.sparse.from_dense(tf.constant([[7, 7, 8], [7, 0, 0]], tf.int64))
    weights = tf.sparse.from_dense(tf.constant([[1.0, 2.0, 3.0], [4.0, 0, 0]]))
    ragged = tf.ragged.constant([[7], [], [9, 8]], dtype=tf.int64)
    found = [
        rec.embedding_lookup(table, tf.constant([7, 9], tf.int64)),
        rec.embedding_lookup_sparse(table, ids, None),
        rec.embedding_lookup_sparse(table, ids, weights, combiner="sum"),
        *rec.group_embedding_lookup_sparse(
            [table, table], [ragged, tf.constant([[8]], tf.int64)], ["mean", None]
        ),
    ]
    train = minimize(tf.add_n([tf.reduce_sum(each) for each in found]))
    with initialized_session() as session:
        session.run(train)
        # 7: 1 + 3 + 3 + 1; 8: 0 + 1 + 1 + 2; 9: 1 + 0 + 0 + 1.
        assert session.run(table.get_frequency([7, 8, 9])).tolist() == [8, 4, 2]
        assert session.run(table.export()).keys.tolist() == [7]


def test_lookups_without_gradient_are_counted_and_admitted():
    table = make_table(rec.CounterFilter(2))
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    values = tf.stop_gradient(rec.embedding_lookup(table, tf.constant([3, 3, 4], tf.int64)))
    train = minimize(weight * tf.reduce_sum(values))
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.get_frequency([3, 4])).tolist() == [2, 1]
        assert session.run(values)[0].tolist() == BANK[3].tolist()


@EVERY_FILTER
def test_gradient_is_that_of_the_occurrences_of_the_admitted_keys_only(make_filter):
    table = make_table(make_filter(2))
    ids = tf.ragged.constant([[3, 3, 4], [4], [5]], dtype=tf.int64)
    loss = tf.reduce_sum(rec.embedding_lookup_sparse(table, ids, None, combiner="sum"))
    train = minimize(loss, learning_rate=0.5)
    with initialized_session() as session:
        session.run(train)
        found = session.run(rec.embedding_lookup(table, tf.constant([3, 4, 5], tf.int64)))
    expected = [BANK[3] - 2 * 0.5, BANK[4] - 2 * 0.5, [NO_PERMISSION] * 2]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


@EVERY_FILTER
def test_slots_begin_at_the_step_that_admits(make_filter):
    """Adagrad's accumulator sums the gradients from the step that admits the key."""
    table = make_table(make_filter(3))
    dense = tf.get_variable("dense", initializer=BANK)
    step = tf.train.get_or_create_global_step()
    sparse_loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, tf.constant([2], tf.int64))))
    # In the third step the lookup still read default_value_no_permission.
    seen = tf.placeholder_with_default(dense[2], [2])
    gradient = tf.IndexedSlices(2.0 * seen[tf.newaxis], tf.constant([2]))
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(sparse_loss, global_step=step)
    train_dense = rec.optimizers.AdagradOptimizer(0.1).apply_gradients([(gradient, dense)])
    with initialized_session() as session:
        for _ in range(3):
            session.run(train)
        session.run(train_dense, {seen: [NO_PERMISSION] * 2})
        for _ in range(2):
            session.run([train])
            session.run([train_dense])
        found = session.run(rec.embedding_lookup(table, tf.constant([2], tf.int64)))
        np.testing.assert_array_equal(found[0], session.run(dense)[2])


# ------------------------------------------------------------------ nothing else counts


@EVERY_FILTER
@ALSO_PARTITIONED
def test_lookups_outside_of_training_change_nothing(make_filter, shards):
    table = make_table(make_filter(2), shards)
    trained = tf.constant([1, 1, 2, -3], tf.int64)
    train = minimize(tf.reduce_sum(rec.embedding_lookup(table, trained)))
    others = tf.constant([[2, -3], [8, 1]], tf.int64)
    readers = [
        rec.embedding_lookup(table, others),
        rec.embedding_lookup_sparse(table, tf.RaggedTensor.from_tensor(others), None),
        rec.safe_embedding_lookup_sparse(table, tf.RaggedTensor.from_tensor(others)),
        *rec.group_embedding_lookup_sparse([table], [others], [None]),
        *(table.get_frequency(others), table.get_version(others), table.capacity()),
    ]
    with initialized_session() as session:
        session.run(train)
        keys = [1, 2, -3, 8]
        before = state(session, table, keys)
        for _ in range(3):
            session.run(readers)
        after = state(session, table, keys)
    assert str(before) == str(after)
    assert before["freqs"].tolist() == [2, 1, 1, 0]


@pytest.mark.long
def test_evaluate_predict_export_and_serving_change_nothing(tmp_path):
    features = [rec.EmbeddingFeature("user", dim=2, filter_option=rec.CounterFilter(3))]

    def model_fn(features, labels, mode):
        logits = tf.reduce_sum(features["user"], axis=1)
        if mode == rec.ModeKeys.PREDICT:
            outputs = {"serving_default": rec.PredictOutput({"logits": logits})}
            return rec.EstimatorSpec(mode, predictions={"logits": logits}, export_outputs=outputs)
        loss = tf.reduce_sum(tf.square(logits - labels))
        train = rec.optimizers.GradientDescentOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step()
        )
        return rec.EstimatorSpec(mode, loss=loss, train_op=train)

    def input_fn():
        batch = {"user": tf.constant([1, 1, 2], tf.int64)}, tf.constant([1.0, 2.0, 3.0])
        return tf.data.Dataset.from_tensors(batch).repeat()

    estimator = rec.RecEstimator(model_fn, str(tmp_path), embedding_features=features)
    estimator.train(input_fn, steps=1)
    path = tf.train.latest_checkpoint(str(tmp_path))
    saved = {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}
    assert saved["user-keys_filtered"].tolist() == [1, 2]
    assert saved["user-freqs_filtered"].tolist() == [2, 1]
    for _ in range(2):
        estimator.evaluate(input_fn, steps=2)
        predictions = estimator.predict(lambda: input_fn().take(2))
        # No key is admitted yet: the model read zeros.
        assert [p["logits"] for p in predictions] == [0.0] * 6
        receiver = rec.build_raw_serving_input_receiver_fn(
            {"user": tf.placeholder(tf.int64, [None], name="user")}
        )
        folder = estimator.export_saved_model(str(tmp_path / "export"), receiver)
        with tf.Graph().as_default(), tf.Session() as session:
            signature = tf.saved_model.load(session, ["serve"], folder).signature_def
            signature = signature["serving_default"]
            feeds = {signature.inputs["user"].name: [1, 2, 1]}
            for _ in range(3):
                served = session.run(signature.outputs["logits"].name, feeds)
                assert served.tolist() == [0.0] * 3
    estimator.train(input_fn, steps=1)
    path = tf.train.latest_checkpoint(str(tmp_path))
    assert tf.train.load_variable(path, "user-keys").tolist() == [1]
    assert tf.train.load_variable(path, "user-freqs").tolist() == [4]
    assert tf.train.load_variable(path, "user-freqs_filtered").tolist() == [2]


# ------------------------------------------------------------------ which filter a table has


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, None),
        (rec.CounterFilter(0), None),
        (rec.CBFFilter(0, **LARGE), None),
        (rec.CounterFilter(3), rec.CounterFilter(3)),
        (rec.CBFFilter(3), rec.CounterFilter(3)),
        (rec.CBFFilter(3, **LARGE), rec.CBFFilter(3, **LARGE)),
    ],
    ids=str,
)
def test_filter_is_the_rule_in_force(given, expected):
    table = make_table(given)
    assert table.filter == expected
    values = rec.embedding_lookup(table, tf.constant([4], tf.int64))
    with initialized_session() as session:
        expected = BANK[4] if expected is None else [NO_PERMISSION] * 2
        np.testing.assert_array_equal(session.run(values)[0], expected)


def test_bloom_filter_without_a_size_counts_exactly_and_says_so_once(monkeypatch):
    told = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: told.append(text % values))
    for _ in range(2):
        table = make_table(rec.CBFFilter(3))
    (message,) = told
    assert "'t'" in message and "behaves like CounterFilter(filter_freq=3)" in message
    train = minimize(tf.reduce_sum(rec.embedding_lookup(table, tf.constant([4], tf.int64))))
    with initialized_session() as session:
        session.run(train)
        assert session.run([table.size(), table.total_count()[0]]) == [0, 1]


def test_every_filter_has_a_line_in_the_contract_tests():
    tested = {type(make_filter(3)) for make_filter in FILTERS.values()}
    assert tested == set(get_args(Filter))


def test_handles_of_all_shards_have_the_size_of_the_logical_table():
    table = make_table(rec.CBFFilter(3, **LARGE), shards=3)
    for shard in table:
        sketch = shard.op.get_attr("sketch").decode()
        assert sketch == (
            "counting_bloom_filter max_element_size=1000000 false_positive_probability=1e-06"
        )
        assert shard.op.get_attr("filter_freq") == 3


@pytest.mark.parametrize(
    "other",
    [None, rec.CounterFilter(4), rec.CBFFilter(3), rec.CBFFilter(3, **LARGE)],
    ids=str,
)
def test_same_name_with_another_filter_is_an_error(other):
    make_table(rec.CounterFilter(3))
    with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
        make_table(other)


# ------------------------------------------------------------------ features


def test_feature_takes_filter_and_eviction_as_shorthands():
    evict, init = rec.GlobalStepEvict(9), rec.InitializerOption(default_value_dim=4)
    feature = rec.EmbeddingFeature(
        "user",
        dim=2,
        ev_option=rec.EmbeddingVariableOption(init_option=init),
        filter_option=rec.CounterFilter(3),
        evict_option=evict,
    )
    assert feature.ev_option == rec.EmbeddingVariableOption(
        filter_option=rec.CounterFilter(3), evict_option=evict, init_option=init
    )


@pytest.mark.parametrize(
    "name, value",
    [("filter_option", rec.CounterFilter(3)), ("evict_option", rec.L2WeightEvict(0.5))],
)
def test_shorthand_beside_an_option_that_has_it_is_an_error_with_both(name, value):
    with pytest.raises(ValueError, match=f"{name} must be given once, got .* in ev_option="):
        rec.EmbeddingFeature(
            "user", 2, ev_option=rec.EmbeddingVariableOption(**{name: value}), **{name: value}
        )


@pytest.mark.parametrize("name", ["filter_option", "evict_option"])
def test_shorthand_of_another_type_is_an_error(name):
    with pytest.raises(TypeError, match=f"{name} must be of type .*, got 3"):
        rec.EmbeddingFeature("user", 2, **{name: 3})


def test_features_of_one_table_must_have_one_filter():
    features = [
        rec.EmbeddingFeature("a", 2, table="t", filter_option=rec.CounterFilter(3)),
        rec.EmbeddingFeature("b", 2, table="t", filter_option=rec.CounterFilter(4)),
    ]
    with pytest.raises(ValueError, match="table 't' must have one filter_option for all its"):
        rec.features.check_declarations(features)
