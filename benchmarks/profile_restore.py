# SPDX-License-Identifier: Apache-2.0
"""Shows by perf where the CPU time of a restore from the page cache goes.

    python -m benchmarks.profile_restore [--rows 4000000] [--rounds 3] [--output FILE.json]

The table of bench_checkpoint.py. A step ends a session, which frees the table, and restores it in a
new one, as "restore, cached" does. profiles.py describes the measurement and what is printed,
milliseconds of CPU a step.
"""

import tempfile
from typing import Any, Callable

from benchmarks import bench_checkpoint, profiles, result_file


def _build(folder: str, rows: int) -> Callable[[], Any]:
    calls = bench_checkpoint.saver(folder, rows)

    def step() -> None:
        calls["before restore, cached"]()
        calls["restore, cached"]()

    return step


def main() -> None:
    parser = result_file.parser(__doc__, rows=4_000_000, rounds=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = profiles.measure({"restore": (_build, (folder, args.rows))}, args.rounds)
    profiles.show("restore", found["restore"])
    sizes = {"rows": args.rows, "rounds": args.rounds}
    result_file.write(args.output, {**sizes, **found})


if __name__ == "__main__":
    main()
