# SPDX-License-Identifier: Apache-2.0
"""compat.install(): tf.estimator for libraries of others, in processes of their own."""

import pytest
import tensorflow as tf
from python_processes import Process

from rec_estimator import compat
from rec_estimator._tensorflow.releases import SUPPORTS_ESTIMATOR_PACKAGE


def run(code, **environment):
    """Runs code after `import tensorflow as tf` and `from rec_estimator import compat`."""
    head = "import tensorflow as tf\nfrom rec_estimator import compat\n"
    done = Process(["-c", head + code], environment=environment).wait()
    assert done.returncode == 0, done.stderr
    return done.stdout


if SUPPORTS_ESTIMATOR_PACKAGE:

    def test_a_real_tf_estimator_is_not_hidden():
        before = tf.estimator
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match="TensorFlow must have no tf.estimator.*call install"
            ):
                compat.install()
        assert tf.estimator is before
        compat.uninstall()
        assert tf.estimator is before

else:

    def test_nothing_is_installed_by_an_import():
        run("assert not hasattr(tf, 'estimator') and not hasattr(tf.compat.v1, 'estimator')")

    def test_all_ways_to_spell_the_names_find_the_same_classes():
        run(
            """
compat.install()
compat.install()
import tensorflow.compat.v1 as tf1
import tensorflow.compat.v1.estimator
import tensorflow.estimator
from tensorflow.compat.v1.estimator.inputs import numpy_input_fn
from tensorflow.estimator import EstimatorSpec, ModeKeys
from tensorflow.estimator.export import PredictOutput
from tensorflow.python.estimator import estimator, keras, model_fn
from tensorflow.python.estimator.canned import head
from tensorflow.python.estimator.canned.head import _Head
import tensorflow_estimator.python.estimator.canned.head as real

import rec_estimator as rec

assert tf.estimator.EstimatorSpec is tf1.estimator.EstimatorSpec is rec.EstimatorSpec
assert EstimatorSpec is rec.EstimatorSpec is model_fn.EstimatorSpec
assert estimator.Estimator is tf.compat.v2.estimator.Estimator is tf.estimator.Estimator
assert PredictOutput is rec.PredictOutput and _Head is real._Head and head is real
assert issubclass(rec.RecEstimator, tf.estimator.Estimator)
assert real.__spec__.name == "tensorflow_estimator.python.estimator.canned.head"
"""
        )

    def test_uninstall_takes_all_names_away():
        run(
            """
import sys

compat.uninstall()
before = {name for name in sys.modules if "estimator" in name and name.startswith("tensorflow.")}
for _ in range(2):
    compat.install()
    import tensorflow.python.estimator.canned.head
    tf.estimator.RunConfig
    compat.uninstall()
    compat.uninstall()
    found = {name for name in sys.modules if "estimator" in name and name.startswith("tensorflow.")}
    assert found == before, found - before
    for module in (tf, tf.compat.v1, tf.compat.v2, sys.modules["tensorflow.python"]):
        assert not hasattr(module, "estimator"), module
    try:
        import tensorflow.python.estimator
    except ImportError:
        pass
    else:
        raise AssertionError
"""
        )

    def test_the_names_of_another_package_are_not_hidden():
        run(
            """
tf.estimator = mine = object()
try:
    compat.install()
except RuntimeError as error:
    assert "TensorFlow must have no tf.estimator" in str(error)
else:
    raise AssertionError
assert tf.estimator is mine and not hasattr(tf.compat.v1, "estimator")
"""
        )

    def test_a_canned_estimator_says_which_keras_it_needs():
        run(
            """
compat.install()
try:
    tf.estimator.LinearClassifier([])
except RuntimeError as error:
    assert "tf.keras must be Keras 2 for LinearClassifier" in str(error)
else:
    raise AssertionError
""",
            TF_USE_LEGACY_KERAS="0",
        )
