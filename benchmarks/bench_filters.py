# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a filter: time of a train step and memory per key.

    python -m benchmarks.bench_filters [--rounds 15] [--output FILE.json]

Train steps of 4096 x 26 keys, rows of 16 floats, Adagrad, filter_freq 3, against the same table
without a filter (rounds.py describes the measurement), with two workloads:

* known: every key of a batch owns a row; Zipf over 5 M rows as in bench_table.py.
* stream: keys distributed as in field C12 of the click log: p(rank) ~ (rank + 1.41)^-1.087 over
  1.36e9 ranks. Of 45.8 M draws, the number of rows of the log, 83 % of the distinct keys occur
  once. Every batch is new, after 60 batches of warm-up. Here a filter also saves work: without it
  every new key gets a row.

Memory: growth of the resident memory of a process over 10 M keys, each trained once, per key.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from benchmarks import criteo_ids, result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import BATCH, DIM, FIELDS, LEARNING_RATE, NUM_BATCHES, zipf_batches

if TYPE_CHECKING:
    from rec_estimator.options import Filter


FILTER_FREQ = 3
KNOWN_ROWS = 5_000_000
STREAM_S, STREAM_Q, STREAM_N = 1.087, 1.41, 1363342897  # Field C12 of the Criteo Kaggle log.
STREAM_WARM_UP = 60
MEMORY_KEYS = 10_000_000
_FILTERS = ("none", "counter", "bloom")


def stream_batch(number: int) -> np.ndarray:
    """The number-th batch of the stream, int64 [BATCH * FIELDS]."""
    uniform = np.random.default_rng([2, number]).random(BATCH * FIELDS)
    # By inversion of the continuous distribution.
    power = 1 - STREAM_S
    low, high = (1 + STREAM_Q) ** power, (STREAM_N + 1 + STREAM_Q) ** power
    ranks = (low + uniform * (high - low)) ** (1 / power) - STREAM_Q
    return criteo_ids.scattered(ranks)


def _filter(name: str, expected_keys: int) -> Optional[Filter]:
    import rec_estimator as rec

    if name == "counter":
        return rec.CounterFilter(FILTER_FREQ)
    if name == "bloom":
        return rec.CBFFilter(FILTER_FREQ, expected_keys, 0.01)
    return None


class _Trainer:
    """A table and its train step, which is fed keys [n]."""

    def __init__(self, filter_option: Optional[Filter]) -> None:
        import tensorflow.compat.v1 as tf

        import rec_estimator as rec

        table = rec.get_embedding_variable(
            "table",
            DIM,
            initializer=tf.random_uniform_initializer(-0.05, 0.05),
            ev_option=rec.EmbeddingVariableOption(filter_option=filter_option),
        )
        keys = tf.placeholder(tf.int64, [None])
        values = rec.embedding_lookup(table, keys)
        loss = tf.reduce_sum(values * 0.01)
        train = rec.optimizers.AdagradOptimizer(LEARNING_RATE).minimize(loss, var_list=[table])
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())
        self.step = self.session.make_callable(tf.group(train, values), [keys])
        self._stats = table.size(), table.total_count()[0], table.memory_bytes()

    def stats(self) -> List[int]:
        """Returns the number of rows, the number of keys, and the bytes of the table."""
        return [int(value) for value in self.session.run(self._stats)]


def _build(name: str, steps: int) -> Dict[str, Callable[[], Any]]:
    trainer = _Trainer(_filter(name, 20_000_000))
    known = [batch.reshape(-1) for batch in zipf_batches(KNOWN_ROWS)]
    for part in np.array_split(np.arange(KNOWN_ROWS), 20):
        for _ in range(FILTER_FREQ):
            trainer.step(part)
    for number in range(STREAM_WARM_UP):
        trainer.step(stream_batch(number))
    stream = [stream_batch(STREAM_WARM_UP + number) for number in range(steps)]
    turns = {"known": 0, "stream": 0}

    def run(what: str, batches: Sequence[np.ndarray]) -> None:
        trainer.step(batches[turns[what] % len(batches)])
        turns[what] += 1

    for _ in range(NUM_BATCHES):
        run("known", known)
    return {"known": lambda: run("known", known), "stream": lambda: run("stream", stream)}


def _memory(case: str) -> Dict[str, Any]:
    """Returns the bytes per key of one case; runs in its own process."""
    import rec_estimator as rec

    option = {
        "admitted": None,
        "not admitted, CounterFilter": rec.CounterFilter(FILTER_FREQ),
        "not admitted, CBFFilter of 10 M": rec.CBFFilter(FILTER_FREQ, MEMORY_KEYS, 0.01),
        "not admitted, CBFFilter of 2**30": rec.CBFFilter(FILTER_FREQ, 2**30, 0.01),
    }[case]
    trainer = _Trainer(option)
    parts = np.array_split(criteo_ids.scattered(np.arange(MEMORY_KEYS)), 100)
    trainer.step(parts[0])  # TensorFlow allocates its buffers before the first reading.
    before = rounds_lib.resident_bytes()
    for part in parts[1:]:
        trainer.step(part)
    grown = (rounds_lib.resident_bytes() - before) / (MEMORY_KEYS - len(parts[0]))
    rows, keys_in_table, table_bytes = trainer.stats()
    return {
        "bytes_per_key": round(grown, 1),
        "beyond_floats": round(grown - (8 * DIM if rows == MEMORY_KEYS else 0), 1),
        "rows": rows,
        "keys_in_table": keys_in_table,
        "table_bytes": table_bytes,
    }


def measure_memory() -> Dict[str, Dict[str, Any]]:
    """Returns the result of _memory for each case."""
    results = {}
    for case in (
        "admitted",
        "not admitted, CounterFilter",
        "not admitted, CBFFilter of 10 M",
        "not admitted, CBFFilter of 2**30",
    ):
        results[case] = rounds_lib.in_process(_memory, case)
        print(f"  {case:36}{results[case]['beyond_floats']:8.1f} bytes a key", flush=True)
    return results


def main() -> None:
    parser = result_file.parser(__doc__, rounds=15, steps=10)
    args = parser.parse_args()
    seconds = rounds_lib.alternate(
        {name: (_build, (name, args.rounds * args.steps)) for name in _FILTERS},
        ("known", "stream"),
        args.rounds,
        args.steps,
    )
    costs = {}
    print(f"\ntrain step, {BATCH} x {FIELDS} keys, dim {DIM}, Adagrad, filter_freq {FILTER_FREQ}")
    print(f"{'':8}{'filter':10}{'ms':>8}   time over none (quartiles)")
    for what, by_filter in seconds.items():
        for name, times in by_filter.items():
            line = f"{what:8}{name:10}{1e3 * statistics.median(times):8.2f}"
            if name != "none":
                ratio = rounds_lib.ratios(times, by_filter["none"])
                costs[f"{what}/{name}"] = round(ratio.median - 1, 3)
                line += f"   {ratio}"
            print(line)
    print(f"\nmemory, {MEMORY_KEYS:,} keys, beyond a row's floats")
    memory = measure_memory()
    result = {
        "batch": [BATCH, FIELDS],
        "dim": DIM,
        "optimizer": "Adagrad",
        "filter_freq": FILTER_FREQ,
        "known_rows": KNOWN_ROWS,
        "stream_zipf": {"s": STREAM_S, "q": STREAM_Q, "n": STREAM_N},
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "seconds_per_step": result_file.quartiles(seconds),
        "cost": costs,
        "memory_keys": MEMORY_KEYS,
        "memory": memory,
    }
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
