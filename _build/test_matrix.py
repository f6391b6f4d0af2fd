# SPDX-License-Identifier: Apache-2.0
"""Runs the tests on pairs of TensorFlow and Python, each in an environment of its own.

    python _build/test_matrix.py                    # all pairs; `make test-matrix` runs it
    python _build/test_matrix.py --pairs 2.21/3.13 --tests tests/table tests/test_estimator.py

An environment takes 2 GB in build/matrix/ and is deleted when its tests are done. TensorFlow 2.16
and later have Keras 3; the tests that need Keras 2 run after the others, with tf-keras. Results of
whole runs go to benchmarks/results/test_matrix.json. The command fails if a test fails or a Python
is missing.
"""

import argparse
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
RESULTS = ROOT / "benchmarks" / "results" / "test_matrix.json"

# Each release with a Python that it has wheels for; the oldest release with two.
PAIRS = (
    *("2.15/3.9", "2.15/3.11", "2.16/3.12", "2.17/3.12", "2.18/3.12"),
    *("2.19/3.12", "2.20/3.13", "2.21/3.13"),
)

# TensorFlow 2.20 calls a function of protobuf with an argument that protobuf 7 removed.
CONSTRAINTS = {"2.20": ["protobuf<7"]}

# What the table shows, beside TensorFlow and Python.
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


def run(pair: str, tests: Sequence[str], processes: int) -> Dict[str, Any]:
    """Makes the environment of a pair, runs tests in it, and deletes it.

    Returns:
      The releases of its packages, the numbers of tests that passed and failed, and the seconds
      that pytest took.

    Raises:
      RuntimeError: There is no such Python.
      subprocess.CalledProcessError: The environment cannot be made.
    """
    minor, python = pair.split("/")
    base = interpreter(python)
    if base is None:
        raise RuntimeError(
            f"Python {python} must be installed, got none in PATH, pyenv or uv; "
            f"run: uv python install {python}, or leave {pair} out with --pairs"
        )
    environment = ROOT / "build" / "matrix" / pair.replace("/", "-python")
    shutil.rmtree(environment, ignore_errors=True)
    try:
        return _run_in(environment, base, minor, tests, processes)
    finally:
        shutil.rmtree(environment)


def _run_in(
    environment: pathlib.Path, base: str, minor: str, tests: Sequence[str], processes: int
) -> Dict[str, Any]:
    subprocess.run([base, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    requirements = [f"{tensorflow_dist.DEFAULT_DISTRIBUTION}=={minor}.*", "setuptools"]
    subprocess.run([*install, *requirements, *CONSTRAINTS.get(minor, [])], check=True)
    subprocess.run(
        [*install, *CONSTRAINTS.get(minor, []), "--editable", ".[test]"], cwd=ROOT, check=True
    )
    started = time.monotonic()
    counts = _pytest(python, environment, ["-n", str(processes), "--dist", "worksteal", *tests])
    if minor != "2.15":
        # --no-deps: tf-keras requires tensorflow, whose files overwrite those of tensorflow-cpu.
        subprocess.run([*install, "--no-deps", f"tf-keras=={minor}.*"], check=True)
        with_keras_2 = _pytest(python, environment, ["-m", "keras_2", *tests], keras_2=True)
        counts = {name: count + with_keras_2[name] for name, count in counts.items()}
    return {**_releases(python), **counts, "seconds": round(time.monotonic() - started)}


def _pytest(
    python: str, environment: pathlib.Path, arguments: Sequence[str], keras_2: bool = False
) -> Dict[str, int]:
    """Runs pytest and returns the numbers of tests that passed and failed."""
    report = environment / "report.xml"
    variables = {**os.environ, **({"TF_USE_LEGACY_KERAS": "1"} if keras_2 else {})}
    command = [python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
    subprocess.run(command, cwd=ROOT, env=variables)
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return {"passed": int(suite.get("tests", 0)) - failed, "failed": failed}


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
    options = parser.parse_args(arguments)
    failed: List[str] = []
    for pair in options.pairs:
        print(f"===== TensorFlow and Python {pair}", flush=True)
        try:
            result = run(pair, options.tests, options.processes)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            failed.append(pair)
            continue
        print(json.dumps(result), flush=True)
        if result["failed"] or not result["passed"]:
            failed.append(pair)
        if not options.tests:
            _store(pair, result)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _store(pair: str, result: Dict[str, Any]) -> None:
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    stored[pair] = result
    ordered = {each: stored[each] for each in PAIRS if each in stored}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
