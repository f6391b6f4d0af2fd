# SPDX-License-Identifier: Apache-2.0
"""A process that trains without Keras loads no part of it beyond those that TensorFlow loads."""

import subprocess
import sys

import pytest

# Begins with the imports, so that what follows is ours.
PROGRAM = """
import sys
import tensorflow.compat.v1 as tf
if hasattr(tf, "estimator"):  # TensorFlow 2.15, where the package itself loads Keras.
    from tensorflow_estimator import estimator

def loaded():
    return {name for name in sys.modules if "keras" in name.lower()}

before = loaded()
import rec_estimator as rec

def input_fn():
    columns = {"user": tf.range(8, dtype=tf.int64)}
    return tf.data.Dataset.from_tensor_slices((columns, tf.ones([8]))).batch(4)

def model_fn(features, labels, mode):
    weight = tf.get_variable("weight", [2, 1])
    logits = tf.squeeze(tf.matmul(features["user"], weight), axis=1)
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    step = tf.train.get_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

def receiver():
    users = {"user": tf.placeholder(tf.int64, [None])}
    return rec.ServingInputReceiver(users, users)

features = [rec.EmbeddingFeature("user", dim=2)]
estimator = rec.RecEstimator(model_fn, "model", embedding_features=features)
estimator.train(input_fn)
print("steps", estimator.evaluate(input_fn)["global_step"])
estimator.export_saved_model("export", receiver)
print("keras", *sorted(loaded() - before))
"""


@pytest.mark.long
def test_training_evaluation_and_export_load_no_keras(tmp_path, monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # What TensorFlow itself has loaded is not counted.
    assert done.stdout.splitlines() == ["steps 2", "keras"]
