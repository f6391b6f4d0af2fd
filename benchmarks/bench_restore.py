# SPDX-License-Identifier: Apache-2.0
"""Measures restores of cached files by size, in CPU time, and what new memory adds to them.

    python -m benchmarks.bench_restore [--millions 1 5 20] [--rounds 7] [--output FILE.json]

Tables of dim 16 with Adagrad's slot. All files are in the page cache. A fresh process restores
once, into memory that is new to it. Then it empties the table and restores again in each round:
the rows come back into the memory that the process has kept. Each round also reads the files into
one buffer of 8 MiB ("plain read"), and into a buffer of their size that was never touched before
("read into new memory"), which is what a program that keeps the data cannot avoid.

CPU seconds of the process by getrusage, because wall time shows the other work of the machine;
medians over the rounds. The wall times are in the raw result. cores: what the restore would reach
against the plain read if it kept all cores busy, cores * CPU seconds of the read / of the restore.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

DIM = 16
CHUNK = 8 << 20  # bytes
FILL = 200_000  # rows a step


def _cost(call: Callable[[], Any]) -> Dict[str, float]:
    """Returns the seconds of a call, those of CPU, those of CPU in the kernel, and its faults."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    call()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    kernel = after.ru_stime - before.ru_stime
    return {
        "wall": wall,
        "cpu": after.ru_utime - before.ru_utime + kernel,
        "kernel": kernel,
        "faults": after.ru_minflt - before.ru_minflt,
    }


def _files(folder: str) -> List[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder) if ".data-" in name]


def _read(folder: str, into: memoryview, keep: bool) -> None:
    """Reads all files in chunks: one behind the other, or each over the one before."""
    at = 0
    for path in _files(folder):
        with open(path, "rb", buffering=0) as file:
            while True:
                read = file.readinto(into[at : at + CHUNK])
                if not read:
                    break
                at += read if keep else 0


def _read_into_new_memory(folder: str) -> None:
    size = sum(os.path.getsize(path) for path in _files(folder)) + CHUNK
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(memory)
        _read(folder, view, keep=True)
        view.release()


def _graph() -> Tuple[rec.EmbeddingTable, tf.Tensor, tf.Operation, rec.Saver, tf.Session]:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    tf.disable_eager_execution()
    table = rec.get_embedding_variable("table", DIM)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.AdagradOptimizer(0.01).minimize(loss)
    saver = rec.Saver(sharded=True)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return table, keys, train, saver, session


def _save(folder: str, rows: int) -> None:
    _, keys, train, saver, session = _graph()
    # Spread like hashed strings.
    all_keys = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for begin in range(0, rows, FILL):
        session.run(train, {keys: all_keys[begin : begin + FILL].astype(np.int64)})
    saver.save(session, os.path.join(folder, "model"), write_meta_graph=False)


def _restore(folder: str, rows: int, rounds: int, pipe: Connection) -> None:
    table, _, _, saver, session = _graph()
    buffer = memoryview(bytearray(CHUNK))

    def restore() -> None:
        saver.restore(session, os.path.join(folder, "model"))

    calls = {
        "plain read": lambda: _read(folder, buffer, keep=False),
        "read into new memory": lambda: _read_into_new_memory(folder),
        "restore into kept memory": restore,
    }
    calls["plain read"]()  # Now the files are in the page cache.
    costs: Dict[str, List[Dict[str, float]]] = {"restore into new memory": [_cost(restore)]}
    costs.update({what: [] for what in calls})
    for _ in range(rounds):
        session.run(table.initializer)
        for what, call in calls.items():
            costs[what].append(_cost(call))
    assert session.run(table.size()) == rows
    pipe.send(costs)


def _run(function: Callable[..., None], *args: Any) -> None:
    """Runs a function in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=args)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"a process must end without an error, got code {process.exitcode}")


def measure(rows: int, rounds: int, parent: str) -> Dict[str, Any]:
    """Returns the raw result for a table of `rows` rows."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        _run(_save, folder, rows)
        size = sum(os.path.getsize(path) for path in _files(folder))
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        _run(_restore, folder, rows, rounds, theirs)
        return {"rows": rows, "bytes": size, "costs": ours.recv()}


def report(run: Dict[str, Any]) -> None:
    """Prints the lines of one size."""
    cpu = {
        what: statistics.median(cost["cpu"] for cost in costs)
        for what, costs in run["costs"].items()
    }
    print(f"\n{run['rows']:,} rows, {run['bytes'] / 1e9:.2f} GB")
    print(f"{'':26}{'CPU s':>8}{'in kernel':>11}{'CPU / plain read':>18}{'cores':>7}")
    for what, costs in run["costs"].items():
        kernel = statistics.median(cost["kernel"] for cost in costs)
        ratio = cpu[what] / cpu["plain read"]
        cores = (os.cpu_count() or 1) / ratio if what.startswith("restore") else 1 / ratio
        print(f"{what:26}{cpu[what]:8.3f}{kernel:11.3f}{ratio:18.1f}{cores:7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 5, 20], help="rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to write; None: here")
    parser.add_argument("--output", help="file for the raw result, JSON")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    runs = []
    for millions in args.millions:
        runs.append(measure(int(millions * 1e6), args.rounds, args.folder or os.getcwd()))
        report(runs[-1])
    result = {
        **rounds_lib.provenance(),
        "dim": DIM,
        "optimizer": "Adagrad",
        "load_average": os.getloadavg()[0],
        "runs": runs,
    }
    rounds_lib.write(args.output, result)


if __name__ == "__main__":
    main()
