# SPDX-License-Identifier: Apache-2.0
"""Trains DIN on real ratings, exports it and answers a request: python -m model_zoo.demo."""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

# TensorFlow reads this at import. Its warnings about missing GPUs would hide the output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo import data, run

_CANDIDATES = 100
_SHOWN = 10
_WIDTH = 54  # maximum width of an item's name; a line has at most 80 characters
_LEAST_LIKED = 10  # minimum number of items in the history of the shown user


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the demo; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m model_zoo.demo", description=__doc__)
    parser.add_argument("--data", choices=("movielens_100k", "generated"), default="movielens_100k")
    parser.add_argument("--cache_dir", metavar="DIR", help="folder for downloaded data")
    parser.add_argument("--epochs", type=int, default=4, help="default: %(default)s")
    options = parser.parse_args(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)

    try:
        settings = run.Settings(epochs=options.epochs)
        task = _load(options.data, options.cache_dir)
        with tempfile.TemporaryDirectory() as folder:
            model_dir = os.path.join(folder, "checkpoints")
            estimator = run.build_estimator("din", task, settings, model_dir)
            _train(estimator, task, settings)
            export_dir = _export(estimator, task, os.path.join(folder, "export"))
            request = choose_request(task)
            _answer(task, request, export_dir)
        print("\nTo keep the model: python -m model_zoo.run din --export_dir DIR (see --help)")
    except (OSError, ValueError) as error:
        print(f"model_zoo.demo: {error}", file=sys.stderr)
        return 1
    return 0


def _load(name: str, cache_dir: Optional[str]) -> data.Task:
    _title("1. Data")
    try:
        task = data.load_task(name, cache_dir=cache_dir)
    except data.DataUnavailableError as error:
        print(f"{error}\n\nThe demo continues with generated data.")
        task = data.load_task("generated")
    print(
        f"{task.name}: {len(task.train_labels):,} rows to train on, {len(task.test_labels):,} "
        f"later ones to test on, {len(np.unique(task.train['user'])):,} users, "
        f"{len(np.unique(task.train['item'])):,} items\n{task.credit}"
    )
    return task


def _train(estimator: Any, task: data.Task, settings: run.Settings) -> None:
    _title(f"2. Training: DIN, {settings.epochs} epochs, batches of {settings.batch_size}")
    start = time.monotonic()
    metrics = run.train_and_test(estimator, task, settings)
    seconds = time.monotonic() - start
    best = "" if task.attainable_auc is None else f", {task.attainable_auc:.4f} is attainable"
    print(
        f"Test AUC {metrics['auc']:.4f} (chance is 0.5{best}), "
        f"log loss {metrics['log_loss']:.4f}, after {seconds:.0f} s"
    )
    sizes = ", ".join(f"{name} {rows:,}" for name, rows in _table_sizes(estimator).items())
    print(f"Table sizes after training (no vocabulary was configured):\n{sizes}")


def _table_sizes(estimator: Any) -> Dict[str, int]:
    """Number of rows per table in the last checkpoint."""
    suffix = "-keys"  # the tensor with the keys of a table; names of slots contain a slash
    return {
        name[: -len(suffix)]: shape[0]
        for name, shape in tf.train.list_variables(estimator.latest_checkpoint())
        if name.endswith(suffix) and "/" not in name
    }


def _export(estimator: Any, task: data.Task, folder: str) -> str:
    _title("3. Export")
    export_dir = run.export(estimator, task, folder)
    files = [path for path in pathlib.Path(export_dir).rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"A SavedModel of {megabytes:.1f} MB: keys in, probabilities out")
    return export_dir


class Request(NamedTuple):
    """A request: one user, before the test rows, and many candidate items."""

    user: int
    liked: List[int]  # items, most recent first
    items: np.ndarray  # int64 [n]
    later: Dict[int, bool]  # for items with a test row: whether the user liked them
    columns: Dict[str, np.ndarray]  # the input of the model, [n, ...] each


def choose_request(task: data.Task) -> Request:
    """Chooses a user of the test rows and 100 items, first those that the user rated later.

    The user is the first with 100 test rows, else the user with the most. The remaining items are
    the most frequent ones without a row of the user.

    Raises:
      ValueError: No user of the test rows has enough history.
    """
    first, rows = _user_to_ask_about(task)
    user = int(task.test["user"][first])
    later: Dict[int, bool] = {}
    for row in rows:
        if len(later) < _CANDIDATES:
            later.setdefault(int(task.test["item"][row]), bool(task.test_labels[row]))
    known = set(task.train["item"][task.train["user"] == user].tolist()) | set(later)
    frequent = collections.Counter(task.train["item"].tolist()).most_common()
    others = [item for item, _ in frequent if item not in known]
    items = np.array([*later, *others][:_CANDIDATES], np.int64)

    source = _rows_by_item(task)
    columns = {}
    for column in task.columns:
        if column.side == "item":
            columns[column.name] = np.stack([source[item][column.name] for item in items.tolist()])
        else:
            columns[column.name] = np.stack([task.test[column.name][first]] * len(items))
    liked = [int(item) for item in task.test["history"][first] if item != data.PADDING]
    return Request(user, liked, items, later, columns)


def _user_to_ask_about(task: data.Task) -> Tuple[int, np.ndarray]:
    """Chooses a user; returns the first and all of the user's test rows."""
    users, firsts, counts = np.unique(task.test["user"], return_index=True, return_counts=True)
    liked = np.sum(task.test["history"][firsts] != data.PADDING, axis=1)
    counts = np.where(liked >= _LEAST_LIKED, counts, 0)
    if not counts.max():
        raise ValueError(
            f"task must have a test row with {_LEAST_LIKED} items of history, got none"
        )
    fit = np.flatnonzero(counts >= min(_CANDIDATES, counts.max()))
    chosen = fit[np.argmin(firsts[fit])]
    return int(firsts[chosen]), np.flatnonzero(task.test["user"] == users[chosen])


def _rows_by_item(task: data.Task) -> Dict[int, Dict[str, Any]]:
    """Per item, the keys of one of its rows; the columns of the item are equal in all of them."""
    found: Dict[int, Dict[str, Any]] = {}
    for part in (task.test, task.train):
        items, index = np.unique(part["item"], return_index=True)
        for item, row in zip(items.tolist(), index.tolist()):
            found[item] = {name: keys[row] for name, keys in part.items()}
    return found


def _answer(task: data.Task, request: Request, export_dir: str) -> None:
    what = f"{len(request.items)} items for user {request.user}"
    _title(f"4. Serving: a new process scores {what}")
    answer = _score_in_new_process(export_dir, request)
    print(
        f"Model loaded in {answer['load_seconds']:.1f} s, request answered in "
        f"{answer['milliseconds']:.1f} ms\n"
    )
    print("The user liked, most recent first:")
    for item in request.liked[:5]:
        print(f"        {task.item_name(item)}")
    ranked = rank(request, answer["probabilities"])
    names = [task.item_name(item) for item, _ in ranked[:_SHOWN]]
    names = [name if len(name) <= _WIDTH else name[: _WIDTH - 3] + "..." for name in names]
    width = max(map(len, names))
    print(f"\nThe items with the highest scores, and the user's later rating:\n{'score':>7}")
    for name, (item, probability) in zip(names, ranked):
        verdict = {True: "liked it", False: "did not like it", None: "(no rating)"}
        print(f"  {probability:.3f}  {name:<{width}}  {verdict[request.later.get(item)]}")
    rated = [request.later[item] for item, _ in ranked if item in request.later]
    best = [request.later[item] for item, _ in ranked[:_SHOWN] if item in request.later]
    print(
        f"\nLiked: {sum(best)} of the {len(best)} rated among these {_SHOWN}, {sum(rated)} of the "
        f"{len(rated)} rated among all {len(ranked)}"
    )


def _score_in_new_process(export_dir: str, request: Request) -> Dict[str, Any]:
    """Returns the answer of ``python -m model_zoo.score``."""
    result = subprocess.run(
        [sys.executable, "-m", "model_zoo.score", export_dir],
        input=json.dumps({name: keys.tolist() for name, keys in request.columns.items()}),
        cwd=pathlib.Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode:
        raise ValueError(f"model_zoo.score must answer, got exit status {result.returncode}")
    return json.loads(result.stdout)


def rank(request: Request, probabilities: Sequence[float]) -> List[Tuple[int, float]]:
    """Returns items and their probabilities, highest first."""
    order = np.argsort(-np.asarray(probabilities), kind="stable")
    return [(int(request.items[place]), float(probabilities[place])) for place in order]


def _title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
