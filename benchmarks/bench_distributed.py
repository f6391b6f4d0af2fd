# SPDX-License-Identifier: Apache-2.0
"""Measures a training step with parameter servers (ps): tensors, bytes and CPU time.

    python -m benchmarks.bench_distributed [--output FILE.json]

Workers and ps are processes on 127.0.0.1. A step reads and trains 26 x 4096 ids (Zipf) with
dim 16 and Adagrad, from one table or from 26. Three systems:

    stock      TensorFlow's partitioned variables and optimizer
    unpacked   tables, with the graph passes turned off (OptimizerOptions.L0)
    packed     tables

They alternate in the same processes. CPU time is that of each process, user and system, from
/proc; it does not depend on what waits. Wall time is not measured: on a machine with fewer cores
than processes it says nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import numpy as np

DIM, COLUMNS, BATCH = 16, 26, 4096
VOCABULARY = 100_000  # ids of a column
BATCHES = 8
SYSTEMS = ("stock", "unpacked", "packed")
TABLES = (1, COLUMNS)
CLUSTERS = ((1, 1), (1, 2), (2, 2))  # workers and ps


def ids_of(task: int) -> np.ndarray:
    """int64 [BATCHES, COLUMNS, BATCH]. The ids that a worker trains."""
    import numpy as np

    rng = np.random.default_rng(task)
    return rng.zipf(1.1, [BATCHES, COLUMNS, BATCH]) % VOCABULARY


def distinct_ids(tables: int) -> float:
    """The distinct ids of a batch of worker 0, over all tables, on average."""
    import numpy as np

    ids = ids_of(0)
    if tables == 1:
        ids = ids + VOCABULARY * np.arange(COLUMNS)[:, np.newaxis]
    return sum(len(np.unique(column)) for batch in ids for column in batch) / BATCHES


# ------------------------------------------------------------------ a worker


class _System:
    """One system with one number of tables, in one worker."""

    def __init__(self, cluster: Dict[str, List[str]], task: int, system: str, tables: int) -> None:
        import numpy as np
        import tensorflow.compat.v1 as tf

        self._graph = tf.Graph()
        setter = tf.train.replica_device_setter(
            cluster=cluster, worker_device=f"/job:worker/task:{task}"
        )
        with self._graph.as_default(), tf.device(setter), tf.variable_scope(f"{system}{tables}"):
            data = tf.data.Dataset.from_tensor_slices(ids_of(task)).repeat()
            batch = tf.data.make_one_shot_iterator(data).get_next()
            if tables == 1:
                offsets = VOCABULARY * np.arange(COLUMNS)[:, np.newaxis]
                ids = [tf.reshape(batch + offsets, [-1])]
            else:
                ids = tf.unstack(batch)
            look_up, optimizer = self._kind(system, VOCABULARY * COLUMNS // tables, cluster)
            values = [look_up(f"t{i}", each) for i, each in enumerate(ids)]
            loss = sum(tf.reduce_sum(tf.square(value - 1)) for value in values)
            self._train = optimizer.minimize(loss)
            self._initialize = tf.global_variables_initializer()
        config = tf.ConfigProto()
        if system == "unpacked":
            config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
        target = "grpc://" + cluster["worker"][task]
        self._session = tf.Session(target, graph=self._graph, config=config)

    @staticmethod
    def _kind(
        system: str, vocabulary: int, cluster: Dict[str, List[str]]
    ) -> Tuple[Callable[[str, Any], Any], Any]:
        import tensorflow.compat.v1 as tf

        import rec_estimator as rec

        if system == "stock":
            partitioner = tf.fixed_size_partitioner(len(cluster["ps"]))

            def look_up(name: str, ids: Any) -> Any:
                variable = tf.get_variable(
                    name, [vocabulary, DIM], partitioner=partitioner, use_resource=True
                )
                return tf.nn.embedding_lookup(variable, ids, partition_strategy="mod")

            return look_up, tf.train.AdagradOptimizer(0.01)
        return (
            lambda name, ids: rec.embedding_lookup(rec.get_embedding_variable(name, DIM), ids),
            rec.optimizers.AdagradOptimizer(0.01),
        )

    def initialize(self) -> None:
        self._session.run(self._initialize)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._session.run(self._train)

    def traffic(self) -> Dict[str, int]:
        """The tensors that tasks get from others in a step, and their bytes."""
        import tensorflow.compat.v1 as tf

        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True, trace_level=3)
        self._session.run(self._train, options=options, run_metadata=metadata)
        sizes = {}
        for device in metadata.step_stats.dev_stats:
            for node in device.node_stats:
                for output in node.output:
                    shape = [dim.size for dim in output.tensor_description.shape.dim]
                    if output.tensor_description.dtype:
                        dtype = tf.as_dtype(output.tensor_description.dtype)
                        sizes[node.node_name, output.slot] = math.prod(shape) * dtype.size
        sent = [
            node.input[0].partition(":")
            for part in metadata.partition_graphs
            for node in part.node
            if node.op == "_Send" and not node.attr["client_terminated"].b
        ]
        total = sum(sizes.get((name, int(slot or 0)), 0) for name, _, slot in sent)
        return {"tensors": len(sent), "bytes": total}


def _serve(cluster: Dict[str, List[str]], job: str, task: int) -> None:
    """Runs one task: answers each line of the input with one line."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    del rec  # Loads the ops.
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    server = tf.train.Server(cluster, job, task)
    systems: Dict[Tuple[str, int], _System] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        command, system, tables, steps = json.loads(line)
        answer: Any = None
        if command == "build":
            systems[system, tables] = _System(cluster, task, system, tables)
            if task == 0:
                systems[system, tables].initialize()
        elif command == "run":
            systems[system, tables].run(steps)
        elif command == "traffic":
            answer = systems[system, tables].traffic()
        print(json.dumps(answer), flush=True)
    del server


# ------------------------------------------------------------------ the benchmark


class _Cluster:
    """The processes of a cluster."""

    def __init__(self, workers: int, ps: int) -> None:
        sockets = [socket.socket() for _ in range(workers + ps)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()
        cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
        self._processes = {
            (job, task): subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bench_distributed", "--task"]
                + [json.dumps([cluster, job, task])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            )
            for job, addresses in cluster.items()
            for task in range(len(addresses))
        }
        for process in self._processes.values():
            self._answer(process)

    @staticmethod
    def _answer(process: subprocess.Popen) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a task of the benchmark ended; its error is above")
        return line

    def ask(self, *command: Any, workers: Sequence[int]) -> List[Any]:
        """Sends a command to workers, which run it at the same time; returns their answers."""
        processes = [self._processes["worker", task] for task in workers]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        return [json.loads(self._answer(process)) for process in processes]

    def cpu_seconds(self, job: str) -> float:
        """User and system time of all tasks of a job so far."""
        ticks = 0
        for (of_job, _), process in self._processes.items():
            if of_job == job:
                with open(f"/proc/{process.pid}/stat") as stat:
                    fields = stat.read().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def measure(workers: int, ps: int, tables: int, rounds: int, steps: int) -> Dict[str, Any]:
    """Returns what each system costs on one cluster."""
    cluster = _Cluster(workers, ps)
    cpu: Dict[str, Dict[str, List[float]]] = {s: {"worker": [], "ps": []} for s in SYSTEMS}
    traffic = {}
    everyone = range(workers)
    try:
        for system in SYSTEMS:
            for task in everyone:
                cluster.ask("build", system, tables, 0, workers=[task])
            cluster.ask("run", system, tables, BATCHES, workers=everyone)
            traffic[system] = cluster.ask("traffic", system, tables, 0, workers=[0])[0]
        for system in rounds_lib.turns(SYSTEMS, rounds):
            before = {job: cluster.cpu_seconds(job) for job in ("worker", "ps")}
            cluster.ask("run", system, tables, steps, workers=everyone)
            for job, seconds in before.items():
                used = cluster.cpu_seconds(job) - seconds
                cpu[system][job].append(1000 * used / steps / workers)
    finally:
        cluster.close()
    costs = summary(cpu)
    return {system: {**traffic[system], **costs[system]} for system in SYSTEMS}


def summary(rounds: Dict[str, Dict[str, List[float]]]) -> Dict[str, Dict[str, Any]]:
    """By system, quartiles over the rounds of CPU milliseconds a step, {system: {job: [ms]}}."""
    totals = {s: [sum(pair) for pair in zip(of["worker"], of["ps"])] for s, of in rounds.items()}
    return {
        system: {
            "worker_cpu_ms": result_file.quartiles(of["worker"]),
            "ps_cpu_ms": result_file.quartiles(of["ps"]),
            "cpu_ms": result_file.quartiles(totals[system]),
            "cpu_over_stock": rounds_lib.ratios(totals[system], totals["stock"]).median,
        }
        for system, of in rounds.items()
    }


class Model(NamedTuple):
    """CPU milliseconds of a step, of all its tasks.

    Attributes:
      tensor: For each tensor that crosses, with the op that makes or takes it.
      keys: For all keys of the step, wherever they are.
    """

    tensor: float
    keys: float

    def worker_step(self, ps: int, tensors: int = 5) -> float:
        """CPU milliseconds of one step of one worker and its requests to `ps` tasks."""
        return self.keys + self.tensor * tensors * ps


def fit(result: Dict[str, Any]) -> Model:
    """Fits the model to one worker and one ps.

    26 tables that are not packed differ from one table in their tensors: the same keys cross. What
    the tensors of a packed step do not explain is that of its keys.
    """

    def total(tables: int, system: str) -> Tuple[float, int]:
        found = result["clusters"][f"1+1/{tables}"][system]
        return found["cpu_ms"][1], found["tensors"]

    (many, many_tensors), (one, one_tensors) = (total(n, "unpacked") for n in (COLUMNS, 1))
    tensor = max(0.0, (many - one) / (many_tensors - one_tensors))
    packed, packed_tensors = total(COLUMNS, "packed")
    return Model(tensor, packed - tensor * packed_tensors)


def main() -> None:
    """Runs the command, or one task of it."""
    parser = result_file.parser(__doc__, rounds=5, steps=40)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        _serve(*json.loads(options.task))
        return
    clusters = {}
    for workers, ps in CLUSTERS:
        for tables in TABLES:
            found = measure(workers, ps, tables, options.rounds, options.steps)
            clusters[f"{workers}+{ps}/{tables}"] = found
            for system in SYSTEMS:
                one = found[system]
                print(
                    f"{workers}+{ps}, {tables} tables, {system}: {one['tensors']} tensors, "
                    f"{one['bytes'] / 1e6:.2f} MB, CPU {one['worker_cpu_ms'][1]:.1f} + "
                    f"{one['ps_cpu_ms'][1]:.1f} ms, {one['cpu_over_stock']:.2f} of stock",
                    flush=True,
                )
    result_file.write(
        options.output,
        {
            "dim": DIM,
            "keys": COLUMNS * BATCH,
            "steps": options.steps,
            "load_average": os.getloadavg()[0],
            "distinct": {str(tables): distinct_ids(tables) for tables in TABLES},
            "clusters": clusters,
        },
    )


if __name__ == "__main__":
    main()
