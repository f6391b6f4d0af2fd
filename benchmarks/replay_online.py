# SPDX-License-Identifier: Apache-2.0
"""Replays the last weeks of Online Retail: how much do fresh models gain?

    python -m benchmarks.replay_online --folder FOLDER [--seeds 3] [--output FILE.json]

DIN of the model zoo is trained on the purchases up to 2011-10-31, as configs/online_retail.yaml
says, for --epochs. Then time goes on in windows of five minutes, and the learning rate is --factor
of what it was: the rows of a window are few, and most are of one customer. For each window in which
somebody buys,

1. four servers answer its requests, the purchases and their negatives;
2. the model is trained on them, one step;
3. the step is published: a delta, or a new base at the end of a day;
4. a server whose time has come catches up with what is published: every five minutes, every hour,
   every day, or never.

Publishing is rec.serving.publish, a server is rec.serving.load_predictor. Time is that of the
purchases. The result has the AUC of all answers of a server (progressive: each answer was given
before its row was trained on), and that of each week.
"""

import csv
import datetime
import functools
import os
import pathlib
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

# TensorFlow reads this at import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import result_file
from model_zoo import data as zoo_data
from model_zoo.runner import config as zoo_config
from model_zoo.runner.build import build_estimator, training_rows

MINUTE = 60
DAY = 24 * 60 * MINUTE
WEEK = 7 * DAY
WINDOW = 5 * MINUTE
# Seconds between two refreshes of each server.
SERVERS = {"every 5 minutes": WINDOW, "every hour": 60 * MINUTE, "every day": DAY, "never": None}
MOST_WINDOWS = DAY // WINDOW  # In a day.
# Checkpoints are written by this program alone.
NEVER = 10**9


class Window(NamedTuple):
    """The requests of five minutes.

    Attributes:
      begin: Seconds since 1970.
      rows: Purchases and negatives.
    """

    begin: int
    rows: zoo_data.Rows


def windows_of(rows: zoo_data.Rows, times: np.ndarray) -> List[Window]:
    """Cuts rows, which are in order of time, into windows.

    Args:
      rows: n rows.
      times: int64 [n], seconds since 1970.
    """
    numbers = times // WINDOW
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(begins[1:], len(numbers))
    return [Window(int(numbers[b]) * WINDOW, rows[b:e]) for b, e in zip(begins, ends)]


def times_of(folder: pathlib.Path, begin: str, rows_each: int) -> np.ndarray:
    """The seconds since 1970 of all rows from the day `begin` on, `rows_each` for a purchase."""
    with (folder / "purchases.csv").open(newline="") as file:
        times = np.array([line["time"] for line in csv.DictReader(file)], "datetime64[s]")
    times = times[times >= np.datetime64(begin)]
    return np.repeat(times.astype(np.int64), rows_each)


class Server:
    """A model in memory that catches up with what is published, every so many seconds.

    Args:
      folder: The folder of the publications.
      every: Seconds of the purchases; None: never.
    """

    def __init__(self, folder: str, every: Optional[int]) -> None:
        self._folder, self._every = folder, every
        self._base = ""
        self._step = -1
        self._predict: Optional[rec.serving.Predictor] = None
        self._period: Optional[int] = None
        self.answers: List[np.ndarray] = []

    def answer(self, window: Window) -> None:
        """Catches up if it is time, and answers the requests of a window."""
        period = None if self._every is None else window.begin // self._every
        if self._predict is None or period != self._period:
            self._catch_up()
        self._period = period
        assert self._predict is not None
        self.answers.append(self._predict(window.rows.features)["probabilities"])

    def _catch_up(self) -> None:
        manifest = rec.serving.read_manifest(self._folder)
        assert manifest is not None
        if manifest["base"] != self._base:
            self.close()
            self._base = manifest["base"]
            self._predict = rec.serving.load_predictor(os.path.join(self._folder, self._base))
            self._step = manifest["step"]
        assert isinstance(self._predict, rec.serving.SavedModelPredictor)
        for delta in manifest["deltas"]:
            if delta["step"] > self._step:
                self._step = self._predict.refresh(delta["name"]).step

    def close(self) -> None:
        """Frees the model."""
        if self._predict is not None:
            self._predict.close()


class Replay(tf.train.SessionRunHook):
    """Publishes each step of a training, and lets the servers answer before the next one.

    Args:
      windows: Those that the training takes, one a step.
      servers: The servers.
      folder: The folder of the publications.
      export: As rec.serving.publish takes it.
      model_dir: The folder of the training's checkpoints.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        servers: Sequence[Server],
        folder: str,
        export: Callable[..., bytes],
        model_dir: str,
    ) -> None:
        self._windows, self._servers = windows, servers
        self._folder, self._export = folder, export
        self._path = os.path.join(model_dir, "model.ckpt")
        self._trained = 0

    def begin(self) -> None:
        """Finds the Saver and the step of the training."""
        self._step = tf.train.get_global_step()
        (self._saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
        self._saver.allow_deltas(MOST_WINDOWS)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Publishes the base, and lets the servers answer the first window."""
        del coord
        self._publish(session, is_full=True)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Publishes the step."""
        del run_values
        self._trained += 1
        if self._trained < len(self._windows):
            before, after = (each.begin // DAY for each in self._windows[self._trained - 1 :][:2])
            self._publish(run_context.session, is_full=before != after)

    def _publish(self, session: tf.Session, is_full: bool) -> None:
        step = int(session.run(self._step))
        prefix = self._saver.save(session, self._path, step, write_meta_graph=False, full=is_full)
        rec.serving.publish(prefix, self._folder, self._export, max_deltas=MOST_WINDOWS)
        for server in self._servers:
            server.answer(self._windows[self._trained])


def input_fn_of(windows: Sequence[Window]) -> Callable[[], tf.data.Dataset]:
    """An input_fn whose batches are windows."""

    def batches() -> Iterator[Any]:
        for window in windows:
            yield dict(window.rows.features), dict(window.rows.labels)

    def signature(arrays: Any) -> Dict[str, tf.TensorSpec]:
        return {
            name: tf.TensorSpec([None, *array.shape[1:]], array.dtype)
            for name, array in arrays.items()
        }

    rows = windows[0].rows
    kinds = signature(rows.features), signature(rows.labels)
    return lambda: tf.data.Dataset.from_generator(batches, output_signature=kinds)


def replay(
    folder: str,
    data: zoo_data.DataSet,
    windows: Sequence[Window],
    config: zoo_config.Config,
    factor: float,
) -> Dict[str, np.ndarray]:
    """Trains on the past, then replays; returns {server: float32 [rows], its answers}.

    Args:
      folder: A new folder.
      data: The data set, of which the train part is the past.
      windows: What comes then.
      config: A config of the zoo.
      factor: Of its learning rate in the replay.
    """
    model_dir, published = (os.path.join(folder, name) for name in ("model", "published"))
    os.mkdir(published)
    estimator = build_estimator(config, data, model_dir)
    train = config.train
    estimator.train(training_rows(config, data, seed=train.seed, epochs=train.epochs))
    estimator = build_estimator(config, data, model_dir, factor)
    export = functools.partial(
        estimator.export_saved_model, serving_input_receiver_fn=data.receiver_fn()
    )
    servers = {name: Server(published, every) for name, every in SERVERS.items()}
    hook = Replay(windows, list(servers.values()), published, export, model_dir)
    estimator.train(input_fn_of(windows), hooks=[hook])
    for server in servers.values():
        server.close()
    return {name: np.concatenate(server.answers) for name, server in servers.items()}


def aucs(windows: Sequence[Window], answers: Dict[str, np.ndarray]) -> Dict[str, Any]:
    """The AUC of each server, of all rows and by week.

    Args:
      windows: What was replayed.
      answers: {server: float32 [rows]}.

    Returns:
      {"auc": {server: AUC}, "weekly_auc": {server: [AUC of each week]}}
    """
    labels = np.concatenate([next(iter(window.rows.labels.values())) for window in windows])
    begins = np.repeat(
        [window.begin for window in windows], [len(window.rows) for window in windows]
    )
    weeks = (begins - begins[0] // DAY * DAY) // WEEK
    chosen = [weeks == week for week in np.unique(weeks)]
    return {
        "auc": {name: zoo_data.exact_auc(labels, each) for name, each in answers.items()},
        "weekly_auc": {
            name: [zoo_data.exact_auc(labels[rows], each[rows]) for rows in chosen]
            for name, each in answers.items()
        },
    }


def day_of(window: Window) -> str:
    """The date of a window."""
    return datetime.datetime.fromtimestamp(window.begin, datetime.timezone.utc).date().isoformat()


def windows_in(part: str, data: zoo_data.LoggedDataSet, folder: str) -> List[Window]:
    """The windows of the validation part or the test part of Online Retail."""
    split, drawn = data.schema.split, data.schema.negatives
    assert split is not None and drawn is not None
    cache = zoo_data.default_cache_dir()
    prepared = zoo_data.prepare("online_retail", pathlib.Path(folder), cache)
    rows = data.in_memory(part)
    times = times_of(prepared, str(getattr(split, part)), 1 + drawn.count)
    return windows_of(rows, times[: len(rows)])


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = result_file.parser(__doc__)
    parser.add_argument("--folder", required=True, help="folder of the CSV file of purchases")
    parser.add_argument("--seeds", type=int, default=3, help="runs; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3, help="of the past; default: %(default)s")
    parser.add_argument(
        "--factor",
        type=float,
        default=0.02,  # The best of 1, 0.1 and 0.02 on 400 windows of the validation part.
        help="of the learning rate while time goes on; default: %(default)s",
    )
    parser.add_argument(
        "--part",
        choices=("validation", "test"),
        default="test",
        help="what is replayed; choose --factor on validation; default: %(default)s",
    )
    parser.add_argument("--windows", type=int, help="the most to replay; default: all")
    args = parser.parse_args(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)
    data = zoo_data.load("online_retail", args.folder)
    assert isinstance(data, zoo_data.LoggedDataSet)
    windows = windows_in(args.part, data, args.folder)[: args.windows]
    past = data.without_validation() if args.part == "test" else data
    settings = {"train__save_steps": NEVER, "train__incremental_steps": NEVER}
    config = zoo_config.load("online_retail").replace(train__epochs=args.epochs, **settings)
    runs = []
    for seed in range(1, args.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            seeded = config.replace(train__seed=seed)
            answers = replay(folder, past, windows, seeded, args.factor)
        runs.append({"seed": seed, **aucs(windows, answers)})
        print(runs[-1], flush=True)
    sizes = {"windows": len(windows), "rows": sum(len(window.rows) for window in windows)}
    days = {"from": day_of(windows[0]), "to": day_of(windows[-1])}
    training = {"epochs": args.epochs, "factor": args.factor}
    result_file.write(args.output, {**days, **sizes, **training, "runs": runs})


if __name__ == "__main__":
    main()
