# SPDX-License-Identifier: Apache-2.0
"""What users had from tf.estimator is in rec_estimator, and works or says why not."""

import pathlib
import types

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator._tensorflow.canned import checked

ROOT = pathlib.Path(__file__).resolve().parents[2]


def public_names(module):
    """Names of a module of tensorflow_estimator, less those that tf.train has too."""
    return [
        name for name in dir(module) if not name.startswith("_") and not hasattr(tf.train, name)
    ]


def test_every_name_of_tf_estimator_is_there():
    # rec_estimator is imported: it made the package importable.
    from tensorflow_estimator import estimator as package

    # TPUs are out of reach of the package.
    names = sorted({*public_names(package)} - {"tpu"})
    assert len(names) > 30
    assert [name for name in names if not hasattr(rec, name)] == []
    for module in ("experimental", "export", "inputs"):
        names = public_names(getattr(package, module))
        assert names and [name for name in names if not hasattr(getattr(rec, module), name)] == []


# The names of tf.estimator in TensorFlow 2.15 that tf.train has, too.
OF_TF_TRAIN = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]


@pytest.mark.parametrize("name", OF_TF_TRAIN)
def test_session_hooks_are_those_of_tf_train(name):
    assert getattr(rec, name) is getattr(tf.train, name)


def test_nothing_of_tf_estimator_lacks_a_name_or_a_remedy():
    """Over the real list, where this release of TensorFlow has tf.estimator."""
    stock = getattr(tf, "estimator", None)
    for module, ours in (
        (stock, rec),
        (getattr(stock, "experimental", None), rec.experimental),
        (getattr(stock, "export", None), rec.export),
    ):
        for name in [] if module is None else dir(module):
            if name.startswith("_") or hasattr(ours, name):
                continue
            with pytest.raises(AttributeError, match=f"no attribute '{name}'; ."):
                getattr(ours, name)


@pytest.mark.parametrize("name", ["BoostedTreesClassifier", "tpu"])
def test_names_that_are_not_here_have_a_remedy(name):
    with pytest.raises(AttributeError, match=f"'rec_estimator' has no attribute '{name}'; ."):
        getattr(rec, name)
    with pytest.raises(AttributeError, match="'rec_estimator' has no attribute 'Estimater'$"):
        rec.Estimater  # noqa: B018


def columns_and_labels():
    columns = {"x": np.arange(8, dtype=np.float32), "c": np.arange(8) % 5}
    return rec.inputs.numpy_input_fn(columns, np.arange(8) % 2, batch_size=4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["BaselineClassifier", "BaselineEstimator", "BaselineRegressor"])
def test_canned_estimators_without_keras_work(tmp_path, name):
    if name == "BaselineEstimator":

        def model_fn(features, labels, mode):
            loss = tf.reduce_mean(tf.cast(labels, tf.float32) * tf.get_variable("v", []))
            train = tf.train.GradientDescentOptimizer(0.1).minimize(
                loss, tf.train.get_global_step()
            )
            return rec.EstimatorSpec(mode, loss=loss, train_op=train)

        estimator = rec.Estimator(model_fn, str(tmp_path))
    else:
        estimator = getattr(rec, name)(str(tmp_path))
    estimator.train(columns_and_labels())
    assert estimator.evaluate(columns_and_labels())["global_step"] == 2


@pytest.mark.long
def test_early_stopping_and_evaluation_hooks_work(tmp_path):
    estimator = rec.BaselineClassifier(str(tmp_path))
    stop = rec.experimental.make_early_stopping_hook(
        estimator, lambda: True, run_every_secs=None, run_every_steps=1
    )
    evaluate = rec.experimental.InMemoryEvaluatorHook(
        estimator, columns_and_labels(), every_n_iter=1
    )
    estimator.train(columns_and_labels(), hooks=[stop, evaluate])
    assert estimator.get_variable_value("global_step") == 1


class Layers:
    """A canned estimator, as far as the check is concerned."""

    def __init__(self, units, name="layers"):
        """Takes arguments."""
        self.made = (units, name)


def layers(units):
    """A function."""
    return units


@pytest.fixture(params=["class", "function"])
def made_of_keras(request):
    return checked(Layers if request.param == "class" else layers)


def test_names_made_of_keras_2_are_refused_with_keras_3(made_of_keras, monkeypatch):
    keras_3 = types.SimpleNamespace(layers=types.SimpleNamespace())
    monkeypatch.setattr("rec_estimator._tensorflow.canned.tf.keras", keras_3)
    with pytest.raises(
        RuntimeError,
        match=rf"tf.keras must be Keras 2 for {made_of_keras.__name__}, .* got Keras 3; run: pip "
        r"install .*tf-keras==2\.\d+\.\*, and set TF_USE_LEGACY_KERAS=1",
    ):
        made_of_keras(3)


def test_names_made_of_keras_2_work_with_it(made_of_keras, monkeypatch):
    keras_2 = types.SimpleNamespace(layers=types.SimpleNamespace(DenseFeatures=None))
    monkeypatch.setattr("rec_estimator._tensorflow.canned.tf.keras", keras_2)
    made = made_of_keras(3)
    assert made == 3 or (isinstance(made, Layers) and made.made == (3, "layers"))
    assert made_of_keras.__doc__ in (Layers.__doc__, layers.__doc__)


CANNED = """
import tensorflow.compat.v1 as tf
import rec_estimator as rec
column = tf.feature_column.numeric_column("x")
for make in (
    lambda: rec.DNNClassifier([4], [column]),
    lambda: rec.LinearRegressor([column]),
    lambda: rec.BinaryClassHead(),
    lambda: rec.experimental.dnn_logit_fn_builder(1, [4], [column], tf.nn.relu, None, None, False),
):
    try:
        print("made", type(make()).__name__)
    except RuntimeError as error:
        print(error)
"""


def test_canned_estimators_of_keras_are_made_or_refused():
    lines = python_processes.run(["-c", CANNED]).stdout.splitlines()
    if hasattr(tf.keras.layers, "DenseFeatures"):
        assert lines == ["made DNNClassifier", "made LinearRegressor", "made BinaryClassHead"] + [
            "made function"
        ]
    else:
        names = ("DNNClassifier", "LinearRegressor", "BinaryClassHead", "dnn_logit_fn_builder")
        assert len(lines) == len(names)
        for line, name in zip(lines, names):
            assert line.startswith(f"tf.keras must be Keras 2 for {name}, ")


def test_strategies_are_refused_where_tensorflow_cannot_run_them():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    if hasattr(tf, "estimator"):
        assert rec.RunConfig(train_distribute=strategy).train_distribute is strategy
        return
    for name in ("train_distribute", "eval_distribute"):
        with pytest.raises(ValueError, match=rf"^{name} must be None, got .*OneDeviceStrategy"):
            rec.RunConfig(**{name: strategy})
