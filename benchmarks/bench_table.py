"""How fast are a train step and a lookup beside a dense tf.Variable and TFRA?

    python -m benchmarks.bench_table [--rows 5000000] [--rounds 15] [--output FILE.json]

Workload: batches of 4096 x 26 ids, Zipf-distributed as fitted to click logs (p(rank) ~ (rank +
q)^-s), ranks shuffled over the table's rows, values of 16 floats, Adagrad. Every system works in a
process of its own on the same batches; the rounds alternate between them, and what is compared is
the median over rounds of the ratio of times within a round, because the machine's speed drifts.
TFRA is measured where it is installed:

    pip install --no-deps tensorflow-recommenders-addons==0.7.2 typeguard==2.13.3 packaging

Columns: M ids/s, millions of looked-up ids per second, median; ratio, that of rec_estimator over
the other system, median over the rounds with the quartiles.
"""

import argparse
import datetime
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import time

import numpy as np

BATCH, FIELDS, DIM = 4096, 26, 16
ZIPF_S, ZIPF_Q = 1.1, 2.0  # Between Criteo's C4 and C21.
LEARNING_RATE = 0.05
NUM_BATCHES = 16


def zipf_batches(rows: int, seed: int = 0) -> np.ndarray:
    """Batches of ids, int64 [NUM_BATCHES, BATCH, FIELDS] in [0, rows)."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(1, rows + 1) + ZIPF_Q) ** -ZIPF_S
    cumulative = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(cumulative, rng.random((NUM_BATCHES, BATCH, FIELDS)))
    return rng.permutation(rows)[np.minimum(ranks, rows - 1)].astype(np.int64)


def _graph_of(embed, optimizer, batches):
    """Ops (train, lookup) of one system, on one batch after the other."""
    import tensorflow.compat.v1 as tf

    next_batch = tf.get_local_variable(
        "next_batch", initializer=np.int64(0), use_resource=True, trainable=False
    )
    ids = tf.constant(batches)[tf.math.floormod(next_batch.assign_add(1), NUM_BATCHES)]
    values, variables = embed(ids)
    gradient = np.random.default_rng(1).normal(size=(BATCH, FIELDS, DIM)).astype(np.float32)
    loss = tf.reduce_sum(values * gradient)
    # The gradient does not need the values, so that TensorFlow might leave the lookup out.
    return tf.group(optimizer.minimize(loss, var_list=variables), values), values.op


def _dense(rows, batches):
    import tensorflow.compat.v1 as tf

    table = tf.get_variable(
        "table",
        [rows, DIM],
        initializer=tf.random_uniform_initializer(-0.05, 0.05),
        use_resource=True,
    )
    ops = _graph_of(
        lambda ids: (tf.nn.embedding_lookup(table, ids), [table]),
        tf.train.AdagradOptimizer(LEARNING_RATE),
        batches,
    )
    return ops, None


def _rec_estimator(rows, batches):
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    table = rec.get_embedding_variable(
        "table", DIM, initializer=tf.random_uniform_initializer(-0.05, 0.05)
    )
    optimizer = rec.optimizers.AdagradOptimizer(LEARNING_RATE)
    ops = _graph_of(lambda ids: (rec.embedding_lookup(table, ids), [table]), optimizer, batches)
    # Every row is there before the clock starts: one more step's worth of ops fills them.
    keys = tf.placeholder(tf.int64, [None])
    fill = rec._ops.gen.rec_estimator_table_apply(
        table.handle,
        keys,
        tf.zeros([tf.size(keys), DIM]),
        tf.zeros([0], tf.int64),
        tf.constant(-1, tf.int64),
        [tf.constant(LEARNING_RATE)],
        rule="Adagrad",
        slot_names=["Adagrad"],
        slot_widths=[DIM],
        slot_initials=[0.1],
    )
    return ops, lambda session: [
        session.run(fill, {keys: part}) for part in np.array_split(np.arange(rows), 20)
    ]


def _tfra(rows, batches):
    import tensorflow.compat.v1 as tf
    import tensorflow_recommenders_addons.dynamic_embedding as de

    table = de.get_variable(
        "table", dim=DIM, initializer=tf.random_uniform_initializer(-0.05, 0.05), init_size=2 * rows
    )

    def embed(ids):
        values, trainable = de.embedding_lookup_unique(table, ids, return_trainable=True)
        return values, [trainable]

    ops = _graph_of(
        embed, de.DynamicEmbeddingOptimizer(tf.train.AdagradOptimizer(LEARNING_RATE)), batches
    )
    keys = tf.placeholder(tf.int64, [None])
    fill = table.upsert(keys, tf.zeros([tf.size(keys), DIM]))
    return ops, lambda session: [
        session.run(fill, {keys: part}) for part in np.array_split(np.arange(rows), 20)
    ]


SYSTEMS = {"dense": _dense, "rec_estimator": _rec_estimator, "tfra": _tfra}


def _serve(system, rows, batches, pipe):
    """A process: builds the system, then times what it is asked for."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    (train, lookup), fill = SYSTEMS[system](rows, batches)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        if fill is not None:
            fill(session)
        run = {"train": session.make_callable(train), "lookup": session.make_callable(lookup)}
        for op in run.values():
            for _ in range(NUM_BATCHES):
                op()
        pipe.send("ready")
        while True:
            what, steps = pipe.recv()
            if what == "stop":
                return
            start = time.perf_counter()
            for _ in range(steps):
                run[what]()
            pipe.send((time.perf_counter() - start) / steps)


def measure(systems, rows, rounds, steps):
    """Seconds a step, {what: {system: [one per round]}}."""
    batches = zipf_batches(rows)
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for system in systems:
        pipes[system], theirs = context.Pipe()
        process = context.Process(target=_serve, args=(system, rows, batches, theirs), daemon=True)
        process.start()
        processes.append(process)
        theirs.close()
        print(f"{system}: {rows:,} rows ... {pipes[system].recv()}", flush=True)
    seconds = {what: {system: [] for system in systems} for what in ("train", "lookup")}
    for what in seconds:
        for round_number in range(rounds):
            for i in range(len(systems)):
                system = systems[(i + round_number) % len(systems)]
                pipes[system].send((what, steps))
                seconds[what][system].append(pipes[system].recv())
    for pipe in pipes.values():
        pipe.send(("stop", 0))
    for process in processes:
        process.join()
    unique = statistics.mean(len(np.unique(batch)) / batch.size for batch in batches)
    return seconds, unique


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "unknown"


def report(seconds, unique, rows, rounds, steps):
    """Prints the table and returns all of it for the raw result."""
    import importlib.metadata

    ids = BATCH * FIELDS
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": platform.processor() or platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "tensorflow": importlib.metadata.version("tensorflow-cpu"),
        "rows": rows,
        "batch": [BATCH, FIELDS],
        "dim": DIM,
        "optimizer": "Adagrad",
        "zipf": {"s": ZIPF_S, "q": ZIPF_Q},
        "unique_share": round(unique, 4),
        "rounds": rounds,
        "steps_per_round": steps,
        "seconds_per_step": seconds,
        "ratios": {},
    }
    print(f"\n{rows:,} rows, {BATCH} x {FIELDS} ids, unique share {unique:.2f}, dim {DIM}, Adagrad")
    print(f"{'':8}{'system':16}{'M ids/s':>10}{'ratio':>9}   quartiles")
    for what, by_system in seconds.items():
        for system, times in by_system.items():
            speed = ids / statistics.median(times) / 1e6
            line = f"{what:8}{system:16}{speed:10.1f}"
            if system != "rec_estimator":
                ratios = [t / ours for t, ours in zip(times, by_system["rec_estimator"])]
                low, middle, high = statistics.quantiles(ratios, n=4)
                result["ratios"][f"{what}/{system}"] = round(middle, 3)
                line += f"{middle:9.2f}   {low:.2f} - {high:.2f}"
            print(line)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="steps a round and system")
    parser.add_argument("--output", help="file for the raw result, JSON")
    args = parser.parse_args()
    systems = ["dense", "rec_estimator"]
    if importlib.util.find_spec("tensorflow_recommenders_addons"):
        systems.append("tfra")
    else:
        print("tensorflow_recommenders_addons is not installed: left out")
    seconds, unique = measure(systems, args.rows, args.rounds, args.steps)
    result = report(seconds, unique, args.rows, args.rounds, args.steps)
    if args.output:
        with open(args.output, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
