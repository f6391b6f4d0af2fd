# SPDX-License-Identifier: Apache-2.0
"""Tests of exporters: portable exports, and the best model over restarts."""

import json
import textwrap

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec


def model_fn(features, labels, mode):
    table = rec.get_embedding_variable("t", 2, initializer=tf.ones_initializer())
    rows = rec.embedding_lookup(table, features["id"])
    outputs = {"serving_default": rec.export.PredictOutput({"rows": rows})}
    loss = tf.reduce_sum(rows)
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    return rec.EstimatorSpec(
        mode, predictions=rows, loss=loss, train_op=train_op, export_outputs=outputs
    )


def input_fn():
    return tf.data.Dataset.from_tensors(({"id": tf.constant([1, 2], tf.int64)}, 0.0)).repeat(5)


def receiver_fn():
    ids = tf.placeholder(tf.int64, [None], name="id")
    return rec.export.ServingInputReceiver({"id": ids}, {"id": ids})


def trained(folder):
    return rec.RecEstimator(model_fn, str(folder)).train(input_fn, steps=1)


def ops_of(folder):
    """The types of the ops of a SavedModel, without functions."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.saved_model.load(session, ["serve"], folder)
        return {op.type for op in graph.get_operations()}


def exports_of(folder):
    return sorted(each.name for each in folder.iterdir() if each.name.isdigit())


EXPORTERS = {
    "best": lambda **arguments: rec.BestExporter("x", receiver_fn, **arguments),
    "latest": lambda **arguments: rec.LatestExporter("x", receiver_fn, **arguments),
    "final": lambda **arguments: rec.FinalExporter("x", receiver_fn, **arguments),
}


def export(exporter, estimator, folder, **result):
    """Calls an exporter as train_and_evaluate does after its last evaluation."""
    checkpoint = estimator.latest_checkpoint()
    return exporter.export(estimator, str(folder), checkpoint, {"loss": 1.0, **result}, True)


@pytest.mark.long
@pytest.mark.parametrize("portable", [False, True])
def test_every_exporter_writes_portable_models_if_asked(tmp_path, portable):
    estimator = trained(tmp_path / "model")
    for name, make in EXPORTERS.items():
        folder = export(make(portable=portable), estimator, tmp_path / name)
        is_portable = not any(op.startswith("RecEstimator>") for op in ops_of(folder))
        assert is_portable == portable, name


@pytest.mark.long
def test_every_exporter_writes_refreshable_models_if_asked(tmp_path, resource_variables):
    estimator = trained(tmp_path / "model")
    for name, make in EXPORTERS.items():
        exporter = make(refreshable=True, refresh_folder=estimator.model_dir)
        folder = export(exporter, estimator, tmp_path / name)
        assert "RecEstimator>ModelRefresh" in ops_of(folder), name


@pytest.mark.parametrize("form", ["portable", "refreshable"])
def test_such_an_export_needs_a_rec_estimator(tmp_path, form):
    estimator = rec.Estimator(model_fn, str(tmp_path / "model"))
    for make in EXPORTERS.values():
        with pytest.raises(TypeError, match=f"estimator must be a RecEstimator with {form}=True"):
            export(make(**{form: True}), estimator, tmp_path)


def test_exporters_are_tensorflows_and_take_their_arguments():
    from tensorflow_estimator import estimator as stock

    for exporter, base in (
        (rec.BestExporter("n", receiver_fn, None, as_text=True, exports_to_keep=2), "BestExporter"),
        (rec.LatestExporter("n", receiver_fn, None, True, 2), "LatestExporter"),
        (rec.FinalExporter("n", receiver_fn, {}, True), "FinalExporter"),
    ):
        assert exporter.name == "n" and isinstance(exporter, getattr(stock, base))
    with pytest.raises(ValueError, match="exports_to_keep"):
        rec.BestExporter(exports_to_keep=0)
    with pytest.raises(ValueError, match="compare_fn"):
        rec.BestExporter(compare_fn=lambda a, b: True)


@pytest.mark.long
def test_the_best_model_stays_the_best_for_a_new_exporter(tmp_path):
    estimator = trained(tmp_path / "model")
    folder = tmp_path / "best"
    losses = [3.0, 4.0, 2.0, 2.0, float("nan"), 2.5, np.float32(1.0), np.float32(1.5)]
    exported = [
        export(EXPORTERS["best"](), estimator, folder, loss=loss, global_step=i) is not None
        for i, loss in enumerate(losses)
    ]
    assert exported == [True, False, True, False, False, False, True, False]
    record = json.loads((folder / "best_eval_result.json").read_text())
    assert record == {"loss": 1.0, "global_step": 6}


@pytest.mark.long
def test_the_best_is_found_by_the_users_comparison_and_the_newest_are_kept(tmp_path):
    def is_better(best_eval_result, current_eval_result):
        return current_eval_result["auc"] > best_eval_result["auc"]

    estimator = trained(tmp_path / "model")
    made = []
    for auc in (0.5, 0.4, 0.6, 0.7):
        exporter = rec.BestExporter("x", receiver_fn, compare_fn=is_better, exports_to_keep=2)
        made.append(export(exporter, estimator, tmp_path / "best", auc=auc, curve=np.ones(3)))
    assert [each is None for each in made] == [False, True, False, False]
    kept = [tf.compat.as_str(each).rpartition("/")[2] for each in made[-2:]]
    assert exports_of(tmp_path / "best") == kept


def test_a_record_that_is_not_one_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "best_eval_result.json").write_text("[1")
    with pytest.raises(ValueError, match=r"must be the result of an evaluation as JSON, got '\[1'"):
        export(EXPORTERS["best"](), rec.RecEstimator(model_fn, str(tmp_path)), tmp_path)


SCRIPT = """
    import sys
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    folder, exporter = sys.argv[1], sys.argv[2]
    max_steps, loss = int(sys.argv[3]), float(sys.argv[4])

    def model_fn(features, labels, mode):
        table = rec.get_embedding_variable("t", 2)
        rows = rec.embedding_lookup(table, features["id"])
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows), step)
        outputs = {"serving_default": rec.export.PredictOutput({"rows": rows})}
        return rec.EstimatorSpec(mode, loss=tf.constant(loss), train_op=train_op, predictions=rows,
                                 export_outputs=outputs)

    def input_fn():
        return tf.data.Dataset.from_tensors(({"id": tf.constant([1], tf.int64)}, 0.0)).repeat(2)

    def receiver_fn():
        ids = tf.placeholder(tf.int64, [None])
        return rec.export.ServingInputReceiver({"id": ids}, {"id": ids})

    if exporter == "stock":
        from tensorflow_estimator.python.estimator.exporter import BestExporter
    else:
        BestExporter = rec.BestExporter
    rec.train_and_evaluate(
        rec.RecEstimator(model_fn, folder),
        rec.TrainSpec(input_fn, max_steps=max_steps),
        rec.EvalSpec(input_fn, exporters=BestExporter("best", receiver_fn), throttle_secs=0),
    )
"""


@pytest.mark.long
@pytest.mark.parametrize("before", ["ours", "stock"])
def test_a_restarted_training_exports_only_what_is_better(tmp_path, before):
    found = []
    runs = [(before, 2, 1.0), ("ours", 4, 2.0), ("ours", 6, 0.5), ("ours", 8, 0.7)]
    for exporter, max_steps, loss in runs:
        python_processes.run(["-c", textwrap.dedent(SCRIPT), tmp_path, exporter, max_steps, loss])
        found.append(exports_of(tmp_path / "export" / "best"))
    first, second, third, fourth = found
    assert len(first) == 1 and second == first  # 2.0 is worse than 1.0.
    assert len(third) == 2 and fourth == third
