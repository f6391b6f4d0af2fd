# SPDX-License-Identifier: Apache-2.0
"""Measures systems in alternating rounds and compares them by ratios within a round.

The speed of a machine drifts, so absolute times of different runs cannot be compared. Each system
runs in its own process (alternate), or all run in one (take_turns). Each round runs every system
once. The figure is the median over rounds of the ratio of times within a round.
"""

import importlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

# {what: {system: seconds per call, one per round}}
Seconds = Dict[str, Dict[str, List[float]]]


class Elsewhere(NamedTuple):
    """A function of a module that only another Python can run.

    Attributes:
      python: The interpreter, such as that of an environment with other packages.
      module: The module, which is imported there.
      function: The name of the function.
    """

    python: str
    module: str
    function: str


# What builds a system: a top-level function of a module.
Build = Union[Callable[..., Any], Elsewhere]


def _timed(call: Callable[[], Any], calls: int) -> Tuple[float, float]:
    """Seconds a call, and CPU seconds, of all threads of the process."""
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls, (time.process_time() - cpu) / calls


def turns(systems: Sequence[str], rounds: int) -> Iterator[str]:
    """Every system once a round, each round beginning with another."""
    for number in range(rounds):
        for i in range(len(systems)):
            yield systems[(i + number) % len(systems)]


def start_tensorflow() -> None:
    """Imports TensorFlow into a process of a benchmark: graph mode, errors only."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)


def _call(function: Callable[..., Any], arguments: Tuple[Any, ...], pipe: Any) -> None:
    start_tensorflow()
    pipe.send(function(*arguments))


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a top-level function of a module returns in a process of its own.

    Raises:
      EOFError: The process ended without a result; its error is above.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_call, args=(function, arguments, theirs))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    return found


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _serve(build: Callable[..., Any], arguments: Tuple[Any, ...], pipe: Any) -> None:
    """Runs in a process: builds a system, then times it on request."""
    start_tensorflow()
    _answer(build(*arguments), pipe)


def _serve_elsewhere(pipe: Any) -> None:
    """The same in the process of another interpreter, which may have no TensorFlow."""
    build, arguments = pipe.recv()
    function = getattr(importlib.import_module(build.module), build.function)
    _answer(function(*arguments), pipe)


def _answer(run: Dict[str, Callable[[], Any]], pipe: Any) -> None:
    pipe.send(run.get("ready", lambda: "ready")())
    while True:
        what, steps = pipe.recv()
        if what == "stop":
            return
        run.get(f"before {what}", lambda: None)()
        measured = _timed(run[what], steps)
        run.get(f"after {what}", lambda: None)()
        pipe.send(measured)


def _start(build: Build, arguments: Tuple[Any, ...]) -> Tuple[Any, Callable[[], Any]]:
    """Starts the process of a system; returns a pipe to it, and what waits for its end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    wait: Callable[[], Any]
    if isinstance(build, Elsewhere):
        command = [build.python, "-m", "benchmarks.rounds", str(theirs.fileno())]
        folder = pathlib.Path(__file__).parent.parent
        wait = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=folder).wait
        theirs.close()
        ours.send((build, arguments))
    else:
        process = context.Process(target=_serve, args=(build, arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        wait = process.join
    return ours, wait


def alternate(
    systems: Mapping[str, Tuple[Build, Tuple[Any, ...]]],
    whats: Sequence[str],
    rounds: int,
    steps: int,
    with_cpu: bool = False,
    at_once: bool = True,
    said: Optional[Dict[str, Any]] = None,
) -> Seconds:
    """Times systems in alternating rounds.

    Args:
      systems: By name, a top-level function of a module, or one Elsewhere, and its arguments. It is
        called in its own process and returns functions without arguments: one for each of `whats`,
        and optionally "before <what>" and "after <what>", which run before and after the measured
        time, and "ready", which says something about a system that is built.
      whats: Names of the functions to time, one after the other.
      rounds: Number of rounds.
      steps: Calls per round and system.
      with_cpu: Whether to return CPU time as well, of all threads of a system's process.
      at_once: Whether all processes build their system at the same time, so that none is the
        first: matrix products of the first process took up to 8 % longer in all its rounds.
        Otherwise each waits for the one before it.
      said: Gets what "ready" of each system returned.

    Returns:
      Seconds per call, {what: {system: [one per round]}}. CPU time is under "<what>, CPU".
    """
    pipes: Dict[str, Any] = {}
    waits = []
    said = {} if said is None else said

    def wait_for(system: str) -> None:
        said[system] = pipes[system].recv()
        print(f"{system}: {said[system]}", flush=True)

    for system, (build, arguments) in systems.items():
        pipes[system], wait = _start(build, arguments)
        waits.append(wait)
        if not at_once:
            wait_for(system)
    if at_once:
        for system in systems:
            wait_for(system)
    names = list(systems)
    seconds: Seconds = {
        name: {system: [] for system in names}
        for what in whats
        for name in ([what, f"{what}, CPU"] if with_cpu else [what])
    }
    for what in whats:
        for system in turns(names, rounds):
            pipes[system].send((what, steps))
            elapsed, cpu = pipes[system].recv()
            seconds[what][system].append(elapsed)
            if with_cpu:
                seconds[f"{what}, CPU"][system].append(cpu)
    for pipe in pipes.values():
        pipe.send(("stop", 0))
    for wait in waits:
        wait()
    return seconds


def take_turns(
    systems: Dict[str, Callable[[], Any]], rounds: int, steps: int, warm_up: int
) -> Tuple[Dict[str, List[float]], Dict[str, List[float]]]:
    """Times systems of this process in alternating rounds.

    Args:
      systems: By name, a step.
      rounds: Number of rounds.
      steps: Steps per round and system.
      warm_up: Steps before these, which are not timed.

    Returns:
      Seconds a step and CPU seconds a step, {system: [one per round]}.
    """
    wall: Dict[str, List[float]] = {system: [] for system in systems}
    cpu: Dict[str, List[float]] = {system: [] for system in systems}
    for system in turns(list(systems), rounds):
        for _ in range(warm_up):
            systems[system]()
        elapsed, cpu_elapsed = _timed(systems[system], steps)
        wall[system].append(elapsed)
        cpu[system].append(cpu_elapsed)
    return wall, cpu


class Ratio(NamedTuple):
    """Quartiles over the rounds of a ratio within each."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} - {self.high:.2f})"


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The quartiles of the ratios within rounds."""
    return Ratio(*statistics.quantiles([a / b for a, b in zip(numerators, denominators)], n=4))


if __name__ == "__main__":  # What _start runs elsewhere.
    _serve_elsewhere(multiprocessing.connection.Connection(int(sys.argv[1])))
