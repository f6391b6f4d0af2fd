# SPDX-License-Identifier: Apache-2.0
"""The figures of the page of the model zoo, for figures.py."""

import collections
import json
import statistics
import textwrap
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks import bench_zoo
from benchmarks.columns import by_row, figure, fill

Result = Dict[str, Any]

VARIANTS = ("counter", "eviction")
NEEDS_FOLDER = ("online_retail",)  # Data that the zoo does not download.


@figure("model_zoo/README.md", "compare_zoo", "bench_zoo_data")
def compare_zoo(found: Result, speed: Result) -> str:
    by_data: Dict[str, List[Result]] = {}
    for group, comparison in found["data"].items():
        named = {**comparison, "group": group}
        by_data.setdefault(comparison["data"]["name"], []).append(named)
    parts = []
    for name, of_data in by_data.items():
        parts += [
            fill("{data[name]}, {data[rows][test]:,} test rows:", of_data[0]),
            _comparison(of_data, speed["samples_per_second"][name]),
            "The commands:",
            "\n".join(map(_command, of_data)),
        ]
    return "\n\n".join(parts)


def settings_of(comparison: Result) -> List[str]:
    """The settings of the runs of a comparison beside those of its configuration file."""
    train = comparison["config"]["train"]
    with_validation = json.dumps(train["with_validation"])
    return [f"train.epochs={train['epochs']}", f"train.with_validation={with_validation}"]


def _command(comparison: Result) -> str:
    """The command that makes the runs of a comparison, as indented lines."""
    models = sorted({run["model"] for run in comparison["runs"]})
    seeds = " ".join(sorted({str(run["seed"]) for run in comparison["runs"]}))
    name, folder = comparison["data"]["name"], ""
    if name in NEEDS_FOLDER:
        folder = " --folder FOLDER"
    settings = "".join(f" --set {setting}" for setting in settings_of(comparison))
    options = f"--seeds {seeds} --models {' '.join(models)}"
    lines = [f"python -m model_zoo compare --config {name}{folder}{settings}"]
    lines += [f"    --output {comparison['group']}.json"]
    lines += [f"    {line}" for line in textwrap.wrap(options, 120, break_on_hyphens=False)]
    return " \\\n".join(f"    {line}" for line in lines)


def _by_model(comparisons: Sequence[Result]) -> Dict[str, Dict[str, Dict[int, Result]]]:
    """The runs of a data set by model, variant and seed."""
    runs: Dict[str, Dict[str, Dict[int, Result]]] = {}
    for run in (run for comparison in comparisons for run in comparison["runs"]):
        by_variant = runs.setdefault(run["model"], collections.defaultdict(dict))
        by_variant[run["variant"]][run["seed"]] = run
    return runs


def _comparison(comparisons: Sequence[Result], rates: Dict[str, List[float]]) -> str:
    """A line for each model: plain tables, then what a filter and an eviction save and lose."""
    epochs = {
        run["model"]: comparison["config"]["train"]["epochs"]
        for comparison in comparisons
        for run in comparison["runs"]
    }
    label = comparisons[0]["data"]["label"]
    rows = []
    for model, by_variant in _by_model(comparisons).items():
        plain = by_variant["plain"]
        row: Dict[str, Any] = {"model": model, "epochs": epochs[model]}
        row["speed"] = _mean_and_deviation(rates[model], ",.0f")
        for name in ("auc", "grouped_auc", "log_loss"):
            row[name] = _mean_and_deviation([_metric(each, name, label) for each in plain.values()])
        values, kinds = zip(*(_quality(each, label) for each in plain.values()))
        if kinds[0] != "AUC":
            row["auc"] = f"{kinds[0]}: {_mean_and_deviation(values)}"
        row["rows"] = statistics.mean(each["rows"] for each in plain.values())
        for variant in VARIANTS:
            row[variant] = _saved_and_lost(by_variant[variant], plain, label)
        rows.append(row)
    rows.sort(key=lambda row: row["auc"] if row["log_loss"] else "", reverse=True)
    columns = {
        "model": "`{model}`",
        "AUC": "{auc}",
        "grouped AUC": "{grouped_auc}",
        "log loss": "{log_loss}",
        "samples/s": "{speed}",
        "epochs": "{epochs}",
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


@figure("model_zoo/README.md", "bench_zoo", "profile_zoo")
def zoo_speed_reasons(found: Result, profile: Result) -> str:
    """The cases that are hardly faster, and how the CPU time of their steps is shared."""
    steps = {(one["model"], one["batch"]): one["groups"] for one in profile["results"]}
    ratios = {(one["model"], one["batch"]): one for one in found["results"]}
    rows = []
    for case in bench_zoo.slow_cases(found):
        groups, total = steps[case], sum(steps[case].values())
        shares = {name.replace(" ", "_"): ms / total for name, ms in groups.items()}
        rows.append({**ratios[case], "ms": total, **shares})
    columns = {
        "model": "`{model}`",
        "batch": "{batch:,}",
        "times as fast": "{times_as_fast[1]:.3f}",
        "quartiles of the rounds": "{times_as_fast[0]:.3f} to {times_as_fast[2]:.3f}",
        "CPU of a step": "{ms:.0f} ms",
        "in tables": "{library:.0%}",
        "in matrix products": "{matrix_products:.0%}",
        "in other ops of TensorFlow": "{TensorFlow:.0%}",
    }
    return by_row(rows, columns)


@figure("model_zoo/README.md", "bench_zoo_sequences")
def zoo_speed_sequences(found: Result) -> str:
    """A line for each case of a run with more rounds, by CPU time."""
    columns = {
        "model": "`{model}`",
        "batch": "{batch:,}",
        "times as fast by CPU time": "{times_as_fast_by_cpu[1]:.3f}",
        "quartiles of the rounds": "{times_as_fast_by_cpu[0]:.3f} to {times_as_fast_by_cpu[2]:.3f}",
    }
    return by_row(found["results"], columns)


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


def _mean_and_deviation(values: Sequence[Optional[float]], digits: str = ".4f") -> Optional[str]:
    found = [value for value in values if value is not None]
    if not found:
        return None
    deviation = f" \u00b1 {statistics.stdev(found):{digits.lstrip('+')}}" if found[1:] else ""
    return f"{round(statistics.mean(found), 4) + 0.0:{digits}}{deviation}"  # Not -0.0.


def _quality(run: Result, label: str) -> Tuple[float, str]:
    """The AUC of a run, or the hit rate of two towers, and its name."""
    auc = _metric(run, "auc", label)
    return (run["metrics"]["hit_rate_at_10"], "hit rate at 10") if auc is None else (auc, "AUC")


def _saved_and_lost(runs: Dict[int, Result], plain: Dict[int, Result], label: str) -> str:
    """What a variant saves and loses against plain tables with the same seeds."""
    lost = [_quality(plain[seed], label)[0] - _quality(runs[seed], label)[0] for seed in runs]
    saved = 1 - statistics.mean(runs[seed]["rows"] / plain[seed]["rows"] for seed in runs)
    kind = _quality(next(iter(plain.values())), label)[1]
    text = f"{saved:.0%}, {_mean_and_deviation(lost, '+.4f')}"
    return text + ("" if kind == "AUC" else f" of {kind}")
