# SPDX-License-Identifier: Apache-2.0
"""Graph modification of sparse_lookup: the same bits with admission, eviction and timestamps."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modified_graphs import (
    BATCH,
    QUICK,
    STRUCTURES,
    assert_same,
    checkpoints,
    dataset_of,
    iterator_of,
)

import rec_estimator as rec
from rec_estimator.graph_modifier.key_paths import find_key_paths
from rec_estimator.graph_passes.walk import ancestors

ROWS = 512
USER = {"access_threshold": 3, "eviction_threshold": 60}
ITEM = {"access_threshold": 1, "eviction_threshold": 8}
SPECS = [
    rec.FeatureSpec("user", **USER),
    rec.FeatureSpec("item", index_key="item_ids", **ITEM),
    rec.FeatureSpec("history", "item", **ITEM),
    rec.FeatureSpec("time", is_timestamp=True),
]


def columns(seed):
    """User ids, items that change in the middle, histories with padding, and seconds."""
    rng = np.random.default_rng(seed)
    items = np.concatenate([rng.integers(0, 30, ROWS // 2), rng.integers(20, 60, ROWS // 2)])
    return {
        "user": rng.zipf(1.2, [ROWS, 1]) % 200,
        "item_ids": np.stack([items, np.full(ROWS, -1)], axis=1),
        "history": rng.integers(0, 30, [ROWS, 5]) * rng.integers(0, 2, [ROWS, 5]) - 1,
        "time": np.arange(ROWS),
        "label": rng.random(ROWS).astype(np.float32),
    }


def input_fn(is_training, prefetch=None, by_spec=False):
    """Each epoch has new users. The timestamp advances one second in 16 examples."""

    def later(epoch):
        data = tf.data.Dataset.from_tensor_slices(columns(0 if is_training else 1))

        def shifted(row):
            time = (row["time"] + epoch * ROWS) // 16 + 1
            return {**row, "user": row["user"] + epoch * 60, "time": time}

        return data.map(shifted)

    def build():
        data = tf.data.Dataset.range(20 if is_training else 1).flat_map(later).batch(BATCH)
        data = data.map(lambda batch: {**batch, "time": tf.reduce_max(batch["time"])})
        if by_spec:
            data = data.map(rec.get_asc_insert_func(tgt_key_specs=SPECS, is_training=is_training))
        data = data.prefetch(prefetch) if prefetch else data
        return data.map(lambda batch: (batch, batch["label"]))

    return build


def tables():
    initializer = tf.random_normal_initializer(seed=7)
    return {
        name: rec.create_table(tf.int64, 4, name, initializer, device_vocabulary_size=2000)
        for name in ("user", "item")
    }


def as_text_and_back(ids):
    return tf.strings.to_number(tf.strings.as_string(ids), tf.int64)


def vectors_of(features, is_train, by_spec):
    """One lookup of users, and two of items, of which one has no gradient."""
    if not by_spec:
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, features["time"])
    found = []
    for spec, config in zip(SPECS, (USER, ITEM, ITEM)):
        how = {"batch": features} if by_spec else {"modify_graph": True}
        if not by_spec:
            how["access_and_evict_config"] = config
        ids = spec if by_spec else as_text_and_back(features[spec.index_key])
        vectors = rec.sparse_lookup(
            tables()[spec.table_name],
            ids,
            is_train=is_train,
            is_grad=spec.name != "history",
            serving_default_value=tf.fill([4], 0.25),
            **how,
        )
        found.append(tf.reduce_sum(vectors, axis=1))
    return found


def model_fn(features, labels, mode, params):
    is_train = mode == rec.ModeKeys.TRAIN
    dense = tf.get_variable("dense", [4], initializer=tf.ones_initializer())
    total = tf.add_n(vectors_of(features, is_train, params["by_spec"]))
    errors = tf.square(tf.reduce_sum(total * dense, axis=1) - labels)
    loss = tf.reduce_mean(errors)
    tf.add_to_collection("watched", loss)
    train_op = None
    if is_train:
        optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.01)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = {"error": tf.metrics.mean(errors)}
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


class Losses(tf.train.SessionRunHook):
    def __init__(self):
        self.losses = []
        self.modified = []

    def after_create_session(self, session, coord):
        operations = session.graph.get_operations()
        self.modified.append(any(op.name.startswith("prepared_input/") for op in operations))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(run_context.session.graph.get_collection("watched"))

    def after_run(self, run_context, run_values):
        self.losses += run_values.results


def config_of(**kwargs):
    return rec.RunConfig(
        tf_random_seed=1,
        session_config=QUICK,
        save_checkpoints_steps=50,
        keep_checkpoint_max=20,
        log_step_count_steps=1000,
        **kwargs,
    )


def run(folder, modified, by_spec=False, prefetch=None):
    """Trains, stops while batches are prefetched, resumes and evaluates."""
    watch = Losses()
    for max_steps in (130, 200):
        estimator = rec.RecEstimator(model_fn, str(folder), config_of(), {"by_spec": by_spec})
        modifier = rec.GraphModifierHook(modify_graph=modified)
        evict = rec.EvictHook(evict_enable=True, evict_step_interval=20)
        data = input_fn(True, prefetch, by_spec)
        estimator.train(data, max_steps=max_steps, hooks=[watch, modifier, evict])
    results = estimator.evaluate(input_fn(False, prefetch, by_spec), hooks=[watch, modifier])
    assert watch.modified == [modified] * 3
    return watch.losses, results, checkpoints(folder)


FORMS = {
    "prefetch_1": dict(modified=True, prefetch=1),
    "prefetch_100": dict(modified=True, prefetch=100),
    "FeatureSpec": dict(modified=False, by_spec=True),
}


@pytest.mark.long
def test_200_steps_with_admission_and_eviction_are_the_same_in_every_form(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(tf.logging, "info", lambda text, *values: lines.append(text % values))
    losses, results, files = run(tmp_path / "plain", False)
    assert len(losses) == 200 + ROWS // BATCH
    assert results["global_step"] == 200
    said = " ".join(line for line in lines if line.startswith("EvictHook evicted"))
    for table in ("user", "item"):
        counts = re.findall(rf"(\d+) of \d+ rows[^']* of table '{table}'", said)
        assert sum(map(int, counts)) > 20
    assert {f"model.ckpt-{step}" for step in (0, 50, 100, 130, 180, 200)} <= set(files)
    assert files["model.ckpt-200"]["user-keys_filtered"][1] > (20,)
    for label, form in FORMS.items():
        other_losses, other_results, other_files = run(tmp_path / label, **form)
        assert other_losses == losses, label
        assert other_results == results, label
        assert other_files.keys() == files.keys()
        for name in files:
            assert other_files[name] == files[name], (label, name)


@pytest.mark.long
@pytest.mark.usefixtures("resource_variables")
def test_iterations_per_loop_is_the_same_in_a_modified_graph(tmp_path):
    found = []
    for modified, iterations in ((False, 1), (True, 10)):
        folder, watch = tmp_path / str(iterations), Losses()
        config = config_of(iterations_per_loop=iterations)
        estimator = rec.RecEstimator(model_fn, str(folder), config, {"by_spec": False})
        evict = rec.EvictHook(evict_enable=True, evict_step_interval=20)
        hooks = [watch, rec.GraphModifierHook(modify_graph=modified), evict]
        estimator.train(input_fn(True), max_steps=50, hooks=hooks)
        assert len(watch.losses) == 50 // iterations
        of_ten = 10 // iterations
        found.append((watch.losses[of_ten - 1 :: of_ten], checkpoints(folder)))
    assert found[0] == found[1]


def session_model(batch):
    """Lookups of all columns of modified_graphs.py: (loss, train op)."""
    users = tf.strings.to_hash_bucket_fast(batch["user"], 50)
    found = [
        rec.sparse_lookup(
            tables()[name],
            ids,
            modify_graph=True,
            access_and_evict_config=config,
        )
        for name, ids, config in (
            ("user", users[:, tf.newaxis], {"access_threshold": 2}),
            ("item", batch["item"], None),
            ("item", batch["history"], None),
        )
    ]
    total = tf.add_n([tf.reduce_sum(vectors, axis=[1, 2]) for vectors in found])
    loss = tf.reduce_mean(tf.square(total - batch["label"]))
    optimizer = rec.optimizers.ftrl.create_hash_optimizer(0.1)
    return loss, optimizer.minimize(loss, tf.train.get_or_create_global_step())


def train_in_session(structure, kind, modified, steps=12):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        iterator = iterator_of(dataset_of(structure), kind)
        loss, train_op = session_model(STRUCTURES[structure][1](iterator.get_next()))
        exports = [table.export() for table in tables().values()]
        if modified:
            rec.modify_graph_and_start_emb_cache()
            step = {op.type for op in ancestors([train_op])}
            assert not step & {"StringToHashBucketFast", "StridedSlice"}
        with tf.Session(config=QUICK) as session:
            if modified:
                session.run(rec.get_initializer(True))
            elif kind == "initializable":
                session.run(iterator.initializer)
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, train_op])[0] for _ in range(steps)]
            assert len(set(losses)) == steps
            return losses, session.run(exports)


@pytest.mark.long
@pytest.mark.parametrize(
    ("structure", "kind"),
    [
        ("dict", "one-shot"),
        ("tuple", "initializable"),
        ("nested", "one-shot"),
        ("namedtuple", "initializable"),
    ],
)
def test_a_session_trains_the_same_bits_without_the_key_path_in_the_step(structure, kind):
    assert_same(train_in_session(structure, kind, True), train_in_session(structure, kind, False))


def test_data_are_those_of_training_if_one_lookup_is_a_training_lookup():
    graph = tf.get_default_graph()
    batch = tf.data.make_one_shot_iterator(tf.data.Dataset.range(5)).get_next()
    for is_train in (False, True):
        rec.sparse_lookup(tables()["user"], batch, modify_graph=True, is_train=is_train)
        assert [path.is_training for path in find_key_paths(graph)][-1] == is_train
    rec.modify_graph_and_start_emb_cache()
    assert rec.get_initializer(True).type == "NoOp"
    with pytest.raises(ValueError, match="no modified lookups of evaluation; call"):
        rec.get_initializer(False)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda ids: ids + tf.get_variable("shift", [], tf.int64), "Var.*reads a variable"),
        (lambda ids: ids + tf.placeholder(tf.int64, [], "fed"), "'fed' .*is fed while a step runs"),
        (lambda ids: tf.random.uniform([2], 0, 9, tf.int64) + ids, "RandomUniformInt.*has state"),
    ],
)
def test_ids_that_depend_on_more_than_the_batch_are_refused_with_the_name_of_the_op(path, message):
    batch = tf.data.make_one_shot_iterator(tf.data.Dataset.range(8).batch(2)).get_next()
    rec.sparse_lookup(tables()["user"], path(batch), modify_graph=True)
    with pytest.raises(ValueError, match=f"{message}.*; compute the ids in the dataset"):
        rec.modify_graph_and_start_emb_cache()


@pytest.mark.long
def test_training_and_evaluation_share_a_graph_with_a_timestamp_each():
    def both(modified):
        with tf.Graph().as_default():
            iterators, losses = {}, {}
            for is_train in (True, False):
                data = input_fn(is_train)().map(lambda features, _: features)
                iterators[is_train] = tf.data.make_initializable_iterator(data)
                batch = iterators[is_train].get_next()
                total = tf.add_n(vectors_of(batch, is_train, by_spec=False))
                losses[is_train] = tf.reduce_mean(
                    tf.square(tf.reduce_sum(total, 1) - batch["label"])
                )
            optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.01)
            train_op = optimizer.minimize(losses[True])
            size = tables()["user"].size()
            if modified:
                rec.modify_graph_and_start_emb_cache()
            results = []
            with tf.Session(config=QUICK) as session:
                session.run(tf.global_variables_initializer())
                for is_train in (True, False, False):
                    start = iterators[is_train].initializer
                    session.run(rec.get_initializer(is_train) if modified else start)
                    for _ in range(10):
                        fetched = (losses[True], train_op) if is_train else (losses[False],)
                        results.append(session.run(fetched)[0])
                results.append(session.run(size))
            assert results[10:20] == results[20:30], "evaluation restarts, and changes no table"
            assert results[-1] > 5
            return results

    assert both(True) == both(False)


@pytest.mark.parametrize("is_listed", [False, True])
def test_the_hook_starts_each_iterator_exactly_once(is_listed):
    starts = []

    def examples():
        starts.append(1)
        yield from range(6)

    data = tf.data.Dataset.from_generator(examples, tf.int64, []).batch(2)
    iterator = tf.data.make_initializable_iterator(data)
    if is_listed:
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    ids = iterator.get_next()
    vectors = rec.sparse_lookup(tables()["user"], ids * 3, modify_graph=True)
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(vectors))
    seen = []
    with tf.train.MonitoredTrainingSession(hooks=[rec.GraphModifierHook()]) as session:
        while not session.should_stop():
            seen.append(session.run([ids, train_op])[0].tolist())
    assert seen == [[0, 1], [2, 3], [4, 5]]
    assert starts == [1]


def test_the_hook_does_not_start_a_dataset_that_is_fed():
    last = tf.placeholder(tf.int64, [])
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(last))
    ids = iterator.get_next()
    rec.sparse_lookup(tables()["user"], ids * 3, modify_graph=True, is_train=False)
    with tf.train.MonitoredSession(hooks=[rec.GraphModifierHook()]) as session:
        session.run_step_fn(
            lambda step_context: step_context.session.run(iterator.initializer, {last: 2})
        )
        assert [session.run(ids), session.run(ids)] == [0, 1]


@pytest.mark.long
def test_lookups_with_modify_graph_also_train_unmodified():
    """Rec SDK refuses a MonitoredTrainingSession without the hook."""

    def losses_of(hooks):
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            iterator = tf.data.make_initializable_iterator(dataset_of())
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            loss, train_op = session_model(iterator.get_next())
            with tf.train.MonitoredTrainingSession(hooks=hooks, config=QUICK) as session:
                return [session.run([loss, train_op])[0] for _ in range(8)]

    assert losses_of([]) == losses_of([rec.GraphModifierHook()])


def test_the_hook_with_modify_graph_false_checks_the_pipeline():
    hook = rec.GraphModifierHook(modify_graph=False)
    with pytest.raises(RuntimeError, match="table_info_list"):
        hook.begin()
    tables()
    hook.begin()
