# SPDX-License-Identifier: Apache-2.0
"""Runs the tests on pairs of TensorFlow and Python, each in an environment of its own.

    python _build/test_matrix.py                    # all pairs; `make test-matrix` runs it
    python _build/test_matrix.py --pairs 2.21/3.13 --tests tests/table tests/test_estimator.py

An environment takes 2 GB in build/matrix/ and is deleted when its tests are done; with --keep it
stays and is used again. TensorFlow 2.16 and later have Keras 3; the tests that need Keras 2 run
after the others, with tf-keras. Tests that fail are run again, one at a time: those that wait for
another process fail on a busy machine. With --output the result of a pair is stored when the pair
is done, next to those of other pairs; a pair that has a result of this commit is not run again
unless --again is given. `make docs` writes the results into docs/compatibility.md. The command
fails if a test fails twice or a Python is missing.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from typing import Any, Dict, List, Optional, Sequence

import tensorflow_dist

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Each release with a Python that it has wheels for; the oldest release with two.
PAIRS = (
    *("2.15/3.9", "2.15/3.11", "2.16/3.12", "2.17/3.12", "2.18/3.12"),
    *("2.19/3.12", "2.20/3.13", "2.21/3.13"),
)

# TensorFlow 2.20 calls a function of protobuf with an argument that protobuf 7 removed.
CONSTRAINTS = {"2.20": ["protobuf<7"]}

# What the table shows besides TensorFlow and Python.
PACKAGES = ("numpy", "protobuf", "keras")


def interpreter(python: str) -> Optional[str]:
    """The path of an interpreter of release ``python``: from PATH, pyenv or uv. None if missing."""
    finders = (
        [f"python{python}", "-c", "import sys; print(sys.executable)"],
        ["pyenv", "prefix", python],
        ["uv", "python", "find", python],
    )
    for command in finders:
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            found = pathlib.Path(done.stdout.strip())
            return str(found / "bin" / "python" if found.is_dir() else found)
    return None


class MissingPythonError(Exception):
    """There is no interpreter for a pair. The message has the remedy."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to run the tests of each pair.

    Attributes:
      tests: Files and folders. Empty: the whole suite.
      processes: The number of pytest's processes.
      keeps: Whether environments stay and are used again.
    """

    tests: Sequence[str] = ()
    processes: int = 2
    keeps: bool = False


def run(pair: str, settings: Settings) -> Dict[str, Any]:
    """Makes the environment of a pair and runs tests in it.

    Returns:
      The releases of its packages, the numbers of tests that passed, failed and were skipped, and
      the seconds that building and testing took; ``again``, the tests that passed only when they
      ran alone, if there are any; ``parts`` if the tests are not the whole suite.

    Raises:
      MissingPythonError: There is no such Python.
      RuntimeError: Pytest was interrupted.
      subprocess.CalledProcessError: The environment cannot be made.
    """
    minor, python = pair.split("/")
    base = interpreter(python)
    if base is None:
        raise MissingPythonError(
            f"Python {python} is in none of PATH, pyenv and uv; "
            f"run: uv python install {python}, or leave {pair} out with --pairs"
        )
    environment = ROOT / "build" / "matrix" / pair.replace("/", "-python")
    if not settings.keeps:
        shutil.rmtree(environment, ignore_errors=True)
    try:
        return _run_in(environment, base, minor, settings)
    finally:
        if not settings.keeps:
            shutil.rmtree(environment, ignore_errors=True)


def _run_in(environment: pathlib.Path, base: str, minor: str, settings: Settings) -> Dict[str, Any]:
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    constraints = CONSTRAINTS.get(minor, [])
    print(f"{environment}: installing TensorFlow {minor}", flush=True)
    if not environment.exists():
        subprocess.run([base, "-m", "venv", str(environment)], check=True)
    requirements = [f"{tensorflow_dist.DEFAULT_DISTRIBUTION}=={minor}.*", "setuptools>=70.1"]
    subprocess.run([*install, *requirements, *constraints], check=True)
    print("building the library", flush=True)
    started = time.monotonic()
    build = [python, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=ROOT, check=True)
    # It finds the library built. With TensorFlow, because a package of the tests may need a NumPy
    # that this release does not take: pip looks only at what one command asks for.
    package = [*requirements, *constraints, "--editable", ".[test]"]
    subprocess.run([*install, *package], cwd=ROOT, check=True)
    # --no-deps: it requires tensorflow, whose files overwrite those of tensorflow-cpu.
    subprocess.run([*install, "--no-deps", f"tensorflow-serving-api=={minor}.*"], check=True)
    result = {"build_seconds": round(time.monotonic() - started)}
    started = time.monotonic()
    counts = _count(python, environment, settings)
    if minor != "2.15":
        # --no-deps: as above.
        subprocess.run([*install, "--no-deps", f"tf-keras=={minor}.*"], check=True)
        marker = ["-m", "keras_2 and not slow"]
        with_keras_2 = _pytest(python, environment, [*marker, *settings.tests], keras_2=True)
        counts = {name: count + with_keras_2.get(name, 0) for name, count in counts.items()}
    result.update(counts, test_seconds=round(time.monotonic() - started))
    parts = {"parts": list(settings.tests)} if settings.tests else {}
    return {**_releases(python), **result, **parts}


def _count(python: str, environment: pathlib.Path, settings: Settings) -> Dict[str, int]:
    """Runs the tests, and those that fail a second time, alone."""
    parallel = ["-n", str(settings.processes), "--dist", "worksteal"]
    counts = _pytest(python, environment, [*parallel, *settings.tests])
    if counts["failed"]:
        print("running the failed tests again, one at a time", flush=True)
        # Pytest's cache has their names. Without a name, --lfnf=none runs no test.
        again = _pytest(python, environment, ["--lf", "--lfnf=none", *settings.tests])
        # It may also run tests that passed.
        counts["again"] = counts["failed"] - again["failed"]
        counts["passed"] += counts["again"]
        counts["failed"] = again["failed"]
    return counts


def _pytest(
    python: str, environment: pathlib.Path, arguments: Sequence[str], keras_2: bool = False
) -> Dict[str, int]:
    """Runs pytest and returns the numbers of tests that passed, failed and were skipped."""
    report = environment / "report.xml"
    variables = {**os.environ, **({"TF_USE_LEGACY_KERAS": "1"} if keras_2 else {})}
    command = [python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
    status = subprocess.run(command, cwd=ROOT, env=variables).returncode
    # 1: a test failed; 5: no test was collected. Others: pytest did not run all tests.
    if status not in (0, 1, 5):
        raise RuntimeError(f"pytest must run to its end, got status {status}; see its output")
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped = int(suite.get("skipped", 0))
    passed = int(suite.get("tests", 0)) - failed - skipped
    return {"passed": passed, "failed": failed, "skipped": skipped}


def _releases(python: str) -> Dict[str, str]:
    program = (
        "import importlib.metadata as m, json, platform, sys; "
        "print(json.dumps({'python': platform.python_version(), "
        "**{name: m.version(name) for name in sys.argv[1:]}}))"
    )
    names = [tensorflow_dist.DEFAULT_DISTRIBUTION, *PACKAGES]
    done = subprocess.run([python, "-c", program, *names], check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    return {"tensorflow": found.pop(tensorflow_dist.DEFAULT_DISTRIBUTION), **found}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the pairs; returns 0 if all tests passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", nargs="+", default=PAIRS, metavar="TENSORFLOW/PYTHON")
    parser.add_argument("--tests", nargs="+", default=[], help="files and folders; default: all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path, help="file of the results, *.json")
    parser.add_argument("--again", action="store_true", help="also run what has a result")
    parser.add_argument("--skip_missing", action="store_true", help="a missing Python is no error")
    parser.add_argument("--keep", action="store_true", help="keep environments and use them again")
    options = parser.parse_args(arguments)
    settings = Settings(options.tests, options.processes, options.keep)
    commit = _commit()
    failed: List[str] = []
    for number, pair in enumerate(options.pairs, 1):
        print(f"===== TensorFlow and Python {pair} ({number}/{len(options.pairs)})", flush=True)
        if options.output and not options.again and is_done(options.output, pair, commit):
            print(f"has a result of commit {commit}; --again runs it again", flush=True)
            continue
        try:
            result = {"commit": commit, **run(pair, settings)}
        except MissingPythonError as error:
            print(error, file=sys.stderr)
            failed += [] if options.skip_missing else [pair]
            continue
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            failed.append(pair)
            continue
        print(json.dumps(result), flush=True)
        if result["failed"] or not result["passed"]:
            failed.append(pair)
        if options.output:
            store(options.output, pair, result)
            # The tests of the next pair compare the page with the results.
            subprocess.run([sys.executable, "-m", "benchmarks.figures"], cwd=ROOT, check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def is_done(path: pathlib.Path, pair: str, commit: Optional[str]) -> bool:
    """Whether a pair has a result of the whole suite at ``commit``, without a failure."""
    stored = _stored(path).get(pair)
    if commit is None or stored is None or "parts" in stored:
        return False
    return stored.get("commit") == commit and not stored["failed"]


def _commit() -> Optional[str]:
    """The commit of the checkout. None without git, or if a file differs that is no result."""
    changed = ["git", "status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs"]
    found = []
    for command in (changed, ["git", "rev-parse", "--short=12", "HEAD"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found.append(done.stdout.strip() if done.returncode == 0 else None)
    return None if found[0] != "" else found[1]


def _stored(path: pathlib.Path) -> Dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def store(path: pathlib.Path, pair: str, result: Dict[str, Any]) -> None:
    """Puts the result of a pair next to those of the others; parts never replace a whole run."""
    stored = _stored(path)
    before = stored.get(pair)
    if before is None or "parts" in before or "parts" not in result:
        stored[pair] = result
    # Every pair, so that the page also names those that were not run.
    path.write_text(json.dumps({each: stored.get(each) for each in PAIRS}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
