# SPDX-License-Identifier: Apache-2.0
"""Trains DeepFM on a cluster of processes on this machine: python -m model_zoo.cluster.

It starts a chief, a worker, two parameter servers and an evaluator. Each runs the same command
with its own TF_CONFIG, as the pods of a cluster would.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

# TensorFlow reads this at import. Its warnings about missing GPUs would hide the output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from model_zoo.runner.commands import table_parts

_WAIT_SECONDS = 600  # for the end of the training


def free_addresses(number: int) -> List[str]:
    """Returns addresses on this machine, host:port, that no server uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def start_task(
    command: Sequence[str],
    cluster: Mapping[str, Sequence[str]],
    job: str,
    index: int,
    output: Optional[int] = None,
) -> subprocess.Popen:
    """Starts the process of a task.

    Args:
      command: The script; a ps runs ``python -m rec_estimator.ps`` instead.
      cluster: Addresses by job; that of the evaluator is not among them.
      job: The job of the task.
      index: Its number in the job.
      output: The file of its output. None: that of this process, but nothing of a ps.
    """
    config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
    is_ps = job == "ps"
    return subprocess.Popen(
        [sys.executable, "-m", "rec_estimator.ps"] if is_ps else command,
        env={**os.environ, "TF_CONFIG": config},
        stdout=output,
        stderr=subprocess.DEVNULL if is_ps and output is None else output,
    )


@contextlib.contextmanager
def _tasks(command: Sequence[str]) -> Iterator[Dict[str, subprocess.Popen]]:
    """Starts a process for each task; ends those that are left."""
    chief, worker, *servers = free_addresses(4)
    cluster = {"chief": [chief], "worker": [worker], "ps": servers}
    roles = [("ps", 0), ("ps", 1), ("chief", 0), ("worker", 0), ("evaluator", 0)]
    processes = {}
    try:
        for job, index in roles:
            processes[f"{job} {index}"] = start_task(command, cluster, job, index)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _print_tables(model_dir: str) -> None:
    """Prints how many rows of each table every ps holds."""
    print("\nRows on each ps:")
    for table, counts in table_parts(model_dir).items():
        print(f"  {table:10} {' + '.join(f'{count:,}' for count in counts)}")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m model_zoo.cluster", description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="default: %(default)s")
    parser.add_argument("--model_dir", metavar="DIR", help="default: a temporary folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = options.model_dir or str(pathlib.Path(folder) / "model")
        print("Starting ps 0, ps 1, chief, worker and evaluator ...", flush=True)
        begun = time.monotonic()
        command = [sys.executable, "-m", "model_zoo", "train", "deepfm", "--data", "generated"]
        command += ["--steps", str(options.steps), "--model_dir", model_dir]
        command += ["--set", f"train.save_steps={max(1, options.steps // 2)}"]
        print(f"Each task runs: python {' '.join(command[1:])}", flush=True)
        with _tasks(command) as processes:
            for task in ("chief 0", "worker 0", "evaluator 0"):
                status = processes[task].wait(_WAIT_SECONDS)
                if status:
                    print(f"model_zoo.cluster: {task} ended with status {status}", file=sys.stderr)
                    return 1
        _print_tables(model_dir)
        print(f"\n{time.monotonic() - begun:.0f} s with all starts and ends of processes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
