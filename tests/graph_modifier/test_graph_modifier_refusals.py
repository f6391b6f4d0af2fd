# SPDX-License-Identifier: Apache-2.0
"""Key paths that graph modification refuses, and errors that moved ops raise."""

import textwrap
import time

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_modifier import modify_graph_and_start_emb_cache
from rec_estimator.graph_modifier.prepared_input import get_initializer

HASH_BUCKETS = 2**63 - 1


def batch_of_ids(name=None):
    data = tf.data.Dataset.from_tensor_slices({"id": np.arange(64), "text": ["7"] * 64}).batch(8)
    return tf.data.make_initializable_iterator(data).get_next(name)


def look_up(keys):
    return rec.embedding_lookup(rec.get_embedding_variable("table", 2), keys)


def with_variable(ids):
    return ids + tf.get_variable("shift", [], tf.int64, tf.zeros_initializer(), use_resource=True)


def with_reference_variable(ids):
    return ids + tf.get_variable(
        "old_shift", [], tf.int64, tf.zeros_initializer(), use_resource=False
    )


def with_placeholder(ids):
    return ids * tf.placeholder(tf.int64, [], name="factor")


def with_default_placeholder(ids):
    return ids * tf.placeholder_with_default(tf.constant(1, tf.int64), [], name="factor")


def with_random(ids):
    return ids + tf.random.uniform([8], maxval=3, dtype=tf.int64, name="noise")


def with_python(ids):
    return tf.py_func(lambda x: x, [ids], tf.int64, name="script")


def with_control_dependency(ids):
    count = tf.get_variable("count", [], tf.int64, tf.zeros_initializer(), use_resource=True)
    with tf.control_dependencies([count.assign_add(1).op]):
        return tf.identity(ids, name="after_count")


def with_print(ids):
    with tf.control_dependencies([tf.print("ids", ids)]):
        return tf.identity(ids)


def with_static_table(ids):
    values = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4], tf.int64, tf.int64)
    return tf.lookup.StaticHashTable(values, 0, name="vocabulary").lookup(ids)


def with_branch(ids):
    factor = tf.placeholder(tf.bool, [], name="which")
    return tf.cond(factor, lambda: ids, lambda: ids + 1)


def with_stateful_branch(ids):
    return tf.cond(ids[0] > 3, lambda: ids, lambda: ids + tf.random.uniform([], 0, 9, tf.int64))


def with_queue(ids):
    queue = tf.FIFOQueue(10, [tf.int64], name="queue")
    return ids + queue.dequeue()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (with_variable, r"got 'add/ReadVariableOp' .* reads a variable"),
        (with_reference_variable, r"got 'old_shift' \(VariableV2\).* reads a variable"),
        (with_placeholder, r"got 'factor' \(Placeholder\).* is fed while a step runs"),
        (with_default_placeholder, r"got 'factor' \(PlaceholderWithDefault\)"),
        (with_random, r"got 'noise' \(RandomUniformInt\).* state or side effects"),
        (with_python, r"got 'script' \(PyFunc\).* state or side effects"),
        (with_control_dependency, r"'after_count' waits for by a control dependency"),
        (with_print, r"got 'PrintV2' \(PrintV2\), which 'Identity' waits for"),
        (with_static_table, r"got 'vocabulary_Lookup/.* state or side effects"),
        (with_branch, r"got 'which' \(Placeholder\)"),
        (with_stateful_branch, r"got 'cond.*' \((If|RandomUniformInt)\).* state or side effects"),
        (with_queue, r"got 'queue.*Dequeue.* state or side effects"),
    ],
)
def test_keys_that_depend_on_more_than_the_batch_are_refused(path, message):
    loss = tf.reduce_sum(look_up(path(batch_of_ids()["id"])))
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    before = tf.get_default_graph().as_graph_def()
    with pytest.raises(ValueError, match=message) as caught:
        modify_graph_and_start_emb_cache()
    # The message says what to do instead, and names the lookup.
    assert "dataset.map" in str(caught.value)
    assert "GraphModifierHook(modify_graph=False)" in str(caught.value)
    assert "EmbeddingLookup" in str(caught.value) or "embedding_lookup" in str(caught.value)
    assert tf.get_default_graph().as_graph_def() == before, "a refused graph must not be changed"


def two_iterators():
    look_up(batch_of_ids("first")["id"] + batch_of_ids("second")["id"])


def two_get_next():
    data = tf.data.Dataset.range(10).batch(2)
    iterator = tf.data.make_initializable_iterator(data)
    look_up(iterator.get_next() + 1)
    iterator.get_next(name="second_get_next")


def fed_iterator():
    handle = tf.placeholder(tf.string, [])
    iterator = tf.data.Iterator.from_string_handle(handle, tf.int64, [None])
    look_up(iterator.get_next() + 1)


def never_started():
    iterator = tf.data.Iterator.from_structure(tf.int64, [None])
    look_up(iterator.get_next() + 1)


def keys_of_a_placeholder():
    look_up(tf.placeholder(tf.int64, [None], name="fed_ids"))


def lookup_in_branch():
    ids = batch_of_ids()["id"]
    tf.cond(ids[0] > 3, lambda: look_up(ids), lambda: tf.zeros([8, 2]), name="branch")


def lookup_in_function():
    tf.function(look_up)(batch_of_ids()["id"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (two_iterators, "one iterator, got .*'second'.*'first'|one iterator.*'first'.*'second'"),
        (two_get_next, "one get_next.*got 'second_get_next'.*call get_next.. once"),
        (fed_iterator, "made by tf.data.make_initializable_iterator or .*FromStringHandle"),
        (never_started, "made by .*started outside of this graph or never"),
        (keys_of_a_placeholder, "got 'fed_ids'"),
        (lookup_in_branch, "outside tf.cond, tf.while_loop and tf.function.*'branch['/]"),
        (lookup_in_function, "outside tf.cond, tf.while_loop and tf.function.*PartitionedCall"),
    ],
)
@pytest.mark.long
def test_lookups_that_cannot_move_are_refused(build, message):
    build()
    before = tf.get_default_graph().as_graph_def()
    with pytest.raises(ValueError, match=message):
        modify_graph_and_start_emb_cache()
    assert tf.get_default_graph().as_graph_def() == before


def test_lookups_of_constants_stay_in_the_step():
    table_values = look_up(tf.constant([1, 2], tf.int64))
    moved = look_up(batch_of_ids()["id"] % 5)
    modify_graph_and_start_emb_cache()
    with tf.Session() as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        constant_rows, rows = session.run([table_values, moved])
    np.testing.assert_array_equal(constant_rows, rows[1:3])


def test_table_size_may_be_inside_tf_cond():
    ids = batch_of_ids()["id"]
    values = look_up(ids + 1)
    table = rec.get_embedding_variable("table", 2)
    size = tf.cond(ids[0] > 3, table.size, lambda: tf.constant(0, tf.int64))
    modify_graph_and_start_emb_cache()
    with tf.Session() as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        assert session.run([values, size])[1] == 0


def test_assertions_move_and_raise_in_the_step_of_their_batch(version):
    ids = batch_of_ids()["id"]
    with tf.control_dependencies([tf.debugging.assert_less(ids, np.int64(20), message="high")]):
        keys = tf.identity(ids) * 2
    doubled = tf.cond(keys[0] > 100, lambda: keys, lambda: keys * 2)
    values = look_up(doubled)
    modify_graph_and_start_emb_cache()
    assert values.op.inputs[1].op.type == "IteratorGetNext"
    with tf.Session() as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        for start in (0, 8):
            got = session.run([values, values.op.inputs[1]])[1]
            np.testing.assert_array_equal(got, np.arange(start, start + 8) * 4)
        with pytest.raises(tf.errors.InvalidArgumentError, match="high"):
            session.run(values)


def test_a_bad_value_raises_its_own_error_and_the_next_step_takes_the_next_batch():
    data = tf.data.Dataset.from_tensor_slices(["1", "2", "three", "4"]).batch(1)
    iterator = tf.data.make_initializable_iterator(data)
    ids = tf.strings.to_number(iterator.get_next(), tf.int64)
    values, keys = look_up(ids), ids
    modify_graph_and_start_emb_cache()
    with tf.Session() as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        seen = [session.run([values, keys])[1][0] for _ in range(2)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="three"):
            session.run(values)
        seen.append(session.run([values, keys])[1][0])
    assert seen == [1, 2, 4]


@pytest.mark.long
def test_an_exception_of_a_generator_ends_the_training_loop(tmp_path):
    def broken():
        yield np.int64(1), np.float32(1.0)
        raise RuntimeError("the disk is on fire")

    def input_fn():
        data = tf.data.Dataset.from_generator(broken, (tf.int64, tf.float32), ([], []))
        return data.map(lambda i, label: ({"id": i[tf.newaxis]}, label[tf.newaxis]))

    def model_fn(features, labels, mode):
        loss = tf.reduce_sum(features["id"]) + tf.reduce_sum(labels)
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step()
        )
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = rec.RecEstimator(
        model_fn, str(tmp_path), embedding_features=[rec.EmbeddingFeature("id", 2)]
    )
    begin = time.monotonic()
    with pytest.raises(tf.errors.UnknownError, match="the disk is on fire"):
        estimator.train(input_fn, hooks=[rec.GraphModifierHook()])
    # The bound detects a hang, not a slow machine.
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: modify_graph_and_start_emb_cache(full_graph="g"), "full_graph must be a tf.Graph"),
        (
            lambda: modify_graph_and_start_emb_cache(dump_graph=1),
            "dump_graph must be a bool",
        ),
        (lambda: rec.GraphModifierHook(dump_graph="yes"), "dump_graph must be a bool"),
        (lambda: rec.GraphModifierHook(modify_graph=None), "modify_graph must be a bool"),
        (lambda: get_initializer("train"), "is_training must be a bool, got 'train'"),
        (lambda: get_initializer(True), "no modified lookups of training; call"),
        (lambda: rec.get_target_batch(False), "no modified lookups of evaluation; call"),
    ],
)
def test_bad_calls_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_graph_without_lookups_is_not_changed_with_a_warning(monkeypatch):
    batch_of_ids()
    warnings = []
    monkeypatch.setattr(tf.logging, "warning", warnings.append)
    before = tf.get_default_graph().as_graph_def()
    modify_graph_and_start_emb_cache()
    assert tf.get_default_graph().as_graph_def() == before
    assert warnings == ["No lookup takes its keys from a dataset: nothing to modify."]


def test_a_graph_that_is_not_the_default_graph_can_be_modified():
    with tf.Graph().as_default() as other:
        values = look_up(batch_of_ids()["id"] * 3)
    modify_graph_and_start_emb_cache(full_graph=other)
    assert values.op.inputs[1].op.type == "IteratorGetNext"
    assert not tf.get_default_graph().get_operations()


SCRIPT = """
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec
    tf.disable_eager_execution()
    data = tf.data.Dataset.range(10**9).map(lambda i: tf.strings.as_string(i)).batch(64).prefetch(9)
    iterator = tf.data.make_initializable_iterator(data)
    keys = tf.strings.to_hash_bucket_fast(iterator.get_next(), 2**63 - 1)
    loss = tf.reduce_sum(rec.embedding_lookup(rec.get_embedding_variable("t", 4), keys))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    rec.modify_graph_and_start_emb_cache()
    session = tf.Session()
    session.run([rec.get_initializer(True), tf.global_variables_initializer()])
    for _ in range(20):
        session.run(train_op)
    print("trained")
"""


def test_a_script_that_stops_in_the_middle_of_its_data_ends_cleanly():
    assert python_processes.run(["-c", textwrap.dedent(SCRIPT)]).stdout == "trained\n"
