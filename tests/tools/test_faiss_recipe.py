# SPDX-License-Identifier: Apache-2.0
"""The recipe for Faiss in docs/exporting_embeddings.md, in an environment that has Faiss."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from rec_estimator.inputs.vector_files import Vectors
from rec_estimator.tools.export_rows import read_rows, write_rows
from rec_estimator.tools.import_rows import import_rows

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "exporting_embeddings.md"


@pytest.mark.slow
def test_faiss_finds_the_neighbours_that_numpy_finds(tmp_path):
    (recipe,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rng = np.random.default_rng(5)
    keys = rng.choice(2**62, 300, replace=False)
    rows = rng.normal(size=[300, 16]).astype(np.float32)
    import_rows(Vectors(keys, rows), "item", str(tmp_path / "model.ckpt"))
    write_rows(read_rows(str(tmp_path / "model.ckpt"), "item"), str(tmp_path / "item.npy"))
    python = tmp_path / "venv" / "bin" / "python"
    for command in (
        (sys.executable, "-m", "venv", str(python.parent.parent)),
        (str(python), "-m", "pip", "install", "--quiet", "faiss-cpu", "numpy"),
    ):
        subprocess.run(command, check=True, timeout=600)
    done = subprocess.run(
        (str(python), "-c", recipe),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for line in done.stdout.splitlines():
        key, *found = map(int, line.split())
        cosines = units @ units[keys == key][0]
        assert found == keys[np.argsort(-cosines)[:10]].tolist()
    assert len(done.stdout.splitlines()) == 5
