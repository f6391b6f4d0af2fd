# SPDX-License-Identifier: Apache-2.0
"""The Estimators of the package initialize tables from another checkpoint, as RecEstimator does."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


def input_fn():
    features = {"user": np.arange(6), "x": np.ones(6, np.float32)}
    return tf.data.Dataset.from_tensors((features, np.ones((6, 1), np.float32))).repeat(2)


def embedding():
    ids = rec.categorical_column_with_embedding("user", dtype=tf.int64)
    return rec.embedding_column(ids, 4)


def adagrad():
    return rec.optimizers.AdagradOptimizer(0.1)


def of_model_fn(folder, **kwargs):
    def model_fn(features, labels, mode):
        user = rec.get_embedding_variable("user", 4)
        weight = tf.get_variable("weight", [4], initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(rec.embedding_lookup(user, features["user"]) * (weight + labels))
        train_op = adagrad().minimize(loss, tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return rec.Estimator(model_fn, folder, **kwargs)


def dnn_classifier(folder, **kwargs):
    return rec.DNNClassifier([8], [embedding()], folder, optimizer=adagrad(), **kwargs)


def dnn_regressor(folder, **kwargs):
    class Regressor(rec.DNNRegressor):
        """A class that a script derives from a canned one."""

    return Regressor([8], [embedding()], folder, optimizer=adagrad(), **kwargs)


def wide_and_deep(folder, **kwargs):
    return rec.DNNLinearCombinedClassifier(
        model_dir=folder,
        linear_feature_columns=[tf.feature_column.numeric_column("x")],
        dnn_feature_columns=[embedding()],
        dnn_hidden_units=[8],
        dnn_optimizer=adagrad(),
        **kwargs,
    )


def linear_regressor(folder, **kwargs):
    return rec.LinearRegressor([tf.feature_column.numeric_column("x")], folder, **kwargs)


class StopAtOnce(tf.train.SessionRunHook):
    def after_create_session(self, session, coord):
        coord.request_stop()


@pytest.mark.long
@pytest.mark.parametrize(
    "make, is_list",
    [
        (of_model_fn, False),
        (of_model_fn, True),
        (dnn_classifier, False),
        (dnn_regressor, True),
        (wide_and_deep, False),
        (linear_regressor, False),
    ],
)
def test_each_estimator_starts_from_the_rows_of_another(tmp_path, make, is_list):
    try:
        source = make(str(tmp_path / "source"))
    except RuntimeError as error:
        assert "tf.keras must be Keras 2" in str(error)  # Refused by name on TensorFlow 2.16.
        return
    source.train(input_fn)
    folder = source.model_dir
    # With a list of expressions, slots come along.
    warm = rec.WarmStartSettings(folder, ["^(?!global_step)"]) if is_list else folder
    started = make(str(tmp_path / "own"), warm_start_from=warm)
    started.train(input_fn, hooks=[StopAtOnce()])
    names = set(started.get_variable_names()) - {"global_step"}
    if make is not linear_regressor:
        assert any(name.endswith("-keys") for name in names)
    for name in names:
        if is_list or ("Adagrad" not in name and "Ftrl" not in name):
            ours, theirs = (e.get_variable_value(name) for e in (started, source))
            assert ours.tobytes() == theirs.tobytes(), name


def test_the_estimators_are_kinds_of_estimator(tmp_path):
    for name in ("BaselineClassifier", "DNNClassifier", "LinearRegressor", "RecEstimator"):
        assert issubclass(getattr(rec, name), rec.Estimator)
    # As in TensorFlow, a subclass may not override its methods.
    with pytest.raises(ValueError, match="cannot override members of Estimator"):
        type("Overriding", (rec.Estimator,), {"train": None})(lambda features: None, str(tmp_path))
