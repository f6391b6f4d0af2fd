# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/online.md, for figures.py."""

from typing import Any, Dict

from benchmarks.columns import figure, fill

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
