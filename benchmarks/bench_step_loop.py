# SPDX-License-Identifier: Apache-2.0
"""Measures a small model with several training steps in one session.run.

    python -m benchmarks.bench_step_loop [--rounds 15] [--output FILE.json]

The step of the model takes less than 0.3 ms: batches of 64 ids, a table of 1000 rows of 8 floats,
one dense layer, Adagrad. The input is a dataset of tensors in memory. RecEstimator trains the
model, with all hooks, with RunConfig(iterations_per_loop=N). The speed-up is relative to N = 1,
median over the rounds, with quartiles. rounds.py describes the measurement.
"""

from __future__ import annotations

import statistics
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Dict, List

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec


BATCH, KEYS, DIM = 64, 1000, 8
ITERATIONS = (1, 10, 50, 200)
STEPS = 2000  # a round


def _input_fn() -> tf.data.Dataset:
    import tensorflow.compat.v1 as tf

    rng = np.random.default_rng(0)
    ids = rng.integers(0, KEYS, [64, BATCH])
    labels = rng.random([64, BATCH]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"id": ids}, labels)).repeat().prefetch(8)


def _model_fn(features: Dict[str, tf.Tensor], labels: tf.Tensor, mode: str) -> rec.EstimatorSpec:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    kernel = tf.get_variable("kernel", [DIM, 1])
    logits = tf.matmul(features["id"], kernel)[:, 0]
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def _system(iterations: int) -> Dict[str, Callable[[], Any]]:
    """Builds a system for rounds.alternate, in its own process: steps of a running training."""
    import queue
    import threading

    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    wanted: queue.Queue[int] = queue.Queue()
    done: queue.Queue[bool] = queue.Queue()

    class Turns(tf.train.SessionRunHook):
        """Waits for a turn between two runs, and signals its end."""

        left = 0

        def before_run(self, run_context: Any) -> None:
            if not self.left:
                self.left = wanted.get()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.left -= iterations
            if not self.left:
                done.put(True)

    estimator = rec.RecEstimator(
        _model_fn,
        tempfile.mkdtemp(prefix="bench_step_loop-"),
        rec.RunConfig(iterations_per_loop=iterations, save_checkpoints_steps=10**9),
        embedding_features=[rec.EmbeddingFeature("id", dim=DIM)],
    )
    threading.Thread(
        target=estimator.train, args=(_input_fn,), kwargs={"hooks": [Turns()]}, daemon=True
    ).start()

    def turn(steps: int) -> None:
        wanted.put(steps)
        done.get()

    turn(400)  # The first runs prepare the graph.
    return {"steps": lambda: turn(STEPS)}


def report(seconds: Dict[str, List[float]], rounds: int) -> Dict[str, Any]:
    """Prints the table and returns the raw result."""
    print(f"\nbatch {BATCH}, dim {DIM}, Adagrad; {STEPS} steps a round")
    print(f"{'iterations_per_loop':20}{'us/step':>9}   speed-up (quartiles)")
    speed_up = {}
    for name, times in seconds.items():
        ratio = rounds_lib.ratios(seconds["1"], times)
        speed_up[name] = round(ratio.median, 3)
        print(f"{name:20}{statistics.median(times) * 1e6:9.1f}   {ratio}")
    return {
        "batch": BATCH,
        "dim": DIM,
        "rounds": rounds,
        "steps_per_round": STEPS,
        "seconds_per_step": result_file.quartiles(seconds),
        "speed_up": speed_up,
    }


def main() -> None:
    parser = result_file.parser(__doc__, rounds=15)
    args = parser.parse_args()
    systems = {str(n): (_system, (n,)) for n in ITERATIONS}
    turns = rounds_lib.alternate(systems, ["steps"], args.rounds, 1)["steps"]
    seconds = {name: [time / STEPS for time in times] for name, times in turns.items()}
    result = report(seconds, args.rounds)
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
