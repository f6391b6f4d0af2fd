# SPDX-License-Identifier: Apache-2.0
"""Disks that are full, damaged or away: errors say so, no step is half applied, repair helps."""

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from storage_runs import STEPS, Run, largest_file, on_disk

import rec_estimator as rec

ROOT = pathlib.Path(__file__).resolve().parents[2]


def adagrad():
    return rec.optimizers.AdagradOptimizer(0.1)


def rows_file(folder):
    (path,) = folder.glob("rec_estimator-*.rows")
    return path


def state_of(run):
    return run.contents(), run.session.run(tf.train.get_global_step())


def train_until_refused(run, batches):
    """Trains until a step fails and changes nothing; returns that step's batch and the error."""
    for keys, weights in batches:
        before = state_of(run)
        try:
            run.step(keys, weights)
        except tf.errors.OpError as error:
            storage_runs.assert_same(state_of(run), before)
            return (keys, weights), error
    raise AssertionError("no step failed")


@pytest.mark.long
def test_full_disk_refuses_steps_until_there_is_room(tmp_path):
    batches = list(storage_runs.batches(STEPS))
    run = Run(adagrad, on_disk(tmp_path))
    trained = iter(batches)
    with largest_file(2 * 2**20):
        refused, error = train_until_refused(run, trained)
        assert isinstance(error, tf.errors.ResourceExhaustedError)
        for text in ("table t: storage file", str(rows_file(tmp_path)), "free space there or add"):
            assert text in error.message
        assert "nothing of the step was applied" in error.message
        with pytest.raises(tf.errors.ResourceExhaustedError):
            run.step(*refused)
        assert np.isfinite(run.read(refused[0])).all(), "lookups go on"
    run.step(*refused)
    for batch in trained:
        run.step(*batch)
    with tf.Graph().as_default():
        in_memory = Run(adagrad, rec.StorageOption())
        in_memory.steps(STEPS)
        storage_runs.assert_same(run.contents(), in_memory.contents())


@pytest.mark.long
def test_flipped_byte_is_data_loss_and_a_checkpoint_restores(tmp_path):
    rows = tmp_path / "rows"
    run = Run(adagrad, on_disk(rows))
    saver = rec.Saver()
    run.steps(STEPS)
    expected = run.contents()
    prefix = saver.save(run.session, str(tmp_path / "model"))
    path = rows_file(rows)
    damaged = bytearray(path.read_bytes())
    for at in range(4096 + 100, len(damaged), 4096):
        damaged[at] ^= 1
    with path.open("r+b") as file:
        file.write(damaged)
    message = "table t: .*another checksum.*start again from the last checkpoint"
    with pytest.raises(tf.errors.DataLossError, match=message) as error:
        run.read(expected[0])
    assert str(path) in error.value.message
    error = train_until_fails(run)
    assert isinstance(error, tf.errors.DataLossError) and str(path) in error.message
    for save in (lambda: saver.save(run.session, str(tmp_path / "never")), run.contents):
        with pytest.raises(tf.errors.DataLossError, match=message):
            save()
    assert not list(tmp_path.glob("never*")), "a save that fails leaves no file"
    saver.restore(run.session, prefix)
    storage_runs.assert_same(run.contents(), expected)
    run.steps(STEPS)


def train_until_fails(run):
    """Trains until a step fails; returns the error. The table cannot be read as a whole."""
    for keys, weights in storage_runs.batches(STEPS, seed=9):
        step = tf.train.get_global_step()
        before = run.session.run([step, run.table.get_frequency(keys)])
        try:
            run.step(keys, weights)
        except tf.errors.OpError as error:
            storage_runs.assert_same(run.session.run([step, run.table.get_frequency(keys)]), before)
            return error
    raise AssertionError("no step failed")


def test_file_that_was_cut_is_data_loss(tmp_path):
    run = Run(adagrad, on_disk(tmp_path))
    run.steps(STEPS)
    keys = run.contents()[0]
    with rows_file(tmp_path).open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(tf.errors.DataLossError, match="table t: .*another program cut the file"):
        run.read(keys)


def test_path_that_is_no_folder_is_refused_with_table_path_and_remedy(tmp_path):
    path = tmp_path / "rows"
    path.write_text("a file")
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        Run(adagrad, on_disk(path))
    assert f"table t: storage path '{path}' must be a folder" in error.value.message
    assert "create the folder or choose another path" in error.value.message


def test_folder_that_cannot_be_written_is_refused_with_table_path_and_remedy():
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        Run(adagrad, on_disk("/sys"))  # Nobody may make files there.
    assert "table t: storage path '/sys' must be a folder with room for" in error.value.message
    assert "make it writable or choose another path" in error.value.message


@pytest.mark.long
def test_folder_that_is_removed_goes_on_until_the_table_ends(tmp_path):
    """The files are open, so their rows are there; the next table makes the folder again."""
    folder = tmp_path / "rows"
    run = Run(adagrad, on_disk(folder))
    losses = run.steps(STEPS)
    rows_file(folder).unlink()
    folder.rmdir()
    losses += run.steps(STEPS, seed=5)
    with tf.Graph().as_default():
        again = Run(adagrad, on_disk(folder))
        storage_runs.assert_same(again.steps(STEPS) + again.steps(STEPS, seed=5), losses)
        assert rows_file(folder).exists()


KILLED = """
    import sys
    sys.path.insert(0, "tests")
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    import rec_estimator as rec
    import storage_runs
    run = storage_runs.Run(
        lambda: rec.optimizers.AdagradOptimizer(0.1), storage_runs.on_disk(sys.argv[1])
    )
    run.steps(60)
    print("trained", flush=True)
    while True:
        run.steps(60)
"""


@pytest.mark.long
def test_files_of_a_killed_process_are_removed_and_those_of_others_are_kept(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "trained\n"
        alive = rows_file(tmp_path)
        other = tmp_path / "rec_estimator-notes.rows"
        other.write_text("mine")
        run = Run(adagrad, on_disk(tmp_path))
        assert alive.exists(), "its process lives"
        run.session.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert alive.exists()
        with tf.Graph().as_default():
            again = Run(adagrad, on_disk(tmp_path))
            assert not alive.exists()
            again.steps(STEPS)
            with tf.Graph().as_default():
                in_memory = Run(adagrad, rec.StorageOption())
                in_memory.steps(STEPS)
                storage_runs.assert_same(again.contents(), in_memory.contents())
        assert other.read_text() == "mine"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


SAVED = """
    import sys
    sys.path.insert(0, "tests")
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    import rec_estimator as rec
    import storage_runs
    run = storage_runs.Run(
        lambda: rec.optimizers.AdagradOptimizer(0.1), storage_runs.on_disk(sys.argv[1])
    )
    saver = rec.Saver(max_to_keep=2)
    for number, batch in enumerate(storage_runs.batches(2000), 1):
        run.step(*batch)
        if number % 10 == 0:
            saver.save(run.session, sys.argv[2] + "/model", global_step=number)
"""


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    """The path of the library that kills a process in a compaction, to be preloaded."""
    path = tmp_path_factory.mktemp("killer") / "kill_in_compaction.so"
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    source = str(ROOT / "tests/table/kill_in_compaction.cc")
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-shared", "-fPIC", source, "-o", str(path)], check=True
    )
    return path


@pytest.mark.parametrize("where", ["read", "write"])
@pytest.mark.long
def test_last_checkpoint_restores_after_a_kill_in_a_compaction(where, killer, tmp_path):
    rows, saved = tmp_path / "rows", tmp_path / "saved"
    saved.mkdir()
    environment = {"LD_PRELOAD": str(killer), "KILL_AFTER_SEGMENTS": "3", "KILL_IN": where}
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SAVED), str(rows), str(saved)],
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL
    left = rows_file(rows)
    prefix = tf.train.latest_checkpoint(str(saved))
    step = int(prefix.rpartition("-")[2])
    run = Run(adagrad, on_disk(rows))
    assert not left.exists()
    rec.Saver().restore(run.session, prefix)
    with tf.Graph().as_default():
        in_memory = Run(adagrad, rec.StorageOption())
        in_memory.steps(step)
        storage_runs.assert_same(run.contents(), in_memory.contents())
        storage_runs.assert_same(run.steps(STEPS, seed=4), in_memory.steps(STEPS, seed=4))
