# SPDX-License-Identifier: Apache-2.0
"""python -m rec_estimator.serving."""

import os
import signal
import socket
import sys

import grpc
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import ROOT, Process
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from rec_estimator.serving import __main__ as command


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.long
def test_sigterm_ends_the_server_after_the_requests_that_run(tmp_path):
    with tf.Session() as session:
        steps = tf.placeholder(tf.int64, [], name="steps")
        slow = tf.while_loop(lambda i: i < steps, lambda i: i + 1, [tf.constant(0, tf.int64)])
        tf.saved_model.simple_save(
            session, str(tmp_path / "slow" / "1"), {"steps": steps}, {"steps": slow}
        )
    port = free_port()
    arguments = ["--model", f"slow={tmp_path}/slow", "--port", port, "--metrics-port", 0]
    process = Process([ROOT / "rec_estimator" / "serving" / "__main__.py", *arguments])
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=120)
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "slow"
        request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.int64(3)))
        predict(request, timeout=120)
        request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.int64(10_000)))
        running = predict.future(request, timeout=120)
        # The server has begun to answer the second one when it answers a third.
        request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.int64(3)))
        predict(request, timeout=120)
        os.kill(process.pid, signal.SIGTERM)
        assert tf.make_ndarray(running.result().outputs["steps"]) == 10_000
    done = process.wait()
    assert done.returncode == 0, done.stderr
    assert f"listening on 127.0.0.1:{port}" in done.stdout and "metrics on http" in done.stdout


WRONG = {
    "no model": ([], "--model"),
    "no folder": (["--model", "a"], "must be NAME=DIR, got 'a'"),
    "missing folder": (["--model", "a=missing"], "'missing', which is none"),
    "twice": (["--model", "a=.", "--model", "a=."], "a name of its own"),
    "port": (["--model", "a=.", "--port", "70000"], "must be 0 to 65535, got 70000"),
    "poll": (["--model", "a=.", "--poll-secs", "0"], "must be positive, got 0"),
    "threads": (["--model", "a=.", "--threads", "0"], "must be >= 1, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_arguments_are_named(capsys, case):
    arguments, message = WRONG[case]
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_a_missing_package_is_an_error_with_the_commands_that_install_it(monkeypatch, capsys):
    for name in list(sys.modules):
        if name.startswith("rec_estimator.serving.server"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delattr("rec_estimator.serving.server", raising=False)
    assert command.main(["--model", "a=."]) == 1
    error = capsys.readouterr().err
    assert "needs the module prometheus_client" in error
    assert "pip install 'rec_estimator[serving]'" in error and "--no-deps" in error
