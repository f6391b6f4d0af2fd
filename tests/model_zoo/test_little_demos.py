# SPDX-License-Identifier: Apache-2.0
"""The little demos: one training in a session and in an Estimator, in both ways to name ids."""

import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import little_demo, little_demo_estimator

STEPS = 20


def aucs(result):
    return {label: float(result[label]) for label in little_demo.LABELS}


@pytest.fixture(scope="module")
def session_run(tmp_path_factory):
    """The folder and the AUCs of a run of the demo in a session."""
    folder = tmp_path_factory.mktemp("session")
    return folder, little_demo.run(str(folder), STEPS)


@pytest.mark.long
def test_the_demo_learns_both_labels(session_run):
    _, result = session_run
    assert min(result.values()) > 0.8


@pytest.mark.long
def test_the_demo_is_the_same_with_feature_specs_and_when_stopped(session_run, tmp_path):
    _, result = session_run
    little_demo.run(str(tmp_path), STEPS // 2, modify_graph=False)
    assert aucs(little_demo.run(str(tmp_path), STEPS, modify_graph=False)) == aucs(result)


@pytest.mark.long
def test_the_demo_restores_and_evaluates_without_a_step(session_run, capfd):
    folder, result = session_run
    assert little_demo.main(["--model_dir", str(folder), "--steps", str(STEPS)]) == 0
    assert capfd.readouterr().out == f"at the end | {result}\n"


def test_each_variable_and_table_of_the_demo_has_a_gradient():
    _, batch, logits = little_demo.build(1, is_train=True, modify_graph=True)
    variables, tables = rec.get_dense_and_sparse_variable()
    gradients = tf.gradients(little_demo.total_loss(batch, logits), [*variables, *tables])
    assert len(tables) == 2 and len(variables) == 6 and None not in gradients


@pytest.mark.long
@pytest.mark.parametrize("modify_graph", [True, False])
def test_the_demo_in_an_estimator_is_the_demo_in_a_session(session_run, tmp_path, modify_graph):
    _, result = session_run
    little_demo_estimator.run(str(tmp_path), STEPS // 2, modify_graph)
    assert aucs(little_demo_estimator.run(str(tmp_path), STEPS, modify_graph)) == aucs(result)


@pytest.mark.long
def test_the_export_of_the_demo_answers_as_predict_does(tmp_path, capfd):
    arguments = ["--model_dir", str(tmp_path), "--steps", "3", "--modify_graph", "0"]
    assert little_demo_estimator.main(arguments) == 0
    assert "'global_step': 3" in capfd.readouterr().out
    ids = {"user_ids": np.arange(8).reshape(2, 4), "item_ids": np.array([[0, 299], [5, -1]])}
    ((export_dir),) = pathlib.Path(tmp_path, "export").iterdir()
    with tf.Session(graph=tf.Graph()) as session:
        signature = tf.saved_model.load(session, ["serve"], str(export_dir)).signature_def
        signature = signature["serving_default"]
        feed = {signature.inputs[name].name: keys for name, keys in ids.items()}
        served = {
            label: session.run(signature.outputs[label].name, feed) for label in little_demo.LABELS
        }
    estimator = rec.RecEstimator(
        little_demo_estimator.model_fn, str(tmp_path), params={"modify_graph": True}
    )
    predicted = estimator.predict(
        lambda: tf.data.Dataset.from_tensors(ids), hooks=[rec.GraphModifierHook()]
    )
    for row, expected in enumerate(predicted):
        for label in little_demo.LABELS:
            np.testing.assert_array_equal(served[label][row], expected[label])
