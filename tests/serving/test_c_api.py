# SPDX-License-Identifier: Apache-2.0
"""docs/refresh.c brings a model up to date over TensorFlow's C API."""

import pathlib
import subprocess

import pytest
import tensorflow as tf
from test_following import Training

from rec_estimator import _ops

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_c_program_of_the_docs_applies_deltas_and_says_what_is_refused(tmp_path):
    program, tensorflow = tmp_path / "refresh", pathlib.Path(tf.__file__).parent
    compile_ = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", ROOT / "docs" / "refresh.c"]
    compile_ += [f"-I{tensorflow / 'include'}", f"-L{tensorflow}", f"-Wl,-rpath,{tensorflow}"]
    compile_ += ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-o", program]
    subprocess.run(compile_, check=True)
    (tmp_path / "model").mkdir()
    training = Training(tmp_path)
    names = [pathlib.Path(training.train(ids)).name for ids in ([1, 2], [2, 3, 4])]
    minor = ".".join(tf.__version__.split(".")[:2])
    library = pathlib.Path(_ops.__file__).parent / f"_rec_ops_{minor}.so"
    done = subprocess.run(
        [program, library, training.export],
        input="".join(f"{name}\n" for name in [names[0], "../other", names[1], names[1]]),
        text=True,
        capture_output=True,
    )
    training.close()
    assert done.returncode == 0, done.stderr
    # TensorFlow's messages have further lines, which name the op.
    answers = [line for line in done.stdout.splitlines() if line.startswith(("step", "refused"))]
    assert answers[::2] == [
        "step 1, 2 rows written, 0 deleted",
        "step 2, 3 rows written, 0 deleted",
    ]
    assert "got ../other" in answers[1] and "is in the model already" in answers[3]
