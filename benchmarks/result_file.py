# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the results of benchmarks: JSON, with a line for each measured case.

A result begins with the date, the commit, the machine and the release of TensorFlow. It keeps
quartiles instead of the times of all rounds, and five digits of a number.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
from typing import Any, Dict, Optional

FOLDER = pathlib.Path(__file__).parent / "results"
WIDTH = 160  # Columns of a line.


def read(name: str) -> Dict[str, Any]:
    """The committed result that benchmarks/<name>.py, or another program, has written."""
    found: Dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


# What the options of several benchmarks mean.
_NUMBERS = {
    "rows": "rows of a table, at most",
    "rounds": "each round runs every system once",
    "steps": "training steps, of each round and system",
    "processes": "processes that measure one after the other",
}


def parser(doc: str, **defaults: int) -> argparse.ArgumentParser:
    """The options of a benchmark: --output, and of the numbers above those with a default."""
    options = argparse.ArgumentParser(description=doc.split("\n")[0])
    for name, default in defaults.items():
        meaning = f"{_NUMBERS[name]}; {default:,} by default"
        options.add_argument(f"--{name}", type=int, default=default, help=meaning)
    options.add_argument("--output", help="file for the result, JSON")
    return options


def write(path: Optional[str], found: Dict[str, Any]) -> None:
    """Writes a result, which provenance() precedes, unless path is None or empty."""
    if path:
        pathlib.Path(path).write_text(layout({**provenance(), **found}) + "\n")


def quartiles(rounds: Any) -> Any:
    """[lower quartile, median, upper quartile] in place of each list, in nested dicts."""
    if isinstance(rounds, dict):
        return {name: quartiles(each) for name, each in rounds.items()}
    return statistics.quantiles(rounds, n=4) if len(rounds) > 1 else [*rounds] * 3


def layout(value: Any, depth: int = 0) -> str:
    """JSON in which a case stands on one line, or on one line for each of its parts.

    Args:
      value: What json takes. Floats get five significant digits.
      depth: Number of the dicts and lists around the value.
    """
    one_line = json.dumps(_rounded(value), ensure_ascii=False)
    # The name of a field comes before the value.
    is_short = depth > 0 and len(one_line) <= WIDTH - 30
    if is_short or not isinstance(value, (dict, list, tuple)):
        return one_line
    if isinstance(value, dict):
        begin, end, values = "{", "}", list(value.values())
        parts = [f"{json.dumps(name)}: {layout(each, depth + 1)}" for name, each in value.items()]
    else:
        begin, end, values = "[", "]", list(value)
        parts = [layout(each, depth + 1) for each in value]
    lines = [""]
    was_flat = True
    for part, each in zip(parts, values):
        is_flat = not isinstance(each, dict) and "\n" not in part
        if is_flat and was_flat and len(lines[-1]) + len(part) <= WIDTH - 10:
            lines[-1] += f", {part}" if lines[-1] else part
        else:
            lines.append(part)
        was_flat = is_flat
    return begin + f",\n{' ' * (depth + 1)}".join(filter(None, lines)) + end


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def provenance() -> Dict[str, Any]:
    """The date, commit, machine and TensorFlow release of a measurement."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "tensorflow": _tensorflow(),
    }


def _tensorflow() -> str:
    for name in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "unknown"


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "unknown"
