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
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

# TensorFlow reads this at import. Its warnings about missing GPUs would hide the output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo import data, runner
from model_zoo.runner.config import Config

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
        data_set = _load(options.data, options.cache_dir)
        with tempfile.TemporaryDirectory() as folder:
            config = Config(model="din", model_dir=os.path.join(folder, "model")).replace(
                train__epochs=options.epochs, data__name=data_set.name
            )
            _train(config, data_set)
            export_dir = _export(config, data_set, os.path.join(folder, "export"))
            _answer(data_set, choose_request(data_set), export_dir)
        print(
            "\nTo keep the model: python -m model_zoo train din --model_dir DIR --export_dir DIR\n"
            "On your own data:  python -m model_zoo train din --data SCHEMA.yaml (see --help)"
        )
    except (OSError, ValueError) as error:
        print(f"model_zoo.demo: {error}", file=sys.stderr)
        return 1
    return 0


def _load(name: str, cache_dir: Optional[str]) -> data.DataSet:
    _title("1. Data")
    try:
        found = data.load(name, cache_dir=cache_dir)
    except data.DataUnavailableError as error:
        print(f"{error}\n\nThe demo continues with generated data.")
        found = data.load("generated")
    train = rows_of(found, "train").features
    print(
        f"{found.name}: {found.rows('train'):,} rows to train on, {found.rows('validation'):,} to "
        f"choose the best epoch,\n{found.rows('test'):,} later ones to test on; "
        f"{len(np.unique(train['user'])):,} users, {len(np.unique(train['item'])):,} items"
    )
    if found.credit:
        print(found.credit)
    return found


def rows_of(data_set: data.DataSet, part: str) -> data.Rows:
    """Reads all rows of a part, as a model gets them."""
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = data_set.input_fn(part, 4096)()
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        batches = []
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                break
    features = {name: np.concatenate([each[name] for each, _ in batches]) for name in batches[0][0]}
    all_labels = [
        labels if isinstance(labels, dict) else {data_set.labels[0]: labels}
        for _, labels in batches
    ]
    labels = {name: np.concatenate([each[name] for each in all_labels]) for name in data_set.labels}
    return data.Rows(features, labels)


def _train(config: Config, data_set: data.DataSet) -> None:
    train = config.train
    _title(f"2. Training: DIN, {train.epochs} epochs, batches of {train.batch_size}")
    start = time.monotonic()
    results = runner.train(config, data_set, _show_validation)
    metrics = results["test"]
    main = "" if "auc" in metrics else f"{data_set.labels[0]}/"
    attainable = getattr(data_set, "attainable_auc", None)
    best = "" if attainable is None else f", {attainable:.4f} is attainable"
    print(
        f"Test AUC {metrics[f'{main}auc']:.4f} (chance is 0.5{best}), "
        f"log loss {metrics[f'{main}log_loss']:.4f}, after {time.monotonic() - start:.0f} s"
    )
    sizes = ", ".join(f"{name} {rows:,}" for name, rows in results["rows"].items())
    print(f"Table sizes after training (no vocabulary was configured):\n{sizes}")


def _show_validation(line: str) -> None:
    if " | validation " in line:
        print(line)


def _export(config: Config, data_set: data.DataSet, folder: str) -> str:
    _title("3. Export")
    export_dir = runner.export(config, folder, data_set)
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


def choose_request(data_set: data.DataSet) -> Request:
    """Chooses a user of the test rows and 100 items, first those that the user rated later.

    The user is the first with 100 test rows, else the user with the most. The remaining items are
    the most frequent ones without a row of the user.

    Raises:
      ValueError: No user of the test rows has enough history.
    """
    train, test = rows_of(data_set, "train"), rows_of(data_set, "test")
    labels = test.labels[data_set.labels[0]]
    first, rows = _user_to_ask_about(test.features)
    user = int(test.features["user"][first])
    later: Dict[int, bool] = {}
    for row in rows:
        if len(later) < _CANDIDATES:
            later.setdefault(int(test.features["item"][row]), bool(labels[row]))
    of_user = train.features["user"] == user
    known = set(train.features["item"][of_user].tolist()) | set(later)
    frequent = collections.Counter(train.features["item"].tolist()).most_common()
    others = [item for item, _ in frequent if item not in known]
    items = np.array([*later, *others][:_CANDIDATES], np.int64)

    source = _rows_by_item(train.features, test.features)
    columns = {}
    for column in data_set.columns:
        if column.role == "item":
            columns[column.name] = np.stack([source[item][column.name] for item in items.tolist()])
        else:
            columns[column.name] = np.stack([test.features[column.name][first]] * len(items))
    history = test.features["history"][first]
    liked = [int(item) for item in history if item != data.PADDING]
    return Request(user, liked, items, later, columns)


def _user_to_ask_about(test: Mapping[str, np.ndarray]) -> Tuple[int, np.ndarray]:
    """Chooses a user; returns the first and all of the user's test rows."""
    users, firsts, counts = np.unique(test["user"], return_index=True, return_counts=True)
    liked = np.sum(test["history"][firsts] != data.PADDING, axis=1)
    counts = np.where(liked >= _LEAST_LIKED, counts, 0)
    if not counts.max():
        raise ValueError(f"no test row has a history of {_LEAST_LIKED} items; use more data")
    fit = np.flatnonzero(counts >= min(_CANDIDATES, counts.max()))
    chosen = fit[np.argmin(firsts[fit])]
    return int(firsts[chosen]), np.flatnonzero(test["user"] == users[chosen])


def _rows_by_item(*parts: Mapping[str, np.ndarray]) -> Dict[int, Dict[str, Any]]:
    """Per item, the keys of one of its rows; the columns of the item are equal in all of them."""
    found: Dict[int, Dict[str, Any]] = {}
    for part in parts:
        items, index = np.unique(part["item"], return_index=True)
        for item, row in zip(items.tolist(), index.tolist()):
            found[item] = {name: keys[row] for name, keys in part.items()}
    return found


def _answer(data_set: data.DataSet, request: Request, export_dir: str) -> None:
    what = f"{len(request.items)} items for user {request.user}"
    _title(f"4. Serving: a new process scores {what}")
    answer = _score_in_new_process(export_dir, request)
    print(
        f"Model loaded in {answer['load_seconds']:.1f} s, request answered in "
        f"{answer['milliseconds']:.1f} ms\n"
    )
    print("The user liked, most recent first:")
    for item in request.liked[:5]:
        print(f"        {data_set.item_name(item)}")
    ranked = rank(request, answer["probabilities"])
    names = [data_set.item_name(item) for item, _ in ranked[:_SHOWN]]
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
