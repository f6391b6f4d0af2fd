# SPDX-License-Identifier: Apache-2.0
"""Measures the size, memory and time of a portable SavedModel against one with our ops.

    python -m benchmarks.bench_portable [--rows 1000000] [--rounds 9] [--output FILE.json]

A table of 1 M rows of 16 floats with random keys; the model averages the rows of 26 keys per
example. Each export and load runs in its own process; its memory is the peak of the resident memory
minus the resident memory before. Requests of 512 examples with known keys alternate between two
processes.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec


DIM = 16
FIELDS = 26
EXAMPLES = 512


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _keys(rows: int) -> np.ndarray:
    return np.random.default_rng(1).permutation(rows * 8)[:rows].astype(np.int64)


def _model_fn(features: Dict[str, Any], labels: tf.Tensor, mode: str) -> rec.EstimatorSpec:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    table = rec.get_embedding_variable("table", DIM)
    values = rec.group_embedding_lookup_sparse([table], [features["ids"]], ["mean"])[0]
    train_op = None
    loss = tf.reduce_sum(values)
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train_op = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return rec.EstimatorSpec(mode, predictions=values, loss=loss, train_op=train_op)


def _estimator(folder: str) -> rec.RecEstimator:
    import rec_estimator as rec

    return rec.RecEstimator(_model_fn, model_dir=os.path.join(folder, "model"))


def _train(folder: str, rows: int) -> None:
    import tensorflow as tf

    def input_fn() -> tf.data.Dataset:
        keys = _keys(rows)
        ids = tf.RaggedTensor.from_uniform_row_length(keys[: rows // FIELDS * FIELDS], FIELDS)
        return tf.data.Dataset.from_tensors(({"ids": ids}, 0.0))

    _estimator(folder).train(input_fn)


def _export(folder: str, is_portable: bool) -> Dict[str, Any]:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    def receiver() -> rec.ServingInputReceiver:
        ids = tf.ragged.placeholder(tf.int64, 1, name="in")
        ids = tf.RaggedTensor.from_row_splits(ids.flat_values, ids.row_splits)
        parts = {"values": ids.flat_values, "splits": ids.row_splits}
        return rec.ServingInputReceiver({"ids": ids}, parts)

    estimator = _estimator(folder)
    before, start = _peak(), time.perf_counter()
    made = estimator.export_saved_model(
        os.path.join(folder, "export"), receiver, portable=is_portable
    )
    seconds = time.perf_counter() - start
    variables = os.path.join(made.decode(), "variables")
    size = sum(os.path.getsize(os.path.join(variables, name)) for name in os.listdir(variables))
    return {
        "folder": made.decode(),
        "s": seconds,
        "peak_mb": (_peak() - before) / 1e6,
        "mb": size / 1e6,
    }


def _load(folder: str, is_portable: bool) -> Tuple[tf.Session, Any, Any]:
    import tensorflow.compat.v1 as tf

    if not is_portable:
        import rec_estimator  # noqa: F401
    session = tf.Session(graph=tf.Graph())
    with session.graph.as_default():
        signature = tf.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
    (output,) = signature.outputs.values()
    return session, signature, output


def _measure_load(folder: str, is_portable: bool) -> Dict[str, float]:
    if not is_portable:
        import rec_estimator  # noqa: F401
    before, start = _peak(), time.perf_counter()
    _load(folder, is_portable)
    return {"s": time.perf_counter() - start, "peak_mb": (_peak() - before) / 1e6}


def _serve(folder: str, is_portable: bool, rows: int) -> Dict[str, Callable[[], Any]]:
    session, signature, output = _load(folder, is_portable)
    keys = np.random.default_rng(2).choice(_keys(rows), EXAMPLES * FIELDS)
    feed = {
        signature.inputs["values"].name: keys,
        signature.inputs["splits"].name: np.arange(EXAMPLES + 1) * FIELDS,
    }
    return {"request": lambda: session.run(output.name, feed)}


def measure(rows: int, rounds: int) -> Dict[str, Any]:
    """Returns the figures by name."""
    figures: Dict[str, Any] = {"rows": rows, "dim": DIM}
    with tempfile.TemporaryDirectory() as folder:
        rounds_lib.in_process(_train, folder, rows)
        folders = {}
        for name, is_portable in (("ours", False), ("portable", True)):
            made = rounds_lib.in_process(_export, folder, is_portable)
            folders[name] = made.pop("folder")
            loads = [
                rounds_lib.in_process(_measure_load, folders[name], is_portable) for _ in range(3)
            ]
            figures[f"{name}_export"] = made
            figures[f"{name}_load"] = {
                what: statistics.median(load[what] for load in loads) for what in loads[0]
            }
        systems = {n: (_serve, (folders[n], n == "portable", rows)) for n in folders}
        seconds = rounds_lib.alternate(systems, ["request"], rounds, 50)["request"]
    for name in folders:
        figures[f"{name}_request_ms"] = statistics.median(seconds[name]) * 1e3
    figures["request_portable_over_ours"] = rounds_lib.ratios(seconds["portable"], seconds["ours"])
    return figures


def main() -> None:
    """Runs the command."""
    parser = result_file.parser(__doc__, rows=1_000_000, rounds=9)
    options = parser.parse_args()
    figures = measure(options.rows, options.rounds)
    for name, value in figures.items():
        print(name, value)
    result_file.write(options.output, figures)


if __name__ == "__main__":
    main()
