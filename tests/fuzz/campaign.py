# SPDX-License-Identifier: Apache-2.0
"""Feeds hostile inputs to the package in child processes, and says which of them break it.

    python tests/fuzz/campaign.py                         # 10,000 seeds of each target
    python tests/fuzz/campaign.py requests --count 300    # the first 300 of one target
    python tests/fuzz/campaign.py requests --first 17 --count 1

A target makes one hostile input from each seed and gives it to the package (targets.py). One child
process tries many seeds, and tells this process before and after each of them. So a crash is known
by its seed. A seed fails if the child

* dies, or does not answer within 20 s;
* holds 1 GB more memory than before, or at any time during the seed;
* raises an error of another class than the target expects, or breaks what the target checks, such
  as: what was accepted equals what is in the file.

After a crash, a hang or a growth a new child goes on with the next seed.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import importlib
import json
import os
import pathlib
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Counter, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]

SECONDS = 20.0  # For one seed.
START_SECONDS = 240.0  # For the import of TensorFlow and the target's own files.
MEMORY_BYTES = 1 << 30
# Enough for TensorFlow, too little for absurd shapes: their allocation fails instead of swapping.
ADDRESS_SPACE_BYTES = 12 << 30

# Seeds that one child process tries. Its graph and its tables stay small.
CHUNK = 500


class Failure(NamedTuple):
    """A seed that broke something."""

    target: str
    seed: int
    what: str
    begun: int  # The first seed of the same child.

    def __str__(self) -> str:
        command = f"{sys.executable} tests/fuzz/campaign.py {self.target}"
        before = f"--first {self.begun} --count {self.seed - self.begun + 1}"
        return (
            f"{self.target}, seed {self.seed}: {self.what}\n"
            f"  alone:                  {command} --first {self.seed} --count 1\n"
            f"  after those before it:  {command} {before}"
        )


class Report(NamedTuple):
    """What became of some seeds."""

    outcomes: Counter[str]  # By the word that the target returned; "failed" for failures.
    failures: List[Failure]

    def add(self, other: "Report") -> None:
        self.outcomes.update(other.outcomes)
        self.failures.extend(other.failures)


# ------------------------------------------------------------------ the parent process


def try_seeds(
    target: str, first: int, count: int, seconds: float = SECONDS, memory: int = MEMORY_BYTES
) -> Report:
    """Tries consecutive seeds of a target, in as many children as it takes."""
    report = Report(collections.Counter(), [])
    seed, end = first, first + count
    while seed < end:
        with _Child(target, seed, end) as child:
            begun = seed
            what = child.wait_for_start(START_SECONDS)
            if what is not None:  # No other child would start either.
                end = seed
            while what is None and seed < end:
                what = child.wait_for(seed, report, seconds, memory)
                if what is None:
                    seed += 1
        if what is not None:
            report.outcomes["failed"] += 1
            report.failures.append(Failure(target, seed, what, begun))
            seed += 1
    return report


class _Child:
    """A process that tries the seeds from ``first`` to ``end``, and the lines that it writes."""

    def __init__(self, target: str, first: int, end: int) -> None:
        self._arguments = [sys.executable, __file__, "--child", target, str(first), str(end)]
        self._pending = b""
        self._base = 0  # Bytes of memory when it was ready.

    def __enter__(self) -> "_Child":
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._errors = open(os.path.join(self._folder.name, "stderr"), "w+b")
        self._process = subprocess.Popen(
            [*self._arguments, self._folder.name],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._folder.name,
            env={
                **os.environ,
                "TMPDIR": self._folder.name,
                "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            },
        )
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()
        self._folder.cleanup()

    def wait_for_start(self, seconds: float) -> Optional[str]:
        """Returns what went wrong, None if nothing did."""
        line = self._read_line(seconds)
        if isinstance(line, str):
            return f"the target cannot start: {line}"
        self._base = line["memory"]
        return None

    def wait_for(self, seed: int, report: Report, seconds: float, memory: int) -> Optional[str]:
        """Waits for the outcome of a seed. Returns why the child is of no use any more, if so."""
        line = self._read_line(seconds)
        if isinstance(line, str):
            return line
        assert line["seed"] == seed, (line, seed)
        grown = max(line["peak"] - line["before"], line["memory"] - self._base)
        if grown > memory:
            return f"memory grew by {grown / 2**20:.0f} MiB; {line['outcome']}"
        report.outcomes[line["outcome"]] += 1
        if line["broken"]:
            first = int(self._arguments[-2])
            report.failures.append(Failure(self._arguments[-3], seed, line["broken"], first))
        return None

    def _read_line(self, seconds: float) -> object:
        """The next message of the child, or what went wrong."""
        deadline = time.monotonic() + seconds
        answers = select.poll()  # select() refuses the files of a process with a thousand others.
        answers.register(self._process.stdout, select.POLLIN)
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not answers.poll(left * 1000):
                return f"no answer within {seconds:g} s"
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                return f"the process ended with {self._process.wait()}\n{self._last_errors()}"
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _last_errors(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 3000))
        return self._errors.read().decode(errors="backslashreplace")


# ------------------------------------------------------------------ the child process


def run_child(name: str, first: int, end: int, folder: str) -> None:
    """Tries seeds, and writes a line of JSON when it is ready and after each seed."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, hard))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the package prints must not be taken for an answer.
    target = load_target(name)(pathlib.Path(folder))
    print(json.dumps({"memory": _memory("VmRSS")}), file=answers, flush=True)
    for seed in range(first, end):
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak.
        before, broken = _memory("VmRSS"), ""
        try:
            outcome = target.run(seed)
        except Exception:
            outcome, broken = "failed", traceback.format_exc()
        answer = {"seed": seed, "outcome": outcome, "broken": broken, "before": before}
        answer.update(memory=_memory("VmRSS"), peak=_memory("VmHWM"))
        print(json.dumps(answer), file=answers, flush=True)


def _memory(name: str) -> int:
    """A number of bytes of this process, as the kernel counts them."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)[1]) << 10


# ------------------------------------------------------------------ the command


def load_target(name: str) -> type:
    """Returns the class of a target, whose module has its name."""
    return importlib.import_module(f"fuzz.fuzz_{name}").Target


def chunks(targets: Dict[str, int], first: int) -> Iterator[Tuple[str, int, int]]:
    """Yields (target, first seed, number of seeds), one target after the other."""
    for name, count in targets.items():
        for begin in range(first, first + count, CHUNK):
            yield name, begin, min(CHUNK, first + count - begin)


def run(targets: Dict[str, int], first: int) -> int:
    """Tries seeds of targets in two processes, shows progress and returns the exit code."""
    total: Dict[str, Report] = {name: Report(collections.Counter(), []) for name in targets}

    def show(name: str, report: Report) -> None:
        total[name].add(report)
        for failure in report.failures:
            print(failure, flush=True)
        outcomes = total[name].outcomes
        counts = ", ".join(f"{count} {word}" for word, count in sorted(outcomes.items()))
        print(f"{name}: {sum(outcomes.values())} of {targets[name]}: {counts}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {pool.submit(try_seeds, *chunk): chunk[0] for chunk in chunks(targets, first)}
        for future in concurrent.futures.as_completed(futures):
            show(futures[future], future.result())
    failed = sum(report.outcomes["failed"] for report in total.values())
    print(f"{failed} failed" if failed else "none failed")
    return 1 if failed else 0


def main(arguments: Optional[Iterable[str]] = None) -> int:
    from fuzz.targets import SHARES

    parser = argparse.ArgumentParser(description="Feeds hostile inputs to the package.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(SHARES)}")
    parser.add_argument("--count", type=int, help="seeds of each (default: 10,000 or its share)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.targets) - set(SHARES))
    if unknown:
        parser.error(f"TARGET must be one of {', '.join(SHARES)}, got {unknown[0]}")
    names = options.targets or list(SHARES)
    count = {name: options.count or round(10_000 * SHARES[name]) for name in names}
    return run(count, options.first)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        sys.exit(main())
