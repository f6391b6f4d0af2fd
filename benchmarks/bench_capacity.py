# SPDX-License-Identifier: Apache-2.0
"""Measures a full table: what a step costs, and how often it finds the rows of its ids.

    python -m benchmarks.bench_capacity [--rounds 9] [--output FILE.json]

Cost: train steps of 4096 x 26 ids, rows of 16 floats, Adagrad, Zipf as in bench_table.py, every
batch new. Two sizes: a table that keeps 1 M rows of 5 M ids, and one that keeps 200,000 of 1 M.
Tables with each policy take turns (rounds.py) with two that have no limit: "all" has the rows of
all ids from the beginning, and "grows" has as many rows as the full ones at first. "CPU": by CPU
time of all threads. "new": the part of a step's distinct ids that have no row, which a step of a
full table makes and evicts as many.

Hits: the share of occurrences whose id has a row, over 400 steps of 2000 ids on a table of 20,000
rows, against a cache in Python that evicts, after each step, the coldest rows of the whole table.
"Zipf": p(rank) ~ rank^-1.1. "drifting": the same, and each step 10 ids come into fashion.

Memory: the bytes of the table after 10,000 and 100,000 steps in which 100 new ids replace old ones.
"""

from __future__ import annotations

import heapq
import math
import statistics
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import BATCH, DIM, FIELDS, LEARNING_RATE, ZIPF_Q, ZIPF_S

# Rows that a full table keeps, of so many ids.
SIZES = {"1M of 5M": (1_000_000, 5_000_000), "200k of 1M": (200_000, 1_000_000)}
POLICIES = ("lfu", "lru", "lfu_decay")
_UNLIMITED = ("all", "grows")
_HALF_LIFE = 100
_WARM_UP = 10
_STEPS_BEFORE = 60
_SMALL, _STEPS, _IDS_A_STEP, _DRIFT = 20_000, 400, 2000, 10
_LONG = 100_000


class _Trainer:
    """A table and its train step, which is fed keys [n]."""

    def __init__(self, max_rows: int, policy: str) -> None:
        import tensorflow.compat.v1 as tf

        import rec_estimator as rec

        half_life = _HALF_LIFE if policy == "lfu_decay" else None
        capacity = None if policy in _UNLIMITED else rec.Capacity(max_rows, policy, half_life)
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


def _filled(policy: str, size: str) -> _Trainer:
    """A table with the rows that it has before the first step: all, or as many as it keeps."""
    max_rows, ids = SIZES[size]
    trainer = _Trainer(max_rows, policy)
    number = ids if policy == "all" else max_rows
    for part in np.array_split(np.random.default_rng(0).permutation(ids)[:number], 20):
        trainer.step(part)
    return trainer


def _build(policy: str, size: str, steps: int) -> Dict[str, Callable[[], Any]]:
    trainer = _filled(policy, size)
    turn = iter(list(_zipf_batches(size, steps + _WARM_UP)))
    for _ in range(_WARM_UP):
        trainer.step(next(turn))
    return {"step": lambda: trainer.step(next(turn))}


def _new(policy: str, size: str) -> float:
    """The part of a step's distinct ids without a row, in steps like those that are timed."""
    trainer, parts = _filled(policy, size), []
    for step, batch in enumerate(_zipf_batches(size, _STEPS_BEFORE + 10)):
        if step >= _STEPS_BEFORE:
            distinct = np.unique(batch)
            parts.append(1 - int(trainer.hits(distinct)) / len(distinct))
        trainer.step(batch)
    return round(statistics.mean(parts), 4)


def _zipf_batches(size: str, number: int) -> Iterator[np.ndarray]:
    """Batches int64 [BATCH * FIELDS] of one distribution."""
    _, n = SIZES[size]
    ids = np.random.default_rng(1).permutation(n)
    cumulative = np.cumsum((np.arange(1, n + 1) + ZIPF_Q) ** -ZIPF_S)
    for seed in range(number):
        draws = np.random.default_rng([2, seed]).random(BATCH * FIELDS) * cumulative[-1]
        yield ids[np.minimum(np.searchsorted(cumulative, draws), n - 1)].astype(np.int64)


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
        others = (
            (*_coldness(policy, row[0], row[1], step), key)
            for key, row in rows.items()
            if row[1] < step
        )
        for *_, key in heapq.nsmallest(excess, others):
            del rows[key]
    return hits / (_STEPS * _IDS_A_STEP)


def _coldness(policy: str, count: int, version: int, step: int) -> Tuple[float, float]:
    """The rows with the least are evicted first."""
    if policy == "lru":
        return version, count
    if policy == "lfu_decay":
        return math.log2(count + 1) - (step - version) / _HALF_LIFE, version
    return count, version


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


def _costs(size: str, rounds: int, steps: int) -> Dict[str, Any]:
    """Times of a step, their ratios to those of both tables without a limit, and new ids."""
    systems = (*_UNLIMITED, *POLICIES)
    seconds = rounds_lib.alternate(
        {name: (_build, (name, size, rounds * steps)) for name in systems},
        ("step",),
        rounds,
        steps,
        with_cpu=True,
    )
    print(f"\ntrain step, {BATCH} x {FIELDS} keys, dim {DIM}, {size} rows")
    cost: Dict[str, Dict[str, Dict[str, float]]] = {}
    for what, times in seconds.items():
        cost[what] = {base: {} for base in _UNLIMITED}
        for name in systems:
            found = [rounds_lib.ratios(times[name], times[base]) for base in _UNLIMITED]
            for base, ratio in zip(_UNLIMITED, found):
                cost[what][base][name] = round(ratio.median, 3)
            print(f"{what:11}{name:10}{1e3 * statistics.median(times[name]):8.2f} ms", *found)
    new = {name: rounds_lib.in_process(_new, name, size) for name in POLICIES}
    print(f"distinct ids without a row: {new}")
    return {"seconds_per_step": result_file.quartiles(seconds), "cost": cost, "new": new}


def main() -> None:
    parser = result_file.parser(__doc__, rounds=9, steps=10)
    args = parser.parse_args()
    sizes = {size: _costs(size, args.rounds, args.steps) for size in SIZES}
    hits = {}
    for name, drift in (("Zipf", 0), ("drifting", _DRIFT)):
        for policy in POLICIES:
            found = rounds_lib.in_process(_hits, policy, drift)
            hits[f"{name}/{policy}"] = found
            print(f"{name:10}{policy:10} hits {found['table']:.4f}, cache {found['cache']:.4f}")
    memory = {policy: rounds_lib.in_process(_memory, policy) for policy in POLICIES}
    print(f"bytes of a table after so many steps: {memory}")
    result_file.write(
        args.output,
        {
            "batch": [BATCH, FIELDS],
            "dim": DIM,
            "half_life": _HALF_LIFE,
            "rounds": args.rounds,
            "steps_per_round": args.steps,
            "sizes": sizes,
            "hits": hits,
            "memory": memory,
        },
    )


if __name__ == "__main__":
    main()
