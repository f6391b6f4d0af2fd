# SPDX-License-Identifier: Apache-2.0
"""Measures the test AUC of every model on every data set, over several seeds.

python -m model_zoo.reach --data_path purchases.csv.gz --output benchmarks/results/model_zoo.json

The AUC is exact, computed from ranks. Without --data_path, Online Retail is omitted.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

# TensorFlow reads this at import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, run

# Minimum test AUC, mean over the seeds.
LEAST_AUC = {
    ("wide_and_deep", "movielens_100k"): 0.788,
    ("din", "movielens_100k"): 0.785,
    ("wide_and_deep", "online_retail"): 0.655,
    ("din", "online_retail"): 0.667,
}


def measure(
    model: str,
    task: data.Task,
    settings: run.Settings,
    initializer: Optional[Callable[..., tf.Tensor]] = None,
) -> Dict[str, float]:
    """Trains once; returns the exact test AUC, the AUC of the metric, log loss and seconds."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = run.build_estimator(model, task, settings, model_dir, initializer)
        metrics = run.train_and_test(estimator, task, settings)
        seconds = time.monotonic() - start
        answers = estimator.predict(run.test_input_fn(task))
        scores = np.array([answer["probabilities"] for answer in answers])
    return {
        "auc": data.exact_auc(task.test_labels, scores),
        "metric_auc": float(metrics["auc"]),
        "log_loss": float(metrics["log_loss"]),
        "seconds": seconds,
    }


def _summary(model: str, task: data.Task, runs: Sequence[Dict[str, float]]) -> Dict[str, Any]:
    aucs = [one["auc"] for one in runs]
    least = LEAST_AUC.get((model, task.name))
    return {
        "model": model,
        "data": task.name,
        "auc_mean": round(statistics.mean(aucs), 4),
        "auc_least": round(min(aucs), 4),
        "auc_most": round(max(aucs), 4),
        "log_loss_mean": round(statistics.mean(one["log_loss"] for one in runs), 4),
        "seconds_mean": round(statistics.mean(one["seconds"] for one in runs), 1),
        "to_reach": least,
        "is_reached": None if least is None else statistics.mean(aucs) >= least,
        "runs": [{name: round(value, 5) for name, value in one.items()} for one in runs],
    }


def _line(summary: Dict[str, Any]) -> str:
    to_reach = "" if summary["to_reach"] is None else f", to reach {summary['to_reach']}"
    return (
        f"{summary['model']:<14} {summary['data']:<15} AUC {summary['auc_mean']:.4f} "
        f"({summary['auc_least']:.4f} to {summary['auc_most']:.4f}{to_reach}), "
        f"log loss {summary['log_loss_mean']:.4f}, {summary['seconds_mean']:.0f} s a run"
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns 1 if an AUC is too low."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo.reach", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", choices=run.MODELS, default=list(run.MODELS))
    parser.add_argument("--data_path", metavar="FILE", help="purchases of Online Retail, as CSV")
    parser.add_argument("--cache_dir", metavar="DIR", help="folder for downloaded data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output", metavar="FILE", help="where to write the results as JSON")
    options = parser.parse_args(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)

    summaries: List[Dict[str, Any]] = []
    try:
        all_settings = [run.Settings(seed=seed) for seed in options.seeds]
        tasks = [data.load_task("movielens_100k", cache_dir=options.cache_dir)]
        if options.data_path:
            tasks.append(data.load_task("online_retail", data_path=options.data_path))
    except (data.DataUnavailableError, ValueError) as error:
        print(f"model_zoo.reach: {error}", file=sys.stderr)
        return 1
    for task in tasks:
        for model in options.models:
            runs = [measure(model, task, settings) for settings in all_settings]
            summaries.append(_summary(model, task, runs))
            print(_line(summaries[-1]), flush=True)
    if options.output:
        results = {
            "question": "How well do the models do, and how much does the seed matter?",
            "command": "python -m model_zoo.reach --data_path purchases.csv.gz",
            "unit": "test AUC (exact, from ranks); mean, least and most of the seeds",
            "seeds": options.seeds,
            "settings": dataclasses.asdict(run.Settings()),
            "tensorflow": tf.__version__,
            "rec_estimator": rec.__version__,
            "cores": os.cpu_count(),
            "results": summaries,
        }
        pathlib.Path(options.output).write_text(json.dumps(results, indent=2) + "\n")
    return 1 if any(summary["is_reached"] is False for summary in summaries) else 0


if __name__ == "__main__":
    sys.exit(main())
