# SPDX-License-Identifier: Apache-2.0
"""Runs Python programs in processes of their own, each in milliseconds instead of seconds.

A server process imports TensorFlow once and is forked for every program. pytest itself may not be
forked, because it has run sessions. The server does nothing else, so that a program finds what it
would find after its own import of TensorFlow; rec_estimator is not imported.

This file is also the server's program. It reads a request a line: a process to start, which it
answers with its id, or the id of one whose exit code is asked for.
"""

import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A hang, not slowness, is what it would be.
TIMEOUT_SECONDS = 600
# For an environment in which equal runs give equal bits. With more threads, TensorFlow's AddN of
# three or more tensors begins with one whose memory is free just then, so its last bits vary.
ONE_OP_AT_A_TIME = {"TF_NUM_INTEROP_THREADS": "1"}


class Process:
    """A program in a process of its own. Several may run at the same time.

    Args:
      arguments: What follows `python` on the command line: "-c" and code, or a file, then its
        arguments.
      cwd: The folder it runs in.
      hash_seed: Its PYTHONHASHSEED. Programs with different seeds iterate over sets in different
        orders.
      environment: Variables of its environment besides those of this process.
    """

    def __init__(self, arguments, cwd=ROOT, hash_seed=1, environment=()):
        self._server = _server(hash_seed)
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [pathlib.Path(self._folder.name, name) for name in ("stdout", "stderr")]
        changed = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)}
        self.pid = self._server.answer(
            arguments=list(map(str, arguments)),
            cwd=str(cwd),
            environment={**os.environ, **changed, **dict(environment)},
            outputs=list(map(str, self._outputs)),
        )

    def wait(self, timeout=TIMEOUT_SECONDS):
        """Waits for the end; returns a subprocess.CompletedProcess with both outputs."""
        deadline = time.monotonic() + timeout
        while (code := self._server.answer(ended=self.pid)) is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"no end in {timeout} s; {self._texts()[1][-4000:]}")
            time.sleep(0.01)
        with self._folder:
            return subprocess.CompletedProcess(self.pid, code, *self._texts())

    def _texts(self):
        return [output.read_text(errors="replace") for output in self._outputs]


def run(arguments, **options):
    """Runs a program that must end with 0; returns a subprocess.CompletedProcess."""
    done = Process(arguments, **options).wait()
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-4000:]}"
    return done


class _Server:
    def __init__(self, hash_seed):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "", "PYTHONHASHSEED": str(hash_seed)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@functools.cache
def _server(hash_seed):
    """Ends when this process closes its pipe, at its own end."""
    return _Server(hash_seed)


def serve():
    """Answers until there are no more requests; returns the program to run in a forked process."""
    import tensorflow.compat.v1  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return request
        print(json.dumps(answer), flush=True)
    return None


def become(request):
    """Runs a program as if this process had been started for it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    files = [nothing, *(os.open(path, os.O_WRONLY | os.O_CREAT) for path in request["outputs"])]
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path.insert(1, os.environ["PYTHONPATH"])
    sys.argv = request["arguments"]
    if sys.argv[0] == "-c":
        code = sys.argv.pop(1)
        sys.path[0] = ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    request = serve()
    if request:
        become(request)
