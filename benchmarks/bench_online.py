# SPDX-License-Identifier: Apache-2.0
"""Measures requests to a model that is kept fresh, and how fresh it is.

    python -m benchmarks.bench_online [--rows 2000000] [--rounds 10] [--output FILE.json]

DIN of the model zoo, with --rows rows of 16 floats in two tables, is exported compressed and
refreshable. A predictor answers requests of one user with 200 candidates at a fixed rate; a latency
begins when the request is due, so that it includes the wait for a late one before it.

* Phases with deltas and without alternate. In the former, a delta of 1 % of the rows arrives every
  five seconds, from a training that is over, and rec.serving.follow applies it.
* Then deltas are applied without requests: seconds and CPU seconds of each.
* Then a training in another process publishes every five seconds (PublishHook), and the predictor
  follows while it answers requests. The age of the model is the time since the training ended the
  step that the model has.
"""

import functools
import multiprocessing
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

# TensorFlow reads this at import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from model_zoo import data as zoo_data
from model_zoo import runner
from model_zoo.runner.build import build_estimator
from model_zoo.runner.config import Config

CANDIDATES = 200
RATE = 50.0  # Requests a second.
HISTORY = 20
ITEMS_A_USER = 19  # So many items of a row are in no other: a row of training has 20 new keys.
SHARE = 0.01  # The share of rows in a delta.
EVERY_SECONDS = 5.0  # Between two deltas.
PHASE_DELTAS = 6
AGE_SECONDS = 90.0
NEVER = 10**9  # Steps. Checkpoints are written by this program alone.
PERCENTILES = (50.0, 99.0, 99.9, 100.0)

Features = Dict[str, np.ndarray]


# ------------------------------------------------------------------ the model and its deltas


class Keys:
    """The ids of a model with a number of rows, and batches that train them.

    Args:
      rows: The rows of both tables.
    """

    def __init__(self, rows: int) -> None:
        self.users = rows // (1 + ITEMS_A_USER)
        self.items = self.users * ITEMS_A_USER

    def batch(self, users: np.ndarray, items: np.ndarray) -> zoo_data.Rows:
        """A batch of training.

        Args:
          users: int64 [n].
          items: int64 [n * ITEMS_A_USER], the history of each user, whose first item is the
            candidate.
        """
        history = np.full((len(users), HISTORY), zoo_data.PADDING)
        history[:, :ITEMS_A_USER] = items.reshape(len(users), ITEMS_A_USER)
        labels = (users % 2).astype(np.float32)
        return zoo_data.Rows(
            {"user": users, "item": history[:, 0], "history": history}, {"click": labels}
        )

    def everything(self, size: int) -> Iterator[zoo_data.Rows]:
        """Batches of `size` users that have each key once."""
        for begin in range(0, self.users, size):
            users = np.arange(begin, min(begin + size, self.users))
            first, last = users[0] * ITEMS_A_USER, (users[-1] + 1) * ITEMS_A_USER
            yield self.batch(users, np.arange(first, last))

    def share(self, part: float, random: np.random.Generator) -> zoo_data.Rows:
        """A batch that has a part of the keys, drawn at random, each once."""
        count = max(1, round(self.users * part))
        users = random.choice(self.users, count, replace=False)
        return self.batch(users, random.choice(self.items, count * ITEMS_A_USER, replace=False))

    def request(self, random: np.random.Generator) -> Features:
        """A request of one user."""
        return {
            "user": random.integers(0, self.users, (1, 1)),
            "history": random.integers(0, self.items, (1, HISTORY)),
            "item": random.integers(0, self.items, (CANDIDATES, 1)),
            "item_size": np.array([CANDIDATES], np.int32),
        }

    def data(self) -> zoo_data.MemoryDataSet:
        """A data set with these columns, for the zoo."""
        columns = (
            zoo_data.Column("user", "user"),
            zoo_data.Column("item", "item"),
            zoo_data.Column("history", "history", table="item", max_length=HISTORY),
        )
        return zoo_data.MemoryDataSet("clicks", columns, {"train": next(self.everything(8))})


class Training:
    """A training of DIN that publishes into a folder.

    Args:
      folder: The folder of the benchmark.
      keys: The ids.
    """

    def __init__(self, folder: str, keys: Keys) -> None:
        config = Config().replace(
            model="din",
            export__kind="compressed",
            train__save_steps=NEVER,
            train__incremental_steps=NEVER,
        )
        data = keys.data()
        self._kinds = [_specs(each) for each in vars(next(keys.everything(8))).values()]
        self.estimator = build_estimator(config, data, os.path.join(folder, "model"))
        self.export = functools.partial(
            self.estimator.export_saved_model,
            serving_input_receiver_fn=runner.receiver_fn(config, data),
        )

    def train(self, batches: Callable[[], Iterator[zoo_data.Rows]], *hooks: Any) -> None:
        """Trains a step on each batch."""

        def pairs() -> Iterator[Any]:
            for rows in batches():
                yield dict(rows.features), rows.labels["click"]

        features, labels = self._kinds[0], self._kinds[1]["click"]
        self.estimator.train(
            lambda: tf.data.Dataset.from_generator(pairs, output_signature=(features, labels)),
            hooks=hooks,
        )


def _specs(arrays: Features) -> Dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec([None, *array.shape[1:]], array.dtype) for name, array in arrays.items()
    }


class CountedPublishHook(rec.serving.PublishHook):
    """Publishes every step after the first `first` ones; adds up the CPU seconds of it."""

    def __init__(self, first: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, every_steps=1, **kwargs)
        self._left = first
        self.cpu: List[float] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Publishes."""
        self._left -= 1
        if self._left <= 0:
            begun = time.process_time()
            super().after_run(run_context, run_values)
            self.cpu.append(time.process_time() - begun)


def prepare(folder: str, rows: int, deltas: int) -> Dict[str, Any]:
    """Publishes a base with all rows, and deltas.

    Args:
      folder: The folder of the benchmark.
      rows: The rows of both tables.
      deltas: The number of deltas.

    Returns:
      CPU seconds of saving and publishing the base and each delta.
    """
    keys, random = Keys(rows), np.random.default_rng(1)
    training = Training(folder, keys)
    size = 2000

    def batches() -> Iterator[zoo_data.Rows]:
        yield from keys.everything(size)
        for _ in range(deltas):
            yield keys.share(SHARE, random)

    published = os.path.join(folder, "published")
    os.mkdir(published)
    fill_steps = sum(1 for _ in keys.everything(size))
    hook = CountedPublishHook(
        fill_steps, published, training.export, training.estimator.model_dir, max_deltas=2 * deltas
    )
    training.train(batches, hook)
    return {"base": hook.cpu[0], "delta": statistics.median(hook.cpu[1:])}


def train_on(folder: str, rows: int, steps_file: str) -> None:
    """Trains 1 % of the rows every five seconds, and publishes as often, for AGE_SECONDS.

    Args:
      folder: The folder of the benchmark.
      rows: The rows of both tables.
      steps_file: Gets a line for each step: its number and the time at its end.
    """
    keys, random = Keys(rows), np.random.default_rng(2)
    training = Training(folder, keys)
    steps_in = 10

    def batches() -> Iterator[zoo_data.Rows]:
        end = time.time() + AGE_SECONDS
        while time.time() < end:
            yield keys.share(SHARE / steps_in, random)
            time.sleep(EVERY_SECONDS / steps_in)

    published = os.path.join(folder, "live")
    os.mkdir(published)
    publish = rec.serving.PublishHook(
        published, training.export, training.estimator.model_dir, every_secs=EVERY_SECONDS
    )
    training.train(batches, _StepTimes(steps_file), publish)


class _StepTimes(tf.train.SessionRunHook):
    """Writes when each step ended. Give it before a hook that publishes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def begin(self) -> None:
        self._step = tf.train.get_global_step()

    def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
        del run_context
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        ended = time.time()
        with open(self._path, "a") as file:
            file.write(f"{int(run_context.session.run(self._step))} {ended}\n")


# ------------------------------------------------------------------ requests


class Requests:
    """Sends requests at a fixed rate.

    Args:
      predict: The predictor.
      keys: The ids.
    """

    def __init__(self, predict: rec.serving.SavedModelPredictor, keys: Keys) -> None:
        random = np.random.default_rng(3)
        self._predict = predict
        self._requests = [keys.request(random) for _ in range(256)]

    def send(self, seconds: float, meanwhile: Callable[[], Any] = lambda: None) -> List[float]:
        """Sends requests for so many seconds; returns their latencies in seconds.

        Args:
          seconds: The time.
          meanwhile: Called between two requests.
        """
        latencies = []
        begun = time.perf_counter()
        for number in range(round(seconds * RATE)):
            due = begun + number / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            self._predict(self._requests[number % len(self._requests)])
            latencies.append(time.perf_counter() - due)
            meanwhile()
        return latencies


class Feeder:
    """Lets a delta arrive every five seconds, in the order of their steps.

    Args:
      published: The folder of a base and its deltas, of which it takes the deltas away first.
      names: The names of the deltas.
    """

    def __init__(self, published: pathlib.Path, names: Sequence[str]) -> None:
        self._folder, self._waiting = published / "deltas", published / "waiting"
        self._folder.rename(self._waiting)
        self._folder.mkdir()
        self._names = list(names)
        self._next = 0.0

    @property
    def left(self) -> int:
        """The number of deltas that did not arrive yet."""
        return len(self._names)

    def begin(self) -> None:
        """Lets the next delta arrive half of the time between two from now."""
        self._next = time.perf_counter() + EVERY_SECONDS / 2

    def look(self) -> None:
        """Lets a delta arrive if it is time."""
        if time.perf_counter() >= self._next:
            self._next += EVERY_SECONDS
            self.arrive()

    def arrive(self) -> str:
        """Lets the next delta arrive; returns its name."""
        name = self._names.pop(0)
        for suffix in (".data-00000-of-00001", ".index"):  # The index last: it makes the delta.
            (self._waiting / (name + suffix)).rename(self._folder / (name + suffix))
        return name


class Phase(NamedTuple):
    """A phase of requests: latencies in seconds, and CPU seconds of this process."""

    latencies: List[float]
    cpu: float


def alternate(requests: Requests, feeder: Feeder, rounds: int) -> Dict[str, List[Phase]]:
    """Sends requests in phases, with deltas and without in turn."""
    phases: Dict[str, List[Phase]] = {"without": [], "with": []}
    requests.send(EVERY_SECONDS)  # Warms up.
    for what in rounds_lib.turns(list(phases), rounds):
        feeder.begin()
        cpu = time.process_time()
        look = feeder.look if what == "with" else lambda: None
        latencies = requests.send(PHASE_DELTAS * EVERY_SECONDS, look)
        phases[what].append(Phase(latencies, time.process_time() - cpu))
    return phases


def _summary(phases: Dict[str, List[Phase]]) -> Dict[str, Any]:
    """Percentiles of all latencies, and the ratios of the p99 of the phases of a round."""
    found: Dict[str, Any] = {"requests": sum(len(phase.latencies) for phase in phases["with"])}
    for what, of in phases.items():
        latencies = np.concatenate([phase.latencies for phase in of])
        values = np.percentile(latencies, PERCENTILES)
        found[what] = {f"p{q:g}": float(value) for q, value in zip(PERCENTILES, values)}
    each = {what: [np.percentile(p.latencies, 99) for p in of] for what, of in phases.items()}
    ratios = [float(a / b) for a, b in zip(each["with"], each["without"])]
    return {
        **found,
        "p99_ratio_of_rounds": result_file.quartiles(ratios),
        "p99_ratio": found["with"]["p99"] / found["without"]["p99"],
    }


# ------------------------------------------------------------------ the measurements


def measure_requests(folder: str, keys: Keys, rounds: int, alone: int) -> Dict[str, Any]:
    """The latencies with deltas and without, and what it takes to apply a delta.

    Args:
      folder: The folder of the benchmark, which is prepared.
      keys: The ids.
      rounds: Each has a phase with deltas and one without.
      alone: The number of deltas to apply without requests.
    """
    published = pathlib.Path(folder, "published")
    manifest = rec.serving.read_manifest(str(published))
    assert manifest is not None
    base = published / manifest["base"]
    size = {"base_bytes": _bytes_of(base), "delta_bytes": _bytes_of(published / "deltas")}
    size["delta_bytes"] //= len(manifest["deltas"])
    feeder = Feeder(published, [delta["name"] for delta in manifest["deltas"]])
    with rec.serving.load_predictor(str(base)) as predict:
        with rec.serving.follow(predict, str(published / "deltas")) as follower:
            phases = alternate(Requests(predict, keys), feeder, rounds)
            time.sleep(2.0)
            lag = follower.lag
        if lag.error is not None or lag.waiting:
            raise RuntimeError(f"the predictor did not follow: {lag}")
        seconds, cpu = [], []
        for _ in range(min(alone, feeder.left)):
            name, begun = feeder.arrive(), time.perf_counter()
            begun_cpu = time.process_time()
            predict.refresh(name)
            seconds.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - begun_cpu)
    refresh = {
        "seconds": result_file.quartiles(seconds),
        "cpu_seconds": result_file.quartiles(cpu),
    }
    written = manifest["deltas"][-1]["rows_written"]
    return {**_summary(phases), **size, "delta_rows": written, "refresh": refresh}


def _bytes_of(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure_age(folder: str, keys: Keys, rows: int) -> Dict[str, Any]:
    """How old the model of a predictor is that follows a training."""
    steps_file = os.path.join(folder, "steps")
    context = multiprocessing.get_context("spawn")
    trainer = context.Process(target=train_on, args=(folder, rows, steps_file))
    trainer.start()
    published = os.path.join(folder, "live")
    manifest: Optional[Dict[str, Any]] = None
    while manifest is None and trainer.is_alive():
        time.sleep(0.1)
        manifest = rec.serving.read_manifest(published)
    assert manifest is not None, "the training ended"
    seen: List[List[float]] = []
    with rec.serving.load_predictor(os.path.join(published, manifest["base"])) as predict:
        with rec.serving.follow(predict, os.path.join(published, "deltas")) as follower:

            def look() -> None:
                step = follower.lag.step
                if step >= 0 and (not seen or step != seen[-1][0]):
                    seen.append([step, time.time()])

            requests = Requests(predict, keys)
            while trainer.is_alive():
                requests.send(1.0, look)
    trainer.join()
    with open(steps_file) as file:
        ended = {int(step): float(at) for step, at in (line.split() for line in file)}
    # The first one waited for the predictor to be loaded.
    arrived = [at - ended[int(step)] for step, at in seen[2:]]
    before = [at - ended[int(step)] for (step, _), (_, at) in zip(seen[1:], seen[2:])]
    return {
        "refreshes": len(arrived),
        "after_a_refresh": result_file.quartiles(arrived),
        "before_the_next": result_file.quartiles(before),
        "most": max(before),
    }


def main() -> None:
    parser = result_file.parser(__doc__, rows=2_000_000, rounds=10)
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    keys, alone = Keys(args.rows), 10
    with tempfile.TemporaryDirectory() as folder:
        deltas = args.rounds * PHASE_DELTAS + alone
        publish_cpu = rounds_lib.in_process(prepare, folder, args.rows, deltas)
        found = measure_requests(folder, keys, args.rounds, alone)
        print(found, flush=True)
        shutil.rmtree(os.path.join(folder, "published"))
        age = measure_age(folder, keys, args.rows)
        print(age, flush=True)
    sizes = {"rows": keys.users + keys.items, "rounds": args.rounds, "rate": RATE}
    result_file.write(
        args.output,
        {**sizes, "candidates": CANDIDATES, **found, "publish_cpu": publish_cpu, "age": age},
    )


if __name__ == "__main__":
    main()
