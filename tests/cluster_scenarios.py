# SPDX-License-Identifier: Apache-2.0
"""The clusters that tests run: each scenario forks its tasks. See cluster_jobs.py."""

import contextlib
import functools
import json
import os
import pathlib
import signal
import socket
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf
from cluster_jobs import BATCH, RULES, STEPS, Job, keys_of

import rec_estimator as rec
from rec_estimator import ps


def serve(folder):
    del folder
    ps.main([])


def model_fn(features, mode):
    """One table for each rule that must keep all bits, and one dense variable."""
    optimizers = dict(
        Adagrad=rec.optimizers.AdagradOptimizer(0.1),
        Ftrl=rec.optimizers.FtrlOptimizer(0.1),
        GradientDescent=rec.optimizers.GradientDescentOptimizer(0.1),
        Momentum=rec.optimizers.MomentumOptimizer(0.1, 0.9),
    )
    keys = features["keys"]
    bias = tf.get_variable("bias", [4])
    label = tf.cast(tf.math.floormod(keys, 3), tf.float32)
    loss, updates = 0.0, []
    for name in RULES:
        table = rec.get_embedding_variable(
            name, 4, initializer=tf.random_normal_initializer(seed=3)
        )
        rows = rec.embedding_lookup(table, keys) + bias
        part = tf.reduce_mean(tf.square(tf.reduce_sum(rows, axis=-1) - label))
        updates.append((optimizers[name], part, table))
        loss += part
    if mode != rec.ModeKeys.TRAIN:
        return rec.EstimatorSpec(mode, loss=loss)
    step = tf.train.get_global_step()
    trained = [o.minimize(part, var_list=[table]) for o, part, table in updates]
    with tf.control_dependencies(trained):
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
            loss, global_step=step, var_list=[bias]
        )
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(keys, last=lambda: None):
    """Batches of `keys`; last() is called before the end of the data is reported."""

    def batches():
        yield from ({"keys": batch} for batch in keys)
        last()

    return lambda: tf.data.Dataset.from_generator(
        batches, {"keys": tf.int64}, {"keys": [BATCH]}
    ).prefetch(1)


def train_and_evaluate(folder, *, task=0, max_steps=STEPS, last=lambda: None, **config):
    tf.logging.set_verbosity(tf.logging.INFO)
    arguments = dict(
        model_dir=str(folder / "model"),
        save_checkpoints_steps=50,
        experimental_max_worker_delay_secs=0,
        tf_random_seed=5,
    )
    estimator = rec.RecEstimator(model_fn, config=rec.RunConfig(**{**arguments, **config}))
    return rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(input_fn(keys_of(task), last), max_steps=max_steps),
        rec.EvalSpec(
            input_fn(keys_of(9, steps=2)), steps=None, start_delay_secs=0, throttle_secs=1
        ),
    )


def wait_for(path, seconds=60):
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def one_worker_and_two(folder):
    """A training in one process, one with a chief alone, and one with chief, worker, evaluator."""
    results = {}
    for name in ("single", "alone", "both"):
        (folder / name).mkdir()
    single, alone = Job(folder / "single"), Job(folder / "alone")
    both = Job(folder / "both", workers=1)
    try:
        single.start("chief", 0, train_and_evaluate, cluster={}, task={})
        alone.start_ps(serve)
        alone.start("chief", 0, train_and_evaluate)
        results["single"] = single.wait("chief", 0)
        results["alone"] = alone.wait("chief", 0)
        assert results == {"single": 0, "alone": 0}
        alone.close()

        done = folder / "both" / "worker.done"

        def worker(folder):
            train_and_evaluate(folder, task=1, max_steps=2 * STEPS)
            done.touch()

        def chief(folder):
            train_and_evaluate(folder, max_steps=2 * STEPS, last=lambda: wait_for(done))

        both.start_ps(serve)
        both.start("worker", 0, worker)
        both.start("evaluator", 0, lambda folder: train_and_evaluate(folder, max_steps=2 * STEPS))
        both.start("chief", 0, chief)
        results["both"] = [both.wait(job, 0) for job in ("chief", "worker", "evaluator")]
    finally:
        for job in (single, alone, both):
            job.close()
    return results


def strategy(folder):
    """A chief, a worker and an evaluator with train_distribute; then a chief that lacks a ps."""
    for name in ("job", "absent"):
        (folder / name).mkdir()
    job, absent = Job(folder / "job", workers=1), Job(folder / "absent")
    done = folder / "job" / "worker.done"

    def train(task, last=lambda: None, **config):
        def main(folder):
            train_and_evaluate(
                folder,
                task=task,
                max_steps=2 * STEPS,
                last=last,
                train_distribute=tf.distribute.experimental.ParameterServerStrategy(),
                **config,
            )
            if task == 1:
                done.touch()

        return main

    try:
        job.start_ps(serve)
        job.start("worker", 0, train(1))
        job.start("evaluator", 0, train(2))
        job.start("chief", 0, train(0, last=lambda: wait_for(done)))
        # A worker of TensorFlow asks only every 30 seconds whether the chief is ready.
        ends = [job.wait(task, 0, 180) for task in ("chief", "worker", "evaluator")]
        absent.start("ps", 0, serve)
        absent.start("chief", 0, train(0, ps_wait_secs=1))
        return {"ends": ends, "absent": [absent.wait("chief", 0), absent.log("chief", 0)]}
    finally:
        job.close()
        absent.close()


def record(folder, task, keys):
    """Batches of `keys` again and again; notes each in a file before it is trained."""

    def batches():
        with (folder / f"seen{task}").open("a") as seen:
            while True:
                for batch in keys:
                    seen.write(" ".join(map(str, batch.tolist())) + "\n")
                    seen.flush()
                    yield {"keys": batch}

    return batches


def train_long(folder, task, max_steps, model=model_fn, **arguments):
    tf.logging.set_verbosity(tf.logging.INFO)
    config = rec.RunConfig(
        model_dir=str(folder / "model"),
        save_checkpoints_steps=100,
        experimental_max_worker_delay_secs=0,
        **arguments,
    )
    batches = record(folder, task, keys_of(task))
    rec.train_and_evaluate(
        rec.RecEstimator(model, config=config),
        rec.TrainSpec(
            lambda: tf.data.Dataset.from_generator(
                batches, {"keys": tf.int64}, {"keys": [BATCH]}
            ).prefetch(1),
            max_steps=max_steps,
        ),
        rec.EvalSpec(input_fn(keys_of(9, steps=2))),
    )


def newest_step(folder):
    latest = tf.train.latest_checkpoint(str(folder / "model"))
    return int(latest.rpartition("-")[2]) if latest else -1


def wait_for_step(folder, step, seconds=90):
    deadline = time.monotonic() + seconds
    while newest_step(folder) < step:
        assert time.monotonic() < deadline, f"no checkpoint of step {step} in {seconds} s"
        time.sleep(0.02)


def wait_for_a_save(folder, seconds=60):
    """Waits until the files of a checkpoint are being written; returns whether there was one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if any(
                entry.is_dir() and any(entry.iterdir()) for entry in (folder / "model").iterdir()
            ):
                return True
        time.sleep(0.001)
    return False


def kills(folder):
    """Kills each kind of task in a training, also during saves, and starts it again."""
    job = Job(folder, workers=1)
    steps = 4000
    mains = {
        "ps": serve,
        "chief": lambda folder: train_long(folder, 0, steps),
        "worker": lambda folder: train_long(folder, 1, steps),
    }
    try:
        job.start_ps(serve)
        for task in ("chief", "worker"):
            job.start(task, 0, mains[task])
        lost = []
        for task, index in (("ps", 1), ("worker", 0), ("chief", 0), ("ps", 0)):
            at = newest_step(folder) + 150
            wait_for_step(folder, at)
            lost.append([task, newest_step(folder)])
            job.kill(task, index)
            job.start(task, index, mains[task])
        saves = 0
        for task, index in (("chief", 0), ("ps", 1), ("chief", 0)):
            wait_for_step(folder, newest_step(folder) + 100)
            saves += wait_for_a_save(folder)
            job.kill(task, index)
            job.start(task, index, mains[task])
        ends = [job.wait(task, 0, 120) for task in ("chief", "worker")]
        return {"ends": ends, "step": newest_step(folder), "killed": lost, "saves": saves}
    finally:
        job.close()


UNITS, UNIT_ROWS = 40, 120


def queue_model_fn(features, mode):
    """A table that counts its rows. Each task notes its rows, in steps of some milliseconds."""
    table = rec.get_embedding_variable("rows", 1, initializer=tf.ones_initializer())
    task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]

    def note(rows):
        time.sleep(0.004)
        with open(f"{task}.rows", "a") as file:
            file.writelines(f"{row}\n" for row in rows)

    with tf.control_dependencies([tf.numpy_function(note, [features["row"]], [])]):
        loss = tf.reduce_sum(rec.embedding_lookup(table, tf.identity(features["row"])))
    step = tf.train.get_global_step()
    train_op = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss, step)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train_queue(folder):
    """Trains all rows of a queue."""
    tf.logging.set_verbosity(tf.logging.INFO)
    config = rec.RunConfig(
        model_dir=str(folder / "model"),
        save_checkpoints_steps=50,
        experimental_max_worker_delay_secs=0,
    )
    queue = rec.inputs.work_queue(str(folder / "unit-*.csv"), shuffle=True, seed=1)
    input_fn = rec.inputs.csv_input_fn(queue, dtypes={"row": tf.int64}, batch_size=BATCH)
    rec.train_and_evaluate(
        rec.RecEstimator(queue_model_fn, config=config),
        rec.TrainSpec(input_fn),
        rec.EvalSpec(rec.inputs.numpy_input_fn({"row": np.arange(2)}), steps=1),
    )


def work_queue(folder):
    """Kills a worker that reads units of a queue and starts it again."""
    for unit in range(UNITS):
        rows = "\n".join(map(str, range(unit * UNIT_ROWS, (unit + 1) * UNIT_ROWS)))
        (folder / f"unit-{unit:02}.csv").write_text(f"row\n{rows}\n")
    job = Job(folder, workers=1)
    try:
        job.start_ps(serve)
        for task in ("chief", "worker"):
            job.start(task, 0, train_queue)
        wait_for_step(folder, 50)
        rows = folder / "worker.rows"
        wait_for(rows)
        while len(rows.read_text().split()) < 1.5 * UNIT_ROWS:
            time.sleep(0.01)
        job.kill("worker", 0)
        job.start("worker", 0, train_queue)
        return {"ends": [job.wait(task, 0, 120) for task in ("chief", "worker")]}
    finally:
        job.close()


def published_model_fn(features, mode):
    """A table and a dense variable, and the scores that a server returns."""
    table = rec.get_embedding_variable("item", 4)
    scores = rec.embedding_lookup(table, features["keys"]) * tf.get_variable("dense", [4])
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"scores": scores})
    loss = tf.reduce_mean(tf.square(scores - 1.0))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def published_estimator(folder):
    config = rec.RunConfig(
        model_dir=str(folder / "model"),
        save_checkpoints_steps=1000,
        save_incremental_checkpoints_steps=1000,
        keep_checkpoint_max=None,
        experimental_max_worker_delay_secs=0,
    )
    return rec.RecEstimator(published_model_fn, config=config)


def published_receiver_fn():
    keys = {"keys": tf.placeholder(tf.int64, [None], name="keys")}
    return rec.ServingInputReceiver(keys, keys)


def publishing(folder):
    """A chief, a worker and two ps; the chief publishes for serving."""
    done = folder / "worker.done"

    def train(folder, task, last=lambda: None):
        estimator = published_estimator(folder)
        export = functools.partial(
            estimator.export_saved_model, serving_input_receiver_fn=published_receiver_fn
        )
        hook = rec.serving.PublishHook(
            str(folder / "published"), export, estimator.model_dir, every_steps=40
        )
        rec.train_and_evaluate(
            estimator,
            rec.TrainSpec(input_fn(keys_of(task), last), max_steps=2 * STEPS, hooks=[hook]),
            rec.EvalSpec(input_fn(keys_of(9, steps=2))),
        )

    def worker(folder):
        train(folder, 1)
        done.touch()

    job = Job(folder, workers=1)
    try:
        job.start_ps(serve)
        job.start("worker", 0, worker)
        job.start("chief", 0, lambda folder: train(folder, 0, lambda: wait_for(done)))
        return [job.wait(task, 0) for task in ("chief", "worker")]
    finally:
        job.close()


def synchronous_model_fn(features, mode, config):
    """One table, which chief and worker train together."""
    table = rec.get_embedding_variable("table", 4, initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(rec.embedding_lookup(table, features["keys"])))
    optimizer = tf.train.SyncReplicasOptimizer(rec.optimizers.AdagradOptimizer(0.1), 2, 2)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    hook = optimizer.make_session_run_hook(config.is_chief, num_tokens=0)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[hook])


def synchronous_kill(folder):
    """Kills a worker of a synchronous training and starts it again."""
    job, steps = Job(folder, workers=1), 600
    mains = [
        lambda folder, task=task: train_long(folder, task, steps, model=synchronous_model_fn)
        for task in (0, 1)
    ]
    try:
        job.start_ps(serve)
        job.start("chief", 0, mains[0])
        job.start("worker", 0, mains[1])
        for step in (100, 300):
            wait_for_step(folder, step)
            job.kill("worker", 0)
            job.start("worker", 0, mains[1])
        ends = [job.wait(task, 0, 240) for task in ("chief", "worker")]
        return {"ends": ends, "step": newest_step(folder), "steps": steps}
    finally:
        job.close()


def failure(job, seconds, **config):
    """Runs a chief that must fail; returns its last line, and how it ended."""
    job.start("chief", 0, lambda folder: train_and_evaluate(folder, **config))
    return [job.wait("chief", 0, seconds), last_line(job, "chief")]


def last_line(job, task):
    return job.log(task, 0).strip().splitlines()[-1]


def lost_ps(folder):
    """Kills a ps and does not start it again; the chief's and the worker's end."""
    job = Job(folder, workers=1)
    mains = [
        lambda folder, task=task: train_long(folder, task, 10**6, ps_wait_secs=2) for task in (0, 1)
    ]
    try:
        job.start_ps(serve)
        job.start("chief", 0, mains[0])
        job.start("worker", 0, mains[1])
        wait_for_step(folder, 200)
        job.kill("ps", 1)
        return {task: [job.wait(task, 0), last_line(job, task)] for task in ("chief", "worker")}
    finally:
        job.close()


def sigterm(folder):
    """Sends SIGTERM to every task at once, as an orchestrator that ends a job; how they end."""
    job = Job(folder, workers=1)

    def model(features, mode):
        hooks = [rec.StopAtSigtermHook()]
        return model_fn(features, mode)._replace(training_hooks=hooks)

    try:
        job.start_ps(lambda folder: ps.main(["--grace-secs=60"]))
        job.start("chief", 0, lambda folder: train_long(folder, 0, 10**6, model=model))
        job.start("worker", 0, lambda folder: train_long(folder, 1, 10**6, model=model))
        wait_for_step(folder, 100)
        tasks = list(job.pids)
        for task in tasks:
            job.signal(*task, signal.SIGTERM)
        return {"ends": {" ".join(map(str, task)): job.wait(*task) for task in tasks}}
    finally:
        job.close()


class StopWhileASessionBegins(tf.train.SessionRunHook):
    """Stops a process before the first step, then asks all ps tasks for something."""

    def __init__(self, pid):
        self._pid = pid

    def begin(self):
        self._uninitialized = tf.report_uninitialized_variables()

    def after_create_session(self, session, coord):
        os.kill(self._pid, signal.SIGSTOP)
        session.run(self._uninitialized)


def silent_ps(folder):
    """Stops a ps for less than the limit, then for good; how chief and worker end.

    At last, a new chief restores, and the ps stops again before the first step.
    """
    job = Job(folder, workers=1)
    mains = [
        lambda folder, task=task: train_long(folder, task, 10**6, ps_wait_secs=10)
        for task in (0, 1)
    ]
    try:
        job.start_ps(serve)
        job.start("chief", 0, mains[0])
        job.start("worker", 0, mains[1])
        wait_for_step(folder, 200)
        job.signal("ps", 1, signal.SIGSTOP)
        time.sleep(4)  # The ps tasks are asked after a tenth of the limit.
        job.signal("ps", 1, signal.SIGCONT)
        wait_for_step(folder, newest_step(folder) + 200)
        restores = job.log("chief", 0).count("Restoring parameters")
        job.signal("ps", 1, signal.SIGSTOP)
        ends = [[job.wait(task, 0), last_line(job, task)] for task in ("chief", "worker")]

        def model(features, mode):
            hooks = [StopWhileASessionBegins(job.pids["ps", 1])]
            return model_fn(features, mode)._replace(training_hooks=hooks)

        job.signal("ps", 1, signal.SIGCONT)
        job.start("chief", 0, lambda folder: train_long(folder, 0, 10**6, model, ps_wait_secs=10))
        ends.append([job.wait("chief", 0), last_line(job, "chief")])
        return {"restores": restores, "ends": ends}
    finally:
        job.close()


def faults(folder):
    """Clusters that cannot train. {what is wrong: [exit code of the chief, last line]}."""
    found = {}

    @contextlib.contextmanager
    def job(name, **arguments):
        (folder / name).mkdir()
        made = Job(folder / name, **arguments)
        try:
            yield made
        finally:
            made.close()

    with job("ps that never comes") as absent:
        absent.start("ps", 0, serve)
        found["absent"] = failure(absent, 60, ps_wait_secs=1)
    with job("other cluster") as swapped:
        swapped.start_ps(serve)
        swapped.cluster["ps"].reverse()
        found["swapped"] = failure(swapped, 60)
    with job("other folder") as apart:

        def serve_elsewhere(folder):
            (folder / "elsewhere").mkdir(exist_ok=True)
            os.chdir(folder / "elsewhere")
            serve(folder)

        apart.start_ps(serve_elsewhere)
        os.chdir(apart.folder)
        found["apart"] = failure(apart, 60, model_dir="model")
        os.chdir(folder)
    with job("no chief", ps=1, workers=1) as headless:
        headless.start_ps(serve)
        arguments = dict(session_creation_timeout_secs=1)
        headless.start("worker", 0, lambda folder: train_and_evaluate(folder, **arguments))
        found["headless"] = [headless.wait("worker", 0), last_line(headless, "worker")]
    with job("taken port", ps=1) as taken, socket.socket() as other:
        host, _, port = taken.cluster["chief"][0].partition(":")
        other.bind((host, int(port)))
        other.listen()
        found["taken"] = failure(taken, 60)
    return found


def declared_features():
    option = rec.EmbeddingVariableOption(
        filter_option=rec.CounterFilter(2), evict_option=rec.GlobalStepEvict(steps_to_live=60)
    )
    bloom = rec.CBFFilter(2, max_element_size=1000, false_positive_probability=0.01)
    return [
        rec.EmbeddingFeature("user", dim=4, ev_option=option),
        rec.EmbeddingFeature("item", dim=4, filter_option=bloom),
        rec.EmbeddingFeature("tags", dim=4, combiner="mean"),
    ]


def stock_model_fn(features, labels, mode):
    """A model that uses no name of ours, with a stock optimizer."""
    inputs = tf.concat([features[name] for name in ("user", "item", "tags")], axis=1)
    weights = tf.get_variable("weights", [12, 1], initializer=tf.ones_initializer())
    logits = tf.squeeze(tf.matmul(inputs, weights), axis=1)
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    if mode == rec.ModeKeys.EVAL:
        return rec.EstimatorSpec(mode, loss=loss)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_global_step(), var_list=[weights]
    )
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def declared_input_fn(steps):
    keys = keys_of(3, steps=steps).reshape(-1)
    columns = {"user": keys, "item": keys[::-1].copy(), "tags": np.stack([keys, keys + 37], axis=1)}
    labels = np.float32(keys % 2)
    return rec.inputs.numpy_input_fn(columns, labels, batch_size=BATCH)


def train_predict_export(folder):
    """An unchanged script of a single process; returns nothing, writes its predictions."""
    tf.logging.set_verbosity(tf.logging.INFO)
    config = rec.RunConfig(
        model_dir=str(folder / "model"),
        tf_random_seed=7,
        save_checkpoints_steps=50,
        save_incremental_checkpoints_steps=20,
        session_config=tf.ConfigProto(intra_op_parallelism_threads=1),
    )
    estimator = rec.RecEstimator(
        stock_model_fn,
        config=config,
        embedding_features=declared_features(),
        table_optimizer=rec.optimizers.AdagradOptimizer(0.1),
    )
    rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(declared_input_fn(90), max_steps=90, hooks=[rec.GraphModifierHook()]),
        rec.EvalSpec(declared_input_fn(2), start_delay_secs=0, throttle_secs=1),
    )
    predicted = [p["logits"] for p in estimator.predict(declared_input_fn(10))]
    np.save(folder / "predicted.npy", np.array(predicted))
    with tf.Graph().as_default():
        shapes = {"user": [None], "item": [None], "tags": [None, 2]}
        receiver = rec.build_raw_serving_input_receiver_fn(
            {name: tf.placeholder(tf.int64, shape) for name, shape in shapes.items()}
        )
    estimator.export_saved_model(str(folder / "export"), receiver)


def one_script(folder):
    """The same script in one process and as chief of a cluster; then on from its checkpoint."""
    results = {}
    for name in ("single", "cluster"):
        (folder / name).mkdir()
        job = Job(folder / name, ps=3)
        try:
            if name == "cluster":
                job.start_ps(train_predict_export)  # A ps may run the script itself.
                job.start("chief", 0, train_predict_export)
            else:
                job.start("chief", 0, train_predict_export, cluster={}, task={})
            results[name] = job.wait("chief", 0)
        finally:
            job.close()
    return results


def session_script(folder):
    """A script of plain sessions; like those of TensorFlow 1, it knows the cluster by itself."""
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.INFO)
    cluster = tf.train.ClusterSpec(json.loads(os.environ["TF_CONFIG"])["cluster"])
    server = tf.train.Server(cluster, job_name="chief", task_index=0)
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device="/job:chief")):
        step = tf.train.get_or_create_global_step()
        ids = tf.placeholder(tf.int64, [None])
        table = rec.create_table(
            tf.int64, 2, "limited", tf.ones_initializer(), device_vocabulary_size=8
        )
        rows = rec.sparse_lookup(table, ids, modify_graph=True)
        loss = tf.reduce_sum(rows)
        optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, global_step=step)
        # A test of the rows afterwards, as the next step reads them.
        read = rec.sparse_lookup(table, ids, is_train=False, modify_graph=True)
        size = table.size()
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:chief"])
    found = {"devices": [shard.device for shard in table]}
    session = rec.MonitoredTrainingSession(
        server.target, True, str(folder / "model"), config=config, save_checkpoint_steps=1
    )
    with session:
        raw = session._tf_sess()
        # All eight keys are in one shard, as floormod(key, 1000) % 2 says.
        session.run(train_op, {ids: [0, 2, 4, 6, 8, 10, 12, 14, 0]})
        found["rows"] = raw.run(read, {ids: [0, 2, 14]}).tolist()
        try:
            raw.run(train_op, {ids: [0, 1]})
        except tf.errors.ResourceExhaustedError as error:
            found["error"] = error.message.split(";")[0]
        found["size"] = int(raw.run(size))
    with tf.Graph().as_default():
        tf.get_variable_scope().set_partitioner(tf.fixed_size_partitioner(3))
        table = rec.create_table(
            tf.int64, 2, "limited", tf.ones_initializer(), device_vocabulary_size=8
        )
        read = rec.sparse_lookup(
            table, tf.constant([0, 2, 14], tf.int64), is_train=False, modify_graph=True
        )
        tf.train.get_or_create_global_step()
        with tf.Session() as single:
            rec.Saver().restore(single, tf.train.latest_checkpoint(str(folder / "model")))
            found["restored"] = single.run(read).tolist()
    (folder / "found.json").write_text(json.dumps(found))


def sessions(folder):
    job = Job(folder)
    try:
        job.start_ps(serve)
        job.start("chief", 0, session_script)
        status = job.wait("chief", 0)
    finally:
        job.close()
    assert status == 0
    return json.loads((folder / "found.json").read_text())


def folder_of_each_task(folder):
    """A ps that works in another folder. Saves to a relative path, and to one that each task has.

    Returns the files of the first, the error of the second and its files.
    """
    job = Job(folder, ps=1)

    def serve_elsewhere(folder):
        (folder / "elsewhere").mkdir()
        os.chdir(folder / "elsewhere")
        serve(folder)

    def save(folder):
        tf.disable_eager_execution()
        cluster = tf.train.ClusterSpec(json.loads(os.environ["TF_CONFIG"])["cluster"])
        server = tf.train.Server(cluster, job_name="chief", task_index=0)
        setter = tf.train.replica_device_setter(cluster=cluster, worker_device="/job:chief")
        with tf.device(setter):
            rec.get_embedding_variable("table", 2)
            saver = rec.Saver(sharded=True)
            with tf.Session(server.target) as session:
                session.run(tf.global_variables_initializer())
                saver.save(session, "relative/model")
                try:
                    saver.save(session, "/proc/self/cwd/own/model")
                except tf.errors.NotFoundError as error:
                    (folder / "error").write_text(error.message)

    try:
        job.start("ps", 0, serve_elsewhere)
        os.chdir(folder)
        job.start("chief", 0, save)
        job.wait("chief", 0)
        return [os.listdir("relative"), (folder / "error").read_text(), os.listdir("own")]
    finally:
        job.close()


def ps_without_library(folder):
    """A ps that is TensorFlow's alone."""
    job = Job(folder, ps=1)
    code = (
        "import json, os, tensorflow.compat.v1 as tf; c = json.loads(os.environ['TF_CONFIG']); "
        "tf.train.Server(tf.train.ClusterSpec(c['cluster']), job_name='ps', task_index=0).join()"
    )
    try:
        job.start("ps", 0, lambda folder: os.execv(sys.executable, [sys.executable, "-c", code]))
        return failure(job, 100)
    finally:
        job.close()


def zoo(folder):
    """The command that trains a model of the zoo on schema.yaml, in each task."""
    from model_zoo import __main__ as command

    settings = ["data.cache_dir=cache", "train.batch_size=16", "train.epochs=2"]
    settings += ["validation.learning_rate_factor=0.5", "hooks.progress=false"]
    arguments = ["train", "neumf", "--data", "schema.yaml", "--model_dir", "model"]
    arguments += [text for setting in settings for text in ("--set", setting)]

    def train(folder):
        del folder
        sys.exit(command.main(arguments))

    job, tasks = Job(folder, ps=1, workers=1), (("chief", 0), ("worker", 0), ("evaluator", 0))
    try:
        for task in (("ps", 0), *tasks):
            job.start(*task, train)
        return [job.wait(*task, seconds=150) for task in tasks]
    finally:
        job.close()


def main():
    scenario, folder = sys.argv[1:]
    folder = pathlib.Path(folder)

    result = globals()[scenario](folder)
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
