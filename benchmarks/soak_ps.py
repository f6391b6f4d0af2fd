# SPDX-License-Identifier: Apache-2.0
"""Trains on a cluster whose tasks are killed again and again, and checks that nothing is lost.

    python -m benchmarks.soak_ps [--minutes 30] [--output FILE.json]

DeepFM of the model zoo trains on endless generated clicks with a chief, two workers, two parameter
servers (ps) and an evaluator, as processes of this machine. It saves a full checkpoint every 15
seconds and a delta every 4 seconds. Once a minute a random task is killed with SIGKILL and started
again at once; every second kill waits until a save is being written. At the end:

* chief and workers have ended by themselves, with exit code 0, and no process is left;
* the AUC is at most 0.01 below that of a training in one process without kills;
* no key has a count above its occurrences in the batches that were fed;
* no checkpoint lacks a key or an occurrence that an earlier one held, or goes back in steps, and
  value and slots of a table have the same keys;
* no training task ever waited longer than a minute for its next batch, its own restart included.

A check that fails makes the program fail. Each save waits until the disk has it, so the last check
may fail on a disk that is busy with other work. TMPDIR says where the files are.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

# TensorFlow reads this at import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import result_file
from model_zoo import cluster, data, models
from rec_estimator.checkpoint.files import WORK_FOLDER

TRAINERS = ("chief 0", "worker 0", "worker 1")
TASKS = ("ps 0", "ps 1", *TRAINERS, "evaluator 0")

BATCH = 256
PAUSE = 0.05  # Seconds between two batches of a task, so that six processes fit on two cores.
KILL_SECONDS = 60
FULL_SAVE, DELTA = 15, 4  # Seconds.
REFERENCE_STEPS = 20_000  # More steps do not change the AUC of this stream.

MOST_SECONDS = 60  # That a task may wait.
AUC_LOSS = 0.01
# Batches of each training task after which a cluster is taken for healthy again: more than a
# pipeline takes in advance.
HEALTHY_BATCHES = 5

Columns = Dict[str, np.ndarray]


# ------------------------------------------------------------------ the data


class Clicks:
    """Endless clicks: users and items have one of two tastes, and a user likes the same taste."""

    _AGREEMENT = 0.85

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._sizes = {"user": 1_500, "item": 800}
        self._keys = {name: rng.integers(0, 2**62, size) for name, size in self._sizes.items()}
        self._taste = {name: rng.integers(0, 2, size) for name, size in self._sizes.items()}

    def draw(self, rng: np.random.Generator, rows: int = BATCH) -> Tuple[Columns, np.ndarray]:
        """Draws a batch.

        Args:
          rng: Its state decides the batch.
          rows: The number of examples.

        Returns:
          (int64 [rows] by column, labels float32 [rows])
        """
        numbers = {
            name: (size * rng.random(rows) ** 2).astype(np.int64)  # Low numbers are frequent.
            for name, size in self._sizes.items()
        }
        equal = self._taste["user"][numbers["user"]] == self._taste["item"][numbers["item"]]
        likes = np.where(equal, self._AGREEMENT, 1 - self._AGREEMENT)
        columns = {name: self._keys[name][numbers[name]] for name in numbers}
        return columns, (rng.random(rows) < likes).astype(np.float32)


CLICKS = Clicks()
COLUMNS = (data.Column("user", "user"), data.Column("item", "item"))


def seed_of(name: str) -> List[int]:
    """The seed of a file of fed batches: "fed-<number of the process>-<its pipeline>"."""
    return [int(part) for part in name.split("-")[1:]]


def fed_batches(folder: pathlib.Path, name: str) -> Iterator[Tuple[Columns, np.ndarray]]:
    """Yields batches until the file "stop" exists; counts each in a file before it is yielded.

    Args:
      folder: The folder of the soak.
      name: The name of the file, which is also the seed.
    """
    count = np.memmap(folder / name, np.int64, "w+", shape=(1,))
    rng = np.random.default_rng(seed_of(name))
    while not (folder / "stop").exists():
        count[0] += 1  # In the page cache, which outlives the process.
        yield CLICKS.draw(rng)
        time.sleep(PAUSE)


def count_of(file: pathlib.Path) -> int:
    """The batches that a file of fed batches counts."""
    counts = np.fromfile(file, np.int64)
    return int(counts[0]) if len(counts) else 0


def fed_occurrences(folder: pathlib.Path) -> Dict[str, Dict[int, int]]:
    """How often each key of each column was in a batch that was fed."""
    found: Dict[str, Dict[int, int]] = {}
    for file in folder.glob("fed-*"):
        rng = np.random.default_rng(seed_of(file.name))
        drawn = [CLICKS.draw(rng)[0] for _ in range(count_of(file))]
        for column in drawn[0] if drawn else ():
            of_column = found.setdefault(column, {})
            keys, counts = np.unique([each[column] for each in drawn], return_counts=True)
            for key, count in zip(keys.tolist(), counts.tolist()):
                of_column[key] = of_column.get(key, 0) + count
    return found


# ------------------------------------------------------------------ a task


def _dataset(batches: Callable[[], Iterator[Tuple[Columns, np.ndarray]]]) -> tf.data.Dataset:
    names = [column.name for column in COLUMNS]
    return tf.data.Dataset.from_generator(
        batches,
        (dict.fromkeys(names, tf.int64), tf.float32),
        ({name: [None] for name in names}, [None]),
    ).prefetch(1)


def _estimator(folder: str) -> rec.RecEstimator:
    columns, labels = CLICKS.draw(np.random.default_rng(0), 1)
    clicks = data.MemoryDataSet("clicks", COLUMNS, {"train": data.Rows(columns, {"like": labels})})
    params = models.params_of("deepfm", clicks)
    deepfm = models.MODELS["deepfm"]
    config = rec.RunConfig(
        model_dir=folder,
        tf_random_seed=1,
        save_checkpoints_secs=FULL_SAVE,
        save_incremental_checkpoints_secs=DELTA,
        keep_checkpoint_max=20,  # The evaluator takes its time.
        experimental_max_worker_delay_secs=0,
    )
    return rec.RecEstimator(
        deepfm.model_fn,
        config=config,
        params=params,
        embedding_features=deepfm.features(clicks, params),
    )


def _test_input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(CLICKS.draw(np.random.default_rng(0), 20_000))


def run_task(folder: pathlib.Path, number: int) -> None:
    """Does what TF_CONFIG says, until the file "stop" exists.

    Args:
      folder: The folder of the soak.
      number: That of this process, unlike all others.
    """
    pipelines = itertools.count()  # A session that replaces a lost one makes another pipeline.
    rec.train_and_evaluate(
        _estimator(str(folder / "model")),
        rec.TrainSpec(
            lambda: _dataset(lambda: fed_batches(folder, f"fed-{number}-{next(pipelines)}"))
        ),
        rec.EvalSpec(_test_input_fn, steps=None, start_delay_secs=0, throttle_secs=20),
    )


def reference_auc(steps: int) -> float:
    """The AUC of a training in this process, without kills.

    Args:
      steps: The number of steps.
    """
    rng = np.random.default_rng(2)

    def batches() -> Iterator[Tuple[Columns, np.ndarray]]:
        while True:
            yield CLICKS.draw(rng)

    with tempfile.TemporaryDirectory() as folder:
        estimator = _estimator(folder)
        estimator.train(lambda: _dataset(batches), max_steps=steps)
        return float(estimator.evaluate(_test_input_fn)["auc"])


# ------------------------------------------------------------------ the cluster


class Kill(NamedTuple):
    """A kill.

    Attributes:
      task: The task, such as "ps 1".
      during_save: Whether a checkpoint was being written.
      healthy_after: Seconds until all training tasks trained again; None: they did not.
    """

    task: str
    during_save: bool
    healthy_after: Optional[float]


class Job:
    """The processes of a cluster, and the batches that they have been fed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        chief, *others = cluster.free_addresses(5)
        self._cluster = {"chief": [chief], "worker": others[:2], "ps": others[2:]}
        self._processes: Dict[str, subprocess.Popen] = {}
        self._numbers: Dict[str, List[int]] = {task: [] for task in TASKS}
        self._next_number = itertools.count()

    def start(self, task: str) -> None:
        """Starts a task."""
        number = next(self._next_number)
        self._numbers[task].append(number)
        command = [sys.executable, "-m", "benchmarks.soak_ps"]
        command += ["--folder", str(self.folder), "--number", str(number)]
        job, _, index = task.partition(" ")
        with self.log(task).open("a") as log:
            self._processes[task] = cluster.start_task(
                command, self._cluster, job, int(index), log.fileno()
            )

    def log(self, task: str) -> pathlib.Path:
        """The file of a task's output."""
        return self.folder / f"{task.replace(' ', '')}.log"

    def kill(self, task: str) -> None:
        """Kills a task, and waits until it is gone."""
        self._processes[task].kill()
        self._processes[task].wait()

    def ended(self) -> Dict[str, int]:
        """The exit codes of the tasks that have ended."""
        codes = ((task, process.poll()) for task, process in self._processes.items())
        return {task: code for task, code in codes if code is not None}

    def fed(self, task: str) -> int:
        """The batches that a training task was fed, in all its processes."""
        return sum(
            count_of(file)
            for number in self._numbers[task]
            for file in self.folder.glob(f"fed-{number}-*")
        )

    def close(self) -> None:
        """Kills the tasks that are left."""
        for task in self._processes:
            self.kill(task)

    def is_saving(self) -> bool:
        """Whether the files of a checkpoint are being written."""
        with contextlib.suppress(FileNotFoundError):
            for entry in (self.folder / "model").iterdir():
                if entry.name.startswith(WORK_FOLDER) and any(entry.iterdir()):
                    return True
        return False

    def processes_left(self) -> List[int]:
        """The processes whose command names the folder of this job."""
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in file.read_bytes():
                    found.append(int(file.parent.name))
        return [pid for pid in found if pid != os.getpid()]


class Watch:
    """Looks at a job several times a second: whether it trains, and what its checkpoints hold."""

    def __init__(self, job: Job, ledger: "Ledger") -> None:
        self._job = job
        self._ledger = ledger
        self._fed: Dict[str, int] = {}
        self._since: Dict[str, float] = {}
        self.longest: Dict[str, float] = dict.fromkeys(TRAINERS, 0.0)
        self.ended: List[str] = []

    def look(self) -> Dict[str, int]:
        """Looks once; returns the batches that each training task was fed."""
        now = time.monotonic()
        for task in TRAINERS:
            fed = self._job.fed(task)
            if fed != self._fed.get(task) or not fed:  # The time of the first start is no wait.
                self._since[task] = now
            self._fed[task] = fed
            self.longest[task] = max(self.longest[task], now - self._since[task])
        self._ledger.look()
        return dict(self._fed)

    def restart_ended(self) -> None:
        """Starts tasks again that have ended by themselves, as an orchestrator would."""
        for task, code in self._job.ended().items():
            self.ended.append(f"{task} with exit code {code}")
            self._job.start(task)

    def until_healthy(self, seconds: float) -> Optional[float]:
        """Waits until all training tasks train; returns after how long, None if they did not."""
        begun = time.monotonic()
        before = self.look()
        while time.monotonic() - begun < seconds:
            self.restart_ended()
            time.sleep(0.2)
            fed = self.look()
            if all(fed[task] - before[task] >= HEALTHY_BATCHES for task in TRAINERS):
                return time.monotonic() - begun
        return None


def _kill_often(job: Job, watch: Watch, minutes: float) -> List[Kill]:
    """Kills a random task every KILL_SECONDS, and starts it again at once."""
    rng = random.Random(1)
    kills: List[Kill] = []
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        begun = time.monotonic()
        task = rng.choice(TASKS)
        if len(kills) % 2:
            while not job.is_saving() and time.monotonic() < begun + 30:
                time.sleep(0.001)
        is_saving = job.is_saving()
        job.kill(task)
        job.start(task)
        healthy_after = watch.until_healthy(2 * MOST_SECONDS)
        kills.append(Kill(task, is_saving, healthy_after))
        print(kills[-1], flush=True)
        while time.monotonic() < begun + KILL_SECONDS:
            watch.restart_ended()
            watch.look()
            time.sleep(0.2)
    return kills


# ------------------------------------------------------------------ the checkpoints


class Ledger:
    """What the checkpoints of a folder held so far.

    Attributes:
      checked: The number of checkpoints that were read.
      faults: A sentence for each fault.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._prefix: Optional[str] = None
        self._step = -1
        self.held: Dict[str, Dict[int, int]] = {}
        self.checked = 0
        self.faults: List[str] = []

    def look(self) -> None:
        """Reads the newest checkpoint if it is new."""
        prefix = tf.train.latest_checkpoint(self._model_dir)
        if prefix is None or prefix == self._prefix:
            return
        try:
            counts, is_full = self._read(prefix)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            if tf.train.latest_checkpoint(self._model_dir) == prefix:
                self.faults.append(f"{prefix} cannot be read: {error}")
                self._prefix = prefix
            return
        self._prefix = prefix
        self.checked += 1
        self.compare(int(prefix.rpartition("-")[2]), counts, is_full)

    def compare(self, step: int, counts: Dict[str, Dict[int, int]], is_full: bool) -> None:
        """Adds what a checkpoint holds.

        Args:
          step: Its step.
          counts: The count of each key, by table.
          is_full: Whether it is no delta, so that it has all keys.
        """
        if step < self._step:
            self.faults.append(f"step {step} follows step {self._step}")
        self._step = step
        for table, of_table in counts.items():
            held = self.held.setdefault(table, {})
            lost = held.keys() - of_table.keys() if is_full else ()
            fewer = [key for key, count in of_table.items() if count < held.get(key, 0)]
            for what, keys in (("lacks", lost), ("has too few occurrences of", fewer)):
                if keys:
                    self.faults.append(f"step {step} {what} {len(keys)} keys of table {table}")
            held.update(of_table)

    def _read(self, prefix: str) -> Tuple[Dict[str, Dict[int, int]], bool]:
        reader = tf.train.load_checkpoint(prefix)
        names = sorted(reader.get_variable_to_shape_map())
        counts: Dict[str, Dict[int, int]] = {}
        for name in names:
            # <table>/part_<i>-keys, and for each slot <table>/part_<i>/<slot>-keys.
            found = re.fullmatch(r"((\w+)/part_\d+)(/.+)?-keys", name)
            if found is None:
                continue
            keys = reader.get_tensor(name)
            if found[3]:
                if not np.array_equal(keys, reader.get_tensor(f"{found[1]}-keys")):
                    self.faults.append(f"{prefix}: slot {name} has other keys than its table")
                continue
            freqs = reader.get_tensor(f"{found[1]}-freqs")
            counts.setdefault(found[2], {}).update(zip(keys.tolist(), freqs.tolist()))
        return counts, not any(name.endswith("-delta_of") for name in names)


def too_large(held: Dict[str, Dict[int, int]], fed: Dict[str, Dict[int, int]]) -> List[str]:
    """A sentence for each table with keys that have more occurrences than were fed."""
    found = []
    for table, counts in held.items():
        more = sum(count > fed.get(table, {}).get(key, 0) for key, count in counts.items())
        if more:
            found.append(f"{more} keys of table {table} have counts above what was fed")
    return found


# ------------------------------------------------------------------ the soak


def _ends_well(job: Job, watch: Watch) -> List[str]:
    """Ends the training; returns a sentence for each task that does not end as it should."""
    (job.folder / "stop").touch()
    deadline = time.monotonic() + 2 * MOST_SECONDS
    while not set(TRAINERS) <= job.ended().keys() and time.monotonic() < deadline:
        time.sleep(0.2)
    ended = job.ended()
    faults = [
        f"{task} ended with {ended.get(task, 'nothing')}" for task in TRAINERS if ended.get(task)
    ]
    faults += [f"{task} did not end" for task in TRAINERS if task not in ended]
    watch.look()  # Reads the last checkpoint.
    prefix = tf.train.latest_checkpoint(str(job.folder / "model"))
    sentence = f"Saving dict for global step {str(prefix).rpartition('-')[2]}"
    while sentence not in job.log("evaluator 0").read_text():
        if time.monotonic() > deadline:
            faults.append("the evaluator did not evaluate the last checkpoint")
            break
        time.sleep(0.5)
    job.close()
    return faults + [f"process {pid} is left" for pid in job.processes_left()]


def soak(folder: pathlib.Path, minutes: float) -> Dict[str, Any]:
    """Trains and kills.

    Args:
      folder: A new folder.
      minutes: For how long tasks are killed.

    Returns:
      The raw result; "faults" has a sentence for each check that failed.
    """
    job, ledger = Job(folder), Ledger(str(folder / "model"))
    watch = Watch(job, ledger)
    try:
        for task in TASKS:
            job.start(task)
        first = watch.until_healthy(4 * MOST_SECONDS)
        if first is None:
            return {"faults": ["the training did not begin"]}
        kills = _kill_often(job, watch, minutes)
        faults = _ends_well(job, watch)
    finally:
        job.close()
    fed = fed_occurrences(folder)
    faults += ledger.faults + too_large(ledger.held, fed)
    faults += [f"the training did not go on after {kill}" for kill in kills if not kill[-1]]
    faults += [f"{each} ended by itself" for each in watch.ended]
    faults += [
        f"{task} waited {seconds:.0f} seconds for a batch"
        for task, seconds in watch.longest.items()
        if seconds > MOST_SECONDS
    ]
    for task in TASKS if faults else ():
        print(f"---- {task}\n{job.log(task).read_text()[-3000:]}")
    estimator = _estimator(str(folder / "model"))
    metrics = estimator.evaluate(_test_input_fn)
    return {
        "minutes": minutes,
        "kills": [kill._asdict() for kill in kills],
        "longest_wait": watch.longest,
        "checkpoints": ledger.checked,
        "steps": int(metrics["global_step"]),
        "fed_batches": {task: job.fed(task) for task in TRAINERS},
        "auc": float(metrics["auc"]),
        "faults": faults,
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the soak, or a task of it; returns the exit status."""
    parser = result_file.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="default: %(default)s")
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)  # For tasks.
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if "TF_CONFIG" in os.environ:
        tf.logging.set_verbosity(tf.logging.INFO)
        run_task(options.folder, options.number)
        return 0
    tf.logging.set_verbosity(tf.logging.ERROR)
    reference = reference_auc(REFERENCE_STEPS)
    print(f"AUC of one process: {reference:.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = soak(pathlib.Path(folder), options.minutes)
    if found.get("auc", 0.0) < reference - AUC_LOSS:
        found["faults"].append(f"the AUC is {found.get('auc')}, that of one process {reference}")
    found.update(reference_auc=reference, load_average=os.getloadavg(), batch=BATCH, pause=PAUSE)
    result_file.write(options.output, found)
    print("\n".join(found["faults"]) or f"nothing lost; AUC {found['auc']:.4f}")
    return bool(found["faults"])


if __name__ == "__main__":
    sys.exit(main())
