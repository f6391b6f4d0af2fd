# SPDX-License-Identifier: Apache-2.0
"""Reads of a whole table: what they count, and that each is one op of the graph."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


def train_keys(table, keys):
    """One step with gradient 1 on every occurrence of keys."""
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant(keys, tf.int64)))
    return rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss)


def initialized_session():
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


@pytest.mark.parametrize("shards", [1, 3])
def test_dynamic_shape_counts_keys_that_a_filter_counts(shards):
    option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2))
    cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table = rec.get_embedding_variable("t", 3, ev_option=option, partitioner=cut)
    train = train_keys(table, [4, 4, 5, 6])
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.size()) == 1
        for shape in (table.get_dynamic_shape(), table.total_count()):
            assert shape.dtype == tf.int32 and shape.shape == [2]
            assert session.run(shape).tolist() == [3, 3]
            assert session.run(shape)[0] == 3


READS = {
    "size": lambda table: table.size(),
    "total_count": lambda table: table.total_count(),
    "get_dynamic_shape": lambda table: table.get_dynamic_shape(),
    "capacity": lambda table: table.capacity(),
    "memory_bytes": lambda table: table.memory_bytes(),
    "export": lambda table: table.export(),
}


class TestReads:
    @pytest.mark.parametrize("read", READS.values(), ids=READS)
    @pytest.mark.parametrize("shards", [1, 2])
    def test_add_ops_once(self, graph, read, shards):
        cut = tf.fixed_size_partitioner(shards) if shards > 1 else None
        table = rec.get_embedding_variable("t", 2, partitioner=cut)
        train = train_keys(table, [3, 9])
        with initialized_session() as session:
            before = session.run(read(table))
            number = len(graph.get_operations())
            session.run(train)
            after = session.run(read(table))
            assert len(graph.get_operations()) == number
        if read in (READS["size"], READS["get_dynamic_shape"], READS["total_count"]):
            assert np.max(before) in (0, 2) and np.max(after) == 2
            assert not np.array_equal(before, after)

    @pytest.mark.parametrize("read", READS.values(), ids=READS)
    def test_go_on_in_a_finalized_graph(self, graph, read):
        table = rec.get_embedding_variable("t", 2)
        first = read(table)
        graph.finalize()
        assert read(table) is first

    @pytest.mark.parametrize("read", READS.values(), ids=READS)
    def test_begin_before_the_graph_is_finalized(self, graph, read):
        table = rec.get_embedding_variable("t", 2)
        graph.finalize()
        message = "the graph is finalized without the .* of table 't'"
        with pytest.raises(RuntimeError, match=message):
            read(table)

    def test_work_in_a_monitored_session(self):
        step = tf.train.get_or_create_global_step()
        table = rec.get_embedding_variable("t", 2)
        loss = tf.reduce_sum(rec.embedding_lookup(table, [step, step + 100]))
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        table.size()
        with tf.train.MonitoredTrainingSession() as session:
            for i in range(3):
                assert session.run(table.size()) == 2 * i
                session.run(train)

    def test_belong_to_the_graph_of_the_table(self):
        table = rec.get_embedding_variable("t", 2)
        with tf.Graph().as_default() as other:
            assert table.size().graph is table.graph
            assert other.get_operations() == []
            with tf.Session(graph=table.graph) as session:
                session.run(table.initializer)
                assert session.run(table.size()) == 0

    def test_wait_for_what_each_of_them_has_to_wait_for(self):
        table = rec.get_embedding_variable("t", 2)
        at_any_time = table.size()
        train = train_keys(table, [3, 9])
        waiting = []
        for _ in range(2):
            with tf.control_dependencies([train]):
                waiting.append(table.size())
        assert waiting[0] is waiting[1] and table.size() is at_any_time
        with initialized_session() as session:
            assert session.run(at_any_time) == 0
            assert session.run(waiting[0]) == 2

    def test_are_made_in_each_branch_and_body(self, version):
        table = rec.get_embedding_variable("t", 2)
        train = train_keys(table, [3, 9])
        outside = table.size()
        yes = tf.placeholder(tf.bool, [])
        both = tf.cond(
            yes, lambda: table.size() + table.size(), lambda: 100 + table.size(), name="c"
        )
        three = tf.while_loop(
            lambda i, _: i < 3, lambda i, n: (i + 1, n + table.size()), (0, 0 * outside)
        )
        after = table.size()
        assert after is outside
        with initialized_session() as session:
            session.run(train)
            assert session.run(both, {yes: True}) == 4
            assert session.run(both, {yes: False}) == 102
            assert session.run([outside, three[1]]) == [2, 6]

    @pytest.mark.long
    def test_are_made_in_each_function(self):
        table = rec.get_embedding_variable("t", 2)

        @tf.function
        def doubled():
            return 2 * table.size() + table.size()

        with initialized_session() as session:
            session.run(train_keys(table, [3, 9]))
            assert session.run([table.size(), doubled()]) == [2, 6]
