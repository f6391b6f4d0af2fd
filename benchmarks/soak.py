# SPDX-License-Identifier: Apache-2.0
"""Trains tables under churn for many steps and checks that memory and checkpoints stay level.

    python -m benchmarks.soak [--steps 100000] [--output FILE.json] [case ...]

Each case is a table with a filter and an eviction rule, in its own process. New keys come at a
constant rate. Half of them occur a second time, and CounterFilter(2) and CBFFilter(2, ...) admit
those. Training saves a full checkpoint every 250 steps and a delta every 50 steps; every full save
evicts. GlobalStepEvict(500) keeps the keys of 500 to 750 steps; L2WeightEvict here evicts all rows.
It keeps the counts of many keys without a row if there is a CounterFilter, so with that every key
occurs twice (a CBFFilter forgets them by itself). max_element_size is the number of keys that 500
steps bring.

The live set is complete after 5 % of the steps, or 2,000 if that is more. From then on, the
resident set must stay within 3 % of the middle of its range. Entries and bytes of a full checkpoint
go up and down with the evictions; their maximum in the second half of that time must be at most 3 %
above that in the first half. A case that fails makes the program fail.
"""

from __future__ import annotations

import glob
import itertools
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Dict, Iterator, List

import numpy as np

from benchmarks import criteo_ids, result_file, rounds

if TYPE_CHECKING:
    from rec_estimator.options import EvictionRule

NEW_KEYS = 300  # A step.
AGAIN_AFTER = 3  # Steps to the second occurrence.
STEPS_TO_LIVE = 500
FULL_SAVE, DELTA = 250, 50  # Steps.
DIM = 8
FILTERS = ("none", "counter", "bloom")
EVICTIONS = ("steps", "values")
CASES = [f"{a}-{b}" for a, b in itertools.product(FILTERS, EVICTIONS)]
LIMIT = 0.03
MOST_READINGS = 50  # In a result.


def batches(all_twice: bool) -> Iterator[np.ndarray]:
    """Yields the keys of each step: new ones, and those that occur a second time.

    Args:
      all_twice: Whether all keys occur twice. If not, every second one does.
    """
    number = 0
    while True:
        new = np.arange(number, number + NEW_KEYS)
        again = new - AGAIN_AFTER * NEW_KEYS
        if not all_twice:
            again = again[::2]
        yield criteo_ids.scattered(np.concatenate([new, again[again >= 0]]))
        number += NEW_KEYS


def deviation(values: List[float]) -> float:
    """Returns half the range of values, relative to its middle."""
    low, high = min(values), max(values)
    return (high - low) / (high + low) if high else 0.0


def train(case: str, steps: int, folder: str) -> Dict[str, List[float]]:
    """Trains one case.

    Args:
      case: One of CASES.
      steps: Number of steps.
      folder: The folder of the checkpoints.

    Returns:
      Readings at each full save: "step", "resident" in bytes, "rows", "entries" of rows and
      filtered keys, "table" in bytes, "checkpoint" in bytes.
    """
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    filter_name, eviction = case.split("-")
    life_keys = NEW_KEYS * STEPS_TO_LIVE
    rule: EvictionRule = rec.GlobalStepEvict(STEPS_TO_LIVE)
    if eviction == "values":
        rule = rec.L2WeightEvict(1e9)
    filters = {
        "none": None,
        "counter": rec.CounterFilter(2),
        "bloom": rec.CBFFilter(2, life_keys, 0.01),
    }
    option = rec.EmbeddingVariableOption(filter_option=filters[filter_name], evict_option=rule)
    readings: Dict[str, List[float]] = {
        name: [] for name in ("step", "resident", "rows", "entries", "table", "checkpoint")
    }
    stream = batches(all_twice=case == "counter-values")
    with tf.Graph().as_default(), tf.Session() as session:
        table = rec.get_embedding_variable("table", DIM, ev_option=option)
        keys = tf.placeholder(tf.int64, [None])
        global_step = tf.train.get_or_create_global_step()
        loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
        update = rec.optimizers.AdagradOptimizer(0.01).minimize(loss, global_step=global_step)
        stats = table.size(), table.total_count()[0], table.memory_bytes()
        saver = rec.Saver(incremental=True, max_to_keep=2)
        session.run(tf.global_variables_initializer())
        tf.get_default_graph().finalize()
        for step in range(1, steps + 1):
            session.run(update, {keys: next(stream)})
            if step % DELTA:
                continue
            is_full = step % FULL_SAVE == 0
            prefix = saver.save(
                session, f"{folder}/model", step, write_meta_graph=False, full=is_full
            )
            if not is_full:
                continue
            rows, entries, table_bytes = session.run(stats)
            readings["step"].append(step)
            readings["resident"].append(rounds.resident_bytes())
            readings["rows"].append(int(rows))
            readings["entries"].append(int(entries))
            readings["table"].append(int(table_bytes))
            files = glob.glob(f"{prefix}.*")
            readings["checkpoint"].append(sum(os.path.getsize(file) for file in files))
    return readings


def growth(values: List[float]) -> float:
    """Returns the maximum of the second half relative to that of the first half, minus 1."""
    half = len(values) // 2
    # A table whose rows were all evicted has no entries.
    return max(values[half:]) / max(1, *values[:half]) - 1 if any(values) else 0.0


def judge(readings: Dict[str, List[float]], steps: int) -> Dict[str, float]:
    """Returns by name what must be at most LIMIT, once the live set is complete."""
    settled = max(steps // 20, 4 * STEPS_TO_LIVE)
    first = next(i for i, step in enumerate(readings["step"]) if step > settled)
    return {
        "deviation of resident": deviation(readings["resident"][first:]),
        "growth of entries": growth(readings["entries"][first:]),
        "growth of checkpoint": growth(readings["checkpoint"][first:]),
    }


def _train_in_a_folder(case: str, steps: int) -> Dict[str, List[float]]:
    with tempfile.TemporaryDirectory() as folder:
        return train(case, steps, folder)


def thinned(readings: Dict[str, List[float]]) -> Dict[str, List[float]]:
    """At most MOST_READINGS of each kind, with the last one."""
    every = -(-len(readings["step"]) // MOST_READINGS)
    return {name: values[::-1][::every][::-1] for name, values in readings.items()}


def main() -> int:
    parser = result_file.parser(__doc__, steps=100_000)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}")
    args = parser.parse_args()
    results: Dict[str, Any] = {}
    failed = []
    print(f"{'case':16}{'rows':>10}{'entries':>10}{'table MB':>10}{'RSS MB':>9}")
    for case in args.cases or CASES:
        readings = rounds.in_process(_train_in_a_folder, case, args.steps)
        found = judge(readings, args.steps)
        results[case] = {"readings": thinned(readings), **found}
        parts = ", ".join(f"{k} {v:.1%}" for k, v in found.items())
        last = {name: values[-1] for name, values in readings.items()}
        print(
            f"{case:16}{last['rows']:10,}{last['entries']:10,}{last['table'] / 1e6:10.1f}"
            f"{last['resident'] / 1e6:9.1f}   {parts}",
            flush=True,
        )
        failed += [f"{case}: {k}" for k, v in found.items() if v > LIMIT]
    parameters = {"steps": args.steps, "new_keys": NEW_KEYS, "steps_to_live": STEPS_TO_LIVE}
    result_file.write(args.output, {**parameters, "cases": results})
    print("\n".join(f"not level: {each}" for each in failed) or "level")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
