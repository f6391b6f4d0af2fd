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

from benchmarks import bench_distributed, bench_pipeline, result_file

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
    """Milliseconds a step of each variant, median and quartiles; the better ones of both sides."""
    found = result_file.read("bench_pipeline")
    axes = _one_panel(2.8)
    variants = dict(reversed(found["seconds_per_step"].items()))
    best = bench_pipeline.best_of_each_side(found)
    plain, modified = (variants[variant][1] for variant in best)
    for y, (variant, seconds) in enumerate(variants.items()):
        low, middle, high = (1e3 * value for value in seconds)
        is_modified = variant in found["speed_up"]
        color, alpha = "tab:blue" if is_modified else "0.6", 1 if variant in best else 0.4
        axes.barh(y, middle, color=color, alpha=alpha)
        axes.errorbar(middle, y, xerr=[[middle - low], [high - middle]], color="black", capsize=3)
        label = f"{middle:.1f} ms"
        if variant == best[1]:
            label += f", {plain / modified:.2f} times as fast as {best[0]}"
        is_dark = is_modified and variant in best
        axes.text(0.02 * middle, y, label, va="center", color="white" if is_dark else "black")
    axes.set_yticks(range(len(variants)), list(variants))
    axes.set_xlim(left=0)
    lines, cores = found["batch"][0], found["cores"]
    axes.set_xlabel(f"ms a step of {lines} lines, median and quartiles, {cores} cores")


def serving_latency() -> None:
    """One panel per model: the time of each request over that of the compressed graph."""
    points = result_file.read("bench_serving")["points"]
    models, requests, graphs = (
        list(dict.fromkeys(point[what] for point in points))
        for what in ("model", "request", "graph")
    )
    ratios = {
        (point["model"], point["request"], point["graph"]): point["time_over_compressed"]
        for point in points
    }
    others = [graph for graph in graphs if graph != "compressed"]
    _, panels = pyplot.subplots(
        1, len(models), figsize=(3 * len(models), 3.4), layout="constrained", sharey=True
    )
    for panel, model in zip(panels, models):
        for shift, graph in enumerate(others):
            heights = [ratios[model, request, graph] for request in requests]
            places = np.arange(len(requests)) + 0.4 * (shift - 0.5)
            panel.bar(places, heights, width=0.38, label=graph, color=("0.6", "tab:orange")[shift])
        panel.axhline(1, color="tab:blue", linewidth=1.5, label="compressed")
        labels = [request.replace(" x ", " × ") for request in requests]
        panel.set_xticks(range(len(requests)), labels, rotation=35, ha="right", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_title(model, fontsize=10)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("time over the compressed graph's")
    panels[-1].legend(fontsize=8)


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


def replay_online() -> None:
    """By week, the gain in AUC of models that are refreshed over one that is not."""
    found = result_file.read("replay_online")
    weekly = [run["weekly_auc"] for run in found["runs"]]
    axes = _one_panel(3)
    for name, color in zip(weekly[0], ("tab:blue", "tab:orange", "tab:green")):
        gains = np.mean([np.subtract(each[name], each["never"]) for each in weekly], axis=0)
        axes.plot(np.arange(1, len(gains) + 1), gains, "o-", color=color, label=name)
    axes.axhline(0, color="0.6", linewidth=1)
    axes.set_xticks(range(1, len(gains) + 1))
    axes.set_xlabel(f"week from {found['from']}")
    axes.set_ylabel("gain in AUC over never")
    axes.legend(title="refreshed", fontsize=8, title_fontsize=8)


PICTURES: Dict[str, Callable[[], None]] = {
    draw.__name__: draw
    for draw in (pipeline, serving_latency, growth, scaling, storage_shares, replay_online)
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
