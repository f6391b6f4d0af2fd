# SPDX-License-Identifier: Apache-2.0
"""Every test starts with an empty graph and the same seeds, and tests this checkout."""

import importlib.util
import os
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Before TensorFlow is imported: no GPU, and warnings and errors only.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

# The checkout first, also where another copy is installed; tests/ for `import oracle`.
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

SEED = 2024


def pytest_configure(config):
    tf.get_logger().setLevel("ERROR")
    found = importlib.util.find_spec("rec_estimator").origin
    if not found.startswith(str(ROOT)):
        raise pytest.UsageError(
            f"rec_estimator must be the one in {ROOT}, got {found}; uninstall it or run make test"
        )


@pytest.fixture(autouse=True)
def graph():
    """A fresh default graph, in graph mode, with fixed seeds."""
    random.seed(SEED)
    np.random.seed(SEED)
    with tf.Graph().as_default() as fresh:
        tf.set_random_seed(SEED)
        yield fresh


@pytest.fixture(params=[1, 2])
def version(request):
    """Control flow of TensorFlow 1, written into the graph, or of 2, in functions."""
    if request.param == 1:
        tf.disable_control_flow_v2()
    yield request.param
    tf.enable_control_flow_v2()
