# SPDX-License-Identifier: Apache-2.0
"""Runs clusters of processes on 127.0.0.1, for tests.

A test calls run(). It starts one new Python process, which imports TensorFlow once and forks the
tasks: pytest itself may not fork, because it has run sessions. A scenario is a function of
cluster_scenarios.py that takes a folder and returns what json can write.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import traceback

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Keys that each task trains, and the rules that must keep all bits.
STEPS, BATCH, KEYS = 100, 16, 60
RULES = ("Adagrad", "Ftrl", "GradientDescent", "Momentum")


def run(scenario, folder, seconds=120):
    """Runs a scenario in a new process and returns what it returns."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    environment.pop("TF_CONFIG", None)
    with (folder / "scenario.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "cluster_scenarios.py"), scenario, str(folder)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Its forks are in its process group.
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"no end in {seconds} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    logs = "".join(
        f"\n---- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(folder.rglob("*.log"))
    )
    assert status == 0, f"{scenario}: {status}{logs}"
    return json.loads((folder / "result.json").read_text())


def keys_of(task, steps=STEPS):
    """int64 [steps, BATCH]. The keys that a task trains. Few values, so that keys repeat."""
    rng = np.random.default_rng(task)
    return rng.integers(0, KEYS, [steps, BATCH]) * 37 - 500


def free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Job:
    """A cluster. close() ends the processes that are left."""

    def __init__(self, folder, *, ps=2, workers=0):
        self.folder = folder
        ports = [f"127.0.0.1:{port}" for port in free_ports(1 + ps + workers)]
        self.cluster = {"chief": ports[:1], "ps": ports[1 : 1 + ps]}
        if workers:
            self.cluster["worker"] = ports[1 + ps :]
        self.pids = {}

    def start(self, job, index, main, **changes):
        """Forks a task that calls main(folder) and exits with 1 if that raises."""
        pid = os.fork()
        if pid:
            self.pids[job, index] = pid
            return
        status = 1
        try:
            task = {"cluster": self.cluster, "task": {"type": job, "index": index}, **changes}
            os.environ["TF_CONFIG"] = json.dumps(task)
            log = os.open(self.folder / f"{job}{index}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            main(self.folder)
            status = 0
        except SystemExit as error:
            status = error.code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def start_ps(self, main):
        for index in range(len(self.cluster["ps"])):
            self.start("ps", index, main)

    def wait(self, job, index, seconds=60):
        """Waits for the end of a task; returns its exit code, None after `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pids[job, index], os.WNOHANG)
            if pid:
                del self.pids[job, index]
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return None

    def kill(self, job, index):
        pid = self.pids.pop((job, index))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def signal(self, job, index, number):
        os.kill(self.pids[job, index], number)

    def log(self, job, index):
        return (self.folder / f"{job}{index}.log").read_text()

    def close(self):
        for job, index in list(self.pids):
            self.kill(job, index)
