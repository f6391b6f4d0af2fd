# SPDX-License-Identifier: Apache-2.0
"""The step of all tables of an optimizer: one update, after all reads, in all tables or in none."""

import json
import pathlib
import textwrap

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.graph_passes.walk import ancestors

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ops_of(kind):
    return [op for op in tf.get_default_graph().get_operations() if op.type == kind]


def tables_of(dims):
    return [rec.get_embedding_variable(f"t{i}", dim) for i, dim in enumerate(dims)]


def loss_of(tables):
    return tf.add_n([tf.reduce_sum(rec.embedding_lookup(table, [1, 2])) for table in tables])


def test_one_op_updates_the_tables_of_all_dims(graph):
    tables = tables_of([1, 4, 16])
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss_of(tables))
    (apply,) = ops_of("RecEstimator>TablesApply")
    assert apply.get_attr("N") == 3


def test_tables_with_hyperparameters_of_their_own_share_the_op_too(graph):
    tables = tables_of([2, 2])
    optimizer = rec.optimizers.AdamWOptimizer(0.5, learning_rate=0.1)
    train_op = optimizer.minimize(loss_of(tables), decay_var_list=[tables[0]])
    assert len(ops_of("RecEstimator>TablesApply")) == 1
    rows = [rec.embedding_lookup(table, [1]) for table in tables]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(rows)
        session.run(train_op)
        after = session.run(rows)
    # The first step of Adam is the learning rate, up to an epsilon; decay halves the value.
    np.testing.assert_allclose(before[0] * 0.5 - after[0], 0.1, atol=1e-6)
    np.testing.assert_allclose(before[1] - after[1], 0.1, atol=1e-6)


def test_each_device_has_its_op(graph):
    tables = []
    for i, task in enumerate([0, 1, 0]):
        with tf.device(f"/job:ps/task:{task}"):
            tables.append(rec.get_embedding_variable(f"t{i}", 2))
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss_of(tables))
    for kind in ("RecEstimator>TablesReserve", "RecEstimator>TablesApply"):
        sizes = {op.device: op.get_attr("N") for op in ops_of(kind)}
        assert sizes == {f"/job:ps/task:{task}/device:CPU:0": 2 - task for task in (0, 1)}


@pytest.mark.parametrize("compute", ["minimize", "tf.gradients"])
def test_an_update_waits_for_lookups_whose_values_the_gradient_does_not_need(graph, compute):
    (table,) = tables_of([4])
    values = rec.embedding_lookup(table, [1, 2])
    loss = tf.reduce_sum(values)  # Its gradient is 1, whatever the values are.
    optimizer = rec.optimizers.GradientDescentOptimizer(1.0)
    if compute == "minimize":
        optimizer.minimize(loss)
    else:
        optimizer.apply_gradients(zip(tf.gradients(loss, [table]), [table]))
    (apply,) = ops_of("RecEstimator>TablesApply")
    assert values.op in apply.control_inputs


def test_a_loss_in_the_run_of_its_step_is_that_before_the_step(graph):
    init = rec.InitializerOption(initializer=tf.ones_initializer())
    table = rec.get_embedding_variable(
        "t", 1000, ev_option=rec.EmbeddingVariableOption(init_option=init)
    )
    keys = tf.range(300, dtype=tf.int64)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys)) / 300_000
    train_op = rec.optimizers.GradientDescentOptimizer(300_000.0).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert [session.run([loss, train_op])[0] for _ in range(30)] == [1 - i for i in range(30)]


def test_a_lookup_that_the_loss_does_not_reach_is_not_read_by_a_step(graph):
    (table,) = tables_of([4])
    rec.embedding_lookup(table, tf.placeholder(tf.int64, [None]))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss_of([table]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)  # Without the placeholder.


def test_everything_that_a_step_changes_waits_for_the_reservation(graph):
    (table,) = tables_of([4])
    weight = tf.get_variable("weight", initializer=2.0)
    step = tf.train.get_or_create_global_step()
    loss = weight * loss_of([table])
    rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=step)
    (reserve,) = ops_of("RecEstimator>TablesReserve")
    # The second type is that of variables that are no resources.
    updates = ["ResourceApplyAdam", "ApplyAdam", "AssignAddVariableOp", "AssignAdd"]
    powers = ["AssignVariableOp", "Assign"]
    changes = ops_of("RecEstimator>TablesApply") + [
        op
        for op in tf.get_default_graph().get_operations()
        if op.type in updates or (op.type in powers and op.name.startswith("Adam/"))
    ]
    assert len(changes) == 5
    assert all(reserve in ancestors([op]) for op in changes)


OUT_OF_MEMORY = """
    import json, resource
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    tf.disable_eager_execution()
    tf.disable_control_flow_v2()
    keys = tf.placeholder(tf.int64, [None])
    small, large = (rec.get_embedding_variable(name, 1) for name in ("small", "large"))
    weight = tf.get_variable("weight", initializer=2.0, use_resource=True)
    step = tf.train.get_or_create_global_step()
    loss = weight * tf.reduce_sum(rec.embedding_lookup(small, keys[:50]))
    loss += tf.reduce_sum(rec.embedding_lookup(large, keys))
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    state = [t.export() for t in (small, large)] + [weight.read_value(), step]
    init = tf.global_variables_initializer()

    def contents():
        return [np.asarray(x).tobytes() for x in tf.nest.flatten(session.run(state))]

    def address_space():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()

    config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
    with tf.Session(config=config) as session:
        session.run(init)
        session.run(train_op, {keys: np.arange(100)})
        before = contents()
        many = np.arange(6_000_000)
        # Enough for the values and gradients of TensorFlow, 24 MB each. The large table needs 400.
        limit = address_space() + (250 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            session.run(train_op, {keys: many})
            message = "no error"
        except tf.errors.ResourceExhaustedError as error:
            message = error.message
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        same = contents() == before
        session.run(train_op, {keys: many})
        sizes = session.run([small.size(), large.size(), step])
    print(json.dumps({"message": message, "same": same, "after": [int(x) for x in sizes]}))
"""


@pytest.mark.long
def test_a_step_without_memory_for_one_table_changes_no_table_and_no_variable():
    done = python_processes.run(["-c", textwrap.dedent(OUT_OF_MEMORY)])
    result = json.loads(done.stdout.splitlines()[-1])
    assert "table large must fit into memory, got no memory for 6000000 keys" in result["message"]
    assert "nothing of the step was applied; give the process more memory" in result["message"]
    assert result["same"]
    assert result["after"] == [50, 6_000_000, 2]
