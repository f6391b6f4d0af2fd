# SPDX-License-Identifier: Apache-2.0
"""Measures compressed exports of the model zoo against uncompressed ones.

    python -m benchmarks.bench_serving_zoo [--rounds 100] [--items 500] [--output FILE.json]

Each model is trained for a few steps on generated clicks and exported twice, uncompressed and
compressed. Both SavedModels answer requests of one user with --items candidates, including lookups.
They alternate; the ratio is the median over rounds.
"""

import os
import tempfile
from typing import Any, Callable, Dict, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from model_zoo import data, run


def _load(export_dir: Any, request: Dict[str, np.ndarray]) -> Callable[[], Dict[str, np.ndarray]]:
    """Returns a function that answers the request once."""
    graph = tf.Graph()
    config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
    session = tf.Session(graph=graph, config=config)
    with graph.as_default():
        model = tf.saved_model.load(session, ["serve"], tf.compat.as_str(export_dir))
    signature = model.signature_def["serving_default"]
    feed = {signature.inputs[name].name: value for name, value in request.items()}
    fetches = {name: output.name for name, output in signature.outputs.items()}
    return lambda: session.run(fetches, feed)


def exports(model: str, task: data.Task, folder: str) -> Tuple[str, bytes, Dict[str, str]]:
    """Trains a model; returns (uncompressed export, compressed export, sides of the columns)."""
    estimator = run.build_estimator(model, task, run.Settings(steps=20), f"{folder}/{model}")
    rows = rec.inputs.numpy_input_fn(task.train, task.train_labels, batch_size=256, shuffle=False)
    estimator.train(rows, steps=20)
    embedded = {f.name: f for f in run.MODELS[model].features(task, {"dim": 16})}
    sides = {column.name: column.side for column in task.columns}
    receiver = rec.compressed_serving_input_receiver_fn(
        user=[embedded[name] for name, side in sides.items() if side != "item"],
        item=[embedded[name] for name, side in sides.items() if side == "item"],
    )
    plain = run.export(estimator, task, f"{folder}/{model}/plain")
    return plain, estimator.export_savedmodel(f"{folder}/{model}/compressed", receiver), sides


def measure(model: str, task: data.Task, folder: str, items: int, rounds: int) -> Dict[str, Any]:
    """Returns the figures of a model by name."""
    plain, compressed, sides = exports(model, task, folder)
    flat, small = {}, {"item_size": np.array([items], np.int32)}
    for name, side in sides.items():
        rows = task.train[name]
        own = rows[:items] if side == "item" else rows[:1]
        flat[name] = own if side == "item" else np.repeat(own, items, axis=0)
        small[name] = own if own.ndim > 1 else own[:, np.newaxis]
    calls = {"as written": _load(plain, flat), "compressed": _load(compressed, small)}
    written, answered = (call()["probabilities"] for call in calls.values())
    np.testing.assert_allclose(written, answered, rtol=1e-5, atol=1e-6)
    rounds_lib.take_turns(calls, 10, steps=1, warm_up=0)
    seconds, _ = rounds_lib.take_turns(calls, rounds, steps=1, warm_up=0)
    before, after = (np.array(times) for times in seconds.values())
    return {
        "model": model,
        "as_written_p50_ms": float(np.median(before)) * 1e3,
        "compressed_p50_ms": float(np.median(after)) * 1e3,
        "speed_up": float(np.median(before / after)),
    }


def main() -> None:
    parser = result_file.parser(__doc__, rounds=200)
    parser.add_argument("--items", type=int, default=500, help="candidates of the one user")
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    task = data.load_task("generated")
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for model in run.MODELS:
            points.append(measure(model, task, folder, args.items, args.rounds))
            print(points[-1], flush=True)
    sizes = {"rounds": args.rounds, "items": args.items}
    result_file.write(args.output, {**sizes, "points": points})


if __name__ == "__main__":
    main()
