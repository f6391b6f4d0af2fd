# SPDX-License-Identifier: Apache-2.0
"""Measures a table whose rows are mostly on disk: steps, saves, and beside it RocksDB.

    python -m benchmarks.bench_tiers --folder /ssd [--rows 20000000] [--output FILE.json]
    python -m benchmarks.bench_tiers --cases save shares          some of the cases only

A table of dim 16 with Adagrad's slot; a step has 4096 x 26 keys, drawn anew for each. rounds.py
describes the measurement. The raw result is written after each case:

* steps: --share of the rows in memory, beside a table with all rows there. "zipf 1.05" and "zipf
  1.2" have p(rank) ~ rank^-s over all rows; "hits" is uniform over the most frequent rows, a tenth
  of those in memory, so that none is on disk.
* save: a checkpoint of that table, beside reading as many bytes as the files of rows have and
  writing as many as the checkpoint has, in sequence, with O_DIRECT, from and to memory of 4 KiB
  pages ("plain") and of a huge page ("contiguous"), which a virtual disk reads and writes faster.
  All wait for the disk. And the memory that a save needs beyond the table, of which 64 MiB and 1 %
  are promised.
* rocksdb: steps with the same rows in RocksDB, whose block cache is as large as the table's rows in
  memory. Its rows are changed in Python, so compare the rows a second, not the CPU time. Only with
  --rocksdb FOLDER, after: pip install --no-deps --target FOLDER rocksdict
* shares: steps of smaller tables (--share_rows) with 2 to 100 % of their rows in memory.

In the same run, the C++ probe of the disk log reads random pages of 4 KiB with O_DIRECT, 32, 64
and 256 at a time (make bench-disk). Its fastest reader is the limit of the disk.

Figures: ms a step, median over the rounds; misses a step; misses per second of a step, and their
share of the disk's limit, and of its reads 32 at a time; CPU microseconds a miss: what a step takes
beyond one in memory; bytes read a miss. Resident memory of each process after the last round, with
TensorFlow's own.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
from typing import Any, Callable, Dict, List, Sequence

from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import BATCH, DIM, FIELDS
from benchmarks.tier_systems import (
    STEPS,
    build_plain_file,
    build_rocksdb,
    build_table,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPONENTS = (1.05, 1.2)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
MIB = 1 << 20
# Those of "hits", in steps, are to tell a difference of 5 %.
ROUNDS = {"steps": 27, "save": 3, "rocksdb": 3, "shares": 9}


def rounds_of(args: argparse.Namespace, case: str) -> int:
    """The rounds of a case."""
    return args.rounds or ROUNDS[case]


def disk_limit(folder: str) -> Dict[str, float]:
    """Random reads per second of the disk, by reader."""
    done = subprocess.run(
        ["make", "-s", "-f", "tests/ops/core/Makefile", "bench-disk", f"FOLDER={folder}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.findall(r"^disk +(.*?) +(\d+) reads/s", done.stdout, re.MULTILINE)
    if not found:
        raise RuntimeError(f"the probe of the disk must print reads/s, got {done.stdout!r}")
    return {reader: float(speed) for reader, speed in found}


def lines_of(report: pathlib.Path) -> List[Dict[str, Any]]:
    """What a process has written to its report."""
    return [json.loads(line) for line in report.read_text().splitlines()]


def by_round(report: pathlib.Path, what: str) -> List[Dict[str, float]]:
    """What was done in each round but the last, per step."""
    states = [state for state in lines_of(report) if state["what"] == what]
    return [
        {
            name: (after[name] - before[name]) / STEPS
            for name in after
            if name not in ("what", "resident", "memory_rows", "disk_rows")
        }
        for before, after in zip(states, states[1:])
    ]


def alternate(
    systems: Dict[str, Any], whats: Sequence[str], rounds: int, scratch: str
) -> Dict[str, Any]:
    """Steps of systems, {name: (build function, its arguments before the folder and the report)}.

    Returns:
      Seconds by `what` and system, what was done in each round, and the memory in the end.
    """
    reports = {name: pathlib.Path(scratch) / f"{name}.jsonl" for name in systems}
    folders = {name: pathlib.Path(scratch) / name for name in systems}
    for folder in folders.values():
        folder.mkdir()
    seconds = rounds_lib.alternate(
        {
            name: (build, (*before, str(folders[name]), str(reports[name]), *after))
            for name, (build, before, after) in systems.items()
        },
        whats,
        rounds + 1,  # The last round only ends the one before it in the report.
        STEPS,
        with_cpu=True,
    )
    return {
        "rounds": rounds,
        "seconds_per_step": {
            what: {name: times[:rounds] for name, times in by_system.items()}
            for what, by_system in seconds.items()
        },
        "per_step": {
            name: {what: by_round(report, what) for what in whats}
            for name, report in reports.items()
        },
        "resident_bytes": {
            name: lines_of(report)[-1]["resident"] for name, report in reports.items()
        },
    }


def steps(args: argparse.Namespace, scratch: str) -> Dict[str, Any]:
    """Steps with and without files."""
    before = disk_limit(scratch)
    hot = max(int(args.rows * args.share / 10), 1)
    systems = {
        name: (build_table, (args.rows, share, EXPONENTS, hot), ())
        for name, share in (("memory", None), ("disk", args.share))
    }
    whats = [*(f"zipf {exponent}" for exponent in EXPONENTS), "hits"]
    found = {"share": args.share, **alternate(systems, whats, rounds_of(args, "steps"), scratch)}
    # Other users of the disk change its speed.
    after = disk_limit(scratch)
    found["disk_reads_per_second"] = {"before": before, "after": after}
    probed = (before, after)
    limits = {
        "limit": statistics.mean(max(each.values()) for each in probed),
        "32_in_flight": statistics.mean(each["32 in flight"] for each in probed),
    }
    done = found["per_step"].pop("disk")
    found["per_step"] = {"disk": done}
    seconds = found["seconds_per_step"]
    found["summary"] = {what: _summary(what, seconds, done[what], limits) for what in whats}
    return found


def _summary(
    what: str,
    seconds: rounds_lib.Seconds,
    done: List[Dict[str, float]],
    limits: Dict[str, float],
) -> Dict[str, float]:
    """The figures of one distribution of keys, medians over the rounds."""
    wall, cpu = seconds[what], seconds[f"{what}, CPU"]
    misses = [each["misses"] for each in done]
    figures = {
        "memory_ms": 1e3 * statistics.median(wall["memory"]),
        "disk_ms": 1e3 * statistics.median(wall["disk"]),
        "slowdown": rounds_lib.ratios(wall["disk"], wall["memory"])[1],
        "cpu_slowdown": rounds_lib.ratios(cpu["disk"], cpu["memory"])[1],
        "misses": statistics.median(misses),
    }
    if min(misses) > 0:
        per_second = statistics.median(n / t for n, t in zip(misses, wall["disk"]))
        figures["misses_per_second"] = per_second
        figures["of_the_limit"] = per_second / limits["limit"]
        figures["of_32_in_flight"] = per_second / limits["32_in_flight"]
        # The step also takes what it takes in memory.
        added = [ours - theirs for ours, theirs in zip(wall["disk"], wall["memory"])]
        figures["added_of_the_limit"] = (
            statistics.median(n / t for n, t in zip(misses, added)) / limits["limit"]
        )
        figures["cpu_us_a_miss"] = statistics.median(
            1e6 * (ours - theirs) / n for ours, theirs, n in zip(cpu["disk"], cpu["memory"], misses)
        )
        figures["bytes_a_miss"] = statistics.median(e["bytes_read"] / e["misses"] for e in done)
    return _rounded(figures)


def _rounded(figures: Dict[str, float]) -> Dict[str, float]:
    return {name: float(f"{figure:.4g}") for name, figure in figures.items()}


def save(args: argparse.Namespace, scratch: str) -> Dict[str, Any]:
    """A checkpoint, and a file of as many bytes."""
    names = ("table", "plain", "contiguous")
    reports = {name: pathlib.Path(scratch) / f"{name}.jsonl" for name in names}
    arguments = (args.rows, args.share, EXPONENTS, 1, scratch, str(reports["table"]))
    systems: Dict[str, Any] = {
        "table": (build_table, arguments),
        "plain": (build_plain_file, (scratch, str(reports["plain"]), False)),
        "contiguous": (build_plain_file, (scratch, str(reports["contiguous"]), True)),
    }
    seconds = rounds_lib.alternate(systems, ["save"], rounds_of(args, "save"), 1, with_cpu=True)
    size = lines_of(reports["plain"])[-1]
    memory = [line for line in lines_of(reports["table"]) if line["what"] == "save"]
    wall, cpu = seconds["save"], seconds["save, CPU"]
    figures = {
        "of_the_plain_file": rounds_lib.ratios(wall["plain"], wall["table"])[1],
        "of_contiguous": rounds_lib.ratios(wall["contiguous"], wall["table"])[1],
        "table_seconds": statistics.median(wall["table"]),
        "plain_seconds": statistics.median(wall["plain"]),
        "contiguous_seconds": statistics.median(wall["contiguous"]),
        "cpu_us_a_row": 1e6 * statistics.median(cpu["table"]) / args.rows,
        "memory_mib": max(each["beyond"] for each in memory) / MIB,
        "promised_mib": 64 + memory[-1]["table"] / 100 / MIB,
    }
    found = {"share": args.share, "bytes": size, "seconds": seconds, "memory": memory}
    return {**found, "summary": _rounded(figures)}


def rocksdb(args: argparse.Namespace, scratch: str) -> Dict[str, Any]:
    """Steps with RocksDB."""
    exponents = EXPONENTS[:1]
    arguments = (args.rows, args.share, exponents)
    what = f"zipf {exponents[0]}"
    systems = {"rocksdb": (build_rocksdb, arguments, (args.rocksdb,))}
    found = alternate(systems, [what], rounds_of(args, "rocksdb"), scratch)
    wall = found["seconds_per_step"][what]["rocksdb"]
    rows = [each["rows"] for each in found["per_step"]["rocksdb"][what]]
    figures = {
        "ms": 1e3 * statistics.median(wall),
        "rows": statistics.median(rows),
        "rows_per_second": statistics.median(n / t for n, t in zip(rows, wall)),
    }
    return {"share": args.share, **found, "summary": {what: _rounded(figures)}}


def shares(args: argparse.Namespace, scratch: str) -> Dict[str, Any]:
    """Steps over the share of rows in memory. The first is a table without files."""
    systems: Dict[str, Any] = {"memory": (build_table, (args.share_rows, None, EXPONENTS, 1), ())}
    for share in SHARES:
        systems[f"{share:.0%}"] = (build_table, (args.share_rows, share, EXPONENTS, 1), ())
    whats = [f"zipf {exponent}" for exponent in EXPONENTS]
    found = alternate(systems, whats, rounds_of(args, "shares"), scratch)
    seconds = found["seconds_per_step"]
    found["summary"] = {
        what: {
            name: _rounded(
                {
                    "ms": 1e3 * statistics.median(seconds[what][name]),
                    "slowdown": rounds_lib.ratios(seconds[what][name], seconds[what]["memory"])[1],
                    "misses": statistics.median(
                        each["misses"] for each in found["per_step"][name][what]
                    ),
                }
            )
            for name in systems
        }
        for what in whats
    }
    return {"rows": args.share_rows, **found}


MEASURES: Dict[str, Callable[[argparse.Namespace, str], Dict[str, Any]]] = {
    "steps": steps,
    "save": save,
    "rocksdb": rocksdb,
    "shares": shares,
}


def plot(result: Dict[str, Any], path: str) -> None:
    """Draws steps per second over the share of rows in memory, against a table without files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3))
    for what, by_system in result["shares"]["summary"].items():
        points = [(share, by_system[f"{share:.0%}"]) for share in SHARES]
        axes.plot(
            [100 * share for share, _ in points],
            [1 / point["slowdown"] for _, point in points],
            "o-",
            label=what.replace("zipf", "Zipf"),
        )
    axes.set_xscale("log")
    axes.set_xticks([100 * share for share in SHARES], [f"{share:.0%}" for share in SHARES])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("share of the rows in memory")
    axes.set_ylabel("speed of a step; 1: no files")
    axes.legend(fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--share", type=float, default=0.1, help="of the rows in memory")
    parser.add_argument("--share_rows", type=int, default=4_000_000, help="rows of case shares")
    parser.add_argument("--rounds", type=int, help=f"in place of {ROUNDS}")
    parser.add_argument("--cases", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--rocksdb", help="folder with the package rocksdict; None: no such case")
    parser.add_argument("--folder", default=".", help="on the disk to be measured")
    parser.add_argument("--output", help="file for the raw result, JSON")
    parser.add_argument("--plot", help="file for a picture of case shares, PNG; takes matplotlib")
    parser.add_argument("--only_plot", action="store_true", help="draw what --output holds")
    args = parser.parse_args()
    if args.only_plot:
        plot(json.loads(pathlib.Path(args.output).read_text()), args.plot)
        return
    result: Dict[str, Any] = {
        **rounds_lib.provenance(),
        "rows": args.rows,
        "dim": DIM,
        "batch": [BATCH, FIELDS],
        "steps_per_round": STEPS,
    }
    for case in args.cases:
        if case == "rocksdb" and args.rocksdb is None:
            print("--rocksdb is not given: RocksDB is not measured")
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            result[case] = MEASURES[case](args, scratch)
        print(f"\n{case}: {json.dumps(result[case]['summary'], indent=1)}", flush=True)
        rounds_lib.write(args.output, result)
    if args.plot and "shares" in result:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
