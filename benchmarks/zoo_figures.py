# SPDX-License-Identifier: Apache-2.0
"""The figures of the page of the model zoo, for figures.py."""

import collections
import statistics
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks.columns import by_row, figure, fill

Result = Dict[str, Any]


@figure("model_zoo/README.md", "compare_zoo")
def compare_zoo(found: Result) -> str:
    by_data: Dict[str, List[Result]] = {}
    for comparison in found["data"].values():
        by_data.setdefault(comparison["data"]["name"], []).append(comparison)
    return "\n\n".join(
        fill("{data[name]}, {data[rows][test]:,} test rows:\n\n", of_data[0]) + _comparison(of_data)
        for of_data in by_data.values()
    )


def _comparison(comparisons: Sequence[Result]) -> str:
    """A line for each model: plain tables, then what a filter and an eviction save and lose."""
    runs: Dict[str, Dict[str, Dict[int, Result]]] = {}
    epochs = {}
    for comparison in comparisons:
        for run in comparison["runs"]:
            epochs[run["model"]] = comparison["config"]["train"]["epochs"]
            by_variant = runs.setdefault(run["model"], collections.defaultdict(dict))
            by_variant[run["variant"]][run["seed"]] = run
    label = comparisons[0]["data"]["label"]
    rows = []
    for model, by_variant in runs.items():
        plain = by_variant["plain"]
        row: Dict[str, Any] = {"model": model, "epochs": epochs[model], "seeds": len(plain)}
        for name in ("auc", "grouped_auc", "log_loss"):
            row[name] = _mean_and_deviation([_metric(each, name, label) for each in plain.values()])
        if _metric(next(iter(plain.values())), "auc", label) is None:
            hits = [each["metrics"]["hit_rate_at_10"] for each in plain.values()]
            row["auc"] = f"hit rate at 10: {_mean_and_deviation(hits)}"
        row["rows"] = statistics.mean(each["rows"] for each in plain.values())
        for variant in ("counter", "eviction"):
            row[variant] = _saved_and_lost(by_variant[variant], plain, label)
        rows.append(row)
    rows.sort(key=lambda row: row["auc"] if row["log_loss"] else "", reverse=True)
    columns = {
        "model": "`{model}`",
        "AUC": "{auc}",
        "grouped AUC": "{grouped_auc}",
        "log loss": "{log_loss}",
        "epochs": "{epochs}",
        "seeds": "{seeds}",
        "rows of tables": "{rows:,.0f}",
        "filter: rows saved, AUC lost": "{counter}",
        "eviction: rows saved, AUC lost": "{eviction}",
    }
    return by_row(rows, columns)


@figure("model_zoo/README.md", "choose_zoo")
def zoo_settings(found: Result) -> str:
    trials: Dict[Tuple[str, ...], List[Result]] = collections.defaultdict(list)
    for one in found["trials"]:
        trials[one["data"], one["model"], one["settings"]].append(one)
    rows = []
    for (data, model, settings), of_seeds in trials.items():
        by_epoch = list(zip(*(one["auc"] for one in of_seeds)))
        epoch, aucs = max(enumerate(by_epoch, 1), key=lambda pair: statistics.mean(pair[1]))
        row = {"data": data, "model": model, "settings": settings, "seeds": len(aucs)}
        at = f"{epoch} of {len(by_epoch)}"
        rows.append({**row, "auc": _mean_and_deviation(aucs), "epoch": at})
    rows.sort(key=lambda row: (row["data"], row["model"], row["auc"]), reverse=True)
    columns = {
        "data": "{data}",
        "model": "`{model}`",
        "settings": "`{settings}`",
        "best validation AUC": "{auc}",
        "after epoch": "{epoch}",
        "seeds": "{seeds}",
    }
    return by_row(rows, columns)


@figure("model_zoo/README.md", "bench_zoo")
def zoo_speed(found: Result) -> str:
    batches = sorted({one["batch"] for one in found["results"]})
    heads = ("samples/s, batch of {:,}", "times as fast, batch of {:,}")
    columns = {"model": "`{model}`"}
    for batch in batches:
        rate, ratio = (head.format(batch) for head in heads)
        columns.update({rate: f"{{{rate}:,.0f}}", ratio: f"{{{ratio}:.2f}}"})
    rows: Dict[str, Result] = {}
    for one in found["results"]:
        row = rows.setdefault(one["model"], {**dict.fromkeys(columns), "model": one["model"]})
        rate, ratio = (head.format(one["batch"]) for head in heads)
        row[rate] = one["samples_per_second"]["tables"][1]
        row[ratio] = one["times_as_fast"][1]
    return by_row(rows.values(), columns)


@figure("docs/small_tables.md", "compare_row_dtypes")
def row_dtypes(found: Result) -> str:
    """AUC by the type of vectors, of compare_row_dtypes.py."""
    columns = {"vectors": "{rows}"}
    rows: Dict[str, Result] = {}
    for comparison in found["settings"].values():
        train = comparison["train"]
        rate = (train["table_optimizer"] or train["optimizer"])["learning_rate"]
        aucs: Dict[Tuple[str, str], List[Optional[float]]] = collections.defaultdict(list)
        for run in comparison["runs"]:
            auc = _metric(run, "auc", comparison["data"]["label"])
            aucs[run["model"], run["rows"]].append(auc)
        for (model, name), values in aucs.items():
            column = f"AUC of `{model}`, rate {rate:g}, {train['epochs']} epochs"
            key = f"{model}/{train['epochs']}"
            columns[column] = f"{{{key}}}"
            rows.setdefault(name, {"rows": name})[key] = _mean_and_deviation(values)
    return by_row(rows.values(), columns)


def _metric(run: Result, name: str, label: str) -> Optional[float]:
    """A metric of a run, of its only label or of the first one; None: the model has no such."""
    found: Optional[float] = run["metrics"].get(name, run["metrics"].get(f"{label}/{name}"))
    return found


def _mean_and_deviation(values: Sequence[Optional[float]]) -> Optional[str]:
    found = [value for value in values if value is not None]
    if not found:
        return None
    deviation = f" \u00b1 {statistics.stdev(found):.4f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.4f}{deviation}"


def _saved_and_lost(runs: Dict[int, Result], plain: Dict[int, Result], label: str) -> Optional[str]:
    """What a variant saves and loses against plain tables with the same seeds."""
    pairs = [(plain[seed], run) for seed, run in runs.items() if seed in plain]
    if not pairs:
        return None
    saved = 1 - statistics.mean(run["rows"] / before["rows"] for before, run in pairs)
    lost = [
        before_auc - auc
        for before, run in pairs
        for before_auc, auc in [[_metric(each, "auc", label) for each in (before, run)]]
        if before_auc is not None and auc is not None
    ]
    shown = f"{saved:.0%}"
    return f"{shown}, {statistics.mean(lost):+.4f}" if lost else shown
