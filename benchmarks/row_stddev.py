# SPDX-License-Identifier: Apache-2.0
r"""Measures the test AUC of the model zoo for several standard deviations of new rows.

    python -m benchmarks.row_stddev --data_path purchases.csv.gz --output \
        benchmarks/results/row_stddev.json

Rows start from truncated normal draws. The candidates are 1, as in get_embedding_variable,
1 / sqrt(dim), 0.5 / sqrt(dim), 0.05 and 0.01. The settings are those of the zoo; Online Retail is
trained for one epoch. The AUC is exact. Results are written after each point.
"""

import argparse
import math
import os
import statistics
from typing import Any, Dict, List, Optional, Sequence

# Read by TensorFlow when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

from benchmarks import rounds as rounds_lib
from model_zoo import data, reach, run

_EPOCHS = {"movielens_100k": 4, "online_retail": 1}


def candidates(dim: int) -> Dict[str, float]:
    """The standard deviations to try for rows of `dim` floats, by name."""
    root = 1 / math.sqrt(dim)
    return {"1": 1.0, "1/√dim": root, "0.5/√dim": 0.5 * root, "0.05": 0.05, "0.01": 0.01}


def measure(task: data.Task, model: str, dim: int, seeds: Sequence[int]) -> List[Dict[str, Any]]:
    """Trains a model with each candidate and seed; returns one point per candidate."""
    points = []
    for name, stddev in candidates(dim).items():
        runs = [
            reach.measure(
                model,
                task,
                run.Settings(embedding_dim=dim, epochs=_EPOCHS[task.name], seed=seed),
                tf.truncated_normal_initializer(stddev=stddev),
            )
            for seed in seeds
        ]
        point = {
            "data": task.name,
            "epochs": _EPOCHS[task.name],
            "dim": dim,
            "model": model,
            "stddev": name,
            "auc": round(statistics.mean(one["auc"] for one in runs), 4),
            "log_loss": round(statistics.mean(one["log_loss"] for one in runs), 4),
            "aucs": [round(one["auc"], 4) for one in runs],
        }
        print(point, flush=True)
        points.append(point)
    return points


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_path", metavar="FILE", help="purchases of Online Retail, as CSV")
    parser.add_argument("--cache_dir", metavar="DIR", help="folder for downloaded data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output", metavar="FILE", help="where to write the results, JSON")
    options = parser.parse_args(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)

    movielens = data.load("movielens_100k", cache_dir=options.cache_dir)
    workloads = [(movielens, 16), (movielens, 64)]
    if options.data_path:
        workloads.insert(1, (data.load("online_retail", data_path=options.data_path), 16))
    result: Dict[str, Any] = {
        "question": "From which standard deviation of new rows do the models learn best?",
        **rounds_lib.provenance(),
        "seeds": options.seeds,
        "points": [],
    }
    for task, dim in workloads:
        for model in run.MODELS:
            result["points"] += measure(task, model, dim, options.seeds)
            rounds_lib.write(options.output, result)


if __name__ == "__main__":
    main()
