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

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from model_zoo import data, models, runner
from model_zoo.runner.build import build_estimator
from model_zoo.runner.config import Config, Export


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


def exports(model: str, clicks: data.MemoryDataSet, folder: str) -> Tuple[bytes, bytes]:
    """Trains a model; returns (uncompressed export, compressed export)."""
    config = Config(model=model, export=Export(kind="compressed"))
    estimator = build_estimator(config, clicks, f"{folder}/{model}")
    estimator.train(clicks.input_fn("train", 256), steps=20)
    plain = estimator.export_saved_model(f"{folder}/{model}/plain", clicks.receiver_fn())
    receiver = runner.receiver_fn(config, clicks)
    return plain, estimator.export_saved_model(f"{folder}/{model}/compressed", receiver)


def measure(
    model: str, clicks: data.MemoryDataSet, folder: str, items: int, rounds: int
) -> Dict[str, Any]:
    """Returns the figures of a model by name."""
    plain, compressed = exports(model, clicks, folder)
    flat, small = {}, {"item_size": np.array([items], np.int32)}
    for column in clicks.columns:
        is_item = column.role == "item"
        own = clicks.in_memory("train").features[column.name][: items if is_item else 1]
        flat[column.name] = own if is_item else np.repeat(own, items, axis=0)
        is_key = column.kind == "id" and own.ndim == 1
        small[column.name] = own[:, np.newaxis] if is_key else own
    calls = {"as written": _load(plain, flat), "compressed": _load(compressed, small)}
    written, answered = (call() for call in calls.values())
    for name in written:
        np.testing.assert_allclose(written[name], answered[name], rtol=1e-5, atol=1e-6)
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
    clicks = data.generate_clicks()
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models.MODELS:
            if hasattr(models.MODELS[model], "view"):
                continue  # Two towers have a user and her candidates already.
            points.append(measure(model, clicks, folder, args.items, args.rounds))
            print(points[-1], flush=True)
    sizes = {"rounds": args.rounds, "items": args.items}
    result_file.write(args.output, {**sizes, "points": points})


if __name__ == "__main__":
    main()
