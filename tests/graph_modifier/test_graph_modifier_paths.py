# SPDX-License-Identifier: Apache-2.0
"""Every op that depends on the batch alone moves: chosen key paths, and random graphs.

Whatever is fetched has the batch of its step, of which ops/passes/same_batch_pass.cc takes care.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modified_graphs import (
    BATCH,
    QUICK,
    assert_same,
    dataset_of,
    iterator_of,
    start,
    table_of,
)

import rec_estimator as rec
from rec_estimator.graph_modifier import modify_graph_and_start_emb_cache
from rec_estimator.graph_modifier.prepared_input import get_initializer


def by_function(batch):
    @tf.function
    def hashed(text):
        return tf.strings.to_hash_bucket_fast(tf.strings.join([text, "!"]), 1000)

    return hashed(batch["user"])


def by_loops(batch):
    doubled = tf.map_fn(lambda ids: ids * 2, batch["item"])
    return tf.while_loop(lambda i, _: i < 3, lambda i, ids: (i + 1, ids + 1), [0, doubled])[1]


def by_branch(batch):
    ids = batch["item"]
    return tf.cond(ids[0, 0] > 3, lambda: ids + 1, lambda: ids * 2)


def by_stateless_numbers(batch):
    noise = tf.random.stateless_uniform([BATCH, 2], [1, 2], 0, 9, tf.int64)
    return batch["item"] + noise


@pytest.mark.each_value
@pytest.mark.parametrize("path", [by_function, by_loops, by_branch, by_stateless_numbers])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_function_of_the_batch_moves(path, shards, version):
    iterator = tf.data.make_initializable_iterator(dataset_of())
    keys = path(iterator.get_next())
    with tf.variable_scope("", partitioner=tf.fixed_size_partitioner(shards)):
        values = rec.embedding_lookup(table_of("any"), keys)
    graph = tf.get_default_graph()
    lookups = [op for op in graph.get_operations() if op.type == "RecEstimator>TableLookup"]
    assert len(lookups) == shards
    modify_graph_and_start_emb_cache()
    moved = [op.inputs[1] for op in lookups]
    assert {tensor.op.type for tensor in moved} == {"IteratorGetNext"}
    with tf.Session(config=QUICK) as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        for _ in range(3):
            expected, got, _ = session.run([keys, moved, values])
            found = np.concatenate([part.ravel() for part in got])
            np.testing.assert_array_equal(np.sort(found), np.sort(expected.ravel()))


@pytest.mark.parametrize("kind", ["initializable", "one-shot"])
def test_ops_of_the_step_take_tensors_inside_of_moved_loops_and_branches(kind, version):
    def results(modified):
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            iterator = iterator_of(dataset_of(), kind)
            ids = iterator.get_next()["item"][:, 0]
            array = tf.TensorArray(tf.int64, BATCH, clear_after_read=False).unstack(ids)

            def write(i, written, total):
                item = array.read(i) % 7
                return i + 1, written.write(i, item), total + item  # The total is no key.

            def climbed():
                """A loop in a branch."""
                top = tf.while_loop(lambda x: x[0] < 9, lambda x: x + 5, [ids])
                return top * 2, tf.reduce_max(top)  # The maximum is no key.

            empty = tf.TensorArray(tf.int64, BATCH, clear_after_read=False)
            start_values = [0, empty, tf.constant(0, tf.int64)]
            _, written, total = tf.while_loop(lambda i, *_: i < BATCH, write, start_values)
            branch, top = tf.cond(ids[0] > 3, climbed, lambda: (ids + 1, ids[0]))
            keys = written.stack() + branch
            loss = tf.nn.l2_loss(rec.embedding_lookup(table_of("any"), keys))
            train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
            if modified:
                modify_graph_and_start_emb_cache()
            (lookup,) = (op for op in ids.graph.get_operations() if "TableLookup" in op.type)
            assert (lookup.inputs[1].op.type == "IteratorGetNext") == modified
            fetched = [loss, train_op, written.read(3), array.read(2), written.size(), total, top]
            with tf.Session(config=QUICK) as session:
                start(session, iterator, kind, modified)
                return [session.run(fetched) for _ in range(5)]

    assert_same(results(True), results(False))


def test_lookups_of_feature_columns_move():
    iterator = tf.data.make_initializable_iterator(dataset_of())
    column = rec.categorical_column_with_embedding("user", dtype=tf.string)
    batch = {"user": iterator.get_next()["user"]}
    vectors = tf.feature_column.input_layer(batch, [rec.embedding_column(column, 4)])
    graph = tf.get_default_graph()
    (lookup,) = (op for op in graph.get_operations() if "GroupLookup" in op.type)
    modify_graph_and_start_emb_cache()
    assert {tensor.op.type for tensor in lookup.inputs[1:]} == {"IteratorGetNext"}
    with tf.Session(config=QUICK) as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        assert session.run(vectors).shape == (BATCH, 4)


def doubled(i, ids):
    return i + 1, tf.cond(ids[0] > 3, lambda: ids * 2, lambda: ids * 2 + 1)


def random_graph(seed, modified, steps=4):
    """The tensors of a random graph of ops and lookups in each step, and the tables at the end."""
    rng = np.random.default_rng(seed)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        kind = ["initializable", "one-shot"][rng.integers(2)]
        iterator = iterator_of(dataset_of("sparse"), kind)
        batch = iterator.get_next()
        hashed = tf.strings.to_hash_bucket_fast(batch["user"], 1000)
        ids = [hashed, batch["item"][:, 0], batch["item"][:, 1], batch["history"].values]
        tables = [table_of("user"), table_of("item")]
        vectors = []
        for _ in range(rng.integers(5, 25)):
            first, second = (ids[i] for i in rng.integers(0, len(ids), 2))
            choice = rng.integers(8)
            if choice == 0:
                ids.append(first * 3 + tf.constant(rng.integers(9), tf.int64))
            elif choice == 1:
                ids.append(tf.concat([first, second], axis=0))
            elif choice == 2:
                ids.append(tf.unique(first)[0])
            elif choice == 3:
                ids.append(tf.cond(tf.size(first) > 20, lambda a=first: a + 1, lambda a=first: -a))
            elif choice == 4:
                with tf.control_dependencies(
                    [first, tf.debugging.assert_less_equal(second, tf.int64.max)]
                ):
                    ids.append(tf.identity(second))
            elif choice == 5:
                ids.append(tf.while_loop(lambda i, _: i < 2, doubled, [0, first])[1])
            else:
                table = tables[rng.integers(2)]
                vectors.append(tf.reduce_sum(rec.embedding_lookup(table, first)))
                # An op of the step that takes a tensor of the key path.
                vectors.append(tf.cast(tf.reduce_sum(second % 7), tf.float32))
        # tf.add_n would not do: the order in which it adds depends on what is fetched.
        loss = sum(vectors, tf.reduce_sum(batch["label"]))
        fetched = [*ids, *vectors, batch["user"], batch["label"], batch["history"].indices, loss]
        lookups = [op for op in loss.graph.get_operations() if op.type.endswith(">TableLookup")]
        if lookups:
            fetched.append(rec.optimizers.AdagradOptimizer(0.01).minimize(loss))
        if modified and lookups:
            modify_graph_and_start_emb_cache()
            assert {op.inputs[1].op.type for op in lookups} == {"IteratorGetNext"}
        exports = [table.export() for table in tables]
        with tf.Session(config=QUICK) as session:
            start(session, iterator, kind, modified and bool(lookups))
            results = []
            for _ in range(steps):
                chosen = rng.permutation(len(fetched))[: rng.integers(1, len(fetched) + 1)]
                results.append(session.run([fetched[i] for i in chosen]))
            return results, session.run(exports)


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_compute_the_same_tensors_whatever_is_fetched(seed, version):
    assert_same(random_graph(seed, True), random_graph(seed, False))


@pytest.mark.parametrize("is_optimized", [True, False])
def test_keys_of_rounded_numbers_are_the_same_bits(is_optimized):
    """Grappler regroups products, in the graph of the step and in that of the dataset alike."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not is_optimized

    def keys_of(modified):
        with tf.Graph().as_default():
            iterator = tf.data.make_initializable_iterator(dataset_of().take(9))
            price = iterator.get_next()["label"]
            number = (price * 0.1) * 0.3 * 1.7 + 1.1
            keys = tf.cast(tf.bitcast(number, tf.int32), tf.int64)
            values = rec.embedding_lookup(table_of("price"), keys)
            (lookup,) = (op for op in keys.consumers() if op.type.endswith(">TableLookup"))
            if modified:
                modify_graph_and_start_emb_cache()
            looked_up = tf.identity(lookup.inputs[1])
            with tf.Session(config=config) as session:
                session.run([iterator.initializer, tf.global_variables_initializer()])
                return [session.run([looked_up, values])[0] for _ in range(9)]

    assert_same(keys_of(True), keys_of(False))
