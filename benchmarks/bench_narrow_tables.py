# SPDX-License-Identifier: Apache-2.0
"""Measures tables of 16-bit vectors against float32: train steps, lookups and memory.

    python -m benchmarks.bench_narrow_tables [--tables 1000000x16 50000000x16 10000000x64]
        [--rounds 9] [--output FILE.json]

Batches, model and measurement are those of bench_table.py, with both of its key distributions. A
table is given by its rows and its dimension. A system is a type of vectors and the rule that trains
them; all of one table are processes of one run. Of a table with 10M rows or more, only the first
two are measured. With 50M rows of dim 16, they need 14 GB of memory together.

Columns: ms: a step, median. ratio: speed over that of float32 with Adagrad, median over the rounds,
with quartiles. The bytes of a row are the memory of the whole table, index included, over its rows.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks import bench_table, result_file
from benchmarks import rounds as rounds_lib

TABLES = ((1_000_000, 16), (50_000_000, 16), (10_000_000, 64))
EXPONENTS = (1.1, 1.25)
WHATS = ("train", "lookup")
# By name, the type of vectors and the rule. The others are compared with the first one.
SYSTEMS = {
    f"{value_dtype} + {rule}": (value_dtype, rule)
    for value_dtype, rule in (
        ("float32", "Adagrad"),
        ("bfloat16", "RowwiseAdagrad"),
        ("float16", "RowwiseAdagrad"),
        ("bfloat16", "Adagrad"),
    )
}
FIRST, NARROW, *_ = SYSTEMS
# With so many rows, not all systems are in memory at once.
_MANY_ROWS = 10_000_000


def systems_of(rows: int) -> List[str]:
    """The systems that are measured with tables of so many rows."""
    return list(SYSTEMS) if rows < _MANY_ROWS else [FIRST, NARROW]


def build(system: str, rows: int, dim: int, batches: np.ndarray) -> Dict[str, Callable[[], Any]]:
    """Builds a system for rounds.alternate, in its own process."""
    value_dtype, rule = SYSTEMS[system]
    run = bench_table.start(bench_table.table_system(rows, batches, rule, value_dtype, dim))
    return {**run, "ready": lambda: int(run["memory"]()) / rows}


def measure(rows: int, dim: int, exponent: float, rounds: int, steps: int) -> Dict[str, Any]:
    """Measures one table and key distribution, prints its figures and returns the raw result."""
    batches = bench_table.zipf_batches(rows, exponent=exponent)
    bytes_a_row: Dict[str, float] = {}
    seconds = rounds_lib.alternate(
        {system: (build, (system, rows, dim, batches)) for system in systems_of(rows)},
        WHATS,
        rounds,
        steps,
        with_cpu=True,
        said=bytes_a_row,
    )
    unique = statistics.mean(len(np.unique(batch)) / batch.size for batch in batches)
    print(f"\n{rows:,} rows of dim {dim}, exponent {exponent}, {unique:.2f} distinct")
    print(f"{'':14}{'system':28}{'ms':>8}   ratio (quartiles)")
    ratios: Dict[str, Dict[str, float]] = {}
    for what, by_system in seconds.items():
        for system, times in by_system.items():
            ratio = rounds_lib.ratios(by_system[FIRST], times)
            ratios.setdefault(what, {})[system] = round(ratio.median, 3)
            print(f"{what:14}{system:28}{statistics.median(times) * 1e3:8.2f}   {ratio}")
    return {
        "rows": rows,
        "dim": dim,
        "exponent": exponent,
        "unique_share": round(unique, 4),
        "bytes_a_row": bytes_a_row,
        "seconds_per_step": result_file.quartiles(seconds),
        "ratios": ratios,
    }


def rows_and_dim(text: str) -> Tuple[int, int]:
    """Reads a table of the command line.

    Example:
      >>> rows_and_dim("1000000x16")
      (1000000, 16)
    """
    rows, dim = map(int, text.split("x"))
    return rows, dim


def main() -> None:
    parser = result_file.parser(__doc__, rounds=9, steps=60)
    parser.add_argument("--tables", type=rows_and_dim, nargs="+", default=TABLES)
    parser.add_argument("--exponents", type=float, nargs="+", default=EXPONENTS)
    args = parser.parse_args()
    result: Dict[str, Any] = {
        "batch": [bench_table.BATCH, bench_table.FIELDS],
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "results": [],
    }
    for rows, dim in args.tables:
        for exponent in args.exponents:
            result["results"].append(measure(rows, dim, exponent, args.rounds, args.steps))
            result_file.write(args.output, result)


if __name__ == "__main__":
    main()
