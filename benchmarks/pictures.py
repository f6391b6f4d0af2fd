# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the pages from the results in benchmarks/results.

    python -m benchmarks.pictures [NAME ...]    # `make docs` draws all; takes matplotlib

Each function below draws docs/<its name>.png.
"""

import argparse
import pathlib
import statistics
from typing import Any, Callable, Dict, Optional, Sequence

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot, ticker

from benchmarks import bench_distributed, result_file

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


def _one_panel(height: float) -> Any:
    """The axes of a picture as wide as a page."""
    _, axes = pyplot.subplots(figsize=(7, height), layout="tight")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _plain_numbers(axis: Any) -> None:
    """Labels a logarithmic axis at 1, 2, 5, 10, 20 …"""
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(ticker.NullLocator())


def pipeline() -> None:
    """Milliseconds a step of each variant, median and quartiles."""
    found = result_file.read("bench_pipeline")
    axes = _one_panel(2.8)
    variants = dict(reversed(found["seconds_per_step"].items()))
    for y, (variant, seconds) in enumerate(variants.items()):
        low, middle, high = (1e3 * value for value in seconds)
        is_modified = variant in found["speed_up"]
        axes.barh(y, middle, color="tab:blue" if is_modified else "0.7")
        axes.errorbar(middle, y, xerr=[[middle - low], [high - middle]], color="black", capsize=3)
        label = f"{middle:.1f} ms"
        if is_modified:
            label += f", {found['speed_up'][variant]:.2f} times as fast"
        axes.text(0.02 * middle, y, label, va="center", color="white" if is_modified else "black")
    axes.set_yticks(range(len(variants)), list(variants))
    lines, cores = found["batch"][0], found["cores"]
    axes.set_xlabel(f"ms a step of {lines} lines, median and quartiles, {cores} cores")


def serving_latency() -> None:
    """One panel per model: the median latency of each graph, and its 99th percentile."""
    points = result_file.read("bench_serving")["points"]
    models, requests, graphs = (
        list(dict.fromkeys(point[what] for point in points))
        for what in ("model", "request", "graph")
    )
    _, panels = pyplot.subplots(
        1, len(models), figsize=(3.6 * len(models), 3.6), layout="constrained"
    )
    for panel, model in zip(panels, models):
        for shift, graph in enumerate(graphs):
            of_graph = [p for p in points if (p["model"], p["graph"]) == (model, graph)]
            p50, p99 = (np.array([p[what] for p in of_graph]) for what in ("p50_ms", "p99_ms"))
            places = np.arange(len(requests)) + 0.27 * (shift - 1)
            error = {"yerr": [0 * p50, np.maximum(p99 - p50, 0)]}
            style = {"lw": 0.7, "capsize": 2}
            panel.bar(places, p50, width=0.25, label=graph, **error, error_kw=style)
        panel.set_xticks(range(len(requests)), requests, rotation=35, ha="right", fontsize=8)
        panel.set_yscale("log")
        _plain_numbers(panel.yaxis)
        panel.set_title(model)
    panels[0].set_ylabel("ms a request: median, whisker to p99")
    panels[0].legend(fontsize=8)


def growth() -> None:
    """CPU time of each step over the rows, its median and five times that."""
    found = result_file.read("bench_growth")
    axes = _one_panel(3)
    for (memory, steps), color in zip(found["steps"].items(), ("tab:orange", "tab:blue")):
        times = [1e3 * seconds for seconds in steps["cpu_seconds"]]
        rows = [found["keys_a_step"] * (i + 1) / 1e6 for i in range(len(times))]
        axes.plot(rows, times, ".", markersize=3, color=color, label=memory)
        median = statistics.median(times)
        axes.axhline(median, color=color, linewidth=1)
        axes.axhline(5 * median, color=color, linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("million rows in the table")
    axes.set_ylabel(f"CPU ms a step of {found['keys_a_step']:,} keys")
    axes.legend(title="lines: median, 5 medians", fontsize=8, title_fontsize=8)


def scaling() -> None:
    """The model of bench_distributed.py: CPU time of a step over the number of ps."""
    model = bench_distributed.fit(result_file.read("bench_distributed"))
    axes = _one_panel(3)
    servers, columns = list(range(1, 101)), bench_distributed.COLUMNS
    unpacked = [model.worker_step(n, tensors=3 * columns) for n in servers]
    axes.plot(servers, unpacked, color="tab:orange", label=f"{columns} tables, not packed")
    packed = [model.worker_step(n) for n in servers]
    axes.plot(servers, packed, color="tab:blue", label="packed, 5 tensors for each ps")
    axes.axhline(model.keys, color="tab:blue", linewidth=1, linestyle="--", label="keys alone")
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.set_xlabel("ps tasks")
    axes.set_ylabel("CPU ms a step")
    axes.legend(fontsize=8)


def storage_shares() -> None:
    """Steps per second over the share of rows in memory, against a table without files."""
    axes = _one_panel(3)
    for what, by_system in result_file.read("bench_tiers")["shares"]["summary"].items():
        speeds = {
            float(name.rstrip("%")): 1 / one["slowdown"]
            for name, one in by_system.items()
            if name != "memory"
        }
        axes.plot(list(speeds), list(speeds.values()), "o-", label=what.replace("zipf", "Zipf"))
    axes.set_xscale("log")
    axes.set_xticks(list(speeds), [f"{share:.0f}%" for share in speeds])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("share of the rows in memory")
    axes.set_ylabel("speed of a step; 1: no files")
    axes.legend(fontsize=8)


PICTURES: Dict[str, Callable[[], None]] = {
    draw.__name__: draw for draw in (pipeline, serving_latency, growth, scaling, storage_shares)
}


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    for name in parser.parse_args(arguments).names or PICTURES:
        PICTURES[name]()
        pyplot.savefig(DOCS / f"{name}.png", dpi=110)
        pyplot.close()


if __name__ == "__main__":
    main()
