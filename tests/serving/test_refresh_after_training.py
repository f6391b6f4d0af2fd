# SPDX-License-Identifier: Apache-2.0
"""Random steps, evictions and saves of a training: a refreshed model equals a fresh export."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from test_refresh import Served, numbers, receiver_fn

import rec_estimator as rec
from rec_estimator.checkpoint.checkpoint_table import CheckpointTable

DIM = 3
IDS = np.arange(-40, 260)


def build(ids, shards, evicts=None):
    """The vectors of three tables with other filters; ``shards`` of the partitioned one."""
    tables = [
        rec.get_embedding_variable(
            "plain", DIM, ev_option=rec.EmbeddingVariableOption(evict_option=evicts)
        ),
        rec.get_embedding_variable(
            "parts",
            DIM,
            partitioner=tf.fixed_size_partitioner(shards),
            ev_option=rec.EmbeddingVariableOption(
                filter_option=rec.CounterFilter(3), evict_option=evicts
            ),
        ),
        rec.get_embedding_variable(
            "bloom",
            DIM,
            ev_option=rec.EmbeddingVariableOption(filter_option=rec.CBFFilter(2, 1000, 0.01)),
        ),
    ]
    return tables, [rec.embedding_lookup(table, ids) for table in tables]


def model_fn(features, labels, mode):
    # An export also evicts, so the rule is the training's alone.
    tables, vectors = build(features["ids"], shards=2)
    dense = tf.get_variable("dense", [DIM])
    predictions = {f"rows{i}": rows for i, rows in enumerate(vectors)}
    predictions["scores"] = tf.add_n(vectors) * dense
    predictions["counts"] = tables[0].get_frequency(features["ids"])
    return rec.EstimatorSpec(mode, predictions=predictions)


def export(folder, prefix, **refreshable):
    estimator = rec.RecEstimator(model_fn, str(folder / "model"))
    return estimator.export_saved_model(
        str(folder / "export"), receiver_fn, checkpoint_path=prefix, **refreshable
    ).decode()


def answers(model):
    return model.predict(IDS)


@pytest.mark.long
def test_a_refreshed_model_has_the_bits_of_a_fresh_export(tmp_path):
    rng = np.random.default_rng(1)
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int64, [None])
        tables, vectors = build(ids, 3, rec.GlobalStepEvict(steps_to_live=4))
        dense = tf.get_variable("dense", [DIM])
        loss = tf.reduce_sum(tf.square(tf.add_n(vectors) * dense - 1.0))
        step = tf.train.get_or_create_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        evictions = [tables[0].evict(), tables[1].evict()]
        saver = rec.Saver(incremental=True, max_to_keep=None)
        session.run(tf.global_variables_initializer())

        def train():
            for _ in range(rng.integers(1, 5)):
                batch = rng.integers(-30, 200, rng.integers(1, 60))
                session.run(train_op, {ids: np.concatenate([batch, batch[:20]])})
            if rng.random() < 0.6:
                session.run(evictions)
            return saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)

        base = train()
        folder = str(tmp_path)
        refreshed = Served(export(tmp_path, base, refreshable=True, refresh_folder=folder))
        deleted = 0
        before = CheckpointTable(base, "plain")
        for _ in range(6):
            delta = train()
            at, written, erased, _ = numbers(refreshed.refresh(delta))
            deleted += erased
            assert at == session.run(step) and written > 0
            after = CheckpointTable(delta, "plain")
            rows = refreshed.predict(after.keys)
            np.testing.assert_array_equal(rows["rows0"], after.values)
            np.testing.assert_array_equal(rows["counts"], after.freqs)
            gone = np.setdiff1d(before.keys, after.keys)
            assert not refreshed.predict(gone)["counts"].any()
            before = after
        assert deleted > 0
        got = answers(refreshed)
        refreshed.session.close()
    fresh = Served(export(tmp_path, delta))
    for name, expected in answers(fresh).items():
        np.testing.assert_array_equal(got[name], expected, err_msg=name)
    fresh.session.close()
