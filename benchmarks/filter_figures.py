# SPDX-License-Identifier: Apache-2.0
"""The tables of figures of filters, for benchmarks/figures.py.

Each function takes a raw result and returns the header and the rows of a table.
"""

from typing import Any, Dict, List, Sequence

from benchmarks.core_figures import Table


def costs(found: Dict[str, Any]) -> Table:
    """Time and memory of a filter against the same table without one, of bench_filters.py."""
    cost, memory = found["cost"], found["memory"]
    kinds = ("counter", "bloom")
    bytes_each = (
        f"{memory[f'not admitted, {kind}']['beyond_floats']:.1f}"
        for kind in ("CounterFilter", "CBFFilter of 10 M")
    )
    rows = [["bytes for a key that is not admitted", *bytes_each]]
    for stream, words in (("known", "known keys"), ("stream", "a stream of new keys")):
        percents = (signed(100 * cost[f"{stream}/{kind}"]) for kind in kinds)
        rows.append([f"train step, {words}", *percents])
    return ["cost", "`CounterFilter`", "`CBFFilter`, p = 0.01"], rows


def signed(percent: float) -> str:
    """+3.5 % or \u221229.9 %."""
    return f"{percent:+.1f} %".replace("-", "\u2212")


def bloom_plain(found: Dict[str, Any]) -> Table:
    """False positive rates of a Bloom filter without blocks, of bloom_rates.py."""
    points: Dict[int, Dict[int, str]] = {}
    for one in found["plain"]:
        rates = (f"{float(f'{one[kind]:.2g}'):g}" for kind in ("computed", "measured"))
        points.setdefault(one["cells_per_key"], {})[one["hashes"]] = " / ".join(rates)
    hashes = next(iter(points.values()))
    rows = [[str(cells), *(rates[k] for k in hashes)] for cells, rates in points.items()]
    return ["m/n", *(f"k = {k}" for k in hashes)], rows


def bloom_blocks(found: Dict[str, Any]) -> Table:
    """False positive rates of this library's blocked filter at full load, of bloom_rates.py."""
    rows = [
        [
            f"{one['asked']:g}",
            str(one["hashes"]),
            f"{one['measured']:.3g}",
            f"{one['bytes_per_key']:.1f}",
        ]
        for one in found["own"]
    ]
    return ["asked for", "k", "measured", "bytes a key"], rows


def bloom_churn(found: Dict[str, Any]) -> Table:
    """False positive rates and memory of that filter under eviction, of bloom_rates.py."""
    rows = [
        [
            f"{churn['asked']:g}",
            f"{churn['worst']:.2g}",
            f"{churn['bytes_per_key']:.1f}",
            f"{own['bytes_per_key']:.1f}",
        ]
        for own, churn in zip(found["own"], found["churn"])
    ]
    return ["asked for", "worst of ten lifetimes", "bytes a key", "without eviction"], rows


def bloom_generations(found: Dict[str, Any]) -> Table:
    """Two generations of a Bloom filter against three, of test_bloom_generations.cc."""
    by_case: Dict[Sequence[Any], List[str]] = {}
    for kind in ("three generations, each half a lifetime", "two generations, each a lifetime"):
        for one in found["churn"][kind]:
            if one["threshold"] == 2:
                case = (one["asked"], one["keys_occur"], one["eviction"])
                rate = f"{one['worst_rate_relative_to_asked']:.2f} p"
                by_case.setdefault(case, []).append(f"{rate}, {one['table_MB']:.2f} MB")
    rows = [
        [f"{p:g}", "once" if occurrences == 1 else "twice", eviction, *both]
        for (p, occurrences, eviction), both in by_case.items()
    ]
    return ["p", "keys occur", "eviction by", "three", "two"], rows


def sweep(found: Dict[str, Any]) -> Table:
    """What thresholds do to generated clicks, of filter_sweep.py."""
    rows = [
        [
            str(run["filter_freq"]),
            f"{100 * run['rows'] / (run['rows'] + run['filtered']):.0f} %",
            f"{run['auc']:.3f}",
        ]
        for run in found["data"]["clicks"]
    ]
    return ["generated clicks: `filter_freq`", "rows left", "test AUC"], rows
