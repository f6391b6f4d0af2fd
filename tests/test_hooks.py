# SPDX-License-Identifier: Apache-2.0
"""MonitoredTrainingSession and its incremental checkpoints."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.deltas import Deltas
from rec_estimator.graph_passes.graph_state import state_of


def session_that_saves(folder, secs, **arguments):
    """A session over a small model, and the model's table, keys and train op."""
    table = rec.get_embedding_variable("user", 4)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys) - 1.0))
    step = tf.train.get_or_create_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    session = rec.MonitoredTrainingSession(
        checkpoint_dir=folder and str(folder), save_incremental_checkpoint_secs=secs, **arguments
    )
    return session, keys, train_op


def saved_steps(folder):
    """{step: step of the parent, or None for a full checkpoint}."""
    deltas = Deltas()
    steps = {}
    for path in folder.glob("*.index"):
        parent = deltas.parent_of(str(path)[: -len(".index")])
        steps[int(path.stem.split("-")[1])] = parent and int(parent.rpartition("-")[2])
    return steps


def run_steps(folder, batches, secs=1e-6):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        arguments = dict(save_checkpoint_secs=None, save_checkpoint_steps=3)
        session, keys, train_op = session_that_saves(folder, secs, **arguments)
        with session:
            for batch in batches:
                session.run(train_op, {keys: batch})


@pytest.mark.long
def test_a_monitored_training_session_saves_incremental_checkpoints(tmp_path):
    run_steps(tmp_path / "two", [[1, 2], [2, 3]])
    assert saved_steps(tmp_path / "two") == {0: None, 1: 0, 2: None}  # The last is of the end.
    run_steps(tmp_path / "two", [[3, 4], [4, 5]])
    run_steps(tmp_path / "four", [[1, 2], [2, 3], [3, 4], [4, 5]])
    assert saved_steps(tmp_path / "four") == {0: None, 1: 0, 2: 1, 3: None, 4: None}
    two, four = (
        tf.train.load_checkpoint(str(tmp_path / folder / "model.ckpt-4"))
        for folder in ("two", "four")
    )
    assert two.get_tensor("user-keys").tolist() == [1, 2, 3, 4, 5]
    for name in four.get_variable_to_shape_map():
        np.testing.assert_array_equal(two.get_tensor(name), four.get_tensor(name), name)


@pytest.mark.long
def test_a_monitored_training_session_resumes_from_an_incremental_checkpoint(tmp_path):
    class Killed(Exception):
        pass

    def batches():
        yield from ([1, 2], [2, 3])
        raise Killed

    with pytest.raises(Killed):
        run_steps(tmp_path, batches())
    assert saved_steps(tmp_path) == {0: None, 1: 0, 2: 1}
    run_steps(tmp_path, [[3, 4]])
    assert tf.train.load_variable(str(tmp_path), "global_step") == 3
    assert tf.train.load_variable(str(tmp_path), "user-freqs").tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("secs", [None, 0])
def test_a_monitored_training_session_without_seconds_saves_in_full(tmp_path, secs):
    run_steps(tmp_path, [[1], [2], [3], [4]], secs)
    assert saved_steps(tmp_path) == {0: None, 3: None, 4: None}


def test_only_the_chief_saves_incremental_checkpoints(tmp_path, monkeypatch):
    # A session of another worker would wait for the chief's.
    given = []
    monkeypatch.setattr(tf.train, "MonitoredTrainingSession", lambda *args: given.append(args))
    for is_chief in (True, False):
        with tf.Graph().as_default():
            hook = tf.train.StopAtStepHook(last_step=1)
            session_that_saves(tmp_path, 60, is_chief=is_chief, hooks=[hook])
            assert state_of().is_chief == is_chief
    hooks = [[type(hook).__name__ for hook in args[4]] for args in given]
    assert hooks == [["StopAtStepHook", "IncrementalSaverHook"], ["StopAtStepHook"]]


def test_the_scaffold_of_the_script_gets_our_saver(tmp_path):
    scaffold = tf.train.Scaffold()
    session, keys, train_op = session_that_saves(tmp_path, None, scaffold=scaffold)
    with session:
        session.run(train_op, {keys: [1]})
    assert isinstance(scaffold.saver, rec.Saver)
    assert scaffold.saver.last_checkpoints[-1] == str(tmp_path / "model.ckpt-1")


@pytest.mark.parametrize("where", ["scaffold", "graph"])
def test_a_saver_of_the_script_is_used(tmp_path, where):
    bias = tf.get_variable("bias", [2])
    saver = rec.Saver([bias], incremental_save_restore=True)
    if where == "graph":
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    scaffold = tf.train.Scaffold(saver=saver) if where == "scaffold" else None
    session, keys, train_op = session_that_saves(tmp_path, 1e-6, scaffold=scaffold)
    with session:
        session.run(train_op, {keys: [1]})
    variables = tf.train.list_variables(str(tmp_path / "model.ckpt-1"))
    assert [name for name, _ in variables] == ["bias"]


@pytest.mark.parametrize(
    "folder, secs, saver, message",
    [
        (None, 1, None, "checkpoint_dir must be given with save_incremental_checkpoint_secs"),
        ("model", -1, None, "save_secs must be above 0, got -1"),
        ("model", 1, tf.train.Saver, "saver must be a rec_estimator.Saver"),
        ("model", 1, rec.Saver, "saver must be a rec_estimator.Saver"),
    ],
)
def test_a_monitored_training_session_that_cannot_save_is_an_error(folder, secs, saver, message):
    scaffold = saver and tf.train.Scaffold(saver=saver([tf.get_variable("bias", [2])]))
    with pytest.raises(ValueError, match=message):
        session_that_saves(folder, secs, scaffold=scaffold)
