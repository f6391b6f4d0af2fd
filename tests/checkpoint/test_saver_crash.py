# SPDX-License-Identifier: Apache-2.0
"""A process that is killed during a save leaves the last checkpoint whole and no other files."""

import textwrap

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import atomic_checkpoint

# Part of the programs below. CALLS are the calls that change files, (module, name); a child is
# killed before and after each of them.
KILL_AT = textwrap.dedent(
    """
    import os, signal

    def kill_at(moment):
        count = [0]
        def pass_moment():
            count[0] += 1
            if count[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        def wrap(call):
            def wrapped(*args, **kwargs):
                pass_moment()
                result = call(*args, **kwargs)
                pass_moment()
                return result
            return wrapped
        for module, name in CALLS:
            setattr(module, name, wrap(getattr(module, name)))
    """
)

# Forks before TensorFlow starts threads, so that a child takes milliseconds. Prints the number of
# moments.
KILLED_AT_EVERY_CALL = textwrap.dedent(
    """
    import os, pathlib, shutil, sys
    import tensorflow.compat.v1 as tf
    from rec_estimator.checkpoint.atomic_checkpoint import AtomicCheckpoint

    sources, folder = map(pathlib.Path, sys.argv[1:])
    CALLS = [(os, name) for name in
             ("fsync", "link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")]

    def data(prefix, i):
        return f"{prefix}.data-{i:05d}-of-00002"

    def save(value):
        def merge(prefixes, merged):
            for i in range(2):
                os.rename(data(prefixes[0], i), data(merged, i))
            shutil.copy(sources / f"{value}-of-3.index", f"{merged}.index")
        with AtomicCheckpoint(str(folder / "model")) as checkpoint:
            for i in range(2):
                shutil.copy(data(sources / str(value), i), data(checkpoint.prefix, i))
            shutil.copy(sources / f"{value}.index", f"{checkpoint.prefix}.index")
            checkpoint.place(merge)

    def value_of():
        reader = tf.train.NewCheckpointReader(str(folder / "model"))
        values = [float(reader.get_tensor(name)[0]) for name in "ab"]
        assert values[0] == values[1], values
        return values[0]

    moment, seen = 0, set()
    while True:
        moment += 1
        shutil.rmtree(folder, ignore_errors=True)
        save(1)
        child = os.fork()
        if child == 0:
            kill_at(moment)
            save(2)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        seen.add(value_of())
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
        value = value_of()
        save(3)
        assert value_of() == 3.0
        names = sorted(os.listdir(folder))
        n = names[0][-5:]
        assert names == [f"model.data-0000{i}-of-{n}" for i in range(2)] + ["model.index"], names
    assert value_of() == 2.0 and seen == {1.0, 2.0}
    print(moment)
    """
)


def write_sources(folder):
    """Writes checkpoints 1, 2 and 3 with two data files each, and an index of each for n = 3."""
    with tf.Graph().as_default(), tf.Session() as session:

        def merge(parts, prefix):
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False
                )
            )

        def write(prefix, value):
            parts = [f"{prefix}_{name}" for name in "ab"]
            for part in parts:
                session.run(
                    tf.raw_ops.SaveV2(
                        prefix=part,
                        tensor_names=[part[-1]],
                        shape_and_slices=[""],
                        tensors=[np.full(5, value, np.float32)],
                    )
                )
            merge(parts, prefix)

        for value in (1, 2, 3):
            write(f"{folder}/{value}", value)
            write(f"{folder}/again", value)
            (folder / "filler.index").write_bytes(atomic_checkpoint._EMPTY_INDEX)
            merge([f"{folder}/again", f"{folder}/filler"], f"{folder}/{value}-of-3")


@pytest.mark.long
def test_killed_at_every_moment_of_placing_a_checkpoint(tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    write_sources(sources)
    program = KILL_AT + KILLED_AT_EVERY_CALL
    done = python_processes.run(["-c", program, sources, tmp_path / "model"])
    assert int(done.stdout) > 30


KILLED_WHILE_REMOVING = textwrap.dedent(
    """
    import os, pathlib, shutil, sys
    import tensorflow.compat.v1 as tf
    from rec_estimator.checkpoint import removal
    from rec_estimator.checkpoint.atomic_checkpoint import AtomicCheckpoint

    folder = pathlib.Path(sys.argv[1])
    CALLS = [(os, name) for name in ("mkdir", "remove", "rename", "rmdir", "unlink")]
    CALLS.append((tf.io.gfile, "remove"))
    kept = ["model-1.data-00000-of-00001", "model-1.index", "model-1.meta", "model-10.index"]
    removed = ["model-2.data-00000-of-00002", "model-2.data-00001-of-00002", "model-2.index",
               "model-2.meta-graph", "sparse-model-2"]

    moment = 0
    while True:
        moment += 1
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "sparse-model-2").mkdir(parents=True)
        for name in kept + removed[:-1]:
            (folder / name).write_text(name)
        child = os.fork()
        if child == 0:
            kill_at(moment)
            removal.remove(str(folder / "model-2"), "meta-graph")
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        had_index = (folder / "model-2.index").exists()
        with AtomicCheckpoint(str(folder / "model-3")):
            pass
        names = sorted(os.listdir(folder))
        if had_index:  # Then the checkpoint is whole, except for its folder with plain arrays.
            assert set(kept + removed[:-1]) <= set(names) <= set(kept + removed), names
        else:
            assert names == kept, names
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
    print(moment)
    """
)


def test_the_next_save_removes_what_a_killed_removal_of_a_checkpoint_left(tmp_path):
    program = KILL_AT + KILLED_WHILE_REMOVING
    done = python_processes.run(["-c", program, tmp_path / "model"])
    assert int(done.stdout) > 10


KILLED_AT_RANDOM = textwrap.dedent(
    """
    import os, pathlib, random, signal, sys, time, traceback
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    tf.disable_eager_execution()
    folder, kills, rows = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def train_until_killed(mode, ready):
        # A row grows by 1 in every fourth step, so that the step determines all rows.
        step = tf.train.get_or_create_global_step()
        zeros = tf.zeros_initializer()
        table = rec.get_embedding_variable(
            "emb", 8, initializer=zeros, partitioner=tf.fixed_size_partitioner(2))
        weight = tf.get_variable("weight", [], initializer=zeros)
        keys = tf.range(tf.cast(step.read_value() % 4, tf.int64), rows, 4, tf.int64)
        loss = -tf.reduce_sum(rec.embedding_lookup(table, keys)) - weight
        train = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
        saver = rec.Saver(max_to_keep=3, incremental=mode == "incremental", sharded=True)
        with tf.Session() as session:
            latest = tf.train.latest_checkpoint(str(folder))
            if latest is None:
                session.run(tf.global_variables_initializer())
            else:
                saver.restore(session, latest)
            n, w, export = session.run([step, weight, table.export()])
            assert w == n, (latest, w, n)
            trained = np.array([len(range(k % 4, n, 4)) for k in export.keys])
            assert len(trained) == sum(len(range(k, rows, 4)) for k in range(min(4, n))), latest
            assert (export.values == trained[:, None]).all() and (export.freqs == trained).all()
            os.write(ready, b"r")
            while True:
                saver.save(
                    session,
                    str(folder / "model"),
                    global_step=None if mode == "one path" else step,
                    write_meta_graph=False,
                )
                session.run(train)
                os.write(ready, b"s")

    random.seed(int(sys.argv[4]))
    for i in range(kills + 1):
        at_end, ready = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                train_until_killed(("steps", "one path", "incremental")[i % 3], ready)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(ready)
        assert os.read(at_end, 1) == b"r", f"job {i} could not resume"
        # Kills the child right after it resumed, or after up to three saves.
        for _ in range(random.randrange(4) if i else 3):
            begun = time.monotonic()
            assert os.read(at_end, 1) == b"s", f"job {i} could not save"
            seconds_of_save = time.monotonic() - begun
        time.sleep(seconds_of_save * random.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(at_end)
    latest = tf.train.latest_checkpoint(str(folder))
    print(tf.train.load_variable(latest, "global_step"))
    """
)


def kill_at_random(folder, kills, rows, seed):
    done = python_processes.run(["-c", KILLED_AT_RANDOM, folder, kills, rows, seed])
    # The jobs trained and saved between the kills.
    assert int(done.stdout) > kills / 4


@pytest.mark.long
def test_killed_at_20_random_moments_the_newest_checkpoint_restores(tmp_path):
    kill_at_random(tmp_path, kills=20, rows=2000, seed=1)


@pytest.mark.slow
def test_killed_at_200_random_moments_the_newest_checkpoint_of_a_large_table_restores(tmp_path):
    kill_at_random(tmp_path, kills=200, rows=200_000, seed=2)
