# SPDX-License-Identifier: Apache-2.0
"""Measures a full table: what a step costs, and how often it finds the rows of its ids.

    python -m benchmarks.bench_capacity [--rounds 9] [--output FILE.json]

Cost: train steps of 4096 x 26 ids, rows of 16 floats, Adagrad, Zipf over 5 M ids as in
bench_table.py, every batch new. A table that keeps 1 M rows takes turns with one without a limit
(rounds.py), which has the same rows at first and grows. "CPU": by CPU time of all threads.

Hits: the share of occurrences whose id has a row, over 400 steps of 2000 ids on a table of 20,000
rows, against a cache in Python that evicts, after each step, the coldest rows of the whole table.
"Zipf": p(rank) ~ rank^-1.1. "drifting": the same, and each step 10 ids come into fashion.

Memory: the bytes of the table after 10,000 and 100,000 steps in which 100 new ids replace old ones.
"""

from __future__ import annotations

import heapq
import statistics
from typing import Any, Callable, Dict, Iterator, List

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import BATCH, DIM, FIELDS, LEARNING_RATE, ZIPF_Q, ZIPF_S

CAPACITY, IDS = 1_000_000, 5_000_000
_WARM_UP = 10
_SMALL, _STEPS, _IDS_A_STEP, _DRIFT = 20_000, 400, 2000, 10
_LONG = 100_000
_POLICIES = ("lfu", "lru")


class _Trainer:
    """A table and its train step, which is fed keys [n]."""

    def __init__(self, max_rows: int, policy: str) -> None:
        import tensorflow.compat.v1 as tf

        import rec_estimator as rec

        capacity = None if policy == "none" else rec.Capacity(max_rows, policy)
        step = tf.train.get_or_create_global_step()
        self.table = rec.get_embedding_variable(
            "table", DIM, ev_option=rec.EmbeddingVariableOption(capacity=capacity)
        )
        keys = tf.placeholder(tf.int64, [None])
        values = rec.embedding_lookup(self.table, keys)
        optimizer = rec.optimizers.AdagradOptimizer(LEARNING_RATE)
        train = optimizer.minimize(tf.reduce_sum(values * 0.01), step)
        owned = tf.reduce_sum(tf.cast(self.table.get_version(keys) >= 0, tf.int64))
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())
        self.step = self.session.make_callable(tf.group(train, values), [keys])
        self.hits = self.session.make_callable(owned, [keys])
        self.stats = self.session.make_callable([self.table.size(), self.table.memory_bytes()])


def _build(policy: str, steps: int) -> Dict[str, Callable[[], Any]]:
    trainer = _Trainer(CAPACITY, policy)
    for part in np.array_split(np.random.default_rng(0).permutation(IDS)[:CAPACITY], 20):
        trainer.step(part)
    turn = iter(list(_zipf_batches(steps + _WARM_UP)))
    for _ in range(_WARM_UP):
        trainer.step(next(turn))
    return {"step": lambda: trainer.step(next(turn))}


def _zipf_batches(number: int) -> Iterator[np.ndarray]:
    """Batches int64 [BATCH * FIELDS] of one distribution."""
    ids = np.random.default_rng(1).permutation(IDS)
    cumulative = np.cumsum((np.arange(1, IDS + 1) + ZIPF_Q) ** -ZIPF_S)
    for seed in range(number):
        draws = np.random.default_rng([2, seed]).random(BATCH * FIELDS) * cumulative[-1]
        yield ids[np.minimum(np.searchsorted(cumulative, draws), IDS - 1)].astype(np.int64)


def _stream(drift: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(11)
    for step in range(_STEPS):
        yield rng.zipf(1.1, _IDS_A_STEP) % 10_000_000 + step * drift


def _cache_hits(policy: str, drift: int) -> float:
    """The hit rate of the cache that looks at all of its rows."""
    rows: Dict[int, List[int]] = {}  # Count and version.
    hits = 0
    for step, batch in enumerate(_stream(drift)):
        hits += sum(key in rows for key in batch.tolist())
        for key in batch.tolist():
            row = rows.setdefault(key, [0, step])
            row[0], row[1] = row[0] + 1, step
        excess = max(len(rows) - _SMALL, 0)
        place = 1 if policy == "lru" else 0
        others = ((row[place], row[1 - place], key) for key, row in rows.items() if row[1] < step)
        for *_, key in heapq.nsmallest(excess, others):
            del rows[key]
    return hits / (_STEPS * _IDS_A_STEP)


def _hits(policy: str, drift: int) -> Dict[str, float]:
    trainer = _Trainer(_SMALL, policy)
    hits = 0
    for batch in _stream(drift):
        hits += int(trainer.hits(batch))
        trainer.step(batch)
    found, best = hits / (_STEPS * _IDS_A_STEP), _cache_hits(policy, drift)
    return {"table": round(found, 4), "cache": round(best, 4)}


def _memory(policy: str) -> Dict[str, Any]:
    """The bytes of a table after two numbers of steps in which all ids drift, and their ratio."""
    trainer, rng = _Trainer(_SMALL, policy), np.random.default_rng(12)
    found: Dict[str, Any] = {}
    for step in range(1, _LONG + 1):
        trainer.step(step * 100 + rng.integers(0, 10_000, 500))
        if step in (_LONG // 10, _LONG):
            found[str(step)] = int(trainer.stats()[1])
    return {**found, "growth": round(found[str(_LONG)] / found[str(_LONG // 10)], 3)}


def main() -> None:
    parser = result_file.parser(__doc__, rounds=9, steps=10)
    args = parser.parse_args()
    systems = ("none", *_POLICIES)
    seconds = rounds_lib.alternate(
        {name: (_build, (name, args.rounds * args.steps)) for name in systems},
        ("step",),
        args.rounds,
        args.steps,
        with_cpu=True,
    )
    cost: Dict[str, Dict[str, float]] = {}
    print(f"\ntrain step, {BATCH} x {FIELDS} keys, dim {DIM}, {CAPACITY:,} rows")
    for what, times in seconds.items():
        cost[what] = {}
        for name in systems:
            ratio = rounds_lib.ratios(times[name], times["none"])
            cost[what][name] = round(ratio.median, 3)
            print(f"{what:11}{name:6}{1e3 * statistics.median(times[name]):8.2f} ms   {ratio}")
    hits = {}
    for name, drift in (("Zipf", 0), ("drifting", _DRIFT)):
        for policy in _POLICIES:
            found = rounds_lib.in_process(_hits, policy, drift)
            hits[f"{name}/{policy}"] = found
            print(f"{name:10}{policy:5} hits {found['table']:.4f}, cache {found['cache']:.4f}")
    memory = {policy: rounds_lib.in_process(_memory, policy) for policy in _POLICIES}
    print(f"bytes of a table after so many steps: {memory}")
    result_file.write(
        args.output,
        {
            "batch": [BATCH, FIELDS],
            "dim": DIM,
            "capacity": CAPACITY,
            "ids": IDS,
            "rounds": args.rounds,
            "steps_per_round": args.steps,
            "seconds_per_step": result_file.quartiles(seconds),
            "cost": cost,
            "hits": hits,
            "memory": memory,
        },
    )


if __name__ == "__main__":
    main()
