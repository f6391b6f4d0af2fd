# SPDX-License-Identifier: Apache-2.0
"""Measures how a table of 50M rows compares with one of 1M, and so for a dense tf.Variable.

    python -m benchmarks.bench_table_sizes [--rounds 9] [--output FILE.json]

Batches, model and measurement are those of bench_table.py, with both of its key distributions. The
four systems, of both sizes, are processes of one run, which need 20 GB of memory together.

Columns: ms: a step, median. ratio: speed with 50M rows over that with 1M, median over the rounds,
with quartiles. A batch of ids that are drawn from more rows has more distinct ones.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict

import numpy as np

from benchmarks import bench_table, result_file
from benchmarks import rounds as rounds_lib

SIZES = (1_000_000, 50_000_000)
EXPONENTS = (1.1, 1.25)
SYSTEMS = ("rec_estimator", "dense")


def build(system: str, rows: int, exponent: float) -> Dict[str, Callable[[], Any]]:
    """Builds a system for rounds.alternate, in its own process."""
    return bench_table.build(system, rows, bench_table.zipf_batches(rows, exponent=exponent))


def _distinct_share(rows: int, exponent: float) -> float:
    batches = bench_table.zipf_batches(rows, exponent=exponent)
    return statistics.mean(len(np.unique(batch)) / batch.size for batch in batches)


def measure(exponent: float, rounds: int, steps: int) -> Dict[str, Any]:
    """Measures one key distribution, prints its table and returns the raw result."""
    seconds = rounds_lib.alternate(
        {
            f"{system}, {rows // 1_000_000}M": (build, (system, rows, exponent))
            for system in SYSTEMS
            for rows in SIZES
        },
        ("train", "lookup"),
        rounds,
        steps,
        with_cpu=True,
        # The initial values of a large variable take its memory twice.
        at_once=False,
    )
    shares = {rows: _distinct_share(rows, exponent) for rows in SIZES}
    print(f"\nexponent {exponent}, distinct: " + ", ".join(f"{s:.2f}" for s in shares.values()))
    print(f"{'':14}{'system':16}{'1M, ms':>10}{'50M, ms':>10}   ratio (quartiles)")
    ratios = {}
    for what, by_system in seconds.items():
        for system in SYSTEMS:
            small, large = (by_system[f"{system}, {rows // 1_000_000}M"] for rows in SIZES)
            ratio = rounds_lib.ratios(small, large)
            ratios[f"{what}/{system}"] = round(ratio.median, 3)
            times = "".join(f"{statistics.median(t) * 1e3:10.2f}" for t in (small, large))
            print(f"{what:14}{system:16}{times}   {ratio}")
    return {
        "exponent": exponent,
        "unique_share": {str(rows): round(share, 4) for rows, share in shares.items()},
        "seconds_per_step": result_file.quartiles(seconds),
        "ratios": ratios,
    }


def main() -> None:
    parser = result_file.parser(__doc__, rounds=9, steps=60)
    args = parser.parse_args()
    found = [measure(exponent, args.rounds, args.steps) for exponent in EXPONENTS]
    result = {
        "batch": [bench_table.BATCH, bench_table.FIELDS],
        "dim": bench_table.DIM,
        "optimizer": "Adagrad",
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "distributions": found,
    }
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
