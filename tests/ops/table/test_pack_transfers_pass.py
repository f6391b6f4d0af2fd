# SPDX-License-Identifier: Apache-2.0
"""The graph pass that packs what a step sends to the tables of other tasks.

The tasks are servers in this process, which end with it.
"""

import functools
import itertools
import re
import socket

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

STEPS, BATCH, DIM = 6, 24, 4
RULES = {
    "Adagrad": (0.1,),
    "Adam": (0.1,),
    "Ftrl": (0.1,),
    "GradientDescent": (0.001,),
    "Momentum": (0.01, 0.9),
}
# Tables keep their rows in a server from one session to the next.
_scopes = (f"s{number}" for number in itertools.count())


@functools.cache
def cluster(num_ps, workers=1):
    """(addresses by job, target of the sessions of each worker)"""
    sockets = [socket.socket() for _ in range(num_ps + workers)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    jobs = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    servers = [tf.train.Server(jobs, "ps", task) for task in range(num_ps)]
    servers += [tf.train.Server(jobs, "worker", task) for task in range(workers)]
    _servers.extend(servers)
    return jobs, [server.target for server in servers[num_ps:]]


_servers = []


def config(packed=True, grappler=True):
    """Packs or not. Without grappler, nothing else differs."""
    options = tf.ConfigProto(operation_timeout_in_ms=60_000)
    options.graph_options.rewrite_options.disable_meta_optimizer = not grappler
    optimizer = options.graph_options.optimizer_options
    optimizer.do_constant_folding = optimizer.do_common_subexpression_elimination = True
    optimizer.opt_level = tf.OptimizerOptions.L1 if packed else tf.OptimizerOptions.L0
    return options


def device(num_ps):
    if not num_ps:
        return tf.device(None)
    return tf.device(
        tf.train.replica_device_setter(
            cluster=cluster(num_ps)[0], worker_device="/job:worker/task:0"
        )
    )


def batches(seed=0, columns=3):
    """int64 [STEPS, columns, BATCH]. Few values, so that keys repeat within and across columns."""
    rng = np.random.default_rng(seed)
    return rng.integers(-20, 20, [STEPS, columns, BATCH]) * 1000 + rng.integers(0, 3)


def next_batch(keys):
    return tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(keys)).get_next()


def table_of(name, dim=DIM, **arguments):
    initializer = tf.random_normal_initializer(seed=3)
    return rec.get_embedding_variable(name, dim, initializer=initializer, **arguments)


def loss_of(keys, tables):
    """A loss over lookups of all kinds that have the bits of a single process on any number of ps.

    The first table has two lookups with a gradient, which share keys; the second one has one of two
    whose keys are only counted; the third and the fourth have filters.
    """
    twice, counted, filtered, in_sketch = tables
    values = [
        rec.embedding_lookup(twice, keys[0]),
        rec.embedding_lookup(twice, tf.reshape(keys[1], [2, -1])),
        rec.embedding_lookup(counted, keys[0], counts=1 + tf.math.floormod(keys[0], 3)),
        tf.stop_gradient(rec.embedding_lookup(counted, keys[2])),
        rec.embedding_lookup(filtered, keys[1]),
        rec.embedding_lookup(in_sketch, tf.concat([keys[2], keys[0]], 0)),
    ]
    scale = tf.get_variable("scale", [DIM], initializer=tf.ones_initializer(), use_resource=True)
    return sum(
        tf.reduce_sum(tf.square(tf.reshape(value, [-1, DIM]) * scale - 0.5)) for value in values
    )


def tables_of_all_kinds():
    return [
        table_of("twice"),
        table_of("counted"),
        table_of(
            "filtered", ev_option=rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(3))
        ),
        table_of(
            "in_sketch",
            ev_option=rec.EmbeddingVariableOption(
                filter_option=rec.CBFFilter(
                    3, max_element_size=1000, false_positive_probability=0.01
                )
            ),
        ),
    ]


class Run:
    """A graph that trains tables, and the results of its steps.

    Args:
      num_ps: 0: a single process.
      make: From int64 [columns, BATCH] to (loss, tables).
      batch: Makes the keys; None: batches().
      options: Of config().
    """

    def __init__(self, num_ps, make, optimizer, *, batch=None, **options):
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.variable_scope(next(_scopes)), device(num_ps):
            tf.set_random_seed(1)
            step = tf.train.get_or_create_global_step()
            self.loss, tables = make(next_batch(batches()) if batch is None else batch())
            updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
            with tf.control_dependencies(updates):
                self.train_op = optimizer().minimize(self.loss, global_step=step)
            initialize = [tf.global_variables_initializer(), tf.tables_initializer()]
            exports = {table.name.split("/")[-1]: export(table) for table in tables}
        target = cluster(num_ps)[1][0] if num_ps else ""
        with tf.Session(target, graph=self.graph, config=config(**options)) as session:
            session.run(initialize)
            self.losses = [session.run([self.loss, self.train_op])[0] for _ in range(STEPS - 1)]
            self.metadata = tf.RunMetadata()
            traced = tf.RunOptions(output_partition_graphs=True, trace_level=3)
            found = session.run([self.loss, self.train_op], None, traced, self.metadata)
            self.losses.append(found[0])
            self.rows = {
                (name, int(key)): [np.asarray(each).tobytes() for each in row]
                for name, table in session.run(exports).items()
                for key, *row in zip(*table)
            }

    def types(self):
        return [node.op for part in self.metadata.partition_graphs for node in part.node]

    def received(self):
        """Tensors that tasks get from others in a step."""
        return sum(
            node.op == "_Recv" and not node.attr["client_terminated"].b
            for part in self.metadata.partition_graphs
            for node in part.node
        )


def export(table):
    out = table.export()
    return out.keys, out.values, out.freqs, out.versions


def optimizer_of(rule):
    return lambda: getattr(rec.optimizers, f"{rule}Optimizer")(*RULES[rule])


ADAGRAD = optimizer_of("Adagrad")


def model_of_all_kinds(keys):
    tables = tables_of_all_kinds()
    return loss_of(keys, tables), tables


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_one_worker_trains_the_bits_of_a_single_process(rule, num_ps):
    expected = Run(0, model_of_all_kinds, optimizer_of(rule))
    found = Run(num_ps, model_of_all_kinds, optimizer_of(rule))
    assert found.losses == expected.losses and np.isfinite(found.losses).all()
    assert len(expected.rows) > 100 and found.rows == expected.rows
    packed = ("TablesReservePacked", "TablesApplyPacked", "GradientsPack")
    is_packed = rule != "GradientDescent"  # It has one update for each occurrence.
    for name in ("KeysPack", "TablesRead", "RowsSpread") + packed * is_packed:
        assert found.types().count(f"RecEstimator>{name}") == num_ps


def square_loss(values):
    return sum(tf.reduce_sum(tf.square(value - 1)) for value in values)


def models_of_many_tables(count, dim=16):
    def make(keys):
        tables = [table_of(f"t{i}", dim) for i in range(count)]
        rows = [rec.embedding_lookup(table, keys[i]) for i, table in enumerate(tables)]
        return square_loss(rows), tables

    return make


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("tables", [1, 26])
def test_a_step_receives_at_most_five_tensors_for_each_ps(num_ps, tables):
    model, keys = models_of_many_tables(tables), batches(columns=tables)
    run = Run(num_ps, model, ADAGRAD, batch=lambda: next_batch(keys))
    # A global step that is no resource sends one more, whatever the number of ps.
    assert run.received() <= 5 * num_ps + (not tf.resource_variables_enabled())


def test_a_step_moves_each_distinct_key_once():
    dim = 16
    keys = batches(columns=26).repeat(10, axis=2)
    keys[:, :, 0] = np.arange(26)
    sizes = {}
    run = Run(2, models_of_many_tables(26, dim), ADAGRAD, batch=lambda: next_batch(keys))
    distinct = sum(len(np.unique(column)) for column in keys[-1])
    for stats in run.metadata.step_stats.dev_stats:
        for node in stats.node_stats:
            for name in ("/keys", "/rows", "/gradients"):
                # Output 0 of KeysPack is the packed keys; others stay with the worker.
                for output in node.output:
                    if output.slot == 0 and re.search(f"{name}(/_[0-9]+)?$", node.node_name):
                        count = output.tensor_description.shape.dim[0].size
                        sizes[node.node_name] = count * (8 if name == "/keys" else 4)
    assert len(sizes) == 6, sizes
    assert sum(sizes.values()) <= 1.1 * distinct * (8 + 4 + 8 * dim)


def combining(keys):
    """Combiners, limits, and Rec SDK's admission, whose lookups ask the tables first."""
    table = table_of("bag")
    bags = tf.RaggedTensor.from_uniform_row_length(keys[0], 3)
    options = dict(key_dtype=tf.int64, dim=DIM, emb_initializer=tf.ones_initializer())
    admitted = rec.create_table(name="admitted", device_vocabulary_size=500, **options)
    with_default = table_of("normed")
    values = [
        rec.embedding_lookup_sparse(table, bags, combiner="mean"),
        rec.sparse_lookup(
            admitted, keys[1], modify_graph=True, access_and_evict_config={"access_threshold": 2}
        ),
        rec.embedding_lookup(with_default, keys[2], max_norm=1.0),
    ]
    return square_loss(values), [table, admitted, with_default]


@pytest.mark.parametrize("num_ps", [1, 2])
def test_other_lookups_have_the_bits_of_a_step_that_is_not_packed(num_ps):
    expected, found = (
        Run(num_ps, combining, ADAGRAD, packed=packed, grappler=False) for packed in (False, True)
    )
    assert "RecEstimator>KeysPack" in found.types()
    assert not any(name.endswith("Pack") for name in expected.types() if ">" in name)
    assert found.losses == expected.losses and found.rows == expected.rows


def two_levels(keys):
    """A lookup whose keys come from the values of another one, and one after an update op."""
    first, second = table_of("first"), table_of("second")
    values = rec.embedding_lookup(first, keys[0])
    further = rec.embedding_lookup(second, tf.cast(values[:, 0] * 3, tf.int64))
    again = rec.embedding_lookup(first, keys[1])
    moving = tf.get_variable("moving", [], trainable=False, use_resource=True)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, moving.assign_add(tf.reduce_mean(values)))
    return square_loss([values, further, again]), [first, second]


@pytest.mark.parametrize("num_ps", [1, 2])
def test_lookups_of_two_levels_and_update_ops_have_the_bits_of_a_single_process(num_ps):
    expected, found = (Run(ps, two_levels, ADAGRAD) for ps in (0, num_ps))
    assert found.types().count("RecEstimator>TablesRead") == 2 * num_ps
    assert found.losses == expected.losses and found.rows == expected.rows


def test_a_step_without_room_changes_nothing_on_any_ps():
    def make(keys):
        options = dict(key_dtype=tf.int64, dim=DIM, emb_initializer=tf.ones_initializer())
        tables = [
            rec.create_table(name=name, device_vocabulary_size=rows, **options)
            for name, rows in (("large", 500), ("small", 2))
        ]
        values = [
            rec.sparse_lookup(t, keys[0], send_count=None, is_train=True, modify_graph=True)
            for t in tables
        ]
        return square_loss(values), tables

    graph = tf.Graph()
    with graph.as_default(), tf.variable_scope(next(_scopes)), device(2):
        loss, tables = make(next_batch(batches()))
        step = tf.train.get_or_create_global_step()
        train_op = ADAGRAD().minimize(loss, global_step=step)
        sizes = [table.size() for table in tables]
        initialize = tf.global_variables_initializer()
        with tf.Session(cluster(2)[1][0], config=config()) as session:
            session.run(initialize)
            with pytest.raises(tf.errors.ResourceExhaustedError, match="small.* must have at most"):
                session.run(train_op)
            assert session.run([sizes, step]) == [[0, 0], 0]


def test_two_workers_count_every_occurrence():
    scope, keys = next(_scopes), [batches(seed)[:, :1] for seed in (1, 2)]
    jobs, targets = cluster(2, workers=2)
    runs = []
    for task in range(2):
        graph = tf.Graph()
        setter = tf.train.replica_device_setter(
            cluster=jobs, worker_device=f"/job:worker/task:{task}"
        )
        with graph.as_default(), tf.variable_scope(scope), tf.device(setter):
            loss, (table,) = models_of_many_tables(1)(next_batch(keys[task]))
            train_op = ADAGRAD().minimize(loss)
            initialize = tf.global_variables_initializer()
            counts = export(table)
        runs.append((graph, train_op, initialize, counts))
    sessions = [
        tf.Session(target, graph=run[0], config=config()) for target, run in zip(targets, runs)
    ]
    sessions[0].run(runs[0][2])
    for _ in range(STEPS):
        for session, run in zip(sessions, runs):
            session.run(run[1])
    found = sessions[1].run(runs[1][3])
    expected = dict(zip(*np.unique(np.stack(keys), return_counts=True)))
    assert dict(zip(found[0], found[2])) == expected


def test_predictions_are_packed_too():
    def values(num_ps, packed):
        with tf.Graph().as_default(), tf.variable_scope(next(_scopes)), device(num_ps):
            keys = tf.placeholder(tf.int64, [None])
            tables = [table_of(name) for name in "ab"]
            fetches = [rec.embedding_lookup(table, keys) for table in tables]
            metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
            initialize = tf.global_variables_initializer()
            target = cluster(num_ps)[1][0] if num_ps else ""
            with tf.Session(target, config=config(packed)) as session:
                session.run(initialize)
                found = session.run(fetches, {keys: [7, 7, -1, 7]}, options, metadata)
                session.run(fetches, {keys: []})
        types = [node.op for part in metadata.partition_graphs for node in part.node]
        return np.array(found), types.count("RecEstimator>TablesRead")

    expected, _ = values(0, True)
    found, reads = values(2, True)
    np.testing.assert_array_equal(found, expected)
    assert reads == 2 and values(2, False)[1] == 0


def test_lookups_of_different_feeds_do_not_wait_for_each_other():
    """A partial run feeds the second one after it has fetched the first one."""
    with tf.Graph().as_default(), tf.variable_scope(next(_scopes)), device(1):
        fed = [tf.placeholder(tf.int64, [2]) for _ in range(2)]
        tables = [table_of(name) for name in "ab"]
        fetches = [rec.embedding_lookup(table, keys) for table, keys in zip(tables, fed)]
        initialize = tf.global_variables_initializer()
        with tf.Session(cluster(1)[1][0], config=config()) as session:
            session.run(initialize)
            run = session.partial_run_setup(fetches, fed)
            first = session.partial_run(run, fetches[0], {fed[0]: [1, 2]})
            second = session.partial_run(run, fetches[1], {fed[1]: [1, 2]})
    assert first.shape == second.shape == (2, DIM)


def test_lookups_in_a_branch_are_not_packed():
    with tf.Graph().as_default(), tf.variable_scope(next(_scopes)), device(1):
        table, keys = table_of("t"), next_batch(np.array([[1, 2], [1, 2]]))
        value = tf.cond(
            tf.reduce_sum(keys) > 0,
            lambda: rec.embedding_lookup(table, keys),
            lambda: tf.zeros([2, DIM]),
        )
        initialize = tf.global_variables_initializer()
        with tf.Session(cluster(1)[1][0], config=config()) as session:
            session.run(initialize)
            assert session.run(value).any()
