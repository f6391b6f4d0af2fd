# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/online.md, for figures.py."""

import collections
import statistics
from typing import Any, Dict

from benchmarks.columns import by_line, by_row, figure, fill

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


@figure(PAGE, "bench_online")
def latency(found: Result) -> str:
    names = {"p50": "median", "p99": "99th percentile", "p99.9": "99.9th percentile"}
    rows = []
    for name, words in names.items():
        without, with_deltas = (found[what][name] for what in ("without", "with"))
        ratio = with_deltas / without
        rows.append({"what": words, "without": without, "with": with_deltas, "ratio": ratio})
    columns = {
        "latency": "{what}",
        "without deltas": "{without:.2f ms}",
        "a delta every five seconds": "{with:.2f ms}",
        "ratio": "{ratio:.2f}",
    }
    sizes = fill("{rows:,} rows of 16 floats in two tables, {rate:.0f} requests a second:", found)
    return f"{sizes}\n\n{by_row(rows, columns)}"


@figure(PAGE, "bench_online")
def freshness(found: Result) -> str:
    share = found["delta_bytes"] / found["base_bytes"]
    return by_line(
        {**found, "share": share},
        ["a delta of 1 % of the rows", ""],
        ["rows", "{delta_rows:,}"],
        ["bytes", "{delta_bytes:.1f MB}, {share:.1%} of the base"],
        ["CPU to save and publish it", "{publish_cpu[delta]:.0f ms}"],
        ["CPU to apply it", "{refresh[cpu_seconds][1]:.0f ms}"],
        ["time to apply it", "{refresh[seconds][1]:.0f ms}"],
        ["age of the newest step in the model, after a refresh", "{age[after_a_refresh][1]:.1f} s"],
        [
            "the same, before the next refresh: median, most",
            "{age[before_the_next][1]:.1f} s, {age[most]:.1f} s",
        ],
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


@figure(PAGE, "replay_online")
def replay(found: Result) -> str:
    runs = found["runs"]
    rows = []
    for name in runs[0]["auc"]:
        aucs = [run["auc"][name] for run in runs]
        gains = [run["auc"][name] - run["auc"]["never"] for run in runs]
        rows.append({"name": name, "auc": statistics.mean(aucs), "gain": statistics.mean(gains)})
    columns = {"refresh": "{name}", "AUC": "{auc:.4f}", "gain": "{gain:+.4f}"}
    caption = "gain in AUC by week over a model that is never refreshed"
    words = fill(
        "{from} to {to}, {rows:,} requests for an item; {epochs} epochs of the past, {factor:g} of "
        "their learning rate in the replay; mean of {seeds} seeds:",
        {**found, "seeds": len(runs)},
    )
    return f"{words}\n\n{by_row(rows, columns)}\n\n![{caption}](replay_online.png)"
