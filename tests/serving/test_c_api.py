# SPDX-License-Identifier: Apache-2.0
"""The C programs of the docs serve models over TensorFlow's C API."""

import pathlib
import subprocess

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from test_following import Training

import rec_estimator as rec
from rec_estimator import _ops

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def compiled(source, folder):
    """Compiles a program of the docs as docs/updating_a_live_server.md says."""
    tensorflow, program = pathlib.Path(tf.__file__).parent, folder / source.removesuffix(".c")
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", DOCS / source]
    command += [f"-I{tensorflow / 'include'}", f"-L{tensorflow}", f"-Wl,-rpath,{tensorflow}"]
    command += ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-o", program]
    subprocess.run(command, check=True)
    return program


def names_of(export):
    """The names of the ops that a model reads keys from and writes scores with."""
    with tf.Graph().as_default(), tf1.Session() as session:
        signatures = tf1.saved_model.load(session, ["serve"], export).signature_def
    signature = signatures["serving_default"]
    tensors = [signature.inputs["ids"].name, signature.outputs["score"].name]
    return [name.partition(":")[0] for name in tensors]


@pytest.fixture
def training(tmp_path):
    (tmp_path / "model").mkdir()
    training = Training(tmp_path)
    yield training
    training.close()


@pytest.mark.long
def test_the_c_program_follows_a_training_to_its_deltas_and_to_a_new_base(training, tmp_path):
    program = compiled("refresh.c", tmp_path)
    published = str(tmp_path / "published")

    def publish(ids):
        rec.serving.publish(training.train(ids), published, training.export_to, max_deltas=2)

    publish([1, 2])
    minor = ".".join(tf.__version__.split(".")[:2])
    library = pathlib.Path(_ops.__file__).parent / f"_rec_ops_{minor}.so"
    base = rec.serving.read_manifest(published)["base"]
    names = names_of(f"{published}/{base}")
    process = subprocess.Popen(
        [program, library, published, *names, "2"], text=True, stdout=subprocess.PIPE
    )
    try:
        answers = [process.stdout.readline()]
        for ids in ([2, 3], [4], [2]):  # The third one is a new base.
            publish(ids)
            answers.append(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert answers == [
        f"base {base}; key 2 reads 1\n",
        "step 2, 2 rows written, 0 deleted; key 2 reads 2\n",
        "step 3, 1 rows written, 0 deleted; key 2 reads 2\n",
        f"base {rec.serving.read_manifest(published)['base']}; key 2 reads 3\n",
    ]


@pytest.mark.long
def test_the_c_program_without_our_library_serves_a_portable_export(training, tmp_path):
    program = compiled("portable.c", tmp_path)
    training.train([1, 2])
    training.train([2], full=True)
    export = training.export_to(str(tmp_path / "exports"), portable=True).decode()
    done = subprocess.run(
        [program, export, *names_of(export), "1", "2", "3"],
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout == "1\n2\n0\n"
