# SPDX-License-Identifier: Apache-2.0
"""Shows what an installation consists of, and checks in some seconds that it works.

python -m rec_estimator
"""

import os
import pathlib
import platform
import sys
import tempfile
import time
from typing import Callable, Dict, Iterator, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import _ops

_DIM = 8
_STEPS = 5
# Instructions that the library or TensorFlow chooses at run time. All need AVX.
_CPU_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16")


def main() -> int:
    """Prints the versions and the result of each check; returns 1 if one failed."""
    for name, value in _versions():
        print(f"{name:15} {value}")
    try:
        _ops.gen.rec_estimator_table_handle  # noqa: B018  # raises if there is no library
    except ImportError as error:
        print(f"{'library':15} cannot be loaded: {error}", file=sys.stderr)
        return 1
    tf.logging.set_verbosity(tf.logging.ERROR)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, check in _CHECKS.items():
            start = time.monotonic()
            try:
                check(os.path.join(folder, "model"))
                result = "ok"
            except Exception as error:
                failed, result = True, f"FAILED: {type(error).__name__}: {error}"
            print(f"{name:45} {result} ({time.monotonic() - start:.1f} s)", flush=True)
    return 1 if failed else 0


def _versions() -> Iterator[Tuple[str, str]]:
    folder = pathlib.Path(_ops.__file__).parent
    libraries = sorted(path.name for path in folder.glob("_rec_ops_*.so"))
    yield "rec_estimator", f"{rec.__version__}, {folder}"
    yield "library", ", ".join(libraries) or "none"
    yield "TensorFlow", tf.__version__
    yield "NumPy", np.__version__
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    yield "system", platform.platform()
    yield "CPU", f"{os.cpu_count()} cores, {' '.join(_cpu_flags()) or 'flags unknown'}"


def _cpu_flags() -> Tuple[str, ...]:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    present = {
        flag for line in text.splitlines() if line.startswith("flags") for flag in line.split()
    }
    return tuple(flag for flag in _CPU_FLAGS if flag in present)


def _losses(weights: object, optimizer: tf.train.Optimizer) -> Tuple[tf.Tensor, tf.Operation]:
    """The loss of a step on ids that repeat, and the update."""
    ids = tf.constant([3, 1, 3, 7, 0, 1], tf.int64)
    vectors = rec.embedding_lookup(weights, ids)
    loss = tf.reduce_sum(tf.square(vectors - 1.0))
    return loss, optimizer.minimize(loss)


def _trains_as_a_variable(checkpoint: str) -> None:
    """A table and a tf.Variable of equal values have the same losses, bit for bit."""
    start = np.random.default_rng(1).normal(size=(8, _DIM)).astype(np.float32)
    losses = {}
    for kind in ("table", "variable"):
        with tf.Graph().as_default(), tf.Session() as session:
            initializer = tf.constant_initializer(start)
            if kind == "table":
                option = rec.EmbeddingVariableOption(
                    init_option=rec.InitializerOption(initializer, default_value_dim=8)
                )
                weights = rec.get_embedding_variable("weights", _DIM, ev_option=option)
            else:
                weights = tf.get_variable("weights", [8, _DIM], initializer=initializer)
            loss, update = _losses(weights, rec.optimizers.AdagradOptimizer(0.1))
            session.run(tf.global_variables_initializer())
            losses[kind] = [session.run([loss, update])[0] for _ in range(_STEPS)]
            if kind == "table":
                rec.Saver().save(session, checkpoint)
    if losses["table"] != losses["variable"]:
        raise AssertionError(f"the losses must be equal, got {losses}")


def _restores(checkpoint: str) -> None:
    """Any TensorFlow can read the rows of a checkpoint; a new table gets them back."""
    reader = tf.train.load_checkpoint(checkpoint)
    keys, values = reader.get_tensor("weights-keys"), reader.get_tensor("weights-values")
    with tf.Graph().as_default(), tf.Session() as session:
        table = rec.get_embedding_variable("weights", _DIM)
        vectors = rec.embedding_lookup(table, keys)
        rec.Saver().restore(session, checkpoint)
        np.testing.assert_array_equal(session.run(vectors), values)


_CHECKS: Dict[str, Callable[[str], None]] = {
    "a table trains as a tf.Variable, bit for bit": _trains_as_a_variable,
    "a checkpoint is saved, read and restored": _restores,
}
