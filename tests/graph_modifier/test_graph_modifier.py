# SPDX-License-Identifier: Apache-2.0
"""Graph modification in a session: the same bits as without it, for every structure of batch."""

import gc
import threading
import weakref

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format
from modified_graphs import (
    BATCH,
    HASH_BUCKETS,
    QUICK,
    STRUCTURES,
    assert_same,
    dataset_of,
    iterator_of,
    sparse,
    start,
    table_of,
)
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec
from rec_estimator.graph_modifier import modify_graph_and_start_emb_cache
from rec_estimator.graph_modifier.prepared_input import get_initializer, get_target_batch


def model(batch, value_dtype=None):
    """Two tables and lookups of every kind: (loss, keys of the users)."""
    user, item = (table_of(name, value_dtype=value_dtype) for name in ("user", "item"))
    users = tf.strings.to_hash_bucket_fast(tf.strings.join([batch["user"], "@"]), HASH_BUCKETS)
    history = batch["history"]
    if isinstance(history, tf.Tensor):
        history = sparse(history)
    if isinstance(history, tf.SparseTensor):
        history = tf.sparse.reorder(history)
    vectors = [
        rec.embedding_lookup(user, users),
        tf.reduce_sum(rec.embedding_lookup(item, batch["item"]), axis=1),
        rec.embedding_lookup_sparse(item, history, combiner="mean"),
        *rec.group_embedding_lookup_sparse(
            [user, item], [users % 7, history], combiners=[None, "sum"]
        ),
    ]
    logits = sum(tf.reduce_sum(vector, axis=1) for vector in vectors)
    return tf.reduce_mean(tf.square(logits - batch["label"])), users


def train(structure, kind, modified, steps=20, value_dtype=None):
    """Losses, and the tables at the end."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        iterator = iterator_of(dataset_of(structure), kind)
        loss, _ = model(STRUCTURES[structure][1](iterator.get_next()), value_dtype)
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        exports = [table.export() for table in tf.get_collection(rec.EMBEDDING_VARIABLES)]
        if modified:
            modify_graph_and_start_emb_cache()
        with tf.Session(config=QUICK) as session:
            start(session, iterator, kind, modified)
            losses = [session.run([loss, train_op])[0] for _ in range(steps)]
            return losses, session.run(exports)


@pytest.mark.each_value
@pytest.mark.long
@VALUE_DTYPES
@pytest.mark.parametrize("structure", STRUCTURES)
def test_training_gives_the_same_bits_as_without(structure, value_dtype):
    plain = train(structure, "initializable", False, value_dtype=value_dtype)
    assert_same(train(structure, "initializable", True, value_dtype=value_dtype), plain)
    assert len(set(plain[0])) == len(plain[0]), "the losses of all steps must differ"


@pytest.mark.long
@pytest.mark.parametrize("structure", ["nested", "sparse"])
def test_one_shot_iterators_give_the_same_bits_as_without(structure):
    assert_same(train(structure, "one-shot", True), train(structure, "one-shot", False))


def train_on_distinct_ids(modified, has_gradient, value_dtype, steps=10):
    """Losses, the counts and rows at the end, and the ops that the looked-up keys come from."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        iterator = iterator_of(dataset_of(), "initializable")
        batch = iterator.get_next()
        option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(4))
        table = table_of("item", ev_option=option, value_dtype=value_dtype)
        unique = tf.unique_with_counts(batch["item"][:, 1], out_idx=tf.int64)
        rows = rec.embedding_lookup(table, unique.y, counts=unique.count)
        vectors = tf.gather(rows if has_gradient else tf.stop_gradient(rows), unique.idx)
        scale = tf.get_variable("scale", initializer=1.0)
        loss = tf.reduce_sum(tf.square(vectors * scale - batch["label"][:, tf.newaxis]))
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        fetches = [table.get_frequency(range(-3, 20)), table.export()]
        if modified:
            modify_graph_and_start_emb_cache()
        sources = {op.inputs[1].op.type for op in graph.get_operations() if op is rows.op}
        with tf.Session(config=QUICK) as session:
            start(session, iterator, "initializable", modified)
            losses = [session.run([loss, train_op])[0] for _ in range(steps)]
            # Without a gradient, a step may insert a row before or after it reads it.
            return (losses if has_gradient else [], *session.run(fetches)), sources


@VALUE_DTYPES
@pytest.mark.parametrize("has_gradient", [True, False])
def test_distinct_ids_with_their_counts_give_the_same_bits_as_without(has_gradient, value_dtype):
    plain, sources = train_on_distinct_ids(False, has_gradient, value_dtype)
    assert sources == {"UniqueWithCounts"}
    modified, sources = train_on_distinct_ids(True, has_gradient, value_dtype)
    assert sources == {"IteratorGetNext"}
    assert_same(modified, plain)
    assert plain[1].sum() == 10 * BATCH


def modified_graph(kind="initializable"):
    """A modified training graph: (iterator, the user's batch, loss, keys, train_op)."""
    tf.set_random_seed(1)
    iterator = iterator_of(dataset_of("sparse"), kind)
    batch = iterator.get_next()
    loss, keys = model(batch)
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    modify_graph_and_start_emb_cache()
    return iterator, batch, loss, keys, train_op


@pytest.mark.parametrize("kind", ["initializable", "one-shot"])
def test_tensors_of_the_old_batch_have_the_values_of_the_batch_of_the_step(kind):
    iterator, batch, loss, keys, train_op = modified_graph(kind)
    lookups = [op for op in keys.graph.get_operations() if op.type == "RecEstimator>TableLookup"]
    key_of_step = next(op.inputs[1] for op in lookups if op.inputs[0].op.name == "user")
    assert key_of_step.op.type == "IteratorGetNext"
    hashed = tf.strings.to_hash_bucket_fast(tf.strings.join([batch["user"], "@"]), HASH_BUCKETS)
    with tf.Session() as session:
        start(session, iterator, kind, modified=True)
        seen = []
        for _ in range(10):
            got = session.run([batch["user"], keys, key_of_step, hashed, batch["history"], loss])
            users, old_keys, new_keys, hashed_now, history, _ = got
            np.testing.assert_array_equal(old_keys, new_keys)
            np.testing.assert_array_equal(hashed_now, new_keys)
            assert history.dense_shape[0] == len(users) == BATCH
            seen.append(users.tolist())
            # Fetched alone, by name: it takes the next batch, as without modification.
            seen.append(session.run(batch["user"].name).tolist())
        session.run(train_op)
    assert seen == unmodified_users(kind, len(seen))


def unmodified_users(kind, count):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        iterator = iterator_of(dataset_of("sparse"), kind)
        users = iterator.get_next()["user"]
        with tf.Session() as session:
            if kind == "initializable":
                session.run(iterator.initializer)
            return [session.run(users).tolist() for _ in range(count)]


def test_the_map_of_the_moved_ops_is_deterministic_whatever_the_options_of_the_dataset_say():
    # Batches change their order too rarely for a test of the order itself.
    modified_graph()
    maps = [
        op.get_attr("deterministic")
        for op in tf.get_default_graph().get_operations()
        if op.type == "ParallelMapDatasetV2" and "prepared_input" in op.name
    ]
    assert maps == [b"true"]


def test_the_hook_starts_an_iterator_only_once():
    tf.set_random_seed(1)
    batch = iterator_of(dataset_of("sparse"), "initializable").get_next()
    rec.optimizers.AdagradOptimizer(0.1).minimize(model(batch)[0])
    hook = rec.GraphModifierHook()
    hook.begin()
    with tf.Session() as session:
        hook.after_create_session(session, None)
        seen = [session.run(batch["user"]).tolist()]
        hook.after_create_session(session, None)
        seen.append(session.run(batch["user"]).tolist())
    assert seen == unmodified_users("initializable", 2)


def test_tensors_that_the_moved_ops_would_not_see_cannot_be_fed():
    iterator, batch, loss, keys, _ = modified_graph()
    with tf.Session() as session:
        start(session, iterator, "initializable", modified=True)
        for tensor, value in ((batch["label"], [0.0]), (keys, [7])):
            with pytest.raises(ValueError, match=f"{tensor.name} may not be fed"):
                session.run(loss, {tensor: value})


def test_a_modified_graph_can_be_written_and_read_again():
    iterator, batch, _, keys, _ = modified_graph()
    target = get_target_batch(True)["user"]
    graph_def = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph:
        names = [batch["user"].name, target.name, keys.name]
        old, new, old_keys = tf.import_graph_def(graph_def, return_elements=names, name="read")
        start_of_data = graph.get_operation_by_name(f"read/{iterator.initializer.name}")
        with tf.Session() as session:
            session.run(start_of_data)
            users, step_users, _ = session.run([old, new, old_keys])
    np.testing.assert_array_equal(users, step_users)


@pytest.mark.long
def test_concurrent_steps_never_mix_their_batches():
    iterator, batch, _, keys, train_op = modified_graph()
    step_keys = get_target_batch(True)["user"]
    mixed, steps = [], []

    def work(session):
        for _ in range(40):
            old, new, _, _ = session.run([batch["user"], step_keys, keys, train_op])
            steps.append(1)
            if old.tolist() != new.tolist():
                mixed.append((old, new))

    with tf.Session(config=QUICK) as session:
        start(session, iterator, "initializable", modified=True)
        threads = [threading.Thread(target=work, args=[session]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(steps) == 160
    assert not mixed


def test_get_target_batch_has_the_structure_of_the_dataset():
    iterator = tf.data.make_initializable_iterator(dataset_of("nested"))
    old = iterator.get_next()
    loss, _ = model(STRUCTURES["nested"][1](old))
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    modify_graph_and_start_emb_cache()
    target = get_target_batch(True)
    tf.nest.assert_same_structure(target, old)
    with tf.Session(config=QUICK) as session:
        session.run(get_initializer(True))
        assert_same(*session.run([target, old]))


def test_get_target_batch_refuses_an_iterator_that_the_script_has_dropped():
    batch = tf.data.make_one_shot_iterator(dataset_of()).get_next()
    loss, _ = model(batch)
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    modify_graph_and_start_emb_cache()
    with pytest.raises(ValueError, match="has not kept the iterator of the batch; .* stay valid"):
        get_target_batch(True)


@pytest.mark.parametrize(
    "make", [tf.data.make_initializable_iterator, tf.data.make_one_shot_iterator]
)
def test_tensorflow_keeps_no_iterator_that_the_script_has_dropped(make):
    """So nothing that the graph refers to knows the structure of a batch. See prepared_input.py."""
    iterator = make(dataset_of("nested"))
    batch = iterator.get_next()
    reference = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert reference() is None
    assert batch[1].graph is tf.get_default_graph()


@pytest.mark.long
def test_training_and_evaluation_share_a_graph_and_evaluation_restarts():
    def run(modified):
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            train_iterator = tf.data.make_initializable_iterator(dataset_of())
            loss, _ = model(train_iterator.get_next())
            eval_data = dataset_of(seed=9).take(5)
            eval_iterator = tf.data.make_initializable_iterator(eval_data)
            with tf.variable_scope("", reuse=True):
                eval_loss, _ = model(eval_iterator.get_next())
            train_op = rec.optimizers.AdamOptimizer(0.01).minimize(loss)
            size = table_of("user").size() + table_of("item").size()
            if modified:
                modify_graph_and_start_emb_cache()
                starts = get_initializer(True), get_initializer(False)
            else:
                starts = train_iterator.initializer, eval_iterator.initializer
            results = []
            with tf.Session(config=QUICK) as session:
                session.run([starts[0], tf.global_variables_initializer()])
                for step in range(1, 13):
                    results.append(session.run([loss, train_op])[0])
                    if step % 4 == 0:
                        session.run(starts[1])
                        before = session.run(size)
                        with pytest.raises(tf.errors.OutOfRangeError):
                            while True:
                                results.append(session.run(eval_loss))
                        assert session.run(size) == before
            assert len(results) == 12 + 3 * 5
            return results

    assert run(True) == run(False)


def test_the_initializer_of_the_script_starts_the_new_iterator_and_can_be_fed():
    chosen = tf.placeholder(tf.string, [None])
    data = tf.data.Dataset.from_tensor_slices(chosen).batch(2)
    iterator = tf.data.make_initializable_iterator(data)
    keys = tf.strings.to_hash_bucket_fast(iterator.get_next(), HASH_BUCKETS)
    values = rec.embedding_lookup(table_of("user"), keys)
    modify_graph_and_start_emb_cache()
    with tf.Session(config=QUICK) as session:
        session.run(tf.global_variables_initializer())
        session.run(iterator.initializer, {chosen: ["a", "b", "c"]})
        assert session.run(values).shape == (2, 4)
        session.run(get_initializer(False), {chosen: ["d"]})
        assert session.run(values).shape == (1, 4)


def test_an_iterator_keeps_its_initializers_for_several_datasets():
    first, second = dataset_of(seed=1), dataset_of(seed=2)
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(first), tf.data.get_output_shapes(first)
    )
    starts = [iterator.make_initializer(first), iterator.make_initializer(second)]
    loss, keys = model(iterator.get_next())
    plain = []
    with tf.Session(config=QUICK) as session:
        for begin in starts:
            session.run(begin)
            plain.append(session.run(keys).tolist())
    modify_graph_and_start_emb_cache()
    with tf.Session(config=QUICK) as session:
        session.run(tf.global_variables_initializer())
        for begin, expected in zip(starts, plain):
            session.run(begin)
            assert session.run([loss, keys])[1].tolist() == expected


@pytest.mark.long
def test_a_monitored_session_starts_the_new_iterator_from_the_table_initializers():
    def run(modified):
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            iterator = tf.data.make_initializable_iterator(dataset_of())
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            loss, _ = model(iterator.get_next())
            step = tf.train.get_or_create_global_step()
            train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
            hooks = [tf.train.StopAtStepHook(15), rec.GraphModifierHook(modify_graph=modified)]
            with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
                losses = []
                while not session.should_stop():
                    losses.append(session.run([loss, train_op])[0])
            has_moved = any(
                op.name.startswith("prepared_input") for op in step.graph.get_operations()
            )
            assert has_moved == modified
            assert len(losses) == 15
            return losses

    assert run(True) == run(False)


def test_a_second_modification_only_moves_lookups_that_were_added():
    iterator = tf.data.make_initializable_iterator(dataset_of())
    batch = iterator.get_next()
    loss, _ = model(batch)
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    graph = tf.get_default_graph()
    modify_graph_and_start_emb_cache()
    once = graph.as_graph_def()
    modify_graph_and_start_emb_cache()
    added = [n for n in graph.as_graph_def().node if n.name not in {m.name for m in once.node}]
    assert {node.op for node in added} <= {"NoOp"}

    late = tf.strings.to_hash_bucket_fast(batch["user"], 10)
    vectors = rec.embedding_lookup(table_of("user"), late)
    modify_graph_and_start_emb_cache()
    lookup = vectors.op if vectors.op.type.startswith("RecEst") else vectors.op.inputs[0].op
    assert lookup.inputs[1].op.type == "IteratorGetNext"
    with tf.Session(config=QUICK) as session:
        start(session, iterator, "initializable", modified=True)
        users, keys, moved, _ = session.run([batch["user"], late, lookup.inputs[1], train_op])
        np.testing.assert_array_equal(keys, moved)
        assert len(users) == len(keys) == BATCH
        again = session.run([get_target_batch(True)["user"], batch["user"]])
        assert_same(*again)


def test_an_iterator_may_wait_for_the_batch_of_another_iterator():
    first = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
    with tf.control_dependencies([first]):
        second = tf.data.make_one_shot_iterator(tf.data.Dataset.range(200, 300)).get_next()
    values = [rec.embedding_lookup(table_of("user"), key * 2) for key in (first, second)]
    modify_graph_and_start_emb_cache()
    with tf.Session(config=QUICK) as session:
        session.run(tf.global_variables_initializer())
        for i in range(3):
            assert session.run([first, second, values])[:2] == [i, 200 + i]
        # Each batch of the second also takes one of the first, as without modification.
        assert session.run(second) == 203
        assert session.run(first) == 4


def test_an_optimizer_added_after_the_modification_makes_the_data_those_of_training():
    iterator = tf.data.make_initializable_iterator(dataset_of())
    loss, _ = model(iterator.get_next())
    modify_graph_and_start_emb_cache()
    first = get_initializer(False)
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    modify_graph_and_start_emb_cache()
    with pytest.raises(ValueError, match="no modified lookups of evaluation; call"):
        get_initializer(False)
    with tf.Session(config=QUICK) as session:
        for start_of_data in (first, get_initializer(True)):
            session.run([start_of_data, tf.global_variables_initializer()])
            session.run(train_op)


def test_the_state_of_the_input_pipeline_is_saved_and_restored_between_steps(tmp_path):
    data = tf.data.Dataset.range(100)
    iterator = tf.data.make_initializable_iterator(data)
    key = iterator.get_next()
    values = rec.embedding_lookup(table_of("user"), key * 2)
    saver = tf.train.Saver([tf.data.experimental.make_saveable_from_iterator(iterator)])
    modify_graph_and_start_emb_cache()
    path = str(tmp_path / "input")
    with tf.Session(config=QUICK) as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        assert [session.run([key, values])[0] for _ in range(3)] == [0, 1, 2]
        saver.save(session, path)
        assert session.run(key) == 3
    with tf.Session(config=QUICK) as session:
        session.run([get_initializer(False), tf.global_variables_initializer()])
        saver.restore(session, path)
        assert [session.run([key, values])[0] for _ in range(3)] == [3, 4, 5]


@pytest.mark.parametrize(
    ("made", "kind", "make_saver", "modifications"),
    [
        ("before", "initializable", tf.train.Saver, 1),
        ("before", "initializable", rec.Saver, 2),
        ("before", "one-shot", rec.Saver, 1),
        ("after", "initializable", tf.train.Saver, 2),
        ("after", "initializable", rec.Saver, 1),
        ("after", "one-shot", tf.train.Saver, 1),
    ],
)
def test_a_saver_made_after_the_modification_saves_the_position_of_the_data(
    made, kind, make_saver, modifications, tmp_path
):
    def steps(resumed):
        with tf.Graph().as_default(), tf.Session(config=QUICK) as session:
            iterator = iterator_of(tf.data.Dataset.range(100), kind)
            key = iterator.get_next()
            values = [rec.embedding_lookup(table_of("user"), key * 2)]
            if made == "before":
                saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
            modify_graph_and_start_emb_cache()
            if modifications == 2:
                values.append(rec.embedding_lookup(table_of("item"), key * 3))
                modify_graph_and_start_emb_cache()
            if made == "after":
                saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
            tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, saveable)
            saver = make_saver()
            session.run([get_initializer(False), tf.global_variables_initializer()])
            if resumed:
                saver.restore(session, str(tmp_path / "all"))
            keys = [session.run([key, values])[0] for _ in range(3)]
            saver.save(session, str(tmp_path / "all"))
            assert session.run(key) == keys[-1] + 1
            return keys

    assert [*steps(resumed=False), *steps(resumed=True)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.long
def test_dump_graph_writes_the_graphs_for_tensorboard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    iterator = tf.data.make_initializable_iterator(dataset_of("ragged"))
    loss, _ = model(iterator.get_next())
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    before = {op.name for op in tf.get_default_graph().get_operations()}
    modify_graph_and_start_emb_cache(dump_graph=True)
    after = {op.name for op in tf.get_default_graph().get_operations()}
    dumped = {}
    for name in ("old_graph", "cut_graph_train_0", "new_graph"):
        text = text_format.Parse(
            (tmp_path / "export_graph" / f"{name}.pbtxt").read_text(), tf.GraphDef()
        )
        (events,) = (tmp_path / "export_graph" / name).iterdir()
        graphs = [
            tf.GraphDef.FromString(event.graph_def)
            for event in tf.train.summary_iterator(str(events))
            if event.HasField("graph_def")
        ]
        # A FileWriter adds the shapes.
        assert [(n.name, n.op, n.input) for n in graphs[0].node] == [
            (n.name, n.op, n.input) for n in text.node
        ]
        dumped[name] = text
    assert {node.name for node in dumped["old_graph"].node} == before
    assert {node.name for node in dumped["new_graph"].node} == after
    moved = {node.op for node in dumped["cut_graph_train_0"].node}
    assert {"StringToHashBucketFast", "RaggedTensorFromVariant"} <= moved
    assert not any(op.startswith("RecEstimator>") for op in moved)
