# SPDX-License-Identifier: Apache-2.0
"""ProgressHook: its lines in a terminal and in a file, and its cost."""

import io
import os
import pty
import re
import struct
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.training import progress

ALWAYS = 1e-9  # seconds between two lines: one after every step
NEVER = 1e9


def model_fn(features, labels, mode):
    """Loss and metric are known: the loss at global step n is n, the auc is 1."""
    step = tf.cast(tf.train.get_global_step(), tf.float32)
    scores = tf.cast(features["x"], tf.float32)
    loss = tf.identity(step) + 0.0 * tf.reduce_sum(scores)
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"scores": scores})
    with tf.control_dependencies([loss]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1).op
    metrics = {
        "auc": tf.metrics.auc(labels, scores, name="auc"),
        "mean_score": tf.metrics.mean(scores, name="mean_score"),
    }
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


@pytest.fixture
def estimator(tmp_path):
    return rec.RecEstimator(model_fn, str(tmp_path))


def input_fn(batches=1000):
    x, y = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    return rec.inputs.numpy_input_fn({"x": x}, y, batch_size=2, num_epochs=batches)


def lines_of_training(estimator, *, max_steps=5, **arguments):
    stream = io.StringIO()
    hook = rec.ProgressHook(stream=stream, **arguments)
    estimator.train(input_fn(), max_steps=max_steps, hooks=[hook])
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    "arguments",
    [{"max_steps": 0}, {"batch_size": -1}, {"every_seconds": 0}, {"every_seconds": float("nan")}],
    ids=str,
)
def test_a_number_that_is_not_above_0_is_refused_by_name(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} must be above 0, got"):
        rec.ProgressHook(**arguments)


@pytest.mark.long
def test_a_line_shows_step_rate_and_loss(estimator):
    lines = lines_of_training(
        estimator, max_steps=5, every_seconds=ALWAYS, batch_size=2
    )  # the hook's max_steps is not given: see the next test
    assert len(lines) == 5 + 1  # after each step, and at the end
    assert re.fullmatch(r"train 3 \| [\d,.]+ samples/s \| loss 2\.0000", lines[2])


@pytest.mark.long
def test_with_max_steps_a_line_shows_share_and_time_left(estimator):
    stream = io.StringIO()
    hook = rec.ProgressHook(max_steps=4, stream=stream, every_seconds=ALWAYS)
    estimator.train(input_fn(), max_steps=4, hooks=[hook])
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(
        r"train 3/4 \(75%\) \| [\d,.]+ steps/s \| loss 2\.0000 \| \d+:\d\d left", lines[2]
    )
    assert "left" not in lines[-1]


@pytest.mark.long
def test_the_last_line_shows_the_last_loss_even_after_a_short_training(estimator):
    stream = io.StringIO()
    hook = rec.ProgressHook(max_steps=4, stream=stream, every_seconds=NEVER)
    estimator.train(input_fn(), max_steps=4, hooks=[hook])
    assert stream.getvalue().endswith("| loss 3.0000\n")


@pytest.mark.long
def test_resumed_training_counts_from_the_checkpoint(estimator):
    lines_of_training(estimator, max_steps=3)
    assert lines_of_training(estimator, max_steps=5, every_seconds=ALWAYS)[0].startswith("train 4")


class Clock(tf.train.SessionRunHook):
    """A clock that each step advances by one second, the first step by more."""

    def __init__(self, first=1.0):
        self._seconds, self._next = 0.0, first

    def monotonic(self):
        return self._seconds

    def before_run(self, run_context):
        self._seconds, self._next = self._seconds + self._next, 1.0


@pytest.mark.long
def test_a_log_gets_a_line_every_10_seconds_and_one_at_the_end(estimator, monkeypatch):
    clock, stream = Clock(), io.StringIO()
    monkeypatch.setattr(progress, "time", clock)
    estimator.train(input_fn(), max_steps=25, hooks=[rec.ProgressHook(stream=stream), clock])
    lines = [line.partition(" |")[0] for line in stream.getvalue().splitlines()]
    assert lines == ["train 11", "train 22", "train 25"]


@pytest.mark.long
def test_no_rate_includes_the_first_step(estimator, monkeypatch):
    clock, stream = Clock(first=100.0), io.StringIO()
    monkeypatch.setattr(progress, "time", clock)
    hook = rec.ProgressHook(stream=stream, every_seconds=NEVER, batch_size=2)
    estimator.train(input_fn(), max_steps=5, hooks=[hook, clock])
    assert stream.getvalue() == "train 5 | 2.0 samples/s\n"


@pytest.mark.long
def test_the_loss_is_fetched_only_for_shown_steps(estimator):
    fetched = []

    class Spy(rec.ProgressHook):
        def before_run(self, run_context):
            arguments = super().before_run(run_context)
            fetched.append(arguments is not None)
            return arguments

    for every_seconds in (NEVER, ALWAYS):
        hook = Spy(stream=io.StringIO(), every_seconds=every_seconds)
        estimator.train(input_fn(), steps=3, hooks=[hook])
    assert fetched == [False] * 3 + [True] * 3


@pytest.mark.long
def test_evaluation_shows_the_metrics_of_the_model_and_training_repeats_them(estimator):
    stream = io.StringIO()
    hook = rec.ProgressHook(
        metrics=("auc", "mean_score", "ndcg"), stream=stream, every_seconds=ALWAYS
    )
    estimator.train(input_fn(), max_steps=2, hooks=[hook])
    estimator.evaluate(input_fn(3), hooks=[hook])
    estimator.train(input_fn(), max_steps=3, hooks=[hook])
    lines = stream.getvalue().splitlines()
    (evaluated,) = (line for line in lines if line.startswith("evaluated"))
    assert re.fullmatch(
        r"evaluated at step 2 \| auc 1\.0000 \| mean_score 0\.5000 \| 3 batches in \d+\.\d s",
        evaluated,
    )
    assert "auc" not in lines[0]
    assert lines[-1].endswith("| auc 1.0000 | mean_score 0.5000")


@pytest.mark.long
def test_one_hook_serves_a_training_that_is_interrupted_by_evaluations(tmp_path):
    stream = io.StringIO()
    config = rec.RunConfig(str(tmp_path), save_checkpoints_steps=2)
    hook = rec.ProgressHook(max_steps=4, stream=stream, every_seconds=ALWAYS)
    rec.train_and_evaluate(
        rec.RecEstimator(model_fn, config=config),
        rec.TrainSpec(input_fn(), max_steps=4, hooks=[hook]),
        rec.EvalSpec(input_fn(3), steps=None, hooks=[hook], throttle_secs=0),
    )
    lines = stream.getvalue().splitlines()
    assert [line.partition(" |")[0] for line in lines if line.startswith("train")] == [
        "train 1/4 (25%)",
        "train 2/4 (50%)",
        "train 3/4 (75%)",
        "train 4/4 (100%)",
        "train 4/4 (100%)",
    ]
    evaluated = [number for number, line in enumerate(lines) if line.startswith("evaluated")]
    assert [lines[number].partition(" |")[0] for number in evaluated] == [
        "evaluated at step 2",
        "evaluated at step 4",
    ]
    after = lines[evaluated[0] + 1]
    assert re.search(r"^train 2/4 .* loss 1\.0000 \| auc 1\.0000 \| \d:\d\d left$", after)


@pytest.mark.long
def test_prediction_shows_the_number_of_batches(estimator):
    lines_of_training(estimator, max_steps=1)
    stream = io.StringIO()
    hook = rec.ProgressHook(stream=stream, every_seconds=ALWAYS)
    list(estimator.predict(input_fn(4), hooks=[hook]))
    assert stream.getvalue().splitlines()[-1].startswith("predict 4 batches")


def test_the_hook_adds_nothing_to_the_graph(graph):
    tf.train.create_global_step()
    tf.losses.add_loss(tf.constant(1.0))
    before = graph.as_graph_def()
    rec.ProgressHook(stream=io.StringIO()).begin()
    assert graph.as_graph_def() == before


@pytest.mark.long
def test_a_closed_stream_does_not_end_training(estimator):
    stream = io.StringIO()
    stream.close()
    hook = rec.ProgressHook(stream=stream, every_seconds=ALWAYS)
    estimator.train(input_fn(), max_steps=3, hooks=[hook])
    assert estimator.get_variable_value("global_step") == 3


class Terminal:
    """A pseudo-terminal of a given width, and the text written to it."""

    def __init__(self, columns):
        import fcntl
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(slave, "w")
        self._written = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                written = os.read(self._master, 4096)
            except OSError:  # Linux: the other end is closed.
                return
            if not written:
                return
            self._written.append(written)

    def close(self):
        self.stream.close()
        self._reader.join(timeout=60)
        os.close(self._master)
        return b"".join(self._written).decode()


@pytest.mark.long
@pytest.mark.parametrize("columns", [100, 30, 8])
def test_a_terminal_gets_one_line_that_fits(estimator, columns):
    terminal = Terminal(columns)
    hook = rec.ProgressHook(max_steps=3, batch_size=2, stream=terminal.stream, every_seconds=ALWAYS)
    estimator.train(input_fn(), max_steps=3, hooks=[hook])
    written = terminal.close()
    assert written.count("\n") == 1 and written.endswith("\n")
    shown = written.rstrip("\r\n").split("\r")[1:]
    assert len(shown) == 3 + 1
    assert all(len(line) < columns for line in shown)
    assert shown[-1].startswith("train 3/3 (100%)"[: columns - 1])
    assert ("loss" in shown[1]) == (columns == 100)  # A part that does not fit is not shown.


def test_a_shorter_line_erases_the_longer_one_before_it():
    terminal = Terminal(80)
    line = progress._ProgressLine(terminal.stream, None)
    line.write(["a long line"])
    line.finish(["short"])
    assert terminal.close().replace("\r\n", "\n") == "\ra long line\rshort      \n"


@pytest.mark.long
def test_the_default_stream_is_sys_stderr_when_the_loop_begins(estimator, capsys):
    hook = rec.ProgressHook()
    estimator.train(input_fn(), max_steps=1, hooks=[hook])
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("train 1")
    assert captured.out == ""


def test_a_step_that_shows_nothing_fetches_and_writes_nothing(estimator):
    stream = io.StringIO()
    hook = rec.ProgressHook(stream=stream, every_seconds=NEVER)
    with tf.Graph().as_default():
        tf.train.create_global_step()
        tf.losses.add_loss(tf.constant(1.0))
        hook.begin()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            hook.after_create_session(session, None)
            context = tf.train.SessionRunContext(None, session)
            for _ in range(10):
                assert hook.before_run(context) is None
                hook.after_run(context, tf.train.SessionRunValues(None, None, None))
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (760, "12:40"), (10929, "3:02:09")]
)
def test_durations_are_formatted_like_a_clock(seconds, text):
    assert progress._format_duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(183412.0, "183,000"), (7.1239, "7.12"), (99.96, "100"), (0.5, "0.5")]
)
def test_rates_have_three_digits(rate, text):
    assert f"{progress._round_to_3_digits(rate):,}" == text
