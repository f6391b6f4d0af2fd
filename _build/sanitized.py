# SPDX-License-Identifier: Apache-2.0
"""Runs all kernels with ASan and UBSan, and with TSan, in the TensorFlow of this environment.

    python _build/sanitized.py                         # both; `make test-sanitized` runs it
    python _build/sanitized.py thread --rounds 100     # one sanitizer, more work

A copy of the package in build/sanitized/<sanitizer>/ gets an op library that is compiled with the
sanitizer; its objects of ops/core are those of `make test-cc`. tests/sanitized/workload.py runs in
it. TensorFlow and Python are not sanitized: errors inside them are not seen. Leaks are not looked
for: LeakSanitizer takes many minutes to end a process with TensorFlow. `make test-cc` looks for
those of ops/core. The command fails if a sanitizer reports an error or the workload fails.
"""

import argparse
import dataclasses
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import List, Optional, Sequence

import library
import tensorflow_dist

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitized"
WORKLOAD = ROOT / "tests" / "sanitized" / "workload.py"
HAND_OFFS = ROOT / "tests" / "sanitized" / "hand_offs.cc"

# What the workload imports besides the package.
TESTS = ROOT / "tests"

# Flags of every sanitized library.
FLAGS = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")

# Some of TensorFlow's headers, such as absl's containers, have other members under a sanitizer.
# Those classes must have the layout that they have in TensorFlow's own library.
STOCK_LAYOUT = ("-U__SANITIZE_ADDRESS__", "-U__SANITIZE_THREAD__")


@dataclasses.dataclass(frozen=True)
class Sanitizer:
    """A way to build and run the library.

    Attributes:
      core: The name in tests/ops/core/Makefile.
      flags: Of the compiler.
      runtime: The name of the library that is loaded before all others.
      options: Environment variables of the sanitizer.
    """

    core: str
    flags: library.MoreFlags
    runtime: str
    options: Sequence[str]


# An absurd size makes TensorFlow's allocator return nullptr, as it does without a sanitizer.
ABSURD_SIZES = "allocator_may_return_null=1:max_allocation_size_mb=8192"

SANITIZERS = {
    "address": Sanitizer(
        "asan",
        library.MoreFlags((*FLAGS, "-fsanitize=address,undefined"), STOCK_LAYOUT),
        "libasan.so",
        (
            f"ASAN_OPTIONS={ABSURD_SIZES}:detect_leaks=0",
            "UBSAN_OPTIONS=print_stacktrace=1",
        ),
    ),
    "thread": Sanitizer(
        "tsan",
        library.MoreFlags(
            (*FLAGS, "-fsanitize=thread"),
            (
                *STOCK_LAYOUT,
                # See hand_offs.cc. Of headers, only TensorFlow's: it deletes resources by functions
                # that they define inline.
                "-finstrument-functions",
                "-finstrument-functions-exclude-file-list=/usr/,/include/absl/,/include/Eigen,"
                "/include/unsupported/,/include/google/,ops/core/",
            ),
        ),
        "libtsan.so",
        (
            # TensorFlow's and Python's own accesses are not looked at: without TSan's code in them,
            # their atomic operations are invisible, so that each would be a race.
            # The deadlock detector fails at 64 held locks, the number that a snapshot holds.
            f"TSAN_OPTIONS={ABSURD_SIZES}:ignore_noninstrumented_modules=1:detect_deadlocks=0:"
            "halt_on_error=1",
        ),
    ),
}


def build(name: str) -> pathlib.Path:
    """Builds the package in build/sanitized/<name>/ and returns that folder.

    Raises:
      library.BuildError: The compiler fails.
      subprocess.CalledProcessError: It fails for ops/core.
    """
    folder = BUILD / name
    package = folder / "rec_estimator"
    shutil.rmtree(package, ignore_errors=True)
    # A library of another build may be unfinished, and then has a longer name.
    ignored = shutil.ignore_patterns("__pycache__", "*.so*")
    shutil.copytree(ROOT / "rec_estimator", package, ignore=ignored)
    sanitizer = SANITIZERS[name]
    core = _core(sanitizer.core)
    library.build(ROOT, package, tensorflow_dist.find(), sanitizer.flags, core)
    return folder


def _core(variant: str) -> List[pathlib.Path]:
    """Compiles ops/core as for its own tests; returns the object files."""
    jobs = f"-j{os.cpu_count() or 1}"
    command = ["make", "-C", "tests/ops/core", "--silent", jobs, f"core-{variant}"]
    subprocess.run(command, cwd=ROOT, check=True)
    # The sources of a folder are compiled as one.
    folders = sorted({source.parent.relative_to(ROOT) for source in ROOT.glob("ops/core/*/*.cc")})
    return [(ROOT / "build/cc" / variant / folder).with_suffix(".o") for folder in folders]


def run(name: str, folder: pathlib.Path, arguments: Sequence[str]) -> int:
    """Runs the workload with a sanitized package and returns its exit code."""
    sanitizer = SANITIZERS[name]
    # The runtime of ASan looks for libstdc++ when it starts, before Python loads it.
    preloaded = [_library(sanitizer.runtime), _library("libstdc++.so.6")]
    if name == "thread":
        preloaded.append(_hand_offs())
    settings = dict(option.split("=", 1) for option in sanitizer.options)
    environment = {
        **os.environ,
        **settings,
        "LD_PRELOAD": " ".join(preloaded),
        "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS)]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # With oneDNN, tensors of 4 KB and more come from TensorFlow's own pool, in which nothing
        # shows where one ends.
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    command = [sys.executable, str(WORKLOAD), *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode


def _compiler() -> List[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _library(name: str) -> str:
    """The path of a library of the compiler."""
    command = [*_compiler(), f"-print-file-name={name}"]
    path = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not os.path.isabs(path):
        raise library.BuildError(
            f"CXX must be a compiler with {name}, got {command[0]} without; install it "
            "(Debian and Ubuntu: it comes with g++)"
        )
    return path


def _hand_offs() -> str:
    target = BUILD / "hand_offs.so"
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
    subprocess.run([*_compiler(), *flags, str(HAND_OFFS), "-o", str(target)], check=True)
    return str(target)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Builds and runs; returns 0 if no sanitizer found an error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sanitizers", nargs="*", metavar="sanitizer", help="address, thread")
    options, others = parser.parse_known_args(arguments)
    failed = []
    for name in options.sanitizers or SANITIZERS:
        if name not in SANITIZERS:
            parser.error(f"sanitizer must be {' or '.join(SANITIZERS)}, got {name}")
        print(f"===== {name}", flush=True)
        if run(name, build(name), others):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
