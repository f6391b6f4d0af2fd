# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison."""

import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

_Run = Dict[str, Any]

# Heads of the table, and the metrics of the test rows that their cells show.
_METRICS = {
    "AUC": "auc",
    "grouped AUC": "grouped_auc",
    "log loss": "log_loss",
    "hit rate at 10": "hit_rate_at_10",
    "NDCG at 10": "ndcg_at_10",
}


def table(found: Mapping[str, Any]) -> str:
    """Returns the table of a comparison as Markdown: means and standard deviations over the seeds.

    What a variant saves and loses is measured against plain runs of the same seeds.

    Args:
      found: What `compare` returns.
    """
    label = found["data"]["label"]
    heads = [
        head
        for head in _METRICS
        if any(_value(run, head, label) is not None for run in found["runs"])
    ]
    groups: Dict[Tuple[str, str], List[_Run]] = {}
    for run in found["runs"]:
        groups.setdefault((run["model"], run["variant"]), []).append(run)
    quality = f"{heads[0]} lost" if heads else "lost"  # No metric is defined without clicks.
    lines = [["model", "tables", *heads, "samples/s", "rows", "rows saved", quality]]
    for (model, variant), runs in groups.items():
        cells = [_spread([_value(run, head, label) for run in runs]) for head in heads]
        speeds = [run["samples_per_second"] for run in runs if run["samples_per_second"]]
        speed = f"{statistics.mean(speeds):,.0f}" if speeds else ""
        rows = statistics.mean(run["rows"] for run in runs)
        plain = {run["seed"]: run for run in groups.get((model, "plain"), [])}
        pairs = [(plain[run["seed"]], run) for run in runs if run["seed"] in plain]
        saved = lost = ""
        if pairs and variant != "plain":
            saved, lost = _saved(pairs), _lost(pairs, heads, label)
        lines.append([model, variant, *cells, speed, f"{rows:,.0f}", saved, lost])
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths))} |"
        for line in lines
    )


def _value(run: _Run, head: str, label: str) -> Optional[float]:
    """The metric of a cell, of the only label or of the first one."""
    names = (_METRICS[head], f"{label}/{_METRICS[head]}")
    return next((run["metrics"][name] for name in names if name in run["metrics"]), None)


def _saved(pairs: Sequence[Tuple[_Run, _Run]]) -> str:
    """The share of the rows of plain runs that a variant saves."""
    plain, variant = (sum(run["rows"] for run in runs) for runs in zip(*pairs))
    return f"{1 - variant / plain:.0%}" if plain else ""


def _lost(pairs: Sequence[Tuple[_Run, _Run]], heads: Sequence[str], label: str) -> str:
    """What a variant loses of the first metric that its runs have: two towers have no AUC."""
    head = next((head for head in heads if _value(pairs[0][1], head, label) is not None), None)
    if head is None:
        return ""
    values = [[_value(run, head, label) or 0.0 for run in pair] for pair in pairs]
    lost = _spread([plain - variant for plain, variant in values], "+.4f")
    return lost + ("" if head == heads[0] else f" of {head}")


def _spread(values: Sequence[Optional[float]], digits: str = ".4f") -> str:
    found = [value for value in values if value is not None]
    if not found:
        return ""
    mean = f"{round(statistics.mean(found), 4) + 0.0:{digits}}"  # + 0.0 turns -0.0 into 0.0.
    return f"{mean} ± {statistics.stdev(found):.4f}" if len(found) > 1 else mean
