# SPDX-License-Identifier: Apache-2.0
"""Measures tables and models against PyTorch with the CPU tables of FBGEMM.

    python3.11 -m venv TORCH && TORCH/bin/pip install numpy torch fbgemm-gpu-cpu
    python -m benchmarks.bench_torch --torch_python TORCH/bin/python [--rounds 9]
        [--output FILE.json]
    taskset -c 0 python -m ...           one core, for a machine that is not idle

torch_models.py is the other side, in an interpreter of its own. It is given its batches in memory
and in the order of its ops; rec_estimator's models read theirs from a tf.data pipeline.

* One table of 5M rows and dim 16, with the batches and steps of bench_table.py, for both of its key
  distributions: lookup, gradient and update. Both sides have the same type of vectors and rule.
* The models of bench_models.py, with an embedding_lookup for each table: whole steps. FBGEMM's are
  measured with the vectors and rule of rec_estimator's, and with those that are its fastest.

OpenMP's threads spin while they wait for each other. On a machine that is not idle that is most of
PyTorch's CPU time, so compare CPU time on one core there.

Columns: ms: a step, median. ratio: speed of rec_estimator over that of FBGEMM, median over the
rounds, with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from typing import Any, Callable, Dict, List

import numpy as np

from benchmarks import bench_models, bench_table, result_file
from benchmarks import rounds as rounds_lib

OURS = "rec_estimator"
EXPONENTS = (1.1, 1.25)
# (type of vectors, rule). The models of rec_estimator have the first.
ROWS = [
    (value_dtype, rule)
    for value_dtype in ("float32", "float16")
    for rule in ("Adagrad", "RowwiseAdagrad")
]
MODEL_ROWS = [ROWS[0], ROWS[-1]]
PACKAGES = ("torch", "fbgemm-gpu-cpu")


def table(
    rows: int, batches: np.ndarray, value_dtype: str, rule: str
) -> Dict[str, Callable[[], Any]]:
    """Builds a table of rec_estimator for rounds.alternate, in its own process."""
    return bench_table.start(bench_table.table_system(rows, batches, rule, value_dtype))


def model(name: str, batch: int, limit: int) -> Dict[str, Callable[[], Any]]:
    """Builds a model of rec_estimator for rounds.alternate, in its own process."""
    return {"train": bench_models.build(name, "single", batch, limit)}


def measure_table(exponent: float, rows: int, args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Measures one table with all types of vectors and rules."""
    batches = bench_table.zipf_batches(rows, exponent=exponent)
    unique = statistics.mean(len(np.unique(batch)) / batch.size for batch in batches)
    found = []
    for value_dtype, rule in ROWS:
        arguments = (rows, batches, value_dtype, rule)
        systems: Dict[str, Any] = {OURS: (table, arguments)}
        systems["fbgemm"] = (_elsewhere("table", args), arguments)
        seconds = rounds_lib.alternate(
            systems, ("train", "lookup"), args.rounds, args.steps, with_cpu=True
        )
        case = {"value_dtype": value_dtype, "rule": rule, "unique_share": round(unique, 4)}
        found.append({**case, **report(f"{value_dtype} + {rule}, {unique:.2f} distinct", seconds)})
    return found


def measure_model(name: str, batch: int, args: argparse.Namespace) -> Dict[str, Any]:
    """Measures a model against FBGEMM with each of MODEL_ROWS."""
    arguments = (name, batch, args.limit)
    systems: Dict[str, Any] = {OURS: (model, arguments)}
    for value_dtype, rule in MODEL_ROWS:
        theirs = (_elsewhere("model", args), (*arguments, value_dtype, rule))
        systems[f"fbgemm, {value_dtype} + {rule}"] = theirs
    seconds = rounds_lib.alternate(
        systems, ["train"], args.rounds, args.steps_of_models, with_cpu=True
    )
    return {"model": name, "batch": batch, **report(f"{name}, batch {batch}", seconds)}


def report(title: str, seconds: rounds_lib.Seconds) -> Dict[str, Any]:
    """Prints the rows of one case and returns the raw result."""
    print(f"\n{title}")
    ratios: Dict[str, Dict[str, float]] = {}
    for what, by_system in seconds.items():
        for system, times in by_system.items():
            line = f"{what:14}{system:34}{statistics.median(times) * 1e3:8.2f} ms"
            if system != OURS:
                ratio = rounds_lib.ratios(times, by_system[OURS])
                ratios.setdefault(what, {})[system] = round(ratio.median, 3)
                line += f"   {ratio}"
            print(line, flush=True)
    return {"seconds_per_step": result_file.quartiles(seconds), "ratios": ratios}


def _elsewhere(function: str, args: argparse.Namespace) -> rounds_lib.Elsewhere:
    return rounds_lib.Elsewhere(args.torch_python, "benchmarks.torch_models", function)


def _versions(python: str) -> Dict[str, str]:
    program = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return {
        package: subprocess.check_output([python, "-c", program, package], text=True).strip()
        for package in PACKAGES
    }


def main() -> None:
    parser = result_file.parser(__doc__, rows=5_000_000, rounds=9, steps=40)
    parser.add_argument("--torch_python", required=True, help="interpreter with torch and FBGEMM")
    parser.add_argument("--limit", type=int, default=1_000_000, help="rows of a table of models")
    parser.add_argument("--steps_of_models", type=int, default=20, help="--steps, of models")
    parser.add_argument("--exponents", type=float, nargs="*", default=EXPONENTS, help="of tables")
    parser.add_argument("--batches", type=int, nargs="*", default=[512, 2048], help="of models")
    args = parser.parse_args()
    result: Dict[str, Any] = {
        "packages": _versions(args.torch_python),
        "rows": args.rows,
        "rows_of_models": args.limit,
        "rounds": args.rounds,
        "steps_per_round": [args.steps, args.steps_of_models],
        "tables": [],
        "models": [],
    }
    for exponent in args.exponents:
        result["tables"] += measure_table(exponent, args.rows, args)
        result_file.write(args.output, result)
    for batch in args.batches:
        for name in bench_models.NETS:
            result["models"].append(measure_model(name, batch, args))
            result_file.write(args.output, result)


if __name__ == "__main__":
    main()
