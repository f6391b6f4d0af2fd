# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for modules that tensorflow_estimator imports and TensorFlow 2.16 removed."""

import sys
import types

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator._tensorflow.estimator_stand_ins import stand_ins

TRAINING = "tensorflow.python.distribute.estimator_training"


@pytest.fixture
def modules():
    """The stand-ins, by name."""
    before = dict(sys.modules)
    with stand_ins():
        yield {name: each for name, each in sys.modules.items() if before.get(name) is not each}


def test_sys_modules_is_as_before(monkeypatch):
    monkeypatch.setitem(sys.modules, TRAINING, sys)
    monkeypatch.delitem(sys.modules, "tensorflow.python.tpu.session_support", raising=False)
    before = dict(sys.modules)
    with stand_ins():
        assert sys.modules[TRAINING] is not sys
        assert "tensorflow.python.tpu.session_support" in sys.modules
    assert sys.modules == before


def test_sys_modules_is_as_before_when_the_import_fails():
    before = dict(sys.modules)
    with pytest.raises(ImportError, match="no such name"), stand_ins():
        raise ImportError("no such name")
    assert sys.modules == before


def test_public_names_of_the_package_are_not_registered(modules):
    export = modules["tensorflow_estimator.python.estimator.estimator_export"].estimator_export
    assert export("estimator.Estimator", v1=["estimator.Estimator"])(stand_ins) is stand_ins
    export("estimator.ModeKeys").export_constant(__name__, "TRAINING")
    assert not hasattr(stand_ins, "_estimator_api_names")


@pytest.mark.parametrize(
    "name",
    [
        *("train_distribute", "eval_distribute"),
        *("experimental_distribute.train_distribute", "experimental_distribute.eval_distribute"),
    ],
)
def test_strategies_are_refused_by_name(modules, name):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    owner, _, argument = name.rpartition(".")
    value = types.SimpleNamespace(**{argument: strategy}) if owner else strategy
    config = rec.RunConfig()
    setattr(config, f"_{owner or argument}", value)
    with pytest.raises(
        ValueError, match=rf"^{name} must be None, got .*OneDeviceStrategy.*; .* in TF_CONFIG"
    ):
        modules[TRAINING].init_run_config(config, {})


def test_cluster_of_tf_config_is_read(modules):
    config = rec.RunConfig()
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    tf_config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    modules[TRAINING].init_run_config(config, tf_config)
    assert (config.task_type, config.num_worker_replicas) == ("worker", 2)
    assert not modules[TRAINING].should_run_distribute_coordinator(config)


@pytest.mark.parametrize("name", ["session_support", "tpu_embedding", "tpu_embedding_gradient"])
def test_tpu_estimator_is_refused_by_name(modules, name):
    module = modules[f"tensorflow.python.tpu.{name}"]
    with pytest.raises(NotImplementedError, match=r"2\.15 for TPUEstimator, got .* without Table;"):
        module.Table(3)
    with pytest.raises(NotImplementedError, match=r"without Table"):
        module.Table.config()
