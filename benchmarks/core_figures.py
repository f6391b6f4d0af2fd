# SPDX-License-Identifier: Apache-2.0
"""The tables of figures of the C++ core, for benchmarks/figures.py.

Each function takes raw results and returns the header and the rows of a table.
"""

import statistics
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

Table = Tuple[List[str], List[List[str]]]


def speed(result: Dict[str, Any]) -> Table:
    """Millions of keys a second of the core by number of rows, of bench_embedding_table.cc."""
    millions = sorted({run["rows_M"] for run in result["runs"]})
    by_size = [[run for run in result["runs"] if run["rows_M"] == size] for size in millions]
    figures = result["runs"][0]["figures"]
    rows = [[figure, *(_speed(runs, figure) for runs in by_size)] for figure in figures]
    return ["", *(f"{size}M rows" for size in millions)], rows


def chunks(result: Dict[str, Any]) -> Table:
    """Lookups by the keys whose lines are fetched at a time, of bench_embedding_table.cc."""
    runs: Dict[int, Dict[int, List[Dict[str, Any]]]] = {}
    for run in result["runs"]:
        runs.setdefault(run["keys_of_a_chunk"], {}).setdefault(run["rows_M"], []).append(run)
    keys = ("Zipf", "uniform")
    rows = [
        [str(size), *(_speed(of_size, f"lookup, {k}") for of_size in by.values() for k in keys)]
        for size, by in runs.items()
    ]
    millions = next(iter(runs.values()))
    return ["keys at a time", *(f"{n}M rows, {k}" for n in millions for k in keys)], rows


def _speed(runs: Sequence[Dict[str, Any]], figure: str) -> str:
    """Medians of CPU time and, in brackets, of two threads."""
    found = [run["figures"][figure] for run in runs]
    cpu, *wall = (statistics.median(one[what] for one in found) for what in found[0])
    return " ".join([f"{cpu:.3g}", *(f"[{each:.3g}]" for each in wall)])


def small_batches(results: Mapping[str, Dict[str, Any]]) -> Table:
    """Applies of all sizes relative to those shard by shard, of bench_paired.cc by machine."""

    def mean(ratios: Iterable[float]) -> str:
        return f"{statistics.geometric_mean(ratios):.2f}"

    rows: List[List[str]] = []
    for machine, result in results.items():
        found: Dict[Tuple[str, str, str], List[Dict[str, Any]]] = {}
        for one in result["figures"]:
            what, _, keys = one["figure"].partition(", ")
            if one["rows_M"] == 1 and " of " in what and keys in ("Zipf", "Zipf, dim 1"):
                found.setdefault((*what.split(" of "), keys), []).append(one)
        for size in dict.fromkeys(size for _, size, _ in found):
            rows.append([f"{machine}, {int(size):,}"])
            for keys in ("Zipf", "Zipf, dim 1"):
                lookups, applies, steps = (
                    found[what, size, keys] for what in ("lookup", "apply", "step")
                )
                rows[-1] += [
                    mean(one["ratio"] for one in applies),
                    mean(
                        (step["new_ns_per_key"] - lookup["new_ns_per_key"])
                        / (step["base_ns_per_key"] - lookup["base_ns_per_key"])
                        for lookup, step in zip(lookups, steps)
                    ),
                    mean(one["ratio"] for one in steps),
                ]
    columns = ("apply alone", "apply after a lookup", "both")
    header = [f"dim {dim}: {column}" for dim in (16, 1) for column in columns]
    return ["keys of a batch", *header], rows


def apply_profile(result: Dict[str, Any]) -> Table:
    """Where the CPU time of an apply alone goes, by functions that perf has sampled."""
    parts = {
        "updates rows": "BatchApply::UpdateTiles",
        "deduplicates": "Partition::Deduplicate",
        "sorts by shard": "Partition::SortBlock",
        "finds keys": "ShardSet::FindEach",
        "Adagrad itself": "Adagrad>::Update",
    }
    rows = []
    for one in result["figures"]:
        total, percents = one["ns_of_cpu_a_key"], one["percent_of_samples"]
        times = [
            total / 100 * sum(each for name, each in percents.items() if part in name)
            for part in parts.values()
        ]
        shown = (total, *times, total - sum(times))
        rows.append([f"{one['keys_of_a_batch']:,}", *(f"{ns:.1f} ns" for ns in shown)])
    return ["keys of a batch", "all", *parts, "locks and the rest"], rows


def step_lists(result: Dict[str, Any]) -> Table:
    """The tables of a model's step, with and without shared lists, of bench_training_step.cc."""
    phases = ("lookup", "reserve", "apply", "all")
    rows: Dict[int, List[str]] = {}
    for one in result["figures"]:
        cells = rows.setdefault(one["keys_of_a_table"], [f"{one['keys_of_a_table']:,}"])
        cells.append(" + ".join(f"{one['ns_of_cpu_a_key'][phase]:.0f}" for phase in phases[:-1]))
        cells[-1] += f" = {one['ns_of_cpu_a_key']['all']:.0f} ns"
    ways = (f"{way}: lookup + reserve + apply" for way in ("alone", "listed"))
    return ["keys of a table", *ways], list(rows.values())


def distinct_lookups(results: Dict[str, Dict[str, Any]]) -> Table:
    """Lookups that find each distinct key of a block once, of bench_paired.cc by machine."""
    names = {"Zipf": "Zipf, dim 16", "Zipf, dim 1": "Zipf, dim 1", "uniform": "uniform, dim 16"}
    found: Dict[str, Dict[str, List[float]]] = {}
    for machine, result in results.items():
        for one in result["figures"]:
            what, _, keys = one["figure"].partition(", ")
            if what.startswith("lookup of"):
                row = found.setdefault(what.replace("lookup of ", ""), {})
                row.setdefault(f"{machine}: {names[keys]}", []).append(one["ratio"])
    columns = sorted(next(iter(found.values())))
    rows = [
        [f"{int(row):,}", *(f"{statistics.geometric_mean(by[c]):.2f}" for c in columns)]
        for row, by in found.items()
    ]
    return ["keys of a batch", *columns], rows


def memory(found: Dict[str, Any]) -> Table:
    """What a cache line takes, of bench_memory.cc."""
    kinds = {
        (one["what"], one["MiB"], one["pages"]): None
        for one in found["figures"]
        if one["pages"] == "huge" or one["MiB"] == 1024
    }
    rows = []
    for what, mib, pages in kinds:
        times = [line_ns(found, what, mib, pages, threads) for threads in (1, 2)]
        name = f"{what}, {mib:,} MiB, {pages} pages"
        rows.append([name, *(f"{ns:.1f} ns" for ns in times)])
    return ["CPU time of a cache line", "one thread", "each of two threads"], rows


def line_ns(found: Dict[str, Any], what: str, mib: int, pages: str, threads: int) -> float:
    """CPU time of a cache line, of bench_memory.cc."""
    case = (what, mib, pages, threads)
    [ns] = [
        one["ns_of_cpu_a_line"]
        for one in found["figures"]
        if (one["what"], one["MiB"], one["pages"], one["threads"]) == case
    ]
    return float(ns)
