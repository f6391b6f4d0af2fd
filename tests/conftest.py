# SPDX-License-Identifier: Apache-2.0
"""Every test starts with an empty graph and the same seeds, and leaves no file behind."""

import collections
import importlib.util
import itertools
import os
import pathlib
import random
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Before TensorFlow is imported: no GPU, and warnings and errors only.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

# The checkout comes first, even if another copy is installed; tests/ is for `import oracle`.
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

import numpy as np
import pytest
from covering_values import covering

# TensorFlow is imported by the processes that run tests, in functions: the one that hands tests out
# to them (pytest -n) needs none, and the import takes seconds.

SEED = 2024

# Folders in which programs keep caches and builds.
CACHES = {".git", ".venv", "build", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def pytest_addoption(parser):
    parser.addoption(
        "--v1-behavior",
        action="store_true",
        help="call tf.disable_v2_behavior() first, as scripts of TensorFlow 1 do",
    )
    parser.addoption(
        "--no-grappler",
        action="store_true",
        help="run graphs as they are: optimizing these small ones takes longer than running them",
    )
    parser.addoption(
        "--each-value",
        action="store_true",
        help="run tests marked each_value with each value of each parameter, not each combination",
    )
    parser.addoption(
        "--parameters",
        type=int,
        metavar="N",
        help="run a test with the first N of its parameters only; not one marked all_parameters",
    )


def pytest_configure(config):
    if not _hands_tests_out(config):
        _configure_tensorflow(config)
    found = importlib.util.find_spec("rec_estimator").origin
    if not found.startswith(str(ROOT)):
        raise pytest.UsageError(
            f"rec_estimator must be the one in {ROOT}, got {found}; uninstall it or run make test"
        )


def _hands_tests_out(config):
    """Whether this process is the one of pytest-xdist that runs no tests itself."""
    return config.getoption("numprocesses", None) and not hasattr(config, "workerinput")


def _configure_tensorflow(config):
    import tensorflow.compat.v1 as tf

    tf.get_logger().setLevel("ERROR")
    if config.getoption("--v1-behavior"):
        tf.disable_v2_behavior()
    # Each session has the threads of its configuration; otherwise all have those of the first one.
    # TensorFlow reads this once, so the programs that tests start do not inherit it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
        tf.Session(graph=tf.Graph()).close()
    if config.getoption("--no-grappler"):
        # The default of all sessions whose test names no configuration.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


class WatchedFiles:
    """The files below some folders, without caches and builds."""

    def __init__(self, *roots):
        self._roots = roots
        self._list()

    def _list(self):
        self._paths, self._times = set(), {}
        for root in self._roots:
            for folder, folders, names in os.walk(root):
                folders[:] = [name for name in folders if name not in CACHES]
                self._times[folder] = os.stat(folder).st_mtime_ns
                self._paths.update(os.path.join(folder, name) for name in names)

    def added(self):
        """The sorted paths that are new since the last call."""
        try:
            unchanged = all(os.stat(path).st_mtime_ns == at for path, at in self._times.items())
        except FileNotFoundError:
            unchanged = False
        if unchanged:
            return []
        before = self._paths
        self._list()
        return sorted(self._paths - before)


def pytest_sessionstart(session):
    # Programs that a developer starts beside the tests also write into the checkout; the working
    # folder is watched too, in case it is another one.
    session.watched = WatchedFiles(*{str(ROOT), os.getcwd()})


# After -m and -k, so that tests which they leave out do not stand for others.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Deselects parameters beyond the options, and tests of models that cannot be built."""
    import tensorflow.compat.v1 as tf

    kept = list(_with_each_value(items)) if config.getoption("--each-value") else items
    kept = list(_within_parameters(kept, config.getoption("--parameters")))
    if not hasattr(tf.keras.layers, "DenseFeatures"):  # Keras 3 lacks layers of users' models.
        kept = [item for item in kept if not item.get_closest_marker("keras_2")]
    config.hook.pytest_deselected(items=[*(set(items) - set(kept))])
    items[:] = kept


def _with_each_value(items):
    """The items, but of a test marked each_value only enough for each value of each parameter."""
    for _, group in itertools.groupby(items, lambda item: item.nodeid.split("[")[0]):
        combinations = list(group)
        if not combinations[0].get_closest_marker("each_value"):
            yield from combinations
            continue
        for number in covering([_values(item) for item in combinations]):
            yield combinations[number]


def _values(item):
    """The item's value of each of its decorators parametrize, and of each fixture with values."""
    params = dict(item.callspec.params)
    values = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = re.findall(r"\w+", names) if isinstance(names, str) else names
        values.add(tuple((name, id(params.pop(name))) for name in names))
    return values | {(name, id(value)) for name, value in params.items()}


def _within_parameters(items, limit):
    """The items without those that repeat a test function more than ``limit`` times, if given.

    A test marked all_parameters is repeated as often as it says.
    """
    seen = collections.Counter()
    for item in items:
        function = item.nodeid.split("[")[0]
        seen[function] += 1
        has_all = limit is None or item.get_closest_marker("all_parameters")
        if has_all or seen[function] <= limit:
            yield item


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item):
    """Fails a test that left a file in the checkout or the working folder."""
    outcome = yield
    left = item.session.watched.added()
    if left and outcome.excinfo is None:
        text = f"a test must write to tmp_path only, got {left}; use monkeypatch.chdir(tmp_path)"
        outcome.force_exception(pytest.fail.Exception(text, pytrace=False))


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory):
    """Moves the system's temporary folder, which Estimator writes to, beside tmp_path."""
    folder = str(tmp_path_factory.mktemp("tempfile"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def graph():
    """A fresh default graph, in graph mode, with fixed seeds."""
    import tensorflow.compat.v1 as tf

    random.seed(SEED)
    np.random.seed(SEED)
    behavior = tf.control_flow_v2_enabled(), tf.resource_variables_enabled()
    with tf.Graph().as_default() as fresh:
        tf.set_random_seed(SEED)
        yield fresh
    left = tf.control_flow_v2_enabled(), tf.resource_variables_enabled()
    assert left == behavior, "a test must restore what it switches; use tests/tf_behavior.py"


@pytest.fixture(params=[1, 2])
def version(request):
    """The version of control flow: 1 is ops of the graph, 2 is functions."""
    import tf_behavior

    with tf_behavior.control_flow(request.param):
        yield request.param


@pytest.fixture
def resource_variables():
    """Variables are resources by default, as iterations_per_loop needs them."""
    import tf_behavior

    with tf_behavior.resource_variables(True):
        yield
