# SPDX-License-Identifier: Apache-2.0
"""A system that has no threads left: checkpoints are saved and restored as ever.

A child process preloads a library that lets no thread start while a checkpoint is saved or
restored. Kernels that want a thread of their own then do its work themselves.
"""

import ctypes
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 60


class Threads:
    """Lets no thread start."""

    def __init__(self):
        self._shim = ctypes.CDLL(os.environ["LD_PRELOAD"])

    def refused_during(self, action):
        """Runs an action, during which no thread starts; returns how many were to."""
        self._shim.RefuseThreads()
        try:
            action()
        finally:
            refused = self._shim.StopRefusing()
        return refused


def run_child(kind):
    """Prints a line of JSON: the threads refused, and whether all was as with threads."""
    from storage_runs import Run, files_of, on_disk

    tf.disable_eager_execution()
    threads = Threads()
    with tempfile.TemporaryDirectory() as path, tf.Graph().as_default():
        folder = pathlib.Path(path)
        storage = on_disk(folder / "rows") if kind == "disk" else rec.StorageOption()
        run = Run(lambda: rec.optimizers.AdagradOptimizer(0.1), storage)
        saver = rec.Saver()
        run.steps(STEPS)

        def save(name):
            (folder / name).mkdir()
            saver.save(run.session, str(folder / name / "model"), write_meta_graph=False)

        def restore(name):
            saver.restore(run.session, str(folder / name / "model"))

        save("threads")
        restore("threads")  # TensorFlow starts its own threads when they are first needed.
        trained = run.contents()
        save_refused = threads.refused_during(lambda: save("alone"))
        same_files = files_of(folder / "alone") == files_of(folder / "threads")
        run.steps(1)
        restore_refused = threads.refused_during(lambda: restore("alone"))
        restored = [array.tobytes() for array in run.contents()]
        print(
            json.dumps(
                {
                    "refused": [save_refused, restore_refused],
                    "same_files": same_files,
                    "same_rows": restored == [array.tobytes() for array in trained],
                    "disk_rows": run.tiers().disk_rows,
                }
            )
        )


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The path of the library to preload."""
    path = tmp_path_factory.mktemp("shim") / "failing_threads.so"
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    source = str(ROOT / "tests/ops/failing_threads.cc")
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(path)]
    subprocess.run([*compiler, source, *options, "-ldl"], check=True)
    return path


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_checkpoints_need_no_threads(shim, kind):
    child = subprocess.run(
        [sys.executable, __file__, kind],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout.splitlines()[-1])
    # The writer of the checkpoint and, of a table on disk, that of its file and the reader of rows.
    assert found["refused"][0] >= {"memory": 1, "disk": 3}[kind], found
    assert found["refused"][1] >= 1, found
    assert found["same_files"] and found["same_rows"], found
    assert (found["disk_rows"] > 0) == (kind == "disk"), found


if __name__ == "__main__":
    run_child(sys.argv[1])
