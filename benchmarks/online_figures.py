# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/online.md, for figures.py."""

import collections
import statistics
from typing import Any, Dict

from benchmarks.columns import by_line, figure, fill

Result = Dict[str, Any]

PAGE = "docs/online.md"


@figure(PAGE, "bench_exchange")
def exchange(found: Result) -> str:
    return fill(
        "The moment takes {cpu_ms[commit]:.1f} ms for {written:,} written and {erased:,} deleted "
        "keys of a table of {rows:,} rows of {dim} floats, the longest of 50 {cpu_ms[longest]:.1f} "
        "ms (`python -m benchmarks.bench_exchange`).",
        found,
    )


@figure(PAGE, "soak_online")
def soak_online(found: Result) -> str:
    of_processes = collections.Counter(kill["process"] for kill in found["kills"])
    waits = [kill["fresh_after"] for kill in found["kills"]]
    sums = {
        "killed": ", ".join(f"{n} \u00d7 {process}" for process, n in of_processes.items()),
        "wait": [statistics.median(waits), max(waits)],
        "faults_found": len(found["faults"]),
    }
    return by_line(
        {**found, **sums},
        [fill("{minutes:g} minutes", found), ""],
        ["kills", "{killed}"],
        ["answers that were checked", "{answers:,}"],
        ["faults", "{faults_found}"],
        ["requests that failed with the server that was killed", "{failed_of_killed}"],
        ["steps of the training; refreshes of the servers", "{steps:,}; {refreshes:,}"],
        [
            "seconds until all ran again and both servers were fresh: median, most",
            "{wait[0]:.0f}, {wait[1]:.0f}",
        ],
        [
            "seconds from a publication to the first answer with it: median, 99th percentile",
            "{age[median]:.1f}, {age[p99]:.1f}",
        ],
    )
