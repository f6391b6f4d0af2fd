# SPDX-License-Identifier: Apache-2.0
"""The graph pass that runs lookups which are ready at the same time in an op for each thread."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_behavior

import rec_estimator as rec
from rec_estimator import _ops
from rec_estimator import feature_column as fc

LOOKUP = "RecEstimator>TableGroupLookup"
GRADIENT = "RecEstimator>TableGroupLookupGrad"
WEIGHTED = "RecEstimator>CombineWeighted"
WEIGHTED_GRADIENT = "RecEstimator>CombineWeightedGrad"
IDS = np.array([[3, 5, -1], [5, -1, -1], [0, 3, 3]])
WEIGHTS = np.array([[1, 2, 0], [0.5, 0, 0], [3, 1, 2]], np.float32)


def config(fused=True, threads=1):
    """Fuses lookups or not. Nothing else differs. `threads` is that of a step's ops."""
    options = tf.ConfigProto(operation_timeout_in_ms=60_000, inter_op_parallelism_threads=threads)
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    optimizer = options.graph_options.optimizer_options
    optimizer.do_constant_folding = optimizer.do_common_subexpression_elimination = True
    optimizer.opt_level = tf.OptimizerOptions.L1 if fused else tf.OptimizerOptions.L0
    return options


def table_of(name, dim=2, **arguments):
    initializer = tf.random_normal_initializer(seed=len(name))
    return rec.get_embedding_variable(name, dim, initializer=initializer, **arguments)


def ids_of(dense=IDS):
    dense = tf.cast(dense, tf.int64)
    present = tf.where(dense >= 0)
    shape = tf.shape(dense, out_type=tf.int64)
    return tf.SparseTensor(present, tf.gather_nd(dense, present), shape)


def of_ids(weights):
    """The weights of the ids of IDS."""
    return tf.SparseTensor(ids_of().indices, weights, IDS.shape)


def look_up(name, ids=IDS, **arguments):
    return rec.embedding_lookup_sparse(table_of(name), ids_of(ids), **arguments)


def ops_run(session, fetches, op_type, feed=None):
    """(values, number of lookups in each op of a type that the step runs)"""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    values = session.run(fetches, feed, options, metadata)
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    return values, sorted(node.attr["N"].i for node in nodes if node.op == op_type)


def run(fetches, feed=None, op_type=LOOKUP):
    with tf.Session(config=config()) as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return ops_run(session, fetches, op_type, feed)


def model():
    """The loss and the tables of lookups of all kinds, by columns and by functions."""
    filtered = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(3))
    columns = [
        fc.embedding_column(fc.categorical_column_with_embedding(name, tf.int64), 3)
        for name in ("red", "green", "blue")
    ]
    ids = tf.constant(IDS, tf.int64)
    layer = tf.feature_column.input_layer({"red": ids, "green": ids + 2, "blue": ids}, columns)
    weights = of_ids(WEIGHTS[IDS >= 0])
    parts = [
        look_up("sum", combiner="sum"),
        look_up("sqrtn", combiner="sqrtn"),
        look_up("weighted", sp_weights=weights, combiner="mean"),
        look_up("weighted_sqrtn", sp_weights=weights, combiner="sqrtn"),
        rec.embedding_lookup(table_of("filtered", ev_option=filtered), [4, 4, 5]),
        *rec.group_embedding_lookup_sparse(
            [table_of("sum"), table_of("alone")], [ids_of(), tf.constant([1, 2, 3])], ["mean", None]
        ),
    ]
    joined = tf.concat([layer, *parts], axis=1)
    scale = tf.get_variable("scale", [joined.shape[1]], initializer=tf.ones_initializer())
    return tf.reduce_sum(tf.square(joined * scale - 1))


@pytest.mark.long
@pytest.mark.parametrize("resources", [True, False])
def test_a_training_step_has_the_bits_of_one_that_is_not_fused(resources):
    found = {}
    for fused in (True, False):
        with tf.Graph().as_default(), tf_behavior.resource_variables(resources):
            tf.set_random_seed(1)
            loss = model()
            step = tf.train.get_or_create_global_step()
            train = rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=step)
            exports = [table.export() for table in tf.get_collection("embedding_variables")]
            with tf.train.MonitoredTrainingSession(config=config(fused)) as session:
                losses = [session.run([loss, train])[0] for _ in range(4)]
                kinds = (LOOKUP, GRADIENT, WEIGHTED, WEIGHTED_GRADIENT)
                ops = [ops_run(session, [loss, train], kind)[1] for kind in kinds]
                found[fused] = losses, session.run([exports, tf.trainable_variables()[-1:]])
        lookups = [6, 6, 2, 2]
        assert ops == [[n] if fused else [1] * n for n in lookups], ops
    tf.nest.map_structure(np.testing.assert_array_equal, found[True], found[False])
    assert len(set(found[True][0])) == 4


@pytest.mark.parametrize(
    "threads, expected",
    [(-1, [7]), (1, [7]), (2, [3, 4]), (3, [2, 2, 3]), (6, [1] * 5 + [2]), (9, [1] * 7)],
)
def test_each_thread_of_a_step_gets_an_op(threads, expected):
    ids = tf.placeholder_with_default(IDS, [None, 3])
    vectors = [look_up(name, ids) for name in "abcdefg"]
    grads = tf.gradients(vectors, [vector.op.inputs[0] for vector in vectors])
    found = []
    for fused in (True, False):
        with tf.Session(config=config(fused, threads)) as session:
            session.run(tf.global_variables_initializer())
            values, lookups = ops_run(session, vectors, LOOKUP)
            spread, gradients = ops_run(session, [grad.values for grad in grads], GRADIENT)
            assert lookups == gradients == (expected if fused else [1] * 7)
            found.append((values, spread))
    tf.nest.map_structure(np.testing.assert_array_equal, *found)


def test_a_session_with_pools_of_its_own_fuses_for_the_processors():
    options = config(threads=1)
    options.session_inter_op_thread_pool.add().num_threads = 1
    processors = len(os.sched_getaffinity(0))
    vectors = [look_up(f"table_{i}") for i in range(2 * processors)]
    with tf.Session(config=options) as session:
        session.run(tf.global_variables_initializer())
        assert ops_run(session, vectors, LOOKUP)[1] == [2] * processors


def test_a_step_that_fetches_one_lookup_runs_that_lookup_alone():
    fed = [tf.placeholder(tf.int64, [None, 3], name) for name in "ab"]
    vectors = [look_up(name, ids) for name, ids in zip("ab", fed)]
    both, of_both = run(vectors, dict.fromkeys(fed, IDS))
    alone, of_one = run(vectors[1].name, {fed[1]: IDS})
    assert (of_both, of_one) == ([2], [1])
    np.testing.assert_array_equal(alone, both[1])


def test_steps_of_a_session_fuse_the_lookups_that_each_of_them_fetches():
    lookups = [
        rec.embedding_lookup_sparse(table_of(name, dim), ids_of())
        for dim, name in enumerate("abc", 1)
    ]
    with tf.Session(config=config()) as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        alone = [session.run(lookup) for lookup in lookups]
        for fetched in ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
            values, ops = ops_run(session, [lookups[i] for i in fetched], LOOKUP)
            assert ops == [len(fetched)]
            for i, value in zip(fetched, values):
                np.testing.assert_array_equal(value, alone[i])


def test_a_fed_lookup_is_not_run():
    first, second, third = (look_up(name) for name in "abc")
    total = first.op.outputs[0] + second + third
    found, ops = run(total, {second: np.zeros([3, 2], np.float32)})
    assert ops == [2]
    np.testing.assert_array_equal(found, run(first + third)[0])


def test_a_lookup_by_the_rows_of_another_one_waits_for_it():
    def then(vectors):
        return tf.cast(tf.math.abs(vectors[:, :1]) * 5, tf.int64)

    # b depends on a and d on c: both levels are fused, and no lookup waits for itself.
    first = [look_up(name) for name in "ac"]
    second = [look_up(name, then(vectors)) for name, vectors in zip("bd", first)]
    assert run(second)[1] == [2, 2]
    assert run(second + first)[1] == [2, 2]


def test_control_dependencies_hold():
    order = []

    def note(name):
        return tf.py_func(lambda: order.append(name), [], [])

    first, second = look_up("a"), look_up("b")
    with tf.control_dependencies([first, second]):
        after = note("after")
    with tf.control_dependencies([after]):
        third = look_up("c")
    with tf.control_dependencies([third]):
        last = note("last")
    assert run(last)[1] == [1, 2]
    assert order == ["after", "last"]


def test_lookups_in_a_branch_run_alone(version):
    is_taken = tf.placeholder(tf.bool, [])
    outside = [look_up(name) for name in "ab"]
    inside = tf.cond(is_taken, lambda: look_up("c") + look_up("d"), lambda: tf.zeros([3, 2]))
    for taken in (True, False):
        (found, *_), ops = run([inside, *outside], {is_taken: taken})
        assert ops == [1, 1, 2]
        assert found.any() == taken


def test_lookups_in_a_loop_run_alone(version):
    outside = [look_up(name) for name in "ab"]
    table = table_of("c")

    def body(i, total):
        return i + 1, total + rec.embedding_lookup_sparse(table, ids_of(IDS * 0 + i))

    looped = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.zeros([3, 2])])[1]
    after = look_up("d", tf.cast(looped, tf.int64))
    (_, _, *values), ops = run([looped, after, *outside])
    assert ops[-1] == 2 and set(ops[:-1]) <= {1}
    np.testing.assert_array_equal(values, run(outside)[0])


def test_lookups_of_a_partial_run_run_when_they_are_asked_for():
    fed = [tf.placeholder(tf.int64, [None, 3]) for _ in range(2)]
    vectors = [look_up(name, ids) for name, ids in zip("ab", fed)]
    with tf.Session(config=config()) as session:
        session.run(tf.global_variables_initializer())
        expected = session.run(vectors, dict.fromkeys(fed, IDS))
        handle = session.partial_run_setup(vectors, fed)
        for each in range(2):
            found = session.partial_run(handle, vectors[each], {fed[each]: IDS})
            np.testing.assert_array_equal(found, expected[each])


def test_a_lookup_may_wait_for_a_queue_that_another_one_fills():
    queue = tf.FIFOQueue(1, [tf.int64], [[3, 1]])
    first = look_up("a")
    fill = queue.enqueue(tf.cast(tf.math.abs(first[:, :1]) * 5, tf.int64))
    second = look_up("b", queue.dequeue())
    with tf.Session(config=config()) as session:
        session.run(tf.global_variables_initializer())
        assert session.run([second, fill])[0].shape == (3, 2)


def test_lookups_on_different_devices_stay_there():
    indices, shape = np.array([[0, 0], [1, 0]]), np.array([2, 1])
    banks, values, ready = [], [], []
    for i in range(4):
        bank = np.full([1, 2], i, np.float32)
        with tf.device(f"/cpu:{i % 2}"):
            handle = _ops.gen.rec_estimator_table_handle(shared_name=str(i), dim=2)
            ready.append(_ops.gen.rec_estimator_table_initialize(handle, bank))
            values += _ops.gen.rec_estimator_table_group_lookup(
                [handle], [[7, 8]], [indices], [shape], dims=[2], combiners=["sum"],
                unknowns=["initial"],
            )  # fmt: skip
        banks.append(np.repeat(bank, 2, axis=0))
    options = config()
    options.device_count["CPU"] = 2
    with tf.Session(config=options) as session:
        session.run(ready)
        found, ops = ops_run(session, values, LOOKUP)
    assert ops == [2, 2]
    np.testing.assert_array_equal(found, banks)


@pytest.mark.parametrize("weighted", [False, True])
def test_an_error_names_the_lookup(weighted):
    unsorted = tf.SparseTensor(
        tf.placeholder_with_default(np.array([[1, 0], [0, 0]]), [2, 2]), np.array([1, 2]), [2, 1]
    )
    weights = (unsorted.with_values([0.5, 0.5]), of_ids([1.0] * 6)) if weighted else (None, None)
    with tf.name_scope("of_users"):
        wrong = rec.embedding_lookup_sparse(table_of("a"), unsorted, weights[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices of lookup of_users/"):
        run([look_up("b", sp_weights=weights[1]), wrong])


def test_weighted_lookups_of_two_types_of_numbers_are_two_ops():
    doubles = tf.get_variable("doubles", [9, 2], tf.float64)
    values = rec.group_embedding_lookup_sparse(
        [table_of("a"), doubles, table_of("b"), doubles],
        [ids_of()] * 4,
        ["sum", "mean", "mean", "sum"],
        sp_weights=[of_ids(WEIGHTS[IDS >= 0])] * 4,
    )
    assert [value.dtype for value in values] == [tf.float32, tf.float64] * 2
    _, lookups = run(values, op_type=WEIGHTED)
    assert lookups == [2, 2]
