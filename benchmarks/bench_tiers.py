# SPDX-License-Identifier: Apache-2.0
"""Measures a table whose rows are mostly on disk: steps and saves.

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
import mmap
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_checkpoint import peak_during
from benchmarks.bench_table import BATCH, DIM, FIELDS, LEARNING_RATE, fill_op
from benchmarks.criteo_ids import scattered

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPONENTS = (1.05, 1.2)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
MIB = 1 << 20
# Enough rounds of steps to show a difference of 5 % in hits.
ROUNDS = {"steps": 27, "save": 3, "shares": 9}
STEPS = 10  # In a round.
WARM_UP = 30  # Steps of each distribution, so that its frequent rows are in memory.
PART = 100_000  # Keys that are inserted at once.
FREQUENT = 0.1  # The part of the rows that comes in random order.
ROW_BYTES = 2 * DIM * 4  # The value and Adagrad's slot.
CHUNK = 1 << 20  # Bytes that the plain file reads and writes at once.
HUGE_PAGE = 2 << 20

Runs = Dict[str, Callable[[], Any]]


def zipf_ranks(rows: int, exponent: float, random: np.random.Generator) -> np.ndarray:
    """Ranks of one step, int64 [BATCH * FIELDS], by inversion of the continuous distribution."""
    power = 1 - exponent
    low, high = 1.0, (rows + 1.0) ** power
    ranks = (low + random.random(BATCH * FIELDS) * (high - low)) ** (1 / power) - 1
    return np.minimum(ranks, rows - 1).astype(np.int64)


def zipf_draws(rows: int, exponents: Sequence[float]) -> Dict[str, Callable[[], np.ndarray]]:
    """{"zipf <exponent>": function that draws the keys of a step}."""
    random = np.random.default_rng(5)

    def draw(exponent: float) -> Callable[[], np.ndarray]:
        return lambda: scattered(zipf_ranks(rows, exponent, random))

    return {f"zipf {exponent}": draw(exponent) for exponent in exponents}


def parts(rows: int) -> Iterator[np.ndarray]:
    """All keys, the least frequent first, which leave memory, and then the frequent ones."""
    ranks = np.arange(rows)[::-1]
    np.random.default_rng(4).shuffle(ranks[rows - int(rows * FREQUENT) :])
    for part in np.array_split(ranks, max(rows // PART, 1)):
        yield scattered(part)


def _runs(
    draws: Dict[str, Callable[[], np.ndarray]],
    step: Callable[[np.ndarray], Any],
    counts: Callable[[], Dict[str, int]],
    report: str,
) -> Runs:
    """Steps of each distribution; before a round, what was done until then goes to `report`."""
    ready: Dict[str, List[np.ndarray]] = {}

    def prepare(what: str) -> None:
        if what not in ready:
            for _ in range(WARM_UP):
                step(draws[what]())
        ready[what] = [draws[what]() for _ in range(STEPS)]
        _append(report, {"what": what, "resident": rounds_lib.resident_bytes(), **counts()})

    runs: Runs = {}
    for what in draws:
        runs[what] = lambda what=what: step(ready[what].pop())  # type: ignore[misc]
        runs[f"before {what}"] = lambda what=what: prepare(what)  # type: ignore[misc]
    return runs


def build_table(
    rows: int,
    share: Optional[float],
    exponents: Sequence[float],
    hot: int,
    folder: str,
    report: str,
) -> Runs:
    """Fills a table with Adagrad, the least frequent rows first; returns what can be timed.

    The most frequent rows come in random order, so that they lie as scattered in memory as those
    that come back from the disk.

    Args:
      rows: The number of rows.
      share: The part of the rows in memory; None: all, in a table without files.
      exponents: Of the Zipf laws of steps.
      hot: "hits" draws among so many of the most frequent rows.
      folder: For files of rows and checkpoints.
      report: A file to which the state before each round is appended, a line of JSON each.
    """
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    storage = rec.StorageOption()
    if share is not None:
        memory = int(rows * share) * ROW_BYTES
        storage = rec.StorageOption(rec.StorageType.DRAM_SSDHASH, folder, [memory])
    option = rec.EmbeddingVariableOption(storage_option=storage)
    initializer = tf.random_uniform_initializer(-0.05, 0.05)
    table = rec.get_embedding_variable("table", DIM, initializer=initializer, ev_option=option)
    keys = tf.placeholder(tf.int64, [None])
    fill = fill_op(table, keys)
    values = rec.embedding_lookup(table, keys)
    loss = tf.reduce_sum(values * 0.01)
    train = rec.optimizers.AdagradOptimizer(LEARNING_RATE).minimize(loss, var_list=[table])
    counts = table.tier_counts()
    saver = rec.Saver(max_to_keep=1)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    insert = session.make_callable(fill, [keys])
    for part in parts(rows):
        insert(part)

    random = np.random.default_rng(6)
    draws = zipf_draws(rows, exponents)
    draws["hits"] = lambda: scattered(random.integers(0, hot, BATCH * FIELDS))

    def found() -> Dict[str, int]:
        return {name: int(n) for name, n in session.run(counts)._asdict().items()}

    step = session.make_callable(tf.group(train, values), [keys])
    runs = _runs(draws, step, found, report)
    prefix = os.path.join(folder, "model")
    table_bytes = table.memory_bytes()

    def save() -> None:
        before, peak = peak_during(lambda: saver.save(session, prefix, write_meta_graph=False))
        sizes = {"table": int(session.run(table_bytes)), "beyond": peak - before}
        _append(report, {"what": "save", **sizes})

    runs["before save"] = lambda: _remove(folder, "model*")
    runs["save"] = save
    return runs


def _append(report: str, found: Dict[str, Any]) -> None:
    with open(report, "a") as file:
        file.write(json.dumps(found) + "\n")


def _remove(folder: str, pattern: str) -> None:
    for path in pathlib.Path(folder).glob(pattern):
        path.unlink()


def _contiguous() -> memoryview:
    """CHUNK bytes of a huge page, which a disk reads and writes fastest."""
    pages = mmap.mmap(-1, 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    begin = -np.frombuffer(pages, np.uint8).ctypes.data % HUGE_PAGE
    return memoryview(pages)[begin : begin + CHUNK]


def build_plain_file(folder: str, report: str, is_contiguous: bool) -> Runs:
    """For "save": reads the files of rows in a folder, and writes as much as its checkpoint has.

    In sequence and with O_DIRECT, as the table reads its rows, from and to memory of 4 KiB pages
    or of one huge page. Their sizes go to `report`.
    """
    memory = _contiguous() if is_contiguous else memoryview(mmap.mmap(-1, CHUNK))
    plain = os.path.join(folder, "plain")

    def read_and_write() -> None:
        sizes = {"read": 0, "written": 0}
        for path in pathlib.Path(folder).glob("*.rows"):
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            while True:
                n = os.readv(file, [memory])
                sizes["read"] += n
                if n < CHUNK:
                    break
            os.close(file)
        size = sum(path.stat().st_size for path in pathlib.Path(folder).glob("model*"))
        file = os.open(plain, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        for _ in range(0, size, CHUNK):
            sizes["written"] += os.writev(file, [memory])
        os.fsync(file)
        os.close(file)
        _append(report, sizes)

    return {"before save": lambda: _remove(folder, "plain"), "save": read_and_write}


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
    tables: Dict[str, Any], whats: Sequence[str], rounds: int, scratch: str
) -> Dict[str, Any]:
    """Steps of tables, {name: the arguments of build_table before the folder and the report}.

    Returns:
      Seconds by `what` and system and what was done, both by round, and the memory in the end.
    """
    reports = {name: pathlib.Path(scratch) / f"{name}.jsonl" for name in tables}
    folders = {name: pathlib.Path(scratch) / name for name in tables}
    for folder in folders.values():
        folder.mkdir()
    seconds = rounds_lib.alternate(
        {
            name: (build_table, (*arguments, str(folders[name]), str(reports[name])))
            for name, arguments in tables.items()
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
    tables = {
        name: (args.rows, share, EXPONENTS, hot)
        for name, share in (("memory", None), ("disk", args.share))
    }
    whats = [*(f"zipf {exponent}" for exponent in EXPONENTS), "hits"]
    found = {"share": args.share, **alternate(tables, whats, rounds_of(args, "steps"), scratch)}
    # Other users of the disk change its speed.
    after = disk_limit(scratch)
    found["disk_reads_per_second"] = {"before": before, "after": after}
    probed = (before, after)
    limits = {
        "limit": statistics.mean(max(each.values()) for each in probed),
        "32_in_flight": statistics.mean(each["32 in flight"] for each in probed),
    }
    done = found.pop("per_step")["disk"]
    seconds = found["seconds_per_step"]
    found["seconds_per_step"] = result_file.quartiles(seconds)
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
        "slowdown": rounds_lib.ratios(wall["disk"], wall["memory"]).median,
        "cpu_slowdown": rounds_lib.ratios(cpu["disk"], cpu["memory"]).median,
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
        "of_the_plain_file": rounds_lib.ratios(wall["plain"], wall["table"]).median,
        "of_contiguous": rounds_lib.ratios(wall["contiguous"], wall["table"]).median,
        "table_seconds": statistics.median(wall["table"]),
        "plain_seconds": statistics.median(wall["plain"]),
        "contiguous_seconds": statistics.median(wall["contiguous"]),
        "cpu_us_a_row": 1e6 * statistics.median(cpu["table"]) / args.rows,
        "memory_mib": max(each["beyond"] for each in memory) / MIB,
        "promised_mib": 64 + memory[-1]["table"] / 100 / MIB,
    }
    found = {"share": args.share, "bytes": size, "memory": memory}
    return {**found, "seconds": result_file.quartiles(seconds), "summary": _rounded(figures)}


def shares(args: argparse.Namespace, scratch: str) -> Dict[str, Any]:
    """Steps over the share of rows in memory. The first is a table without files."""
    names: Dict[str, Optional[float]] = {"memory": None, **{f"{s:.0%}": s for s in SHARES}}
    tables = {name: (args.share_rows, share, EXPONENTS, 1) for name, share in names.items()}
    whats = [f"zipf {exponent}" for exponent in EXPONENTS]
    found = alternate(tables, whats, rounds_of(args, "shares"), scratch)
    seconds = found["seconds_per_step"]
    summary: Dict[str, Dict[str, Dict[str, float]]] = {what: {} for what in whats}
    for what in whats:
        for name, times in seconds[what].items():
            misses = [each["misses"] for each in found["per_step"][name][what]]
            figures = {
                "ms": 1e3 * statistics.median(times),
                "slowdown": rounds_lib.ratios(times, seconds[what]["memory"]).median,
                "misses": statistics.median(misses),
            }
            summary[what][name] = _rounded(figures)
    return {"rows": args.share_rows, "rounds": found["rounds"], "summary": summary}


MEASURES: Dict[str, Callable[[argparse.Namespace, str], Dict[str, Any]]] = {
    "steps": steps,
    "save": save,
    "shares": shares,
}


def main() -> None:
    parser = result_file.parser(__doc__, rows=20_000_000)
    parser.add_argument("--share", type=float, default=0.1, help="of the rows in memory")
    parser.add_argument("--share_rows", type=int, default=4_000_000, help="rows of case shares")
    parser.add_argument("--rounds", type=int, help=f"in place of {ROUNDS}")
    parser.add_argument("--cases", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--folder", default=".", help="on the disk to be measured")
    args = parser.parse_args()
    result: Dict[str, Any] = {
        "rows": args.rows,
        "dim": DIM,
        "batch": [BATCH, FIELDS],
        "steps_per_round": STEPS,
    }
    for case in args.cases:
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            result[case] = MEASURES[case](args, scratch)
        print(f"\n{case}: {json.dumps(result[case]['summary'], indent=1)}", flush=True)
        result_file.write(args.output, result)


if __name__ == "__main__":
    main()
