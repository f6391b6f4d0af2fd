# SPDX-License-Identifier: Apache-2.0
"""sparse_lookup: the values that keys read, counts, admission, and the gradient."""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.rec_sdk.data_time import table_timestamp

ONES = tf.ones_initializer()
NINES = [9.0, 9.0]
CONFIG = "access_and_evict_config"


def table_of(name="t", dim=2, initializer=ONES, rows=1000, **kwargs):
    return rec.create_table(tf.int64, dim, name, initializer, device_vocabulary_size=rows, **kwargs)


def lookup(table, ids, **kwargs):
    return rec.sparse_lookup(table, ids, modify_graph=True, **kwargs)


def feed():
    return tf.placeholder(tf.int64, [None])


def update(*values, rate=0.5):
    return rec.optimizers.GradientDescentOptimizer(rate).minimize(
        tf.add_n([tf.reduce_sum(value) for value in values])
    )


@pytest.fixture
def run():
    """run(fetches, feeds) in one session. The first call initializes the variables."""
    sessions = []

    def call(fetches, feeds=None):
        if not sessions:
            sessions.append(tf.Session())
            sessions[0].run(tf.global_variables_initializer())
        return sessions[0].run(fetches, feeds)

    yield call
    for session in sessions:
        session.close()


def shards(number):
    return tf.variable_scope("", partitioner=tf.fixed_size_partitioner(number))


# ------------------------------------------------------------------ what a key reads


@pytest.mark.each_value
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("default", [None, NINES], ids=["zeros", "given"])
@pytest.mark.parametrize("threshold", [None, 0, 1, 3])
def test_keys_read_their_value_or_the_default(run, num_shards, default, threshold):
    with shards(num_shards):
        table = table_of()
    config = {CONFIG: None if threshold is None else {"access_threshold": threshold}}
    ids = feed()
    given = {"serving_default_value": None if default is None else tf.constant(default)}
    trained = lookup(table, ids, **config, **given)
    other = lookup(table, ids, is_train=False, **config, **given)
    step = update(trained)
    run(step, {ids: [4, 4, 4, 5]})  # 5 is counted once.
    read = run([trained, other], {ids: [4, 5, 6, -1, 7, 7, 7]})
    row = [1.0 - 3 * 0.5] * 2
    initial, default = [1.0, 1.0], default or [0.0, 0.0]
    has_row = threshold != 3
    expected = [
        [row, [0.5, 0.5] if has_row else default, initial if has_row else default, default]
        + [initial] * 3,
        [row, [0.5, 0.5] if has_row else default] + [default] * 5,
    ]
    np.testing.assert_array_equal(read, expected)
    assert run(table.size()) == (2 if has_row else 1)


def test_ids_may_have_any_shape_and_be_floats_with_integer_values(run):
    table = rec.create_table(tf.int32, 3, "t", ONES)
    for ids, shape in (
        (tf.constant(5), [3]),
        (tf.constant([[1.0, -1.0]]), [1, 2, 3]),
        (tf.zeros([0, 2], tf.int32), [0, 2, 3]),
        (tf.constant([[[2**40]]], tf.int64), [1, 1, 1, 3]),
    ):
        values = lookup(table, ids, serving_default_value=[7.0])
        assert values.shape == shape and values.dtype == tf.float32
        assert run(values).shape == tuple(shape)
    np.testing.assert_array_equal(
        run(lookup(table, tf.constant([[1.0, -1.0]]), serving_default_value=7)),
        [[[1] * 3, [7] * 3]],
    )


def test_a_training_lookup_reads_the_initial_vector_of_a_key_admitted_in_the_same_step(run):
    bank = np.arange(4096 * 2, dtype=np.float32).reshape(4096, 2)
    table = table_of(initializer=tf.constant_initializer(bank), init_param=3.0)
    ids = feed()
    values = lookup(table, ids, **{CONFIG: {"access_threshold": 2}})
    read = run(values, {ids: [3, 3, 4096 + 5, 8, 4096 + 5]})
    np.testing.assert_array_equal(read[[0, 1, 2, 4]], 3 * bank[[3, 3, 5, 5]])
    np.testing.assert_array_equal(read[3], [0, 0])


# ------------------------------------------------------------------ admission

STEPS = {
    "a1": ([11, 11, 33, 44, 11, 55, 88, 55], [1, 2, 1, 3, 1, 1, 4, 1], {33}),
    "a2": ([11, 12, 33, 21, 11, 12], [1, 2, 1, 1, 2, 3], {21}),
    "a3": ([11, 11, 33, 44, 55, 88, 55], [1, 2, 3, 2, 1, 2, 1], set()),
    "b1": ([123, 121, 121, 212, 211], [1, 2, 1, 1, 2], {123, 212, 211}),
    "b2": ([125, 121, 122, 212, 211], [1, 2, 1, 3, 1], {125, 122}),
    "none": ([], [], set()),
}


def test_examples_of_rec_sdk_for_counts_admission_and_eviction(run):
    ids, values, tables = {}, {}, {}
    time = tf.placeholder(tf.int64, [])
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, time)
    for name, access, evict in (("A", 2, 5), ("B", 3, 7)):
        tables[name] = table_of(name)
        config = {"access_threshold": access, "eviction_threshold": evict}
        ids[name] = feed()
        values[name] = lookup(
            tables[name], ids[name], serving_default_value=NINES, **{CONFIG: config}
        )
    step = update(*values.values(), rate=0.0)
    evictions = [table.evict() for table in tables.values()]
    admitted = collections.defaultdict(set)
    for a, b, now in (("a1", "b1", 1), ("a2", "none", 2), ("a3", "b2", 8)):
        feeds = {time: now}
        for name, vector in (("A", a), ("B", b)):
            keys, counts, _ = STEPS[vector]
            feeds[ids[name]] = np.repeat(keys, counts)
        read, _ = run([values, step], feeds)
        for name, vector in (("A", a), ("B", b)):
            keys, counts, refused = STEPS[vector]
            keys = np.repeat(keys, counts)
            is_default = (read[name] == NINES).all(axis=1)
            assert set(keys[is_default]) == refused
            assert not set(keys[~is_default]) & refused
            admitted[name] |= set(keys[~is_default])
    totals = {
        "A": {11: 10, 12: 5, 21: 1, 33: 5, 44: 5, 55: 4, 88: 6},
        "B": {121: 5, 122: 1, 123: 1, 125: 1, 211: 3, 212: 4},
    }
    for name, counts in totals.items():
        counted = run(tables[name].get_frequency(list(counts)))
        assert dict(zip(counts, counted)) == counts
        assert run(tables[name].size()) == len(admitted[name])
    assert run(evictions) == [2, 1]
    for name, gone in (("A", [12, 21]), ("B", [123])):
        np.testing.assert_array_equal(run(tables[name].get_frequency(gone)), np.zeros(len(gone)))
    assert run(tables["A"].total_count()[0]) == 5 and run(tables["B"].total_count()[0]) == 5


@pytest.mark.parametrize("num_shards", [1, 2])
def test_admission_counts_the_keys_of_all_training_lookups_of_the_step(run, num_shards):
    with shards(num_shards):
        table = table_of()
    config = {CONFIG: {"access_threshold": 4, "faae_coefficient": 2}}
    first, second = feed(), feed()
    values = [
        lookup(table, first, **config),
        lookup(table, tf.reshape(second, [-1, 1]), is_grad=False, **config),
    ]
    other = lookup(table, first, is_train=False, **config)
    step = update(*values)
    # With a coefficient of 2, key 5 (in both lookups) counts 4 and key 6 (in one) counts 2.
    feeds = {first: [5, 6, -1], second: [5]}
    before = run(other, feeds)
    read = run([*values, step], feeds)
    np.testing.assert_array_equal(read[0], [[1, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(read[1], [[[1, 1]]])
    np.testing.assert_array_equal(before, np.zeros([3, 2]))
    np.testing.assert_array_equal(run(table.get_frequency([5, 6, -1])), [4, 2, 0])
    np.testing.assert_array_equal(run(other, feeds), [[0.5, 0.5], [0, 0], [0, 0]])


def test_lookups_of_a_table_must_agree_on_thresholds():
    table, ids = table_of(), tf.constant([1], tf.int64)
    config = {"access_threshold": 2, "eviction_threshold": 5, "faae_coefficient": 3}
    lookup(table, ids, **{CONFIG: config})
    lookup(table, ids, **{CONFIG: dict(config)})
    lookup(table, ids, is_train=False)
    message = "the access and evict threshold param must be same in all lookups of table 't'"
    for other in (None, {}, {**config, "access_threshold": 3}, {"access_threshold": 2}):
        with pytest.raises(ValueError, match=message):
            lookup(table, ids, **{CONFIG: other})
    with pytest.raises(ValueError, match=message):
        lookup(table, ids, is_train=False, **{CONFIG: {"access_threshold": 1}})
    assert table.num_lookups == {True: 2, False: 1}


def test_a_table_with_a_threshold_refuses_ids_that_depend_on_itself():
    table, config = table_of(), {CONFIG: {"access_threshold": 2}}
    first = lookup(table, feed(), **config)
    second = lookup(table, tf.cast(first[:, 0], tf.int64), **config)
    with pytest.raises(ValueError, match="ids of table 't', .* must not depend on what"):
        update(first, second)


@pytest.mark.parametrize("says_thresholds", [True, False])
def test_a_graph_that_does_not_train_admits_no_key_at_restore(tmp_path, says_thresholds):
    config, ids = {CONFIG: {"access_threshold": 3}}, [5, 5, 5, 6, -1]
    table = table_of()
    step = update(lookup(table, tf.constant(ids, tf.int64), **config))
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        path = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.Session() as session:
        table = table_of()
        values = lookup(
            table,
            tf.constant(ids, tf.int64),
            is_train=False,
            serving_default_value=NINES,
            **(config if says_thresholds else {}),
        )
        tf.train.Saver().restore(session, path)
        np.testing.assert_array_equal(session.run(values), [[-0.5, -0.5]] * 3 + [NINES] * 2)
        assert session.run([table.size(), table.get_frequency([6])[0]]) == [1, 1]


def test_a_table_may_be_read_by_embedding_lookup(run):
    table, ids = table_of(), feed()
    values = rec.embedding_lookup(table, ids)
    run(update(values), {ids: [3, -1]})
    np.testing.assert_array_equal(run(values, {ids: [3, 4, -1]}), [[0.5, 0.5], [1, 1], [0, 0]])


def test_thresholds_that_are_off_add_no_op():
    for name, config in enumerate(({}, {"access_threshold": -1}, {"access_threshold": None})):
        table = table_of(f"t{name}")
        lookup(table, feed(), **{CONFIG: {**config, "eviction_threshold": 0}})
        assert table.filter is None
    types = {op.type for op in tf.get_default_graph().get_operations()}
    assert "RecEstimator>TableAdmits" not in types and "VarHandleOp" not in types


# ------------------------------------------------------------------ counting


def test_training_lookups_without_gradient_are_counted_and_admitted(run):
    table, ids, more, unused = table_of(), feed(), feed(), feed()
    with_grad = lookup(table, ids)
    without = lookup(table, more, is_grad=False)
    same_ids = lookup(table, ids, is_grad=False)
    lookup(table, unused)  # Nothing uses its value.
    step = update(with_grad, without, same_ids)
    late = feed()
    lookup(table, late)  # Built after the update, so this step does not count it.
    run(step, {ids: [1, 1], more: [2], unused: [3], late: [4]})
    np.testing.assert_array_equal(run(table.get_frequency([1, 2, 3, 4])), [4, 1, 1, 0])
    values = lookup(table, tf.constant([1, 2, 3], tf.int64), is_train=False)
    np.testing.assert_array_equal(run(values), [[0, 0], [1, 1], [1, 1]])


def test_the_update_waits_for_all_training_lookups_with_and_without_gradient(graph):
    # A step reads the table as it was before the step. Without the edge the order would be random.
    table, ids, threshold = table_of(), feed(), {CONFIG: dict(access_threshold=2)}
    update(lookup(table, ids, **threshold), lookup(table, ids, is_grad=False, **threshold))
    ops = graph.get_operations()
    (apply,) = (op for op in ops if op.type == "RecEstimator>TablesApply")
    reads = [op for op in ops if op.type == "RecEstimator>TableLookup"]
    reads += [op for op in ops if op.name.endswith("/admits")]
    assert len(reads) == 4 and set(reads) <= set(apply.control_inputs)


def test_lookups_outside_of_training_have_no_gradient_and_count_no_key(run):
    table, ids, other_ids = table_of(), feed(), feed()
    other = lookup(table, other_ids, is_train=False)
    assert tf.gradients(tf.reduce_sum(other), table) == [None]
    step = update(lookup(table, ids), other)
    run(step, {ids: [1], other_ids: [1, 2]})
    np.testing.assert_array_equal(run(table.get_frequency([1, 2])), [1, 0])


def test_a_table_with_no_gradient_is_counted_with_a_warning(run, caplog):
    table, ids = table_of(), feed()
    value = lookup(table, ids, is_grad=False)
    tf.get_logger().setLevel("WARNING")
    try:
        step = update(value, tf.get_variable("w", [], initializer=ONES))
    finally:
        tf.get_logger().setLevel("ERROR")
    assert "Table 't' gets no gradient in this step" in caplog.text
    run(step, {ids: [3, 3, -1]})
    assert run([table.size(), table.get_frequency([3])[0]]) == [1, 2]
    np.testing.assert_array_equal(run(value, {ids: [3]}), [[1, 1]])


def test_a_gradient_of_several_losses_counts_each_lookup_once(run):
    table, ids = table_of(), feed()
    values = [lookup(table, ids), lookup(table, ids), lookup(table, ids, is_grad=False)]
    grads = tf.gradients([tf.reduce_sum(value) for value in values], [table])
    optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
    run(optimizer.apply_gradients(zip(grads, [table])), {ids: [7]})
    assert run(table.get_frequency([7]))[0] == 3
    np.testing.assert_array_equal(run(values[0], {ids: [7]}), [[0, 0]])


# ------------------------------------------------------------------ eviction


def evicting(name="t", seconds=5, access=0):
    table, ids = table_of(name), feed()
    config = {"access_threshold": access, "eviction_threshold": seconds}
    return table, ids, lookup(table, ids, **{CONFIG: config})


def test_an_evicted_key_starts_from_count_0_its_initial_vector_and_fresh_slots(run):
    time = tf.placeholder(tf.int64, [])
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, time)
    table, ids, values = evicting(access=2)
    step = rec.optimizers.AdagradOptimizer(1.0, initial_accumulator_value=3.0).minimize(
        tf.reduce_sum(values)
    )
    evict, latest = table.evict(), table_timestamp()
    run(step, {ids: [1, 1, 2, 2], time: 100})
    trained = run(values, {ids: [1, 1]})[0]
    run(step, {ids: [2], time: 104})
    assert run(evict) == 0 and run(latest) == 104
    np.testing.assert_array_equal(run(table.get_version([1, 2])), [100, 104])
    run(step, {ids: [], time: 105})
    assert run([evict, latest]) == [1, 105]
    assert run(table.get_frequency([1]))[0] == 0
    run(step, {ids: [1], time: 106})
    np.testing.assert_array_equal(
        run(values, {ids: [1]}), [[1, 1]]
    )  # A step with this key would admit it.
    assert run(table.size()) == 1
    run(step, {ids: [1], time: 107})
    np.testing.assert_array_less(run(values, {ids: [1]}), [[1, 1]])
    run(step, {ids: [1], time: 90})  # The greatest timestamp never decreases.
    assert run(latest) == 107 and run(table.get_version([1]))[0] == 90
    assert trained[0] < 1


def test_only_a_table_that_evicts_requires_a_timestamp(run):
    table, ids = table_of("free"), feed()
    step = update(lookup(table, ids))
    with pytest.raises(ValueError, match="table 'free' must have an eviction_threshold"):
        table.evict()
    evicting("e")
    with pytest.raises(ValueError, match="the batch has no timestamp, .* table 'e' evicts"):
        optimizer = rec.optimizers.GradientDescentOptimizer(0.1)
        optimizer.apply_gradients([(None, tf.get_collection(rec.EMBEDDING_VARIABLES)[1])])
    run(step, {ids: [3]})
    assert run(table.get_version([3]))[0] == -1


def test_the_timestamp_is_saved_with_the_model(run, tmp_path):
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, tf.constant(77, tf.int64))
    tables = [evicting("a"), evicting("b")]
    step = update(*(values for _, _, values in tables))
    saver = rec.Saver()
    feeds = {ids: [1] for _, ids, _ in tables}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, feeds)
        path = saver.save(session, str(tmp_path / "model"))
    with tf.Session() as session:
        saver.restore(session, path)
        assert session.run(table_timestamp()) == 77
        assert session.run([table.evict() for table, _, _ in tables]) == [0, 0]
    assert [v.op.name for v in tf.global_variables()].count("rec_estimator_timestamp") == 1


# ------------------------------------------------------------------ explicit gradients


def model(values, weights):
    """A loss that uses lookups in several ways, so that their gradients differ and are summed."""
    joined = tf.concat([values[0], values[1]], axis=1)
    hidden = tf.tanh(tf.matmul(joined, weights)) + values[2]
    return tf.reduce_sum(tf.square(hidden)) + tf.reduce_sum(tf.nn.sigmoid(values[1]) * values[2])


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("threshold", [None, 2])
@pytest.mark.parametrize("rule", ["LazyAdamOptimizer", "GradientDescentOptimizer"])
def test_all_forms_of_a_model_train_to_the_same_bits(tmp_path, num_shards, threshold, rule):
    rng = np.random.default_rng(5)
    batches = rng.integers(-1, 12, size=[6, 3, 16])
    config = {CONFIG: {"access_threshold": threshold}} if threshold else {}

    def trained(form):
        with tf.Graph().as_default(), shards(num_shards):
            initializer = tf.truncated_normal_initializer(seed=1)
            table = table_of(initializer=initializer)
            other = table_of("other", initializer=initializer)
            ids = tf.placeholder(tf.int64, [3, None])
            values = [lookup(t, ids[i], **config) for i, t in enumerate([table, other, table])]
            lookup(table, ids[0], is_grad=False, **config)
            loss = model(values, tf.constant(rng_weights))
            optimizer = getattr(rec.optimizers, rule)(0.1)
            if form == "minimize":
                step = optimizer.minimize(loss)
            elif form == "tables":
                _, variables = rec.get_dense_and_sparse_variable()
                grads = tf.gradients(loss, variables)
                step = optimizer.apply_gradients(zip(grads, variables))
            else:
                grads = tf.gradients(loss, tf.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB"))
                addresses = tf.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
                step = optimizer.apply_gradients(zip(grads, addresses))
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                losses = [session.run([loss, step], {ids: batch})[0] for batch in batches]
                return losses, session.run([table.export(), other.export()])

    rng_weights = rng.normal(size=[4, 2]).astype(np.float32)
    losses, tables = trained("minimize")
    assert len(set(losses)) == len(losses)
    for form in ("tables", "addresses"):
        others, exports = trained(form)
        assert others == losses
        for export, expected in zip(exports, tables):
            tf.nest.map_structure(np.testing.assert_array_equal, export, expected)


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(hashtable="t"), "hashtable must be a table of create_table"),
        (dict(ids=[1, 2]), "ids must be"),
        (dict(ids=np.array([1])), "ids must be a tf.Tensor or a FeatureSpec"),
        (dict(ids=lambda: tf.sparse.from_dense([[1]])), "use tf.sparse.to_dense"),
        (dict(ids=lambda: tf.ragged.constant([[1]])), r"use ids.to_tensor\(default_value=-1\)"),
        (
            dict(ids=lambda: tf.constant(["a"])),
            "must be integers or floats, got string; hash strings",
        ),
        (dict(ids=lambda: tf.constant([True])), "ids must be integers or floats, got bool"),
        (dict(modify_graph=False), "'ids' is type of tf.Tensor, 'modify_graph' should be set to"),
        (dict(modify_graph=1), "modify_graph must be a bool"),
        (dict(is_train=1), "is_train must be a bool"),
        (dict(is_grad=None), "is_grad must be a bool"),
        (dict(name=""), "name must be a string of 1 to 255 characters"),
        (dict(name="x" * 256), "name must be a string of 1 to 255 characters"),
        (dict(send_count=0), r"send_count must be an integer in \[1, 2147483647\], got 0"),
        (dict(send_count=2.0), "send_count must be an integer in"),
        (dict(serving_default_value="a"), r"serving_default_value must be numbers that broadcast"),
        (dict(serving_default_value=[1.0] * 3), r"must be numbers that broadcast to \[2\]"),
        (dict(serving_default_value=[[1.0, 2.0]]), r"must be numbers that broadcast to \[2\]"),
        ({CONFIG: 3}, "access_and_evict_config must be a dict"),
        ({CONFIG: {"access": 3}}, "must be a dict with no keys but access_threshold, eviction_thr"),
        ({CONFIG: {"access_threshold": -2}}, r"access_threshold must be an integer in \[-1,"),
        ({CONFIG: {"access_threshold": 1.0}}, "access_threshold must be an integer in"),
        ({CONFIG: {"eviction_threshold": 5}}, "must be configured before eviction_threshold"),
        (
            {CONFIG: {"access_threshold": -1, "eviction_threshold": 5}},
            "must be configured before eviction_threshold",
        ),
        (
            {CONFIG: {"access_threshold": 1, "faae_coefficient": 0}},
            r"faae_coefficient must be an integer in \[1, 2147483647\], got 0",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(map(str, value)),
)
def test_a_bad_argument_is_a_value_error_and_builds_no_lookup(changed, message):
    table = table_of()
    arguments = dict(hashtable=table, ids=feed(), modify_graph=True)
    changed = {name: value() if callable(value) else value for name, value in changed.items()}
    with pytest.raises(ValueError, match=message):
        rec.sparse_lookup(**{**arguments, **changed})
    assert table.num_lookups == {True: 0, False: 0} and not table.shards[0].is_looked_up


def test_a_training_lookup_inside_control_flow_is_refused(version):
    table, ids = table_of(), feed()
    with pytest.raises(ValueError, match="a training lookup must be outside tf.cond"):
        tf.cond(tf.size(ids) > 1, lambda: lookup(table, ids, is_grad=False), lambda: 0.0)


def test_at_most_128_lookups_in_each_mode():
    table, ids = table_of(), feed()
    for _ in range(128):
        lookup(table, ids)
    lookup(table, ids, is_train=False)
    with pytest.raises(RuntimeError, match="lookups of table 't' in one mode must be at most 128"):
        lookup(table, ids)


def test_unknown_arguments_are_ignored_with_a_warning(caplog):
    tf.get_logger().setLevel("WARNING")
    try:
        lookup(table_of(), feed(), dim=None, name="user lookup", colour="red")
        lookup(table_of(), feed(), name="user lookup")
    finally:
        tf.get_logger().setLevel("ERROR")
    assert "unknown and ignored: colour" in caplog.text


def test_static_shapes_need_a_send_count():
    rec.init(use_dynamic=False)
    try:
        table = table_of()
        for send_count in (None, 0, 1.5, True):
            with pytest.raises(ValueError, match="send_count must be an integer larger than 0"):
                lookup(table, feed(), send_count=send_count)
        lookup(table, feed(), send_count=5)
        small = table_of("small", rows=4, host_vocabulary_size=9)
        with pytest.raises(ValueError, match="device_vocabulary_size of table 'small' must be at"):
            lookup(small, feed(), send_count=5)
        lookup(small, feed(), send_count=4)
    finally:
        rec.terminate_config_initializer()


def test_optimizer_factories_check_the_expansion_mode():
    ordinary = [
        getattr(rec.optimizers, name).create_hash_optimizer
        for name in ("lazy_adam", "adagrad", "ftrl", "gradient_descent", "momentum")
    ]
    by_address = [
        rec.optimizers.lazy_adam_by_addr.create_hash_optimizer_by_address,
        rec.optimizers.adagrad_by_addr.create_hash_optimizer_by_address,
        rec.optimizers.gradient_descent_by_addr.create_hash_optimizer_by_addr,
    ]
    for factory in ordinary + by_address:
        factory(learning_rate=0.1)
    for has_expansion, fit, unfit in ((False, ordinary, by_address), (True, by_address, ordinary)):
        rec.init(use_dynamic_expansion=has_expansion)
        try:
            for factory in fit:
                factory(learning_rate=0.1)
            for factory in unfit:
                with pytest.raises(ValueError, match="dynamic expansion mode is not compatible"):
                    factory(learning_rate=0.1)
        finally:
            rec.terminate_config_initializer()
