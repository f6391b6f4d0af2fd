# SPDX-License-Identifier: Apache-2.0
"""How every benchmark here measures: processes side by side, in rounds, judged by ratios.

The machine's speed drifts, so absolute times of different runs say nothing. Every system works in a
process of its own; the rounds alternate between them; what is compared is the median over rounds of
the ratio of times within a round.
"""

import contextlib
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple


def _serve(build: Callable[..., Any], arguments: Tuple[Any, ...], pipe: Any) -> None:
    """A process: builds a system, then times what it is asked for."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    run = build(*arguments)
    pipe.send("ready")
    while True:
        what, steps = pipe.recv()
        if what == "stop":
            return
        run.get(f"before {what}", lambda: None)()
        start = time.perf_counter()
        for _ in range(steps):
            run[what]()
        pipe.send((time.perf_counter() - start) / steps)


def alternate(
    systems: Dict[str, Tuple[Callable[..., Any], Tuple[Any, ...]]],
    whats: Sequence[str],
    rounds: int,
    steps: int,
) -> Dict[str, Dict[str, Sequence[float]]]:
    """Times systems in alternating rounds.

    Args:
      systems: By name a function at the top of a module and its arguments. It is called in a
        process of its own and returns a dict of functions without arguments, one per `what`, and
        under "before <what>" what is done before the clock starts.
      whats: What to time, one after the other.
      rounds: How often each system has its turn.
      steps: Calls a turn.

    Returns:
      Seconds a call, {what: {system: [one per round]}}.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for system, (build, arguments) in systems.items():
        pipes[system], theirs = context.Pipe()
        process = context.Process(target=_serve, args=(build, arguments, theirs), daemon=True)
        process.start()
        processes.append(process)
        theirs.close()
        print(f"{system}: {pipes[system].recv()}", flush=True)
    names = list(systems)
    seconds = {what: {system: [] for system in names} for what in whats}
    for what in whats:
        for number in range(rounds):
            for i in range(len(names)):
                system = names[(i + number) % len(names)]
                pipes[system].send((what, steps))
                seconds[what][system].append(pipes[system].recv())
    for pipe in pipes.values():
        pipe.send(("stop", 0))
    for process in processes:
        process.join()
    return seconds


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Tuple[float, ...]:
    """Lower quartile, median and upper quartile of the ratios within rounds."""
    return tuple(statistics.quantiles([a / b for a, b in zip(numerators, denominators)], n=4))


def write(path: Optional[str], result: Dict[str, Any]) -> None:
    """Writes a raw result as JSON, if there is a path."""
    if path:
        pathlib.Path(path).write_text(json.dumps(result, indent=1) + "\n")


def provenance() -> Dict[str, Any]:
    """When, of which commit and on what a result was measured."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
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
