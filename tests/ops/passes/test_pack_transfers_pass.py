# SPDX-License-Identifier: Apache-2.0
"""The graph pass that packs what a step sends to the tables of other tasks.

Also of what belongs to it: spread_shard_rows_pass.cc, which copies rows that were sent once, and
reduce_control_edges.cc, without which a step would receive more tensors for each ps.

The tasks are servers in this process, which end with it.
"""

import functools
import itertools
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from local_cluster import LocalCluster

import rec_estimator as rec
from rec_estimator import _ops

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


cluster = functools.cache(LocalCluster)


def config(packed=True, grappler=True):
    """Packs or not. Without grappler, nothing else differs."""
    options = tf.ConfigProto(operation_timeout_in_ms=60_000)
    options.graph_options.rewrite_options.disable_meta_optimizer = not grappler
    optimizer = options.graph_options.optimizer_options
    optimizer.do_constant_folding = optimizer.do_common_subexpression_elimination = True
    optimizer.opt_level = tf.OptimizerOptions.L1 if packed else tf.OptimizerOptions.L0
    return options


def device(num_ps):
    return cluster(num_ps).device() if num_ps else tf.device(None)


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
        target = cluster(num_ps).targets[0] if num_ps else ""
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

    def received_types(self):
        """The types of the tensors that tasks get from others in a step."""
        return [
            tf.as_dtype(node.attr["tensor_type"].type)
            for part in self.metadata.partition_graphs
            for node in part.node
            if node.op == "_Recv" and not node.attr["client_terminated"].b
        ]

    def received(self):
        """The number of these tensors."""
        return len(self.received_types())


def export(table):
    out = table.export()
    return out.keys, out.values, out.freqs, out.versions


def optimizer_of(rule):
    return lambda: getattr(rec.optimizers, f"{rule}Optimizer")(*RULES[rule])


ADAGRAD = optimizer_of("Adagrad")


def model_of_all_kinds(keys):
    tables = tables_of_all_kinds()
    return loss_of(keys, tables), tables


@functools.cache
def single_process(rule):
    return Run(0, model_of_all_kinds, optimizer_of(rule))


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_one_worker_trains_the_bits_of_a_single_process(rule, num_ps):
    expected = single_process(rule)
    found = Run(num_ps, model_of_all_kinds, optimizer_of(rule))
    assert found.losses == expected.losses and np.isfinite(found.losses).all()
    assert len(expected.rows) > 100 and found.rows == expected.rows
    packed = ("TablesReservePacked", "TablesApplyPacked", "GradientsPack")
    is_packed = rule != "GradientDescent"  # It has one update for each occurrence.
    takes_rows = "RowsSpread" if num_ps == 1 else "RowsUnpack"
    for name in ("KeysPack", "TablesRead", takes_rows) + packed * is_packed:
        assert found.types().count(f"RecEstimator>{name}") == num_ps


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2])
def test_rows_of_16_bits_cross_in_16_bits_and_have_the_bits_of_a_single_process(
    num_ps, monkeypatch
):
    """Beside a table of floats. Dimension 3 leaves half a word; the filter's default is rounded."""
    # The random bits of their rounding come from the name of the table.
    scope = itertools.repeat(f"values_of_16_bits_{num_ps}")
    monkeypatch.setitem(globals(), "_scopes", scope)
    option = rec.EmbeddingVariableOption(
        filter_option=rec.CounterFilter(2),
        init_option=rec.InitializerOption(default_value_no_permission=0.3),
    )

    def model(keys):
        tables = [
            table_of("bfloat16", 3, value_dtype=tf.bfloat16),
            table_of("float16", value_dtype=tf.float16, slot_dtype=tf.bfloat16, ev_option=option),
            table_of("float32"),
        ]
        values = [rec.embedding_lookup(table, keys[0]) for table in tables]
        values.append(rec.embedding_lookup(tables[0], tf.reshape(keys[1], [2, -1])))
        return square_loss(values), tables

    expected = Run(0, model, ADAGRAD)
    found = Run(num_ps, model, ADAGRAD)
    assert found.losses == expected.losses
    assert len(expected.rows) > 75 and found.rows == expected.rows
    assert found.types().count("RecEstimator>TablesApplyPacked") == num_ps
    types = found.received_types()
    for dtype in (tf.bfloat16, tf.float16):
        assert types.count(dtype) == num_ps
    # One more for each further type.
    assert len(types) <= 7 * num_ps + (not tf.resource_variables_enabled())


def square_loss(values):
    return sum(tf.reduce_sum(tf.square(value - 1)) for value in values)


def models_of_many_tables(count, dim=16):
    def make(keys):
        tables = [table_of(f"t{i}", dim) for i in range(count)]
        rows = [rec.embedding_lookup(table, keys[i]) for i, table in enumerate(tables)]
        return square_loss(rows), tables

    return make


def shards_beside_the_table(keys):
    """A shard is looked up alone, between lookups of all shards."""
    tables = [table_of("whole"), table_of("pairs", 5)]
    values = [rec.embedding_lookup(table, keys[i]) for i, table in enumerate(tables)]
    values += [rec.embedding_lookup(table, tf.reshape(keys[2], [-1, 2])) for table in tables]
    values[1:1] = [_lookup_of_shard(table.shards[0], keys[2]) for table in tables]
    return square_loss(values), tables


def _lookup_of_shard(shard, keys):
    with tf.colocate_with(shard.handle):
        return _ops.gen.rec_estimator_table_lookup(
            shard.handle, keys, dim=shard.dim, unknown="initial"
        )


def test_rows_are_spread_for_lookups_that_are_no_part_of_a_table():
    """Without training: whether the keys are those of the shard does not matter."""
    types, losses = [], []
    for packed in (True, False):
        graph = tf.Graph()
        with graph.as_default(), tf.variable_scope(next(_scopes)), device(2):
            loss, _ = shards_beside_the_table(next_batch(batches()))
            initialize = tf.global_variables_initializer()
        with tf.Session(cluster(2).targets[0], graph=graph, config=config(packed)) as session:
            session.run(initialize)
            metadata = tf.RunMetadata()
            traced = tf.RunOptions(output_partition_graphs=True)
            losses.append([session.run(loss, None, traced, metadata) for _ in range(STEPS)])
            types.append([node.op for part in metadata.partition_graphs for node in part.node])
    assert losses[0] == losses[1]
    # Both lookups of a single shard read the first ps.
    assert types[0].count("RecEstimator>RowsSpread") == 1
    assert types[0].count("RecEstimator>RowsUnpack") == 2
    assert types[0].count("RecEstimator>ShardRowsSpread") == 4
    assert types[0].count("RecEstimator>ShardKeysSplit") == 3


@pytest.mark.long
@pytest.mark.parametrize(
    "model, is_divided",
    [
        (models_of_many_tables(3), False),
        (model_of_all_kinds, True),  # A table with two lists of keys.
    ],
)
def test_gradients_of_shards_are_read_where_they_are(model, is_divided):
    expected, found = Run(0, model, ADAGRAD), Run(2, model, ADAGRAD)
    assert found.losses == expected.losses and found.rows == expected.rows
    assert ("RecEstimator>ShardRowsSplit" in found.types()) == is_divided


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("tables", [1, 26])
@pytest.mark.long
def test_a_step_receives_at_most_five_tensors_for_each_ps(num_ps, tables):
    model, keys = models_of_many_tables(tables), batches(columns=tables)
    run = Run(num_ps, model, ADAGRAD, batch=lambda: next_batch(keys))
    # A global step that is no resource sends one more, whatever the number of ps.
    assert run.received() <= 5 * num_ps + (not tf.resource_variables_enabled())


def combining_many_tables(keys):
    """26 lookups in a group: of bags of several ids, of sequences, and without a combiner."""
    tables = [table_of(f"t{i}") for i in range(26)]
    ids = [
        key if i % 3 == 0 else tf.RaggedTensor.from_uniform_row_length(key, 1 + i % 3)
        for i, key in enumerate(tf.unstack(keys, 26))
    ]
    combiners = [None if i % 3 == 0 else ("mean", "sqrtn")[i % 2] for i in range(26)]
    values = rec.group_embedding_lookup_sparse(tables, ids, combiners)
    return square_loss(values), tables


@pytest.mark.parametrize("num_ps", [1, 2])
@pytest.mark.long
def test_lookups_that_combine_receive_no_more_tensors(num_ps):
    keys = batches(columns=26)
    run = Run(num_ps, combining_many_tables, ADAGRAD, batch=lambda: next_batch(keys))
    assert run.received() <= 5 * num_ps + (not tf.resource_variables_enabled())
    expected = Run(0, combining_many_tables, ADAGRAD, batch=lambda: next_batch(keys))
    # TensorFlow's ops add the vectors of an example in another order.
    np.testing.assert_allclose(run.losses, expected.losses, rtol=1e-6)
    assert run.rows.keys() == expected.rows.keys()
    for key, (_, *counts) in expected.rows.items():
        assert run.rows[key][1:] == counts


@pytest.mark.long
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
                    if output.slot == 0 and re.search(
                        f"{name}(_[0-9a-f]+)?(/_[0-9]+)?$", node.node_name
                    ):
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


@pytest.mark.long
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


@pytest.mark.long
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
        with tf.Session(cluster(2).targets[0], config=config()) as session:
            session.run(initialize)
            with pytest.raises(tf.errors.ResourceExhaustedError, match="small.* must have at most"):
                session.run(train_op)
            assert session.run([sizes, step]) == [[0, 0], 0]


@pytest.mark.long
def test_two_workers_count_every_occurrence():
    scope, keys = next(_scopes), [batches(seed)[:, :1] for seed in (1, 2)]
    servers = cluster(2, workers=1)
    runs = []
    for task in range(2):
        graph = tf.Graph()
        with graph.as_default(), tf.variable_scope(scope), servers.device(task):
            loss, (table,) = models_of_many_tables(1)(next_batch(keys[task]))
            train_op = ADAGRAD().minimize(loss)
            initialize = tf.global_variables_initializer()
            counts = export(table)
        runs.append((graph, train_op, initialize, counts))
    sessions = [
        tf.Session(target, graph=run[0], config=config())
        for target, run in zip(servers.targets, runs)
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
            target = cluster(num_ps).targets[0] if num_ps else ""
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


def test_steps_of_a_session_pack_the_lookups_that_each_of_them_fetches():
    with tf.Graph().as_default(), tf.variable_scope(next(_scopes)), device(1):
        keys = tf.constant([7, 8], tf.int64)
        tables = [table_of(name, dim) for dim, name in enumerate("abcd", 1)]
        lookups = [rec.embedding_lookup(table, keys) for table in tables]
        loss = tf.reduce_sum(tf.square(lookups[3]))
        train = rec.optimizers.GradientDescentOptimizer(0.25).minimize(loss)
        initialize = tf.global_variables_initializer()
        with tf.Session(cluster(1).targets[0], config=config()) as session:
            session.run(initialize)
            alone = [session.run(lookup) for lookup in lookups]
            for fetched in ([0, 1, 2, 3], [0, 1], [0, 2, 1], [0, 3], [0, 1, 2, 3]):
                values = session.run([lookups[i] for i in fetched])
                for i, value in zip(fetched, values):
                    np.testing.assert_array_equal(value, alone[i])
            for fetched in ([], [0], [0, 1], [0, 2], [2, 1]):
                *values, _ = session.run([*(lookups[i] for i in fetched), train])
                for i, value in zip(fetched, values):
                    np.testing.assert_array_equal(value, alone[i])
                alone[3] = alone[3] * 0.5
                np.testing.assert_array_equal(session.run(lookups[3]), alone[3])


def test_lookups_of_different_feeds_do_not_wait_for_each_other():
    """A partial run feeds the second one after it has fetched the first one."""
    with tf.Graph().as_default(), tf.variable_scope(next(_scopes)), device(1):
        fed = [tf.placeholder(tf.int64, [2]) for _ in range(2)]
        tables = [table_of(name) for name in "ab"]
        fetches = [rec.embedding_lookup(table, keys) for table, keys in zip(tables, fed)]
        initialize = tf.global_variables_initializer()
        with tf.Session(cluster(1).targets[0], config=config()) as session:
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
        with tf.Session(cluster(1).targets[0], config=config()) as session:
            session.run(initialize)
            assert session.run(value).any()
