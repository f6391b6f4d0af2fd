# SPDX-License-Identifier: Apache-2.0
r"""Measures the test AUC and the rows of wide & deep for several values of filter_freq.

    python -m benchmarks.filter_sweep --data_path purchases.csv.gz --output \
        benchmarks/results/filter_sweep.json --plot docs/filter_sweep.png

Data: MovieLens-100k, Online Retail (only with --data_path) and `clicks`, which are generated here:
six fields with keys distributed as in the Criteo Kaggle log; each key has its own effect on the
click. The AUC is exact. Rows and filtered keys are counted in the last checkpoint, over all tables.
Plots need matplotlib.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

# Read by TensorFlow when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import rounds as rounds_lib
from model_zoo import data, run, wide_and_deep

THRESHOLDS = (0, 2, 3, 5, 10, 20, 50)

# p(rank) ~ (rank + q)^-s over n ranks, fitted to fields of the Criteo Kaggle log: (s, q, n).
_FIELDS = {
    "C4": (1.158, 2.0, 6446884),
    "C7": (1.097, 20.98, 12517),
    "C12": (1.087, 1.41, 1363342897),
    "C15": (1.409, 24.75, 14992),
    "C16": (1.114, 2.08, 135619015),
    "C24": (1.342, 5.6, 316422),
}
_CLICK_RATE = 0.256  # Of that log.


def clicks(rows: int = 400_000, seed: int = 1) -> data.Task:
    """Generated clicks: each key of a field adds a normal draw of its own to the log-odds.

    Args:
      rows: In all; the last 20 % are the test.
      seed: Of everything.
    """
    random = np.random.default_rng(seed)
    keys, log_odds = {}, np.full(rows, np.log(_CLICK_RATE / (1 - _CLICK_RATE)))
    for number, (name, (s, q, n)) in enumerate(_FIELDS.items()):
        low, high = (1 + q) ** (1 - s), (n + 1 + q) ** (1 - s)
        ranks = (low + random.random(rows) * (high - low)) ** (1 / (1 - s)) - q
        rank_ids, inverse = np.unique(ranks.astype(np.int64), return_inverse=True)
        effects = np.random.default_rng([seed, number]).normal(0, 0.5, len(rank_ids))
        log_odds += effects[inverse]
        keys[name] = ranks.astype(np.int64)
    probability = 1 / (1 + np.exp(-log_odds))
    labels = (random.random(rows) < probability).astype(np.float32)
    split = rows - rows // 5
    return data.Task(
        name="clicks",
        columns=tuple(data.Column(name, "context") for name in keys),
        train={name: column[:split] for name, column in keys.items()},
        train_labels=labels[:split],
        test={name: column[split:] for name, column in keys.items()},
        test_labels=labels[split:],
        attainable_auc=data.exact_auc(labels[split:], probability[split:]),
        credit="Generated: nobody's data.",
    )


def _keys_of(model_dir: str) -> Dict[str, int]:
    """How many keys of all tables own rows and how many are only counted."""
    shapes = dict(tf.train.list_variables(model_dir))
    tables = [
        name[: -len("-partition_offset")] for name in shapes if name.endswith("-partition_offset")
    ]
    tables = [table for table in tables if not any(table.startswith(f"{t}/") for t in tables)]
    return {
        what: sum(shapes[table + suffix][0] for table in tables)
        for what, suffix in (("rows", "-keys"), ("filtered", "-keys_filtered"))
    }


def measure(task: data.Task, filter_freq: int, settings: run.Settings) -> Dict[str, float]:
    """Trains wide & deep once, every table behind a CounterFilter(filter_freq)."""
    option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(filter_freq))
    features = [
        dataclasses.replace(feature, ev_option=option)
        for feature in wide_and_deep.embedding_features(task.columns, settings.embedding_dim)
    ]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = rec.RecEstimator(
            wide_and_deep.model_fn,
            model_dir=model_dir,
            config=rec.RunConfig(tf_random_seed=settings.seed, save_summary_steps=1000),
            params={
                "columns": task.columns,
                "hidden_units": tuple(settings.hidden_units),
                "learning_rate": settings.learning_rate,
            },
            embedding_features=features,
        )
        run.train_and_test(estimator, task, settings)
        answers = estimator.predict(run.test_input_fn(task))
        scores = np.array([answer["probabilities"] for answer in answers])
        return {
            "auc": round(data.exact_auc(task.test_labels, scores), 5),
            **_keys_of(model_dir),
            "seconds": round(time.monotonic() - start, 1),
        }


def sweep(task: data.Task, all_settings: Sequence[run.Settings]) -> List[Dict[str, Any]]:
    """One entry per threshold: means over the seeds, and all runs."""
    entries = []
    for filter_freq in THRESHOLDS:
        runs = [measure(task, filter_freq, settings) for settings in all_settings]
        entry = {
            "filter_freq": filter_freq,
            "auc": round(statistics.mean(one["auc"] for one in runs), 5),
            "rows": runs[0]["rows"],
            "filtered": runs[0]["filtered"],
            "runs": runs,
        }
        entries.append(entry)
        print(
            f"{task.name:16} filter_freq {filter_freq:3}  AUC {entry['auc']:.4f}  rows "
            f"{entry['rows']:9,}  filtered {entry['filtered']:9,}",
            flush=True,
        )
    return entries


def plot(result: Dict[str, Any], path: str) -> None:
    """Draws one panel per data set: AUC with the spread of the seeds, and the share of rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sets = result["data"]
    figure, panels = pyplot.subplots(
        1, len(sets), figsize=(4.6 * len(sets), 3.6), layout="constrained", squeeze=False
    )
    for panel, (name, entries) in zip(panels[0], sets.items()):
        places = range(len(entries))
        aucs = [[one["auc"] for one in entry["runs"]] for entry in entries]
        means = [statistics.mean(each) for each in aucs]
        panel.fill_between(
            places, [min(each) for each in aucs], [max(each) for each in aucs], alpha=0.2, lw=0
        )
        (line,) = panel.plot(places, means, marker="o", label="test AUC, mean and spread of seeds")
        panel.set_xticks(places, [str(entry["filter_freq"]) for entry in entries])
        panel.set_xlabel("filter_freq (0: no filter)")
        panel.set_ylabel("test AUC")
        panel.set_title(name)
        share = panel.twinx()
        bars = share.bar(
            places,
            [100 * entry["rows"] / entries[0]["rows"] for entry in entries],
            width=0.5,
            color="tab:gray",
            alpha=0.35,
            label="rows, % of those without a filter",
        )
        share.set_ylim(0, 110)
        share.set_ylabel("rows, %")
        panel.set_zorder(share.get_zorder() + 1)  # The line lies on the bars.
        panel.patch.set_visible(False)
    panels[0][0].legend(handles=[line, bars], loc="lower left", fontsize=8)
    figure.savefig(path, dpi=110)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_path", metavar="FILE", help="purchases of Online Retail, as CSV")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output", metavar="FILE", help="where the results are or go, JSON")
    parser.add_argument("--plot", metavar="FILE", help="where to draw them, PNG or SVG")
    parser.add_argument("--only_plot", action="store_true", help="draw what --output holds")
    options = parser.parse_args(arguments)
    if options.only_plot:
        plot(json.loads(pathlib.Path(options.output).read_text()), options.plot)
        return
    tf.logging.set_verbosity(tf.logging.ERROR)
    tasks = [data.load("movielens_100k"), clicks()]
    if options.data_path:
        tasks.insert(1, data.load("online_retail", data_path=options.data_path))
    all_settings = [run.Settings(seed=seed) for seed in options.seeds]
    result = {
        "question": "What does filter_freq do to a model's test AUC and to its rows?",
        **rounds_lib.provenance(),
        "model": "wide_and_deep",
        "seeds": options.seeds,
        "settings": dataclasses.asdict(run.Settings()),
        "data": {task.name: sweep(task, all_settings) for task in tasks},
    }
    rounds_lib.write(options.output, result)
    if options.plot:
        plot(result, options.plot)


if __name__ == "__main__":
    main()
