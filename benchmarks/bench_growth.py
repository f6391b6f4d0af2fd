# SPDX-License-Identifier: Apache-2.0
"""Measures each step of a training that brings only new keys, and what page faults cost it.

    python -m benchmarks.bench_growth [--rows 20000000] [--output FILE.json] [--plot FILE.png]

A table of dim 16 with Adagrad's slot grows from 0 rows, 100,000 new keys a step. "new memory" is
the first table of the process. "kept memory" is the same table after it was emptied: its rows come
back into the memory that the process has kept, so no page of them is new.

A step is measured by getrusage: CPU time of the process, its part in the kernel, and page faults.
Wall time would show the other work of the machine. Columns: CPU microseconds a key in the median
and in the slowest step, and their ratio, which is to stay below 5.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks import rounds as rounds_lib

DIM = 16
STEP = 100_000  # keys


def _used() -> Tuple[float, float, int]:
    """Returns the CPU seconds of this process, those in the kernel, and its page faults."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_stime, usage.ru_minflt


def _build() -> Tuple[Callable[[], None], Callable[[np.ndarray], None]]:
    """Returns (empty the table, train keys)."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    tf.disable_eager_execution()
    table = rec.get_embedding_variable("table", DIM)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.AdagradOptimizer(0.01).minimize(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())

    def train_keys(batch: np.ndarray) -> None:
        session.run(train, {keys: batch})

    # Threads and buffers of TensorFlow are there before the first measured step.
    train_keys(np.arange(STEP))
    return lambda: session.run(table.initializer), train_keys


def measure(rows: int) -> Dict[str, Dict[str, List[float]]]:
    """Returns {memory: {"cpu": [seconds of a step], "kernel": [seconds], "faults": [number]}}."""
    empty, train_keys = _build()
    measured: Dict[str, Dict[str, List[float]]] = {}
    for memory in ("new memory", "kept memory"):
        empty()
        steps: Dict[str, List[float]] = {"cpu": [], "kernel": [], "faults": []}
        for begin in range(1, rows, STEP):
            # Spread like hashed strings.
            keys = np.arange(begin, begin + STEP, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            before = _used()
            train_keys(keys.astype(np.int64))
            for what, start, end in zip(steps, before, _used()):
                steps[what].append(round(end - start, 6))
        measured[memory] = steps
    return measured


def slowest(cpu: List[float]) -> float:
    """Returns the CPU time of the slowest step over that of the median step."""
    return max(cpu) / statistics.median(cpu)


def report(measured: Dict[str, Dict[str, List[float]]], rows: int) -> None:
    """Prints the table."""
    print(f"{rows:,} rows, dim {DIM}, Adagrad, {STEP:,} new keys a step; CPU time")
    print(f"{'':12}{'us a key':>10}{'slowest':>9}{'ratio':>7}{'in kernel':>11}{'faults':>9}")
    for memory, steps in measured.items():
        scale = 1e6 / STEP
        print(
            f"{memory:12}{statistics.median(steps['cpu']) * scale:10.3f}"
            f"{max(steps['cpu']) * scale:9.3f}{slowest(steps['cpu']):7.1f}"
            f"{sum(steps['kernel']) / sum(steps['cpu']):11.0%}{sum(steps['faults']):9.0f}"
        )


def plot(result: Dict[str, Any], path: str) -> None:
    """Draws a raw result: CPU time of each step over the rows, its median and five times that."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3))
    for (memory, steps), color in zip(result["steps"].items(), ("tab:orange", "tab:blue")):
        times = [1e3 * seconds for seconds in steps["cpu"]]
        rows = [result["keys_a_step"] * (i + 1) / 1e6 for i in range(len(times))]
        axes.plot(rows, times, ".", markersize=3, color=color, label=memory)
        median = statistics.median(times)
        axes.axhline(median, color=color, linewidth=1)
        axes.axhline(5 * median, color=color, linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("million rows in the table")
    axes.set_ylabel(f"CPU ms a step of {result['keys_a_step']:,} keys")
    axes.legend(title="lines: median, 5 medians", fontsize=8, title_fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--output", help="file for the raw result, JSON")
    parser.add_argument("--plot", help="file for a picture, PNG; takes matplotlib")
    parser.add_argument("--only_plot", action="store_true", help="draw what --output holds")
    args = parser.parse_args()
    if args.only_plot:
        with open(args.output) as file:
            plot(json.load(file), args.plot)
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    measured = measure(args.rows)
    report(measured, args.rows)
    result = {
        **rounds_lib.provenance(),
        "rows": args.rows,
        "dim": DIM,
        "optimizer": "Adagrad",
        "keys_a_step": STEP,
        "load_average": os.getloadavg()[0],
        "slowest_over_median": {
            memory: round(slowest(steps["cpu"]), 2) for memory, steps in measured.items()
        },
        "steps": measured,
    }
    if args.plot:
        plot(result, args.plot)
    rounds_lib.write(args.output, result)


if __name__ == "__main__":
    main()
