# SPDX-License-Identifier: Apache-2.0
"""Measures by perf where the CPU time of systems goes, in alternating rounds.

Each system runs in its own process. Each round samples all its threads for some seconds, one system
after the other. The CPU time of a step, of all threads, is divided in proportion to the samples.
Needs perf (package linux-perf).
"""

import collections
import multiprocessing
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

from benchmarks import rounds as rounds_lib

SECONDS = 8.0  # For a sample.
FUNCTIONS = 12
MOST_OF_A_NAME = 90  # Characters.
PRODUCTS = ("gebp", "Contraction", "sgemm", "gemm_", "dnnl")
Profile = Dict[str, float]  # CPU milliseconds a step


def measure(
    systems: Dict[str, Tuple[Callable[..., Callable[[], Any]], Tuple[Any, ...]]], rounds: int
) -> Dict[str, Dict[str, Profile]]:
    """CPU milliseconds a step of each system, by group of functions and by function.

    Args:
      systems: By name, a top-level function of a module and its arguments. It is called in its own
        process and returns a step.
      rounds: Number of rounds; the result is their medians.

    Returns:
      By system, "groups" and "functions", the most first. Groups: the library's own, matrix
      products, what else TensorFlow does, memory that libc copies or clears, and the kernel.
      Functions: those with the most.
    """
    context = multiprocessing.get_context("spawn")
    groups: Dict[str, List[Profile]] = collections.defaultdict(list)
    functions: Dict[str, List[Profile]] = collections.defaultdict(list)
    served = {}
    for system, (build, arguments) in systems.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(build, arguments, theirs), daemon=True)
        process.start()
        ours.recv()
        served[system] = (process, ours)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for system, (process, pipe) in served.items():
                pipe.send(True)
                samples = _samples(process.pid or 0, str(pathlib.Path(folder) / "perf.data"))
                each = 1e3 * pipe.recv() / len(samples)
                groups[system].append(_sum([_group(*sample) for sample in samples], each))
                functions[system].append(_sum([sample[1] for sample in samples], each))
    for process, pipe in served.values():
        pipe.send(False)
        process.join()
    return {
        system: {
            "groups": _medians(groups[system]),
            "functions": dict(list(_medians(functions[system]).items())[:FUNCTIONS]),
        }
        for system in systems
    }


def show(name: str, profile: Dict[str, Profile]) -> None:
    """Prints what measure has found of a system."""
    print(f"\n{name}: {sum(profile['groups'].values()):.2f} ms")
    for part in ("groups", "functions"):
        for what, ms in profile[part].items():
            print(f"  {ms:8.2f}  {what}")


def _group(library: str, function: str) -> str:
    """The group of a function, in a shared library as perf names it."""
    if "_rec_ops" in library:
        return "library"
    # oneDNN generates code without names as it runs.
    if function == "[unknown]" or any(word in function for word in PRODUCTS):
        return "matrix products"
    if "kernel" in library:
        return "kernel"
    if "libc" in library:
        return "libc"
    return "TensorFlow" if "tensorflow" in library else "other"


def _serve(build: Callable[..., Callable[[], Any]], arguments: Tuple[Any, ...], pipe: Any) -> None:
    """Runs in a process: steps for some seconds on request, and returns CPU seconds a step."""
    rounds_lib.start_tensorflow()
    step = build(*arguments)
    pipe.send("ready")
    while pipe.recv():
        end, cpu, steps = time.time() + SECONDS + 1, time.process_time(), 0
        while time.time() < end:
            step()
            steps += 1
        pipe.send((time.process_time() - cpu) / steps)


def _samples(pid: int, file: str) -> List[Tuple[str, str]]:
    """(library, function) of each sample of a process."""
    record = ["perf", "record", "-q", "-F", "997", "-p", str(pid), "-o", file]
    subprocess.run([*record, "--", "sleep", str(SECONDS)], check=True, capture_output=True)
    script = ["perf", "script", "-i", file, "-F", "ip,sym,dso"]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    found = []
    for line in filter(None, map(str.strip, lines)):  # Address, function (library).
        function, _, library = line.partition(" ")[2].rpartition(" (")
        found.append((library.rstrip(")"), function[:MOST_OF_A_NAME]))
    if not found:
        raise RuntimeError("perf must print samples, got none; see `perf record` by hand")
    return found


def _sum(names: List[str], each: float) -> Profile:
    return {name: n * each for name, n in collections.Counter(names).items()}


def _medians(profiles: List[Profile]) -> Profile:
    """By name, the most first."""
    names = {name for profile in profiles for name in profile}
    found = {
        name: statistics.median(profile.get(name, 0.0) for profile in profiles) for name in names
    }
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {name: float(f"{ms:.4g}") for name, ms in ordered}
