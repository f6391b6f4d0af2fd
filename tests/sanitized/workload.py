# SPDX-License-Identifier: Apache-2.0
"""Runs every kernel, from several threads of one process. _build/sanitized.py starts it.

* shared_tables: threads train, read, save, restore, evict and export the same tables.
* one_by_one: a valid call of each op and calls with nonsense, from several threads.
* while_inputs_change: a valid call of each op while a thread writes to its inputs.
* estimators: graph modification, loops of steps, and requests to a compressed export.
* refreshes: requests to a model with rows of 8 bits while the deltas of its training are applied.

The exit code is 1 after an unexpected exception, or if an op of the registry did not run.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import queue
import sys
import tempfile
import threading
import time
import traceback

import numpy as np
import shared_tables
import table_reads
import tensorflow.compat.v1 as tf
from fuzz import changing_inputs, fuzz_calls

import rec_estimator as rec
from rec_estimator import _ops
from rec_estimator.graph_passes import op_registry

THREADS = 4

# How an op refuses nonsense.
REFUSALS = (tf.errors.OpError, ValueError, TypeError)


class Work:
    """What the threads share: their errors, and the op types that ran."""

    def __init__(self, folder, rounds):
        self.folder, self.rounds = pathlib.Path(folder), rounds
        self.ops, self.errors = set(), []

    def ran(self, graph):
        """Notes that all ops of ours in a graph ran."""
        types = {op.type for op in graph.get_operations()}
        for function in graph.as_graph_def().library.function:
            types.update(node.op for node in function.node_def)
        self.ops.update(name for name in types if name.startswith(op_registry.PREFIX))

    def guard(self, function, *arguments):
        """Calls a function. An exception ends it, but nothing else."""
        try:
            function(*arguments)
        except Exception:
            self.errors.append(traceback.format_exc())

    def run_together(self, functions, graph=None):
        """Calls each function in a thread of its own, in which the graph is the default."""

        def call_in_graph(function):
            with (graph or tf.Graph()).as_default():
                function()

        threads = [
            threading.Thread(target=self.guard, args=(call_in_graph, each)) for each in functions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def one_by_one(work):
    """Calls each op as it should be called, and with nonsense."""
    waiting = queue.Queue()
    for number, op in enumerate(fuzz_calls.op_names(_ops.gen)):
        waiting.put((number, op))

    def call_next():
        while True:
            try:
                number, op = waiting.get_nowait()
            except queue.Empty:
                return
            call(work, op, number)

    work.run_together([call_next] * THREADS)


def call(work, op, seed):
    """Calls one op in a graph of its own."""
    rng = np.random.default_rng(seed)
    folder = work.folder / op
    folder.mkdir()
    valid = fuzz_calls.VALID_CALLS[op]
    with tf.Graph().as_default() as graph, tf.Session() as session:
        caller = fuzz_calls.Caller(_ops.gen, session, folder)
        caller.write_files()
        caller.call(op, valid)
        work.ran(graph)
        for _ in range(work.rounds):
            changed = rng.permutation(list(valid))[: fuzz_calls.choose(rng, [1, 1, 2])]
            bad = {name: fuzz_calls.nonsense(rng, valid[name]) for name in changed}
            fuzz_calls.limit_outputs(bad)
            with contextlib.suppress(*REFUSALS):
                caller.call(op, {**valid, **bad})
        caller.call("table_lookup", fuzz_calls.VALID_CALLS["table_lookup"])


def while_inputs_change(work):
    """Calls each op while another thread writes nonsense to its inputs."""
    rng = np.random.default_rng(0)
    folder = work.folder / "changing"
    folder.mkdir()
    with tf.Graph().as_default(), tf.Session() as session:
        caller = fuzz_calls.Caller(_ops.gen, session, folder)
        caller.write_files()
        for op, arguments in fuzz_calls.VALID_CALLS.items():
            changing_inputs.call(caller, op, arguments, 5 * work.rounds, rng)


FEATURES = [
    rec.EmbeddingFeature("user", 4, filter_option=rec.CounterFilter(2)),
    rec.EmbeddingFeature("history", 4, table="item", combiner="mean"),
    rec.EmbeddingFeature("item", 4),
]


def model_fn(features, labels, mode):
    inputs = tf.concat([features[feature.name] for feature in FEATURES], axis=1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf.get_variable("kernel", [inputs.shape[1], 8])))
    logits = tf.reduce_sum(hidden, axis=1)
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    step = tf.train.get_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def columns():
    rng = np.random.default_rng(0)
    history = rng.integers(1, 20, [256, 3]) * rng.integers(0, 2, [256, 3])
    users, items = rng.integers(0, 30, 256), rng.integers(0, 20, 256)
    labels = rng.integers(0, 2, 256).astype(np.float32)
    return {"user": users, "item": items, "history": tf.sparse.from_dense(history)}, labels


class Seen(tf.train.SessionRunHook):
    """Notes the op types of the graph of a training."""

    def __init__(self, work):
        self.work = work

    def end(self, session):
        self.work.ran(session.graph)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(columns()).repeat().batch(16)


def estimators(work):
    """Trains with a modified graph in loops of steps, and serves a compressed export."""
    config = rec.RunConfig(iterations_per_loop=3, save_checkpoints_steps=6)
    estimator = rec.RecEstimator(
        model_fn, str(work.folder / "model"), config, embedding_features=FEATURES
    )

    for steps in (6, 12):
        hooks = [rec.GraphModifierHook(), Seen(work)]
        estimator.train(input_fn, max_steps=steps, hooks=hooks)
    receiver = rec.compressed_serving_input_receiver_fn(user=FEATURES[:2], item=FEATURES[2:])
    exported = estimator.export_savedmodel(str(work.folder / "export"), receiver)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        meta_graph = tf.saved_model.loader.load(session, ["serve"], exported)
        signature = meta_graph.signature_def["serving_default"]
        values = {
            "user": [[3], [4]],
            "history": [[1, 2], [3, 4]],
            "item": [[i] for i in range(5)],
            "item_size": [2, 3],
        }
        fed = {signature.inputs[name].name: np.array(values[name]) for name in signature.inputs}
        outputs = [output.name for output in signature.outputs.values()]

        def request():
            for _ in range(work.rounds):
                session.run(outputs, fed)

        work.run_together([request] * THREADS, graph)
        work.ran(graph)


def receiver_fn():
    shapes = {"user": [None], "item": [None], "history": [None, 3]}
    features = {name: tf.placeholder(tf.int64, shape, name) for name, shape in shapes.items()}
    return rec.ServingInputReceiver(features, features)


def refreshes(work):
    """Publishes a training, and applies its deltas to the model that threads send requests to."""
    config = rec.RunConfig(save_checkpoints_secs=3600, save_incremental_checkpoints_secs=3600)
    estimator = rec.RecEstimator(
        model_fn, str(work.folder / "trained"), config, embedding_features=FEATURES
    )
    folder = work.folder / "published"
    export = functools.partial(
        estimator.export_saved_model, serving_input_receiver_fn=receiver_fn, row_dtype="int8"
    )
    hook = rec.serving.PublishHook(str(folder), export, estimator.model_dir, every_steps=2)
    estimator.train(input_fn, max_steps=12, hooks=[hook])
    published = rec.serving.read_manifest(str(folder))
    assert len(published["deltas"]) > 3, published
    base = str(folder / published["base"])
    with rec.serving.load_predictor(base) as predict:

        def refresh():
            for delta in published["deltas"]:
                predict.refresh(delta["name"])

        def request():
            for _ in range(work.rounds):
                predict({"user": [3, 4], "item": [5, 6], "history": [[1, 2, 3], [4, 5, 6]]})

        work.run_together([refresh] + [request] * THREADS)
    refresh_running_steps(work, base, [delta["name"] for delta in published["deltas"]])


def refresh_running_steps(work, base, deltas):
    """Applies deltas while steps that began before each of them read the tables again."""
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], base).signature_def["refresh"]
        delta, step = signature.inputs["delta"].name, signature.outputs["step"].name
        running = threading.Semaphore(0)

        def wait():
            running.release()
            time.sleep(0.01)

        reads = table_reads.TableReads(session, np.arange(20), wait)

        def refresh():
            for name in deltas:
                running.acquire(timeout=1)
                session.run(step, {delta: name})

        def read():
            for _ in range(work.rounds):
                before, after = reads.run()
                tf.nest.map_structure(np.testing.assert_array_equal, after, before)

        work.run_together([refresh] + [read] * THREADS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="repetitions of each thread")
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Nonsense makes some names of checkpoints relative.
        work = Work(folder, options.rounds)
        for part in (shared_tables.run, one_by_one, while_inputs_change, estimators, refreshes):
            started = time.monotonic()
            work.guard(part, work)
            name = f"{part.__module__}.{part.__name__}".replace("__main__.", "")
            print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
        os.chdir("/")  # The folder can then be removed.
    missing = {op.name for op in op_registry.OPS} - work.ops
    if missing:
        work.errors.append(f"all ops must run, got none of {sorted(missing)}; add them here")
    for error in work.errors:
        print(error, file=sys.stderr)
    print(f"{len(work.ops)} op types ran, {len(work.errors)} errors", flush=True)
    return bool(work.errors)


if __name__ == "__main__":
    sys.exit(main())
