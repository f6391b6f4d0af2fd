# SPDX-License-Identifier: Apache-2.0
"""Measures each step of a training that brings only new keys, and what page faults cost it.

    python -m benchmarks.bench_growth [--rows 20000000] [--output FILE.json]

A table of dim 16 with Adagrad's slot grows from 0 rows, 100,000 new keys a step. "new memory" is
the first table of the process. "kept memory" is the same table after it was emptied: its rows come
back into the memory that the process has kept, so no page of them is new.

A step is measured by getrusage: CPU time of the process, its part in the kernel, and page faults.
Wall time would show the other work of the machine. Columns: CPU microseconds a key in the median
step; the slowest step over it, which is to stay below 5.
"""

from __future__ import annotations

import os
import resource
import statistics
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks import criteo_ids, result_file, rounds

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
            keys = criteo_ids.scattered(np.arange(begin, begin + STEP))
            before = _used()
            train_keys(keys)
            for what, start, end in zip(steps, before, _used()):
                steps[what].append(round(end - start, 6))
        measured[memory] = steps
    return measured


def summary(steps: Dict[str, List[float]]) -> Dict[str, Any]:
    """The figures of a measured table, and the CPU seconds of each step."""
    median = statistics.median(steps["cpu"])
    return {
        "us_a_key": 1e6 * median / STEP,
        "slowest_over_median": max(steps["cpu"]) / median,
        "in_the_kernel": sum(steps["kernel"]) / sum(steps["cpu"]),
        "page_faults": int(sum(steps["faults"])),
        "cpu_seconds": steps["cpu"],
    }


def main() -> None:
    parser = result_file.parser(__doc__, rows=20_000_000)
    args = parser.parse_args()
    rounds.start_tensorflow()
    measured = measure(args.rows)
    figures = {memory: summary(steps) for memory, steps in measured.items()}
    print(f"{args.rows:,} rows, dim {DIM}, Adagrad, {STEP:,} new keys a step; CPU time")
    print(f"{'':12}{'us a key':>10}{'slowest':>9}{'in kernel':>11}{'faults':>9}")
    for memory, one in figures.items():
        print(
            f"{memory:12}{one['us_a_key']:10.3f}{one['slowest_over_median']:9.1f}"
            f"{one['in_the_kernel']:11.0%}{one['page_faults']:9}"
        )
    result = {
        "rows": args.rows,
        "dim": DIM,
        "optimizer": "Adagrad",
        "keys_a_step": STEP,
        "load_average": os.getloadavg()[0],
        "steps": figures,
    }
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
