# SPDX-License-Identifier: Apache-2.0
"""EvictHook: eviction examples of Rec SDK, triggers, and cases in which nothing is evicted."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modified_graphs import QUICK

import rec_estimator as rec
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.rec_sdk import evict_hook

MAX = 2**31 - 1

# Tables A and B: admitted from 2 and 3 occurrences, evicted after 5 and 7 seconds.
THRESHOLDS = {"a": (2, 5), "b": (3, 7)}
# For each step: the timestamp, and for each table the keys and how often each of them counts.
STEPS = [
    (
        100,
        {
            "a": ([11, 11, 33, 44, 11, 55, 88, 55], [1, 2, 1, 3, 1, 1, 4, 1]),
            "b": ([123, 121, 121, 212, 211], [1, 2, 1, 1, 2]),
        },
    ),
    (101, {"a": ([11, 12, 33, 21, 11, 12], [1, 2, 1, 1, 2, 3]), "b": ([], [])}),
    (
        107,
        {
            "a": ([11, 11, 33, 44, 55, 88, 55], [1, 2, 3, 2, 1, 2, 1]),
            "b": ([125, 121, 122, 212, 211], [1, 2, 1, 3, 1]),
        },
    ),
    # The evicted keys again, each once.
    (108, {"a": ([12, 21, 11], [1, 1, 1]), "b": ([123], [1])}),
]
# Keys that a step does not admit.
REFUSED = [
    {"a": {33}, "b": {123, 212, 211}},
    {"a": {21}, "b": set()},
    {"a": set(), "b": {125, 122}},
]
COUNTS = {
    "a": {11: 10, 12: 5, 21: 1, 33: 5, 44: 5, 55: 4, 88: 6},
    "b": {121: 5, 122: 1, 123: 1, 125: 1, 211: 3, 212: 4},
}
EVICTED = {"a": {12, 21}, "b": {123}}
WIDTH = 24


def row_of(keys, counts):
    """One example: each key as often as it counts, and padding."""
    row = np.full([1, WIDTH], -1, np.int64)
    row[0, : sum(counts)] = np.repeat(np.array(keys, np.int64), counts)
    return row


def dataset(num_steps, is_training=True):
    rows = {name: np.stack([row_of(*keys[name]) for _, keys in STEPS]) for name in THRESHOLDS}
    rows["time"] = np.array([time for time, _ in STEPS])
    insert = rec.get_asc_insert_func(tgt_key_specs=specs(), is_training=is_training)
    return tf.data.Dataset.from_tensor_slices(rows).take(num_steps).map(insert)


def specs():
    return [
        *(
            rec.FeatureSpec(name, access_threshold=access, eviction_threshold=eviction)
            for name, (access, eviction) in THRESHOLDS.items()
        ),
        rec.FeatureSpec("time", is_timestamp=True),
    ]


def table_of(name):
    return rec.create_table(tf.int64, 2, name, tf.ones_initializer(), device_vocabulary_size=50)


def model(batch, is_train=True):
    """The values that the keys read, by table, and the train op."""
    vectors = {
        spec.name: rec.sparse_lookup(table_of(spec.name), spec, is_train=is_train, batch=batch)
        for spec in specs()
        if not spec.is_timestamp
    }
    loss = tf.add_n([tf.reduce_sum(values) for values in vectors.values()])
    if not is_train:
        return vectors, loss, None
    optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.01)
    return vectors, loss, optimizer.minimize(loss, tf.train.get_or_create_global_step())


def train(hook, num_steps):
    """The values that each step reads, and the last counts, in a MonitoredTrainingSession."""
    batch = tf.data.make_one_shot_iterator(dataset(num_steps)).get_next()
    vectors, _, train_op = model(batch)
    counts = {name: table_of(name).get_frequency(list(COUNTS[name])) for name in COUNTS}
    rec.start_asc_pipeline()
    reads = []
    with tf.train.MonitoredTrainingSession(hooks=[hook], config=QUICK) as session:
        for _ in range(num_steps):
            reads.append(session.run([vectors, train_op])[0])
        left = session.run_step_fn(lambda step_context: step_context.session.run(counts))
    return reads, {name: dict(zip(COUNTS[name], values)) for name, values in left.items()}


def without_evicted(name):
    return {key: 0 if key in EVICTED[name] else n for key, n in COUNTS[name].items()}


class Clock:
    """A clock that advances ten seconds in each step."""

    def __init__(self):
        self.seconds = 0.0

    def monotonic(self):
        self.seconds += 10.0
        return self.seconds


@pytest.mark.long
def test_no_key_is_evicted_without_the_hook_or_before_the_interval_is_over(monkeypatch):
    reads, counts = train(rec.EvictHook(), 3)
    assert counts == COUNTS
    for (_, keys), refused, read in zip(STEPS, REFUSED, reads):
        for name in THRESHOLDS:
            looked_up = row_of(*keys[name])[0]
            zeros = {key for key, row in zip(looked_up, read[name][0]) if not row.any()}
            assert zeros == refused[name] | {-1}
    for hook in (
        rec.EvictHook(evict_enable=True),
        rec.EvictHook(evict_enable=True, evict_step_interval=4),
    ):
        with tf.Graph().as_default():
            assert train(hook, 3)[1] == COUNTS


@pytest.mark.parametrize(
    "arguments",
    [{"evict_step_interval": 3}, {"evict_step_interval": 1}, {"evict_time_interval": 9}],
)
def test_keys_not_trained_for_the_threshold_of_their_table_are_evicted(arguments, monkeypatch):
    monkeypatch.setattr(evict_hook, "time", Clock())
    lines = []
    monkeypatch.setattr(tf.logging, "info", lambda text, *values: lines.append(text % values))
    _, counts = train(rec.EvictHook(evict_enable=True, **arguments), 3)
    assert counts == {name: without_evicted(name) for name in COUNTS}
    assert [line for line in lines if line.startswith("EvictHook ")][-1] == (
        "EvictHook evicted 1 of 6 rows and 1 counted keys of table 'a', "
        "0 of 3 rows and 1 counted keys of table 'b'."
    )


def test_an_evicted_key_comes_back_with_count_0_and_its_initial_vector():
    reads, counts = train(rec.EvictHook(evict_enable=True, evict_step_interval=3), 4)
    # 12 was admitted before: now it is not, nor are the two others.
    assert not reads[3]["a"][0, :2].any()
    assert reads[3]["a"][0, 2].all()
    assert not reads[3]["b"].any()
    assert [counts["a"][key] for key in (12, 21, 11)] == [1, 1, 11]
    assert counts["b"][123] == 1


def model_fn(features, mode):
    is_train = mode == rec.ModeKeys.TRAIN
    _, loss, train_op = model(features, is_train)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def stored_counts(folder, name):
    """Counts of all keys of a table in the latest checkpoint, with and without a row."""
    reader = tf.train.load_checkpoint(str(folder))
    stored = {}
    for kind in ("", "_filtered"):
        keys = reader.get_tensor(f"{name}-keys{kind}").tolist()
        stored.update(zip(keys, reader.get_tensor(f"{name}-freqs{kind}").tolist()))
    return stored


@pytest.mark.long
@pytest.mark.usefixtures("resource_variables")
def test_a_loop_of_steps_that_passes_an_interval_evicts_at_its_end(tmp_path):
    config = rec.RunConfig(session_config=QUICK, iterations_per_loop=2)
    estimator = rec.RecEstimator(model_fn, str(tmp_path), config)
    # Steps 1 and 2, then 3 and 4, both of the third batch.
    hook = rec.EvictHook(evict_enable=True, evict_step_interval=3)
    estimator.train(lambda: dataset(3).concatenate(dataset(3).skip(2)), hooks=[hook])
    for name in COUNTS:
        assert not EVICTED[name] & set(stored_counts(tmp_path, name))


@pytest.mark.long
def test_an_estimator_evicts_in_training_only_and_saves_no_evicted_key(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: lines.append(text % values))
    config = rec.RunConfig(session_config=QUICK)
    estimator = rec.RecEstimator(model_fn, str(tmp_path), config)
    hook = rec.EvictHook(evict_enable=True, evict_step_interval=3)
    estimator.train(lambda: dataset(3), hooks=[hook])
    assert not [line for line in lines if "EvictHook" in line]
    estimator.evaluate(lambda: dataset(3, is_training=False), hooks=[hook])
    assert [line for line in lines if "EvictHook" in line] == [
        "EvictHook: this graph trains no table with an eviction_threshold or TimeEvict."
    ]
    for name in COUNTS:
        counts = {key: count for key, count in without_evicted(name).items() if count}
        assert stored_counts(tmp_path, name) == counts
    # The timestamps go on where they stopped.
    estimator.train(lambda: dataset(4).skip(3), hooks=[hook])
    assert tf.train.load_variable(str(tmp_path), "rec_estimator_timestamp") == 108


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evict_enable": 1}, "evict_enable must be a bool"),
        ({"evict_time_interval": 0}, "evict_time_interval must be an integer in .1,"),
        ({"evict_time_interval": MAX + 1}, "evict_time_interval must be an integer"),
        ({"evict_time_interval": 1.5}, "evict_time_interval must be an integer"),
        ({"evict_step_interval": 0}, "evict_step_interval must be an integer in .1,"),
        ({"evict_step_interval": True}, "evict_step_interval must be an integer"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rec.EvictHook(**arguments)


@pytest.mark.parametrize("is_chief", [True, False])
def test_in_a_cluster_only_the_chief_evicts(is_chief):
    batch = tf.data.make_one_shot_iterator(dataset(1)).get_next()
    vectors = rec.sparse_lookup(table_of("a"), specs()[0], batch=batch)
    rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(vectors))
    if not is_chief:
        state_of().is_chief = False
    rec.EvictHook(evict_enable=True).begin()
    types = [op.type for op in tf.get_default_graph().get_operations()]
    assert ("RecEstimator>TableEvict" in types) == is_chief


def test_evict_step_interval_requires_a_global_step():
    batch = tf.data.make_one_shot_iterator(dataset(1)).get_next()
    vectors = rec.sparse_lookup(table_of("a"), specs()[0], batch=batch)
    rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(vectors))
    rec.EvictHook(evict_enable=True).begin()
    with pytest.raises(ValueError, match="has no global step, which EvictHook"):
        rec.EvictHook(evict_enable=True, evict_step_interval=1).begin()
