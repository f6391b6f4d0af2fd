# SPDX-License-Identifier: Apache-2.0
"""Shows by perf where the CPU time of whole models goes, above what their net takes.

    python -m benchmarks.profile_models [--batch 2048] [--rounds 3] [--output FILE.json]

The models and engines of bench_models.py; needs perf (package linux-perf). Rounds alternate between
the engines, each in a process of its own; perf samples all its threads for some seconds. The CPU
time of a step, of all threads, is divided in proportion to the samples.

Columns: milliseconds of CPU a step by group of functions, median over the rounds: the library's
own, matrix products, what else TensorFlow does, memory that libc copies or clears, and the kernel;
below, the functions with the most.
"""

import argparse
import collections
import multiprocessing
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Tuple

import numpy as np

from benchmarks import bench_models, criteo_ids
from benchmarks import rounds as rounds_lib

ENGINES = ("floor", "stock", "single")
SECONDS = 8.0  # Of a sample.
FUNCTIONS = 12
SHARDS = 64  # Of a table: kShards in ops/core/base/key_hash.h.
PRODUCTS = ("gebp", "Contraction", "sgemm", "gemm_", "dnnl")
Profile = Dict[str, float]  # CPU milliseconds a step


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


def _serve(model: str, engine: str, batch: int, limit: int, pipe: Any) -> None:
    """Runs in a process: steps for some seconds on request, and returns CPU seconds a step."""
    import os

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    step = bench_models.build(model, engine, batch, limit)
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
        found.append((library.rstrip(")"), function))
    if not found:
        raise RuntimeError("perf must print samples, got none; see `perf record` by hand")
    return found


def measure(model: str, batch: int, limit: int, rounds: int) -> Dict[str, Dict[str, Profile]]:
    """CPU milliseconds a step of each engine, by group and by function."""
    context = multiprocessing.get_context("spawn")
    groups: Dict[str, List[Profile]] = collections.defaultdict(list)
    functions: Dict[str, List[Profile]] = collections.defaultdict(list)
    served = {}
    for engine in ENGINES:
        ours, theirs = context.Pipe()
        arguments = (model, engine, batch, limit, theirs)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        ours.recv()
        served[engine] = (process, ours)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for engine, (process, pipe) in served.items():
                pipe.send(True)
                samples = _samples(process.pid or 0, str(pathlib.Path(folder) / "perf.data"))
                each = 1e3 * pipe.recv() / len(samples)
                groups[engine].append(_sum([_group(*sample) for sample in samples], each))
                functions[engine].append(_sum([sample[1] for sample in samples], each))
    for process, pipe in served.values():
        pipe.send(False)
        process.join()
    return {
        engine: {
            "groups": _medians(groups[engine]),
            "functions": dict(list(_medians(functions[engine]).items())[:FUNCTIONS]),
        }
        for engine in ENGINES
    }


def _sizes(batch: int, limit: int) -> Dict[str, int]:
    """Ids of a step, and, by field, distinct ones and the shards in which these are to be expected.

    Each table of a field has all of them.
    """
    drawn = criteo_ids.draw((bench_models.NUM_BATCHES, batch), limit).values()
    distinct = np.array([len(np.unique(each)) for ids in drawn for each in ids])
    shards = SHARDS * (1 - (1 - 1 / SHARDS) ** distinct)
    return {
        "ids": batch * len(drawn),
        "distinct_ids": round(distinct.sum() / bench_models.NUM_BATCHES),
        "shards": round(shards.sum() / bench_models.NUM_BATCHES),
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=1_000_000, help="the most of a table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="file for the raw result, JSON")
    args = parser.parse_args()
    models = {}
    for model in bench_models.NETS:
        models[model] = measure(model, args.batch, args.rows, args.rounds)
        for engine, profile in models[model].items():
            print(f"\n{model}, {engine}: {sum(profile['groups'].values()):.1f} ms")
            for part in ("groups", "functions"):
                for name, ms in profile[part].items():
                    print(f"  {ms:8.2f}  {name[:90]}")
    sizes = {"batch": args.batch, **_sizes(args.batch, args.rows)}
    found = {**sizes, "rounds": args.rounds, "models": models}
    rounds_lib.write(args.output, {**rounds_lib.provenance(), **found})


if __name__ == "__main__":
    main()
