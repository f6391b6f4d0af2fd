# SPDX-License-Identifier: Apache-2.0
"""RecEstimator as chief and as worker of a cluster: the tasks are servers in this process.

The chief trains its batches, then the worker its own. So the steps have an order, and a training in
one process can do the same ones.
"""

import os
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from local_cluster import LocalCluster

import rec_estimator as rec

DIM, BATCH, STEPS = 4, 12, 4
NORMAL = tf.random_normal_initializer(seed=3)
FEATURES = [
    rec.EmbeddingFeature("user", DIM, initializer=NORMAL),
    rec.EmbeddingFeature(
        "item",
        DIM,
        initializer=NORMAL,
        ev_option=rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(3)),
    ),
]


def columns(seed, steps=STEPS):
    """Samples of a few users; those of a user follow each other."""
    rng = np.random.default_rng(seed)
    users = np.repeat(rng.integers(0, 9, steps * BATCH // 3), 3)
    features = {"user": users, "item": rng.integers(0, 20, len(users))}
    return features, rng.random(len(users)).astype(np.float32)


def input_fn(*seeds, is_grouped=False, is_endless=False):
    def build():
        data = None
        for seed in seeds:
            part = tf.data.Dataset.from_tensor_slices(columns(seed))
            data = part if data is None else data.concatenate(part)
        data = data.batch(BATCH)
        if is_grouped:
            data = rec.inputs.group_samples(data, ["user"])
        return data.repeat() if is_endless else data

    return build


def model_fn(features, labels, mode):
    weights = tf.get_variable("weights", [2 * DIM, 1], initializer=tf.ones_initializer())
    inputs = tf.concat([features["user"], features["item"]], axis=1)
    logits = tf.squeeze(tf.matmul(inputs, weights), axis=1)
    loss = tf.reduce_mean(tf.square(logits - labels))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_of(folder, cluster=None, task=0, config=None, **arguments):
    environment = {"TF_CONFIG": cluster.tf_config(task) if cluster else "{}"}
    with mock.patch.dict(os.environ, environment):
        run_config = rec.RunConfig(
            model_dir=str(folder),
            tf_random_seed=1,
            experimental_max_worker_delay_secs=0,
            **(config or {}),
        )
        return rec.RecEstimator(
            model_fn, config=run_config, embedding_features=FEATURES, **arguments
        )


def tables_of_features():
    return [
        rec.get_embedding_variable(
            each.name,
            DIM,
            initializer=NORMAL,
            ev_option=each.ev_option,
        )
        for each in FEATURES
    ]


class Live:
    """The tables as the parameter servers hold them now, or as a checkpoint holds them.

    Attributes:
      rows: {table: {key: (value, version, count)}}
      counts: {table: {key: count}}, keys without a row included.
    """

    def __init__(self, cluster=None, prefix=None):
        device = cluster.device if cluster else lambda: tf.device(None)
        with tf.Graph().as_default(), device():
            tables = {table.name: table for table in tables_of_features()}
            exports = {name: table.export() for name, table in tables.items()}
            everything = tf.range(20, dtype=tf.int64)
            counts = {name: table.get_frequency(everything) for name, table in tables.items()}
            with cluster.session() if cluster else tf.Session() as session:
                if prefix:
                    rec.Saver().restore(session, prefix)
                found, counted = session.run([exports, counts])
        self.rows = {
            name: dict(zip(table.keys.tolist(), zip(table.values, table.versions, table.freqs)))
            for name, table in found.items()
        }
        self.counts = {
            name: {key: count for key, count in enumerate(each.tolist()) if count}
            for name, each in counted.items()
        }


def assert_close(found, expected, rtol=1e-5):
    """Tables on several ps are read by other ops, which combine in another order."""
    assert found.counts == expected.counts and all(expected.counts.values())
    for name, rows in expected.rows.items():
        assert found.rows[name].keys() == rows.keys()
        for key, (value, version, count) in rows.items():
            assert found.rows[name][key][1:] == (version, count)
            np.testing.assert_allclose(found.rows[name][key][0], value, rtol=rtol, atol=1e-6)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """An Estimator that a single process has trained on the batches of both tasks."""
    estimator = estimator_of(tmp_path_factory.mktemp("single"))
    estimator.train(input_fn(0, 1))
    return estimator


def occurrences(*seeds):
    found = {}
    for name in ("user", "item"):
        keys, counts = np.unique([columns(seed)[0][name] for seed in seeds], return_counts=True)
        found[name] = dict(zip(keys.tolist(), counts.tolist()))
    return found


@pytest.mark.long
@pytest.mark.parametrize("is_modified", [False, True])
def test_chief_and_worker_train_what_one_process_trains(tmp_path, single, is_modified):
    """With graph modification, too: nothing that was prefetched for another step is counted."""
    cluster = LocalCluster(2, workers=1)
    for task in range(2):
        hooks = [rec.GraphModifierHook()] if is_modified else []
        estimator = estimator_of(tmp_path, cluster, task)
        estimator.train(input_fn(task, is_endless=True), steps=STEPS, hooks=hooks)
    found = Live(cluster)
    assert found.counts == occurrences(0, 1)
    assert_close(found, Live(prefix=single.latest_checkpoint()))


@pytest.mark.long
def test_compressed_batches_train_on_ps_what_flat_ones_train_in_one_process(tmp_path, single):
    cluster = LocalCluster(2, workers=1)
    for task in range(2):
        estimator = estimator_of(
            tmp_path, cluster, task, sample_compression=rec.SampleCompression(user=["user"])
        )
        estimator.train(input_fn(task, is_grouped=True), steps=STEPS)
    assert_close(Live(cluster), Live(prefix=single.latest_checkpoint()))


@pytest.mark.long
def test_a_cluster_warm_starts_from_one_process(tmp_path, single):
    prefix = single.latest_checkpoint()
    warm = estimator_of(tmp_path / "single", warm_start_from=prefix)
    warm.train(input_fn(2, 3))
    cluster = LocalCluster(2, workers=1)
    for task in range(2):
        estimator = estimator_of(tmp_path / "cluster", cluster, task, warm_start_from=prefix)
        estimator.train(input_fn(2 + task), steps=STEPS)
    found = Live(cluster)
    assert found.counts == occurrences(0, 1, 2, 3)
    assert_close(found, Live(prefix=warm.latest_checkpoint()))


@pytest.mark.long
def test_deltas_of_a_cluster_resume_on_other_clusters_and_in_one_process(tmp_path):
    config = {
        "save_checkpoints_steps": STEPS,
        "save_incremental_checkpoints_steps": 1,
        "keep_checkpoint_max": 20,
    }
    cluster = LocalCluster(2)
    hook = KeepCheckpoints(str(tmp_path))
    estimator = estimator_of(tmp_path, cluster, config=config)
    estimator.train(input_fn(0, 1), steps=2 * STEPS, hooks=[hook])
    deltas = [prefix for prefix in hook.prefixes if is_delta(prefix)]
    assert len(deltas) >= STEPS
    expected = Live(prefix=deltas[-1])
    assert sum(expected.counts["user"].values()) == BATCH * int(deltas[-1].rpartition("-")[2])
    for num_ps in (1, 3):
        other = LocalCluster(num_ps)
        with tf.Graph().as_default(), other.device(), other.session() as session:
            tables_of_features()
            rec.Saver(sharded=True).restore(session, deltas[-1])
        assert_close(Live(other), expected, rtol=0)


def is_delta(prefix):
    return any(name.endswith("-delta_of") for name, _ in tf.train.list_variables(prefix))


class KeepCheckpoints(tf.train.SessionRunHook):
    """Notes the newest checkpoint after each step."""

    def __init__(self, folder):
        self._folder = folder
        self.prefixes = []

    def after_run(self, run_context, run_values):
        prefix = tf.train.latest_checkpoint(self._folder)
        if prefix not in self.prefixes:
            self.prefixes.append(prefix)
