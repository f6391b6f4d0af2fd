# SPDX-License-Identifier: Apache-2.0
"""Shows by perf where the CPU time of a step goes with tables of 1M and of 50M rows.

    python -m benchmarks.profile_table_sizes [--rounds 3] [--output FILE.json]

The tables of bench_table_sizes.py, with the first of its key distributions; profiles.py describes
the measurement and what is printed, milliseconds of CPU a step.
"""

import argparse
from typing import Any, Callable

from benchmarks import bench_table, bench_table_sizes, profiles
from benchmarks import rounds as rounds_lib


def _build(what: str, rows: int) -> Callable[[], Any]:
    return bench_table_sizes.build("rec_estimator", rows, bench_table.ZIPF_S)[what]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="file for the raw result, JSON")
    args = parser.parse_args()
    steps = {}
    for what in ("train", "lookup"):
        sizes = {str(rows): (_build, (what, rows)) for rows in bench_table_sizes.SIZES}
        steps[what] = profiles.measure(sizes, args.rounds)
        for rows, profile in steps[what].items():
            profiles.show(f"{what}, {rows} rows", profile)
    found = {"rounds": args.rounds, "steps": steps}
    rounds_lib.write(args.output, {**rounds_lib.provenance(), **found})


if __name__ == "__main__":
    main()
