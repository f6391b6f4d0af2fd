# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be refreshed are refused when they are exported."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from storage_runs import on_disk
from test_refresh import DIM, checkpoint, receiver_fn, rows

import rec_estimator as rec


def table(ids, **option):
    option = rec.EmbeddingVariableOption(**option)
    return rec.embedding_lookup(rec.get_embedding_variable("t", DIM, ev_option=option), ids)


def with_own_saver(ids):
    read = table(ids)
    tf.add_to_collection(tf.GraphKeys.SAVERS, rec.Saver())
    return read


def partitioned(ids):
    parts = tf.get_variable("dense", [DIM], partitioner=tf.fixed_size_partitioner(2))
    return table(ids) * tf.convert_to_tensor(parts)


def strings(ids):
    initializer = tf.constant_initializer("a")
    text = tf.get_variable("text", [1], tf.string, initializer=initializer)
    return table(ids) * tf.cast(tf.strings.length(text), tf.float32)


MODELS = {
    "no table": (lambda ids: tf.cast(ids, tf.float32), {}, "the model has no table"),
    "own Saver": (with_own_saver, {}, "must leave the Saver to RecEstimator"),
    "rows on disk": (
        lambda ids: table(ids, storage_option=on_disk("rows")),
        {},
        "table 't' must have all rows in memory with refreshable=True",
    ),
    "partitioned variable": (partitioned, {}, "variables must be whole and have numbers"),
    "strings": (strings, {}, "variables must be whole and have numbers.*got text"),
    "portable": (table, {"portable": True}, "portable must be False with refreshable=True"),
    "mode": (table, {"experimental_mode": rec.ModeKeys.EVAL}, "experimental_mode must be PREDICT"),
    "folder alone": (
        table,
        {"refreshable": False, "refresh_folder": "deltas"},
        "refresh_folder must be None without refreshable=True",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_cannot_be_refreshed_is_refused_by_name(
    case, tmp_path, monkeypatch, resource_variables
):
    read, arguments, message = MODELS[case]
    monkeypatch.chdir(tmp_path)
    prefix = checkpoint(
        tmp_path / "model-1", 1, {"t": rows([1], 1.0)}, text=np.array([b"a"], object)
    )
    if case == "partitioned variable":
        with tf.Graph().as_default(), tf.Session() as session:
            partitioned(tf.constant([1], tf.int64))
            tf.train.get_or_create_global_step()
            saver = rec.Saver()
            session.run(tf.global_variables_initializer())
            prefix = saver.save(session, str(tmp_path / "parts"))

    def model_fn(features, labels, mode):
        predictions = {"rows": read(features["ids"])}
        return rec.EstimatorSpec(mode, predictions=predictions, loss=tf.zeros([]))

    estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"))
    with pytest.raises(ValueError, match=message):
        estimator.export_saved_model(
            str(tmp_path / "export"),
            receiver_fn,
            checkpoint_path=prefix,
            **{"refreshable": True, **arguments},
        )
    exports = tmp_path / "export"
    assert not exports.exists() or not list(exports.iterdir())
