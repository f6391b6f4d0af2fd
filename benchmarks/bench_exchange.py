# SPDX-License-Identifier: Apache-2.0
"""Measures the moment in which a refresh exchanges the rows of a table.

    python -m benchmarks.bench_exchange [--rounds 5] [--output FILE.json]

Compiles tests/ops/core/step/bench_row_exchange.cc, whose comment says what it measures, and runs it
--rounds times: CPU milliseconds of each part of an exchange, of which only `commit` keeps lookups
waiting. The result is the median of the runs.
"""

import pathlib
import re
import statistics
import subprocess
from typing import Dict, List

from benchmarks import result_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("add", "prepare", "commit", "longest", "end")


def milliseconds_of(line: str) -> Dict[str, float]:
    """The numbers of a line that the program prints, by PARTS."""
    return {part: float(re.findall(rf"\b{part} ([\d.]+)", line)[0]) for part in PARTS}


def main() -> None:
    args = result_file.parser(__doc__, rounds=5).parse_args()
    command = ["make", "--silent", "-f", "tests/ops/core/Makefile", "bench-exchange"]
    runs: List[Dict[str, float]] = []
    for _ in range(args.rounds):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        runs.append(milliseconds_of(done.stdout))
        print(runs[-1], flush=True)
    found = {part: statistics.median(run[part] for run in runs) for part in PARTS}
    sizes = {"rows": 2_000_000, "dim": 16, "written": 100_000, "erased": 9_000}
    result_file.write(args.output, {**sizes, "rounds": args.rounds, "cpu_ms": found})


if __name__ == "__main__":
    main()
