# SPDX-License-Identifier: Apache-2.0
"""StopAtSigtermHook: what is saved, how the training ends, and which handler is there then."""

import os
import signal
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


@pytest.fixture(autouse=True)
def handler():
    """The handler of SIGTERM that the test finds and must leave."""

    def found(number, frame):
        raise AssertionError("SIGTERM reached the handler of the test")

    previous = signal.signal(signal.SIGTERM, found)
    yield found
    signal.signal(signal.SIGTERM, previous)


class SendSigterm(tf.train.SessionRunHook):
    """Sends SIGTERM to this process in some runs, from 1."""

    def __init__(self, *runs):
        self._runs = runs
        self.count = 0

    def before_run(self, run_context):
        self.count += 1
        if self.count in self._runs:
            os.kill(os.getpid(), signal.SIGTERM)


def input_fn():
    data = tf.data.Dataset.from_tensor_slices({"ids": np.arange(400, dtype=np.int64)})
    return data.batch(4)


def model_fn(features, mode):
    table = rec.get_embedding_variable("t", 2)
    loss = tf.reduce_sum(rec.embedding_lookup(table, features["ids"]))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(folder, hooks, make=rec.RecEstimator, **config):
    make(model_fn, config=rec.RunConfig(model_dir=str(folder), **config)).train(input_fn, hooks)


def train_and_evaluate(folder, hooks):
    rec.train_and_evaluate(
        rec.RecEstimator(model_fn, config=rec.RunConfig(model_dir=str(folder))),
        rec.TrainSpec(input_fn, max_steps=100, hooks=hooks),
        rec.EvalSpec(input_fn, steps=1),
    )


def train_in_a_session(folder, hooks):
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        features = tf.data.make_one_shot_iterator(input_fn()).get_next()
        spec = model_fn(features, rec.ModeKeys.TRAIN)
        with rec.MonitoredTrainingSession(checkpoint_dir=str(folder), hooks=hooks) as session:
            while not session.should_stop():
                session.run(spec.train_op)


def saved_step(folder):
    return tf.train.load_variable(str(folder), tf.GraphKeys.GLOBAL_STEP)


LOOPS = {
    "RecEstimator": train,
    "Estimator": lambda folder, hooks: train(folder, hooks, rec.Estimator),
    "train_and_evaluate": train_and_evaluate,
    "MonitoredTrainingSession": train_in_a_session,
}


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_step_in_which_sigterm_arrives_is_the_last_and_is_saved(tmp_path, handler, loop):
    sender = SendSigterm(3)
    with pytest.raises(SystemExit) as raised:
        loop(tmp_path, [sender, rec.StopAtSigtermHook()])
    assert raised.value.code == 143
    assert sender.count == saved_step(tmp_path) == 3
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.long
@pytest.mark.usefixtures("resource_variables")
def test_with_several_steps_per_run_the_whole_run_is_saved(tmp_path):
    with pytest.raises(SystemExit):
        train(tmp_path, [SendSigterm(2), rec.StopAtSigtermHook()], iterations_per_loop=5)
    assert saved_step(tmp_path) == 10


@pytest.mark.long
def test_a_training_goes_on_from_the_step_that_was_saved(tmp_path):
    hook = rec.StopAtSigtermHook()
    for steps in (3, 6):
        with pytest.raises(SystemExit):
            train(tmp_path, [SendSigterm(3), hook])
        assert saved_step(tmp_path) == steps


@pytest.mark.long
def test_without_sigterm_the_hook_changes_nothing(tmp_path, handler):
    train(tmp_path, [rec.StopAtSigtermHook()])
    assert saved_step(tmp_path) == 100
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.long
def test_the_second_sigterm_reaches_the_handler_that_was_there(tmp_path):
    with pytest.raises(AssertionError, match="reached the handler of the test"):
        train(tmp_path, [SendSigterm(3), SendSigterm(3), rec.StopAtSigtermHook()])


def test_after_a_training_that_failed_sigterm_reaches_the_handler_that_was_there(tmp_path):
    class Fail(tf.train.SessionRunHook):
        def before_run(self, run_context):
            raise ArithmeticError("the training fails")

    with pytest.raises(ArithmeticError):
        train(tmp_path, [Fail(), rec.StopAtSigtermHook()])
    with pytest.raises(AssertionError, match="reached the handler of the test"):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_training_in_another_thread_is_refused():
    errors = []

    def begin():
        try:
            rec.StopAtSigtermHook().begin()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert errors and "must be used in the main thread" in errors[0]
