# SPDX-License-Identifier: Apache-2.0
"""Measures lookups that combine rows, in an op for each thread, against ops of their own.

    python -m benchmarks.bench_group_lookup [--tables 2 26 200] [--keys 1 100 1000 10000 100000]
        [--processes 5] [--rounds 7] [--output FILE.json]

A step fuses such lookups, whether they are a group or not, unless graph passes are off
(docs/decisions.md). Each example has one key of each table, of which the small ones are frequent.
Both run in one process, in turn, and that in several processes one after the other: from one to the
next, ratios of small lookups differ by more than within one. The figures are the median ratios of
time and of CPU time of the process over all rounds, group over single.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

DIM = 4
ROWS = 100_000
# Keys of a round at least: a call of a few keys is too short for the clock. If large ones were few,
# the first calls would count, which get new memory from the kernel: what the other way has freed
# is elsewhere, or went back to it.
KEYS_OF_A_ROUND = 50_000_000
MOST_CALLS = 200
WARM_UP = 5  # Calls of a round before those that are timed.

# Seconds of a call in each round, by way.
Timings = Dict[str, List[float]]


def _build(tables: int, keys: int) -> Dict[str, Callable[[], Any]]:
    """By name, what runs all lookups in one session: "group" and "single"."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    embeddings = [rec.get_embedding_variable(f"table_{i}", DIM) for i in range(tables)]
    ids = [
        tf.get_variable(
            f"ids_{i}",
            initializer=tf.cast(tf.random.uniform([keys]) ** 3 * ROWS, tf.int64),
            trainable=False,
            use_resource=True,
        )
        for i in range(tables)
    ]
    indices = tf.stack([tf.range(keys, dtype=tf.int64), tf.zeros([keys], tf.int64)], axis=1)
    sparse = [tf.SparseTensor(indices, each.value(), [keys, 1]) for each in ids]
    values = {
        "group": rec.group_embedding_lookup_sparse(embeddings, sparse, ["mean"] * tables),
        "single": [
            rec.embedding_lookup_sparse(*each, combiner="mean") for each in zip(embeddings, sparse)
        ],
    }
    # As in a model, all values live at the same time.
    is_key = sparse[0].values[0] >= 0
    reads = {name: tf.raw_ops.Assert(condition=is_key, data=each) for name, each in values.items()}
    loss = tf.add_n([tf.reduce_sum(each) for each in values["single"]])
    # So that the keys have rows.
    fill = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    levels = {"group": tf.OptimizerOptions.L1, "single": tf.OptimizerOptions.L0}
    runs = {}
    for name, read in reads.items():
        # L0 turns our passes off. TensorFlow's own, which L1 turns on, compute the indices once.
        options = tf.OptimizerOptions(
            opt_level=levels[name],
            do_constant_folding=True,
            do_common_subexpression_elimination=True,
        )
        session = tf.Session(
            config=tf.ConfigProto(graph_options=tf.GraphOptions(optimizer_options=options))
        )
        session.run(tf.global_variables_initializer())
        session.run(fill)
        runs[name] = session.make_callable(read)
    return runs


def _run(tables: int, keys: int, rounds: int, calls: int) -> Tuple[Timings, Timings]:
    """Runs both ways in turn; returns their time and their CPU time."""
    return rounds_lib.take_turns(_build(tables, keys), rounds, calls, WARM_UP)


def measure(tables: int, keys: int, processes: int, rounds: int) -> Dict[str, Any]:
    """Prints and returns the figures of one number of tables and of keys a table."""
    calls = min(max(1, KEYS_OF_A_ROUND // (tables * keys)), MOST_CALLS)
    wall: Timings = {}
    cpu: Timings = {}
    for _ in range(processes):
        found = rounds_lib.in_process(_run, tables, keys, rounds, calls)
        for times, of_process in zip((wall, cpu), found):
            for name, seconds in of_process.items():
                times.setdefault(name, []).extend(seconds)
    ratios = {
        name: rounds_lib.ratios(times["group"], times["single"])
        for name, times in (("time", wall), ("CPU time", cpu))
    }
    print(
        f"{tables:4} tables, {keys:7,} keys: "
        + ", ".join(f"{name} {ratio}" for name, ratio in ratios.items()),
        flush=True,
    )
    return {
        "tables": tables,
        "keys": keys,
        "calls_per_round": calls,
        "seconds": result_file.quartiles(wall),
        "cpu_seconds": result_file.quartiles(cpu),
        "group_over_single": {name: round(ratio.median, 3) for name, ratio in ratios.items()},
    }


def main() -> None:
    parser = result_file.parser(__doc__, processes=5, rounds=7)
    parser.add_argument("--tables", type=int, nargs="+", default=[2, 26, 200])
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 100, 1000, 10_000, 100_000])
    args = parser.parse_args()
    results = [
        measure(tables, keys, args.processes, args.rounds)
        for tables in args.tables
        for keys in args.keys
    ]
    result_file.write(args.output, {"dim": DIM, "rows": ROWS, "results": results})


if __name__ == "__main__":
    main()
