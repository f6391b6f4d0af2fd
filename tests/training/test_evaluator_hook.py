# SPDX-License-Identifier: Apache-2.0
"""Tests of InMemoryEvaluatorHook with tables."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator._tensorflow.estimator import InMemoryEvaluatorHook
from rec_estimator.checkpoint.format.bundle import Bundle

EVERY = 2


def model_fn(features, labels, mode):
    option = rec.EmbeddingVariableOption(
        filter_option=rec.CounterFilter(2), evict_option=rec.L2WeightEvict(1e-3)
    )
    table = rec.get_embedding_variable(
        "t",
        2,
        initializer=tf.ones_initializer(),
        ev_option=option,
        partitioner=tf.fixed_size_partitioner(2),
    )
    weight = tf.get_variable("w", [], initializer=tf.ones_initializer())
    rows = rec.embedding_lookup(table, features["id"])
    loss = tf.reduce_sum(tf.square(rows)) * weight
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    metrics = {"rows": tf.metrics.mean(rows), "size": tf.metrics.mean(table.size())}
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def input_fn():
    features = {"id": tf.constant([1, 2, 1], tf.int64)}
    return tf.data.Dataset.from_tensors((features, 0.0)).repeat()


def results_of(folder):
    """{step: {metric: value}} of the event files of evaluations."""
    found = {}
    for file in sorted((folder / "eval").iterdir()):
        for event in tf.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


def files_of(folder):
    return sorted(name for name in os.listdir(folder) if "ckpt" in name)


def train(folder, hook_of=None, **config):
    estimator = rec.RecEstimator(
        model_fn, str(folder), rec.RunConfig(save_checkpoints_steps=100, **config)
    )
    estimator.train(input_fn, steps=5, hooks=[hook_of(estimator)] if hook_of else [])
    return estimator


def hook_of(estimator):
    return rec.experimental.InMemoryEvaluatorHook(estimator, input_fn, steps=1, every_n_iter=EVERY)


@pytest.mark.long
@pytest.mark.parametrize("incremental", [False, True])
def test_tables_are_evaluated_while_they_are_trained(tmp_path, monkeypatch, incremental):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    config = {"save_incremental_checkpoints_steps": 1} if incremental else {}
    plain = train(tmp_path / "plain", **config)
    evaluated = train(tmp_path / "evaluated", hook_of, **config)
    results = results_of(tmp_path / "evaluated")
    assert sorted(results) == [0, 2, 4, 5]  # At the beginning, every two steps, and at the end.
    last = evaluated.evaluate(input_fn, steps=1, name="last")
    assert results[5] == {name: last[name] for name in ("loss", "rows", "size")}
    assert results[0]["size"] == 0 and results[5]["size"] > 0
    # Training is not affected, and nothing is left.
    assert files_of(tmp_path / "evaluated") == files_of(tmp_path / "plain")
    first, second = (Bundle(each.latest_checkpoint()) for each in (plain, evaluated))
    assert first.tensors.keys() == second.tensors.keys()
    for name in first.tensors:
        np.testing.assert_array_equal(
            plain.get_variable_value(name), evaluated.get_variable_value(name), err_msg=name
        )
    assert sorted(os.listdir(tmp_path)) == ["evaluated", "plain"]


def test_a_cluster_and_intervals_below_one_are_refused(tmp_path, monkeypatch):
    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    with pytest.raises(ValueError, match="every_n_iter must be >= 1, got 0"):
        rec.experimental.InMemoryEvaluatorHook(estimator, input_fn, every_n_iter=0)
    task = '{"cluster": {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}, "task": '
    monkeypatch.setenv("TF_CONFIG", task + '{"type": "chief", "index": 0}}')
    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    with pytest.raises(ValueError, match="estimator must train in one process, got a cluster"):
        rec.experimental.InMemoryEvaluatorHook(estimator, input_fn)


def test_the_hook_of_tensorflow_is_refused_with_what_to_use(tmp_path):
    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    hook = InMemoryEvaluatorHook(estimator, input_fn)
    with pytest.raises(ValueError, match="use rec_estimator.experimental.InMemoryEvaluatorHook"):
        estimator.train(input_fn, hooks=[hook], steps=1)
