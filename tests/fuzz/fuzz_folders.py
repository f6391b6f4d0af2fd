# SPDX-License-Identifier: Apache-2.0
"""Exports damaged folders of plain arrays, and gives them and their exports to the commands.

These files have no checksums. What is exported must be what the files hold.
"""

import contextlib
import io
import pathlib
import shutil

import numpy as np
from fuzz.mutations import INTEGERS, change_bytes, choose

from rec_estimator.checkpoint import folder_export
from rec_estimator.tools import inspect_checkpoint, shrink_ckpt_with_filtered_features

ROWS, DIM = 7, 3
REFUSALS = (OSError, ValueError)


class Target:
    """Mutants of a folder of one table."""

    def __init__(self, folder):
        self._folder = folder / "sparse-model-1"

    def run(self, seed):
        rng = np.random.default_rng(seed)
        shutil.rmtree(self._folder, ignore_errors=True)
        table = self._folder / "t"
        arrays = {
            "key": np.arange(ROWS, dtype=np.int64),
            "embedding": rng.random((ROWS, DIM), np.float32),
        }
        for name, array in arrays.items():
            (table / name).mkdir(parents=True)
            array.tofile(table / name / "slice.data")
            attribute = np.array([*array.shape, array.itemsize], np.int64)
            attribute.tofile(table / name / "slice.attribute")
        for _ in range(choose(rng, [1, 1, 2])):
            self._damage(rng, table)
        self._command(choose(rng, [self._folder, table, table / "key" / "slice"]))
        folder_export.remember(str(self._folder))
        try:
            paths = folder_export.export()
        except REFUSALS:
            assert not list(table.glob("*.npy")), "a refused export left a file"
            return "refused"
        keys, values = (np.fromfile(table / n / "slice.data", np.uint8) for n in arrays)
        for path in paths:
            exported = np.load(path)
            assert exported["key"].tobytes() == keys.tobytes()
            assert exported["embedding"].tobytes() == values.tobytes()
            self._command(pathlib.Path(path))
        return "accepted"

    def _damage(self, rng, table):
        path = choose(rng, sorted(table.glob("*/slice.*")))
        way = choose(rng, ["bytes", "numbers", "missing", "exchanged"])
        if way == "bytes":
            path.write_bytes(change_bytes(rng, path.read_bytes()))
        elif way == "numbers":
            size = choose(rng, [0, 1, 2, 3, 3, 3, 9])
            np.array([choose(rng, [*INTEGERS, ROWS, DIM]) for _ in range(size)]).tofile(path)
        elif way == "missing":
            path.unlink()
        else:
            shutil.copyfile(choose(rng, sorted(table.glob("*/slice.*"))), str(path) + "x")
            pathlib.Path(str(path) + "x").replace(path)

    def _command(self, path):
        """No command takes these for a checkpoint."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert inspect_checkpoint.main([str(path)]) == 2
            shrink = shrink_ckpt_with_filtered_features.main
            assert shrink([f"--input_checkpoint={path}", f"--output_checkpoint={path}-x"]) == 2
