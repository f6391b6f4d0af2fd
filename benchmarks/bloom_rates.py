# SPDX-License-Identifier: Apache-2.0
"""Computes and measures false positive rates of counting Bloom filters.

    python -m benchmarks.bloom_rates [--output benchmarks/results/bloom_rates.json]

First a filter without blocks, with m cells for n keys and k hashes: the computed rate (1 -
e^(-kn/m))^k, and the rate of a filter in NumPy. Then the filter of our tables, for several
requested rates: n keys are counted once; of n new keys, those that one occurrence admits at
filter_freq=2 are false positives. Last the same filter under eviction: every step counts new keys,
steps_to_live brings n of them, and the worst rate of ten lifetimes is taken. `make docs` writes all
three to docs/filters.md.
"""

import argparse
import math
import os
from typing import Any, Dict, List

# Read by TensorFlow when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import rounds as rounds_lib

CELLS_PER_KEY = (2, 4, 6, 8, 10, 12, 14, 16)
HASHES = (1, 2, 3, 4, 5, 6, 7, 8, 10)
PLAIN_KEYS = 100_000
OWN_KEYS = 1_000_000
OWN_RATES = (0.1, 0.01, 0.001)
CHURN_KEYS, STEPS_TO_LIVE, EVICT_STEPS, LIFETIMES = 200_000, 100, 10, 10


def computed_rate(cells_per_key: int, hashes: int) -> float:
    """Returns the computed rate of a Bloom filter without blocks."""
    return (1 - math.exp(-hashes / cells_per_key)) ** hashes


def measured_rate(cells_per_key: int, hashes: int) -> float:
    """Returns the measured rate of such a filter with PLAIN_KEYS keys, on as many new keys."""
    random = np.random.default_rng([cells_per_key, hashes])
    cells = cells_per_key * PLAIN_KEYS
    taken = np.zeros(cells, bool)
    taken[random.integers(0, cells, (PLAIN_KEYS, hashes))] = True
    return float(taken[random.integers(0, cells, (PLAIN_KEYS, hashes))].all(axis=1).mean())


class _Filter:
    """A table with a filter of two occurrences, in a session."""

    def __init__(self, max_element_size: int, rate: float, **options: Any) -> None:
        filter_option = rec.CBFFilter(2, max_element_size, rate)
        option = rec.EmbeddingVariableOption(filter_option=filter_option, **options)
        table = rec.get_embedding_variable("table", 1, ev_option=option)
        keys = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
        step = tf.train.get_or_create_global_step()
        update = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        admits = rec._ops.gen.rec_estimator_table_admits(table.handle, keys, counted_keys=[])
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        self.train = session.make_callable(update, [keys])
        self.admits = session.make_callable(admits, [keys])
        self.memory = session.make_callable(table.memory_bytes())
        if options:
            self.evict = session.make_callable(table.evict())


def own_rate(rate: float) -> Dict[str, float]:
    """Returns the rate of a table's filter at full load, and its memory."""
    with tf.Graph().as_default():
        own = _Filter(OWN_KEYS, rate)
        every = _distinct_keys()
        empty_bytes = own.memory()
        # Small batches: an apply makes room for as many entries as it has keys.
        for part in np.array_split(every[:OWN_KEYS], OWN_KEYS // 1000):
            own.train(part)
        full_bytes = own.memory() - empty_bytes
        measured = own.admits(every[OWN_KEYS:]).mean()
    return {
        "asked": rate,
        "hashes": math.ceil(abs(math.log2(rate))),
        "measured": round(float(measured), 6),
        "bytes_per_key": round(full_bytes / OWN_KEYS, 2),
    }


def churn_rate(rate: float) -> Dict[str, float]:
    """Returns the worst rate of a table's filter under eviction, and its memory."""
    with tf.Graph().as_default():
        own = _Filter(CHURN_KEYS, rate, evict_option=rec.GlobalStepEvict(STEPS_TO_LIVE))
        steps = LIFETIMES * STEPS_TO_LIVE
        every = _distinct_keys((LIFETIMES + 1) * CHURN_KEYS)
        new, unknown = np.split(every, [LIFETIMES * CHURN_KEYS])
        empty_bytes = own.memory()
        worst = 0.0
        for step, part in enumerate(np.array_split(new, steps), 1):
            own.train(part)
            if step % EVICT_STEPS == 0:
                worst = max(worst, float(own.admits(unknown).mean()))
                own.evict()
        full_bytes = own.memory() - empty_bytes
    return {
        "asked": rate,
        "worst": round(worst, 6),
        "bytes_per_key": round(full_bytes / CHURN_KEYS, 2),
    }


def _distinct_keys(n: int = 2 * OWN_KEYS) -> np.ndarray:
    # Odd multiples of an odd number, modulo 2**64: all distinct, spread over all of int64.
    steps = np.arange(n).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return steps.view(np.int64)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", metavar="FILE", help="where to write the results as JSON")
    options = parser.parse_args()
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    plain: List[Dict[str, float]] = []
    print("| m/n | " + " | ".join(f"k = {hashes}" for hashes in HASHES) + " |")
    print("|---|" + "---|" * len(HASHES))
    for cells in CELLS_PER_KEY:
        row = []
        for hashes in HASHES:
            rates = computed_rate(cells, hashes), measured_rate(cells, hashes)
            plain.append(
                {
                    "cells_per_key": cells,
                    "hashes": hashes,
                    "computed": round(rates[0], 6),
                    "measured": round(rates[1], 6),
                }
            )
            row.append(" / ".join(f"{rate:.2g}"[:7] for rate in rates))
        print(f"| {cells} | " + " | ".join(row) + " |")
    own = [own_rate(rate) for rate in OWN_RATES]
    print("\n| asked | k | measured | bytes a key |\n|---|---|---|---|")
    for one in own:
        print(
            f"| {one['asked']:g} | {one['hashes']} | {one['measured']:.3g} | "
            f"{one['bytes_per_key']:.1f} |"
        )
    churn = [churn_rate(rate) for rate in OWN_RATES]
    print("\n| asked | worst under eviction | bytes a key of a lifetime |\n|---|---|---|")
    for one in churn:
        print(f"| {one['asked']:g} | {one['worst']:.3g} | {one['bytes_per_key']:.1f} |")
    result = {
        **rounds_lib.provenance(),
        "plain_keys": PLAIN_KEYS,
        "plain": plain,
        "own_keys": OWN_KEYS,
        "own": own,
        "churn_keys": CHURN_KEYS,
        "churn": churn,
    }
    rounds_lib.write(options.output, result)


if __name__ == "__main__":
    main()
