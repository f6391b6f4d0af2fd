# SPDX-License-Identifier: Apache-2.0
"""Limits of the system end a training with an error that TensorFlow's loops do not swallow."""

import pathlib
import resource
import textwrap

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.writer import CheckpointWriter

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_script(script, *arguments):
    """Runs a script in another process, so that its limits end with it; returns what it printed."""
    return python_processes.run(["-c", textwrap.dedent(script), *arguments]).stdout


TRAIN = """
    import resource, signal, sys
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    tf.disable_eager_execution()
    tf.get_logger().setLevel("ERROR")
    rows, folder = int(sys.argv[1]), sys.argv[2]

    def model_fn(features, labels, mode):
        table = rec.get_embedding_variable("emb", 256)  # Its bank takes 4 MiB.
        weight = tf.get_variable("weight", [rows, 256])
        vectors = rec.embedding_lookup(table, features["user"])
        loss = tf.reduce_sum(vectors * tf.reduce_sum(weight))
        train_op = rec.optimizers.GradientDescentOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn():
        keys = tf.range(100, dtype=tf.int64)
        return tf.data.Dataset.range(10).map(lambda i: ({"user": i + keys}, i))

    # As a container or batch system that limits files, and does not kill the process for it.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    config = rec.RunConfig(save_checkpoints_steps=5)
    try:
        rec.RecEstimator(model_fn, folder, config).train(input_fn)
    except tf.errors.OpError as error:
        print(type(error).__name__, error.message)
    else:
        print("train() returned")
"""


@pytest.mark.parametrize("rows", [2000, 1], ids=["variable", "table"])
def test_train_raises_when_a_save_meets_the_limit_of_file_sizes(tmp_path, rows):
    # TensorFlow raises OutOfRangeError for this limit, which a MonitoredSession swallows.
    kind, _, message = run_script(TRAIN, rows, tmp_path).partition(" ")
    assert kind == "ResourceExhaustedError", message
    assert f"got '{tmp_path}/model.ckpt-" in message
    assert "File too large; free space there or save elsewhere" in message


def test_a_meta_graph_beyond_the_limit_of_file_sizes_is_no_end_of_the_data(tmp_path):
    tf.get_variable("weight", [3])
    tf.constant(np.random.default_rng(0).normal(size=100_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver = rec.Saver()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(tf.errors.ResourceExhaustedError, match="File too large"):
                saver.save(session, str(tmp_path / "model"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


SWALLOWED = [tf.errors.OutOfRangeError, tf.errors.AbortedError, tf.errors.UnavailableError]


@pytest.mark.parametrize("kind", SWALLOWED)
def test_no_error_that_loops_swallow_leaves_a_save_or_a_restore(tmp_path, monkeypatch, kind):
    tf.get_variable("weight", [3])
    saver = rec.Saver()

    def fail(*args, **kwargs):
        raise kind(None, None, "the disk is strange")

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        prefix = saver.save(session, str(tmp_path / "model"))
        monkeypatch.setattr(CheckpointWriter, "_run", fail)
        monkeypatch.setattr(tf.train.Saver, "restore", fail)
        for call in (saver.save, saver.restore):
            with pytest.raises(tf.errors.OpError, match=f"{prefix}.*the disk is strange") as caught:
                call(session, prefix)
            assert not isinstance(caught.value, tuple(SWALLOWED))


@pytest.mark.parametrize("kind", SWALLOWED[1:])
def test_the_loss_of_a_server_still_starts_a_session_again(tmp_path, monkeypatch, kind):
    tf.get_variable("weight", [3])
    saver = rec.Saver()

    def fail(*args, **kwargs):
        raise kind(None, None, "Socket closed")

    server = tf.train.Server.create_local_server()
    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer())
        monkeypatch.setattr(CheckpointWriter, "_run", fail)
        with pytest.raises(kind, match="Socket closed"):
            saver.save(session, str(tmp_path / "model"))


NO_THREADS = """
    import ctypes, os, sys, threading
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    tf.disable_eager_execution()
    tf.get_logger().setLevel("ERROR")
    folder = sys.argv[1]
    # All rows in memory, and most of them on disk: more than a buffer of the file.
    on_disk = rec.StorageOption(rec.StorageType.DRAM_SSDHASH, folder + "/rows", [1])
    option = rec.EmbeddingVariableOption(storage_option=on_disk)
    tables = [
        rec.get_embedding_variable("emb", 4),
        rec.get_embedding_variable("cold", 16, ev_option=option),
    ]
    weight = tf.get_variable("weight", [4])
    keys = np.arange(20_000)
    values = [rec.embedding_lookup(table, keys) for table in tables]
    loss = tf.add_n([tf.reduce_sum(value[:, :4] * weight) for value in values])
    step = tf.train.get_or_create_global_step()
    train = rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=step)
    contents = [[table.export() for table in tables], weight]
    saver = rec.Saver(incremental=True)

    def bits():
        return [array.tobytes() for array in tf.nest.flatten(session.run(contents))]

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        saver.restore(session, saver.save(session, folder + "/first"))
        before = bits()
        # No address space has room for the stack of one more thread.
        libc = ctypes.CDLL(None, use_errno=True)
        attributes = ctypes.create_string_buffer(256)
        assert libc.pthread_attr_init(attributes) == 0
        assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 60)) == 0
        assert libc.pthread_setattr_default_np(attributes) == 0
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            print("no thread can start", flush=True)
        prefix = saver.save(session, folder + "/second")
        session.run(train)
        saver.save(session, folder + "/third")
        saver.restore(session, prefix)
        assert bits() == before
        assert session.run(tables[1].tier_counts().disk_rows) > 19_000
        os.truncate(prefix + ".data-00001-of-00002", 100)
        try:
            saver.restore(session, prefix)
        except tf.errors.DataLossError:
            print("damage is found", flush=True)
        os._exit(0)  # The exit handlers of TensorFlow may start threads.
"""


def test_a_process_that_may_start_no_thread_saves_and_restores(tmp_path):
    assert run_script(NO_THREADS, tmp_path).splitlines() == [
        "no thread can start",
        "damage is found",
    ]
