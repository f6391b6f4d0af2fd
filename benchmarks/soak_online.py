# SPDX-License-Identifier: Apache-2.0
"""Trains, publishes and serves while processes are killed, and checks every answer.

    python -m benchmarks.soak_online [--minutes 20] [--output FILE.json]

A trainer saves a delta every two seconds and a full checkpoint after so many deltas; a publisher
publishes each of them; two servers (python -m rec_estimator.serving) follow; a client asks both,
one request after the other. Every 20 seconds one of the five is killed with SIGKILL and started
again at once, in turn.

Each step of the training subtracts 1 from the rows of known keys. So the client knows the bits that
each key has at each step, from the row of the key that is in all of them:

* all rows of an answer are those of one step that was published, also of keys that were trained for
  the first time in it, and of keys that it evicted; likewise the dense variable;
* a server never goes back to an earlier step while it runs;
* no request fails but those that a killed server was answering;
* after each kill, both servers answer with a step that was trained after it;
* all processes end with exit code 0 when they are told to.

A check that fails makes the program fail.
"""

import argparse
import functools
import itertools
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

# TensorFlow reads this at import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grpc
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

import rec_estimator as rec
from benchmarks import result_file
from model_zoo import cluster

SERVERS = ("server 0", "server 1")
# In the order of their kills.
PROCESSES = ("trainer", SERVERS[0], "publisher", SERVERS[1], "client")

DIM = 16
CYCLE, A_STEP = 20_000, 256  # Keys that are trained in turn, and how many of them in a step.
ALWAYS = 1 << 40  # The key that is in all steps.
ONCE = 1 << 41  # Plus the number of a step: a key that is in no other.
LIVE_STEPS = 500  # Then a key that was in one step only is evicted.
ASKED = 100  # Keys of each kind in a request.

PAUSE = 0.01  # Seconds between two steps, so that five processes fit on two cores.
DELTA_SECONDS = 2
KILL_SECONDS = 20
MOST_SECONDS = 120  # That a request may take, and the time after a kill: longer is a hang.


# ------------------------------------------------------------------ the model


def model_fn(features: Dict[str, tf.Tensor], labels: Any, mode: str) -> rec.EstimatorSpec:
    """Subtracts 1 from the rows of a step's keys and from a dense variable."""
    del labels
    option = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(LIVE_STEPS))
    zeros = tf.zeros_initializer()
    table = rec.get_embedding_variable("table", DIM, initializer=zeros, ev_option=option)
    clock = tf.get_variable("clock", [], initializer=zeros)
    if mode == rec.ModeKeys.PREDICT:
        rows = rec.embedding_lookup(table, features["keys"])
        return rec.EstimatorSpec(mode, predictions={"rows": rows, "clock": tf.reshape(clock, [1])})
    step = tf.train.get_global_step()
    with tf.control_dependencies([features["tick"]]):  # The end of the data ends the training.
        now = step + 0  # A copy, because the step is incremented in place.
    cycle = (now * A_STEP + tf.range(A_STEP, dtype=tf.int64)) % CYCLE
    keys = tf.concat([cycle, [ALWAYS, ONCE + now]], axis=0)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys)) + clock
    update = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss, step)
    with tf.control_dependencies([update]):
        evicted = table.evict()
    return rec.EstimatorSpec(mode, loss=loss, train_op=tf.group(update, evicted))


def receiver_fn() -> rec.ServingInputReceiver:
    """The input of a server: keys."""
    inputs = {"keys": tf.placeholder(tf.int64, [None], name="keys")}
    return rec.ServingInputReceiver(inputs, inputs)


def trained_times(keys: np.ndarray, steps: int) -> np.ndarray:
    """How often each key was trained in the first steps; -1: once, or evicted since."""
    in_cycle = np.maximum(0, steps * A_STEP - keys + CYCLE - 1) // CYCLE
    age = steps - (keys - ONCE)  # The age of a key that is in one step: 1 right after it.
    once = ((age > 0) & (age < LIVE_STEPS - 1)).astype(np.int64)
    # The rule compares a step before or after its increment, and full saves evict, too.
    once[np.abs(age - LIVE_STEPS) <= 1] = -1
    return np.select([keys < CYCLE, keys == ALWAYS], [in_cycle, np.full_like(keys, steps)], once)


def wrong_rows(keys: np.ndarray, rows: np.ndarray) -> Optional[str]:
    """Says what is wrong with the rows of an answer; None: they are those of one step.

    Args:
      keys: int64 [n]; the first is ALWAYS.
      rows: float32 [n, DIM].
    """
    steps = -float(rows[0, 0])
    if steps < 0 or steps != int(steps):
        return f"no step has the row {rows[0]}"
    expected = trained_times(keys, int(steps))
    is_right = (rows == -expected[:, np.newaxis]).all(axis=1)
    is_right |= (expected == -1) & ((rows == 0) | (rows == -1)).all(axis=1) & (np.ptp(rows, 1) == 0)
    if is_right.all():
        return None
    wrong = np.flatnonzero(~is_right)
    return (
        f"{len(wrong)} rows are not those of step {int(steps)}: key {keys[wrong[0]]} has "
        f"{rows[wrong[0]]}, not {-expected[wrong[0]]}"
    )


# ------------------------------------------------------------------ trainer and publisher


def _estimator(folder: pathlib.Path) -> rec.RecEstimator:
    config = rec.RunConfig(
        model_dir=str(folder / "model"),
        save_checkpoints_secs=60,
        save_incremental_checkpoints_secs=DELTA_SECONDS,
        keep_checkpoint_max=20,  # The publisher takes its time.
    )
    return rec.RecEstimator(model_fn, config=config)


def is_stopped(folder: pathlib.Path) -> bool:
    """Whether the soak is at its end."""
    return (folder / "stop").exists()


def run_trainer(folder: pathlib.Path) -> None:
    """Trains until the soak is at its end."""

    def ticks() -> Iterator[int]:
        while not is_stopped(folder):
            yield 0
            time.sleep(PAUSE)

    def input_fn() -> tf.data.Dataset:
        ticking = tf.data.Dataset.from_generator(ticks, tf.int64, [])
        return ticking.map(lambda tick: {"tick": tick})

    _estimator(folder).train(input_fn)


def run_publisher(folder: pathlib.Path) -> None:
    """Publishes each checkpoint of the trainer, until the soak is at its end."""
    estimator, last = _estimator(folder), None
    export = functools.partial(estimator.export_saved_model, serving_input_receiver_fn=receiver_fn)
    while not is_stopped(folder):
        latest = tf.train.latest_checkpoint(estimator.model_dir)
        if latest not in (None, last):
            try:
                rec.serving.publish(latest, str(folder / "published"), export)
                last = latest
            except (OSError, tf.errors.OpError) as error:  # The trainer may have removed it.
                print(f"not published: {error}", flush=True)
        time.sleep(0.2)


# ------------------------------------------------------------------ the client


class Published:
    """The steps that were published, as the folder shows them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._bases: Set[str] = set()
        self.steps: Dict[int, float] = {}  # With the time at which each appeared.

    def __contains__(self, step: int) -> bool:
        """Whether a step was published; looks for new ones if it is not known."""
        for _ in range(2):
            if step in self.steps:
                return True
            self.look()
        return False

    def look(self) -> None:
        """Takes up what is in the folder."""
        for index in self._folder.glob("deltas/*.index"):
            found = re.fullmatch(r"model\.ckpt-(\d+)\.index", index.name)
            if found is not None and int(found[1]) not in self.steps:
                self._add(int(found[1]), index)
        for index in self._folder.glob("[0-9]*/variables/variables.index"):
            base = index.parent.parent.name
            if base not in self._bases:
                variables = str(index.with_suffix(""))
                try:
                    step = int(tf.train.load_variable(variables, tf.GraphKeys.GLOBAL_STEP))
                except (tf.errors.OpError, ValueError):
                    continue  # It was removed.
                self._bases.add(base)
                self._add(step, index)

    def _add(self, step: int, index: pathlib.Path) -> None:
        try:
            self.steps.setdefault(step, index.stat().st_mtime)
        except FileNotFoundError:
            self.steps.setdefault(step, 0.0)


# What the client counts for each server: the newest step that it answered with, and numbers.
STEP, ANSWERS, FAILED = range(3)


class Asker:
    """Asks one server for rows, one request after the other, and checks the answers.

    Args:
      folder: The folder of the soak.
      number: The number of the server.
      address: Its address.
      counts: int64 [3], shared with the driver.
    """

    def __init__(self, folder: pathlib.Path, number: int, address: str, counts: np.ndarray) -> None:
        self._folder, self._number, self._counts = folder, number, counts
        self._published = Published(folder / "published")
        self._predict = stub(address).Predict
        self._random = np.random.default_rng([number, os.getpid()])
        self._last = -1

    def run(self) -> None:
        """Asks until the soak is at its end."""
        while not is_stopped(self._folder):
            wrong = self._ask()
            if wrong is not None:
                report(self._folder, f"{SERVERS[self._number]}: {wrong}")

    def _ask(self) -> Optional[str]:
        """Asks once; returns what is wrong with the answer."""
        was_down = is_down(self._folder, self._number)
        if was_down:
            self._last = -1
        keys = request_keys(max(self._last, 0), self._random)
        try:
            response = self._predict(request_of(keys), timeout=MOST_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            if was_down or is_down(self._folder, self._number):
                self._counts[FAILED] += 1
                return None
            return f"failed with {error.code()}: {error.details()}"
        outputs = {name: tf.make_ndarray(each) for name, each in response.outputs.items()}
        self._counts[ANSWERS] += 1
        return wrong_rows(keys, outputs["rows"]) or self._wrong_steps(
            -int(outputs["rows"][0, 0]), -int(outputs["clock"][0])
        )

    def _wrong_steps(self, of_rows: int, of_clock: int) -> Optional[str]:
        for step in (of_rows, of_clock):
            if step not in self._published:
                return f"step {step} was not published"
        if of_rows < self._last:
            return f"step {of_rows} came after step {self._last}"
        if of_rows > self._last:
            age = time.time() - self._published.steps[of_rows]
            if self._last >= 0:  # Otherwise the server, or this process, was not there.
                append(self._folder / "ages", f"{age:.3f}")
            self._counts[STEP] = self._last = of_rows
        return None


def request_keys(step: int, random: np.random.Generator) -> np.ndarray:
    """Keys of all kinds: int64 [1 + 2 * ASKED]."""
    once = ONCE + step + random.integers(-2 * LIVE_STEPS, LIVE_STEPS, ASKED)
    return np.concatenate([[ALWAYS], random.integers(0, CYCLE, ASKED), np.maximum(ONCE, once)])


def request_of(keys: np.ndarray) -> predict_pb2.PredictRequest:
    """A request for the rows of keys."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "soak"
    request.inputs["keys"].CopyFrom(tf.make_tensor_proto(keys))
    return request


def stub(address: str) -> Any:
    """A client of a server, which connects again soon after the server was killed."""
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    channel = grpc.insecure_channel(address, options)
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def run_client(folder: pathlib.Path, addresses: Sequence[str]) -> None:
    """Asks all servers until the soak is at its end."""
    counts = shared_counts(folder)
    threads = [
        threading.Thread(target=Asker(folder, number, address, counts[number]).run)
        for number, address in enumerate(addresses)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def shared_counts(folder: pathlib.Path) -> np.ndarray:
    """int64 [servers, 3]: STEP, ANSWERS and FAILED. In the page cache, which outlives processes."""
    mode: Any = "r+" if (folder / "counts").exists() else "w+"
    return np.memmap(folder / "counts", np.int64, mode, shape=(len(SERVERS), 3))


def is_down(folder: pathlib.Path, number: int) -> bool:
    """Whether the driver has killed a server that does not answer yet."""
    return (folder / f"down-{number}").exists()


def append(file: pathlib.Path, line: str) -> None:
    """Appends a line to a file, whole."""
    with file.open("a") as opened:
        opened.write(line + "\n")


def report(folder: pathlib.Path, fault: str) -> None:
    """Adds a fault to those of the soak."""
    append(folder / "faults", fault)
    print(fault, flush=True)


def lines_of(file: pathlib.Path) -> List[str]:
    """The lines of a file; none if it does not exist."""
    return file.read_text().splitlines() if file.exists() else []


# ------------------------------------------------------------------ the driver


class Kill(NamedTuple):
    """A kill.

    Attributes:
      process: One of PROCESSES.
      fresh_after: Seconds until the process ran again and both servers had answered with a step
        that was saved after the kill; None: they did not.
    """

    process: str
    fresh_after: Optional[float]


class Service:
    """The processes of a soak."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.counts = shared_counts(folder)
        self._addresses = cluster.free_addresses(len(SERVERS))
        self._running: Dict[str, subprocess.Popen] = {}

    def start(self, process: str) -> None:
        """Starts a process, and waits until it answers if it is a server."""
        if process in SERVERS:
            number = SERVERS.index(process)
            (self.folder / f"down-{number}").touch()
            port = self._addresses[number].rpartition(":")[2]
            published = self.folder / "published"
            command = ["rec_estimator.serving", "--port", port, "--poll-secs", "0.2"]
            command += ["--model", f"soak={published}", "--follow", f"soak={published / 'deltas'}"]
        else:
            command = ["benchmarks.soak_online", "--folder", str(self.folder), "--role", process]
            command += ["--addresses", *self._addresses]
        with self.log(process).open("a") as log:
            self._running[process] = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=log, stderr=log
            )
        if process in SERVERS:
            request = request_of(np.array([ALWAYS]))
            stub(self._addresses[number]).Predict(request, timeout=120, wait_for_ready=True)
            (self.folder / f"down-{number}").unlink()

    def log(self, process: str) -> pathlib.Path:
        """The file of a process's output."""
        return self.folder / f"{process.replace(' ', '')}.log"

    def kill(self, process: str) -> None:
        """Kills a process, and waits until it is gone."""
        if process in SERVERS:
            (self.folder / f"down-{SERVERS.index(process)}").touch()
        self._running[process].kill()
        self._running[process].wait()

    def newest_step(self) -> int:
        """The step of the trainer's latest checkpoint, published or not."""
        latest = tf.train.latest_checkpoint(str(self.folder / "model"))
        assert latest is not None, "the trainer has written none"
        return int(latest.rpartition("-")[2])

    def is_fresh_within(self, seconds: float, step: int) -> bool:
        """Waits until both servers answer with a later step; returns whether they did."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (self.counts[:, STEP] > step).all():
                return True
            time.sleep(0.05)
        return False

    def ended(self) -> Iterator[str]:
        """A sentence for each process that has ended by itself."""
        for process, running in self._running.items():
            if running.poll() is not None:
                yield f"{process} ended by itself with {running.returncode}"

    def stop(self) -> Iterator[str]:
        """Ends all processes; yields a sentence for each that does not end as it should."""
        (self.folder / "stop").touch()
        # The client first: a server that ends refuses requests.
        for process in ("client", *SERVERS, "trainer", "publisher"):
            running = self._running[process]
            if process in SERVERS:
                running.send_signal(signal.SIGTERM)
            try:
                code: Optional[int] = running.wait(2 * MOST_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                yield f"{process} ended with {code}"

    def close(self) -> None:
        """Kills the processes that are left."""
        for process in self._running:
            self.kill(process)


def soak(folder: pathlib.Path, minutes: float) -> Dict[str, Any]:
    """Trains, publishes, serves and kills.

    Args:
      folder: A new folder.
      minutes: For how long processes are killed.

    Returns:
      The raw result; "faults" has a sentence for each check that failed.
    """
    (folder / "published").mkdir()
    service, kills = Service(folder), []
    try:
        for process in ("trainer", "publisher"):
            service.start(process)
        _wait_for_base(folder / "published")
        for process in (*SERVERS, "client"):
            service.start(process)
        is_fresh = service.is_fresh_within(MOST_SECONDS, service.newest_step())
        faults = [] if is_fresh else ["the servers are not fresh"]
        end = time.monotonic() + 60 * minutes
        for process in itertools.cycle(PROCESSES):
            if time.monotonic() > end or faults:
                break
            begun = time.monotonic()
            kills.append(_kill(service, process))
            print(kills[-1], flush=True)
            time.sleep(max(0.0, begun + KILL_SECONDS - time.monotonic()))
            faults += service.ended()
        faults += service.stop()
    finally:
        service.close()
    faults += [f"no server was fresh after {kill}" for kill in kills if kill.fresh_after is None]
    faults += lines_of(folder / "faults")
    for process in PROCESSES if faults else ():
        print(f"---- {process}\n{service.log(process).read_text()[-3000:]}")
    return {**_summary(service, kills), "minutes": minutes, "faults": faults}


def _kill(service: Service, process: str) -> Kill:
    """Kills a process, starts it again, and waits until the servers are fresh."""
    step, begun = service.newest_step(), time.monotonic()
    service.kill(process)
    service.start(process)
    is_fresh = service.is_fresh_within(MOST_SECONDS, step)
    return Kill(process, time.monotonic() - begun if is_fresh else None)


def _wait_for_base(published: pathlib.Path) -> None:
    """Waits until a model and the folder of its deltas are there."""
    deadline = time.monotonic() + 4 * MOST_SECONDS
    while rec.serving.read_manifest(str(published)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("nothing was published")
        time.sleep(0.1)


def _summary(service: Service, kills: Sequence[Kill]) -> Dict[str, Any]:
    """What a soak has counted."""
    ages = sorted(map(float, lines_of(service.folder / "ages"))) or [0.0]
    manifest = rec.serving.read_manifest(str(service.folder / "published")) or {}
    return {
        "kills": [kill._asdict() for kill in kills],
        "answers": int(service.counts[:, ANSWERS].sum()),
        "failed_of_killed": int(service.counts[:, FAILED].sum()),
        "steps": int(service.counts[:, STEP].max()),
        "bases_left": len(list((service.folder / "published").glob("[0-9]*"))),
        "last_base_step": manifest.get("step"),
        "refreshes": len(ages),
        "age": {"median": statistics.median(ages), "p99": ages[int(0.99 * len(ages))]},
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the soak, or a process of it; returns the exit status."""
    parser = result_file.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="default: %(default)s")
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)  # For processes.
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)
    if options.role == "client":
        run_client(options.folder, options.addresses)
        return 0
    if options.role is not None:
        {"trainer": run_trainer, "publisher": run_publisher}[options.role](options.folder)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = soak(pathlib.Path(folder), options.minutes)
    result_file.write(options.output, {**found, "load_average": os.getloadavg()})
    print("\n".join(found["faults"]) or f"no wrong answer of {found['answers']:,}")
    return bool(found["faults"])


if __name__ == "__main__":
    sys.exit(main())
