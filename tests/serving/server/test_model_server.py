# SPDX-License-Identifier: Apache-2.0
"""The server answers the stock stubs of tensorflow_serving.apis."""

import os
import socket
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

import rec_estimator as rec
from rec_estimator.serving.server.grpc_server import ModelServer, ServerSettings


def export(folder, scale, warmup=()):
    """Writes a version: score = scale · sum of x, and signatures of each method."""
    partial = f"{folder}.partial"
    with tf.Graph().as_default(), tf.Session() as session:
        table = rec.get_embedding_variable("t", 2, initializer=tf.constant_initializer(scale))
        x = tf.placeholder(tf.int64, [None], name="x")
        score = tf.reduce_sum(rec.embedding_lookup(table, x), 1) / 2 * tf.cast(x, tf.float32)
        examples = tf.placeholder(tf.string, [None], name="examples")
        value = {"x": tf.io.FixedLenFeature([], tf.float32)}
        parsed = scale * tf.io.parse_example(examples, value)["x"]
        classes = tf.tile([["no", "yes"]], [tf.size(examples), 1])
        steps = tf.placeholder(tf.int64, [], name="steps")
        slow = tf.while_loop(lambda i: i < steps, lambda i: i + 1, [tf.constant(0, tf.int64)])
        build = tf.saved_model.signature_def_utils
        signatures = {
            "serving_default": build.predict_signature_def(
                {"x": x}, {"score": score, "x": tf.identity(x)}
            ),
            "slow": build.predict_signature_def({"steps": steps}, {"steps": slow}),
            "regress": build.regression_signature_def(examples, parsed),
            "classify": build.classification_signature_def(
                examples, classes, tf.stack([1 - parsed, parsed], 1)
            ),
        }
        session.run(tf.global_variables_initializer())
        builder = tf.saved_model.Builder(partial)
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, saver=rec.Saver())
        builder.save()
    if warmup:
        os.mkdir(f"{partial}/assets.extra")
        path = f"{partial}/assets.extra/tf_serving_warmup_requests"
        with tf.io.TFRecordWriter(path) as writer:
            for request in warmup:
                log = prediction_log_pb2.PredictLog(request=request)
                record = prediction_log_pb2.PredictionLog(predict_log=log)
                writer.write(record.SerializeToString())
    os.rename(partial, folder)


def predict_request(x, model="plus", **spec):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    if "version" in spec:
        request.model_spec.version.value = spec.pop("version")
    for name, value in spec.items():
        setattr(request.model_spec, name, value)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.asarray(x, np.int64)))
    return request


class Client:
    """The stubs of a server."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.model = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def score(self, x, **spec):
        response = self.prediction.Predict(predict_request(x, **spec), timeout=30)
        return tf.make_ndarray(response.outputs["score"]).tolist()

    def states(self, model):
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = model
        state = get_model_status_pb2.ModelVersionStatus.State.Name
        found = self.model.GetModelStatus(request, timeout=30).model_version_status
        return {each.version: (state(each.state), each.status.error_message) for each in found}

    def healthy(self, service=""):
        return self.health.Check(health_pb2.HealthCheckRequest(service=service)).status == 1


def failure(call, request, **arguments):
    """(name of the code, message) of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(request, **{"timeout": 30, **arguments})
    return caught.value.code().name, caught.value.details()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("plus", "minus", "swapped"):
        (folder / name).mkdir()
    export(str(folder / "plus" / "3"), 2.0, [predict_request([1])])
    export(str(folder / "minus" / "1"), -1.0)
    export(str(folder / "swapped" / "1"), 1.0)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    models = {name: str(folder / name) for name in ("plus", "minus", "swapped")}
    settings = ServerSettings(
        port=0, metrics_port=0, poll_secs=0.05, threads=4, most_bytes=1 << 16, most_secs=5
    )
    server = ModelServer(models, settings)
    server.start()
    yield server
    server.stop(5)


@pytest.fixture(scope="module")
def client(server):
    client = Client(server.port)
    yield client
    client.channel.close()


def test_predict_answers_with_the_model_and_the_version_that_the_request_names(client):
    response = client.prediction.Predict(predict_request([3, 4]), timeout=30)
    assert tf.make_ndarray(response.outputs["score"]).tolist() == [6.0, 8.0]
    assert tf.make_ndarray(response.outputs["x"]).tolist() == [3, 4]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("plus", 3, "serving_default")
    assert client.score([3], model="minus", version=1) == [-3.0]
    request = predict_request([3])
    request.output_filter.append("x")
    assert list(client.prediction.Predict(request, timeout=30).outputs) == ["x"]


def example(x):
    return tf.train.Example(
        features=tf.train.Features(
            feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=[x]))}
        )
    )


def test_classify_and_regress_answer_examples_also_with_a_common_context(client):
    request = regression_pb2.RegressionRequest()
    request.model_spec.name, request.model_spec.signature_name = "plus", "regress"
    request.input.example_list.examples.extend([example(0.25), example(0.5)])
    result = client.prediction.Regress(request, timeout=30).result
    assert [each.value for each in result.regressions] == [0.5, 1.0]

    request.input.example_list_with_context.context.CopyFrom(example(0.25))
    request.input.example_list_with_context.examples.extend([tf.train.Example(), example(0.5)])
    result = client.prediction.Regress(request, timeout=30).result
    assert [each.value for each in result.regressions] == [0.5, 1.0]

    asked = classification_pb2.ClassificationRequest(input=request.input)
    asked.model_spec.name, asked.model_spec.signature_name = "plus", "classify"
    result = client.prediction.Classify(asked, timeout=30).result
    classes = [[(c.label, c.score) for c in each.classes] for each in result.classifications]
    assert classes == [[("no", 0.5), ("yes", 0.5)], [("no", 0.0), ("yes", 1.0)]]

    asked.model_spec.signature_name = "regress"
    code, message = failure(client.prediction.Classify, asked)
    assert code == "INVALID_ARGUMENT" and "tensorflow/serving/classify" in message


def test_metadata_has_the_signatures(client):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "plus"
    response = client.prediction.GetModelMetadata(request, timeout=30)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "regress", "classify", "slow"}
    assert response.model_spec.version.value == 3
    request.metadata_field[:] = ["other"]
    assert failure(client.prediction.GetModelMetadata, request)[0] == "INVALID_ARGUMENT"


def changed(**changes):
    request = predict_request([1])
    for name, value in changes.items():
        del request.inputs["x"]
        request.inputs[name].CopyFrom(value)
    return request


def huge():
    """A tensor of some bytes that describes a TiB of equal values."""
    tensor = tf.make_tensor_proto(np.int64([1]))
    tensor.tensor_shape.dim[0].size = 1 << 37
    return changed(x=tensor)


REFUSED = {
    "model": (predict_request([1], "none"), "NOT_FOUND", "Latest(none)"),
    "version": (predict_request([1], version=2), "NOT_FOUND", "Specific(plus, 2)"),
    "signature": (
        predict_request([1], signature_name="none"),
        "FAILED_PRECONDITION",  # As TensorFlow Serving.
        'Serving signature key "none" not found.',
    ),
    "no model": (predict_pb2.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
    "missing input": (
        changed(y=tf.make_tensor_proto(np.int64([1]))),
        "INVALID_ARGUMENT",
        "'x' is missing, 'y' is unknown",
    ),
    "dtype": (
        changed(x=tf.make_tensor_proto(np.float32([1]))),
        "INVALID_ARGUMENT",
        "'x' must have dtype int64, got float32",
    ),
    "shape": (changed(x=tf.make_tensor_proto(np.int64([[1]]))), "INVALID_ARGUMENT", "'x' must"),
    "empty tensor": (changed(x=tf.make_tensor_proto([]).__class__()), "INVALID_ARGUMENT", "'x'"),
    "memory": (huge(), "INVALID_ARGUMENT", "must have at most 65536 bytes"),
    "size": (predict_request(np.zeros(10_000)), "RESOURCE_EXHAUSTED", "larger than max"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_requests_that_do_not_fit_get_the_codes_of_tensorflow_serving(client, case):
    request, code, message = REFUSED[case]
    found, details = failure(client.prediction.Predict, request)
    assert found == code and message in details
    assert client.score([3]) == [6.0]


def test_a_request_ends_at_its_deadline_or_at_the_servers(folder):
    # A server of its own, whose limit is short.
    settings = ServerSettings(port=0, threads=2, most_secs=0.2)
    server = ModelServer({"plus": str(folder / "plus")}, settings)
    server.start()
    client = Client(server.port)
    try:
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = "plus", "slow"
        request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.int64(2**62)))
        for arguments in ({"timeout": None}, {"timeout": 0.1}):
            code, _ = failure(client.prediction.Predict, request, **arguments)
            assert code == "DEADLINE_EXCEEDED"
        assert client.score([3]) == [6.0]
    finally:
        client.channel.close()
        server.stop(5)


def until(condition, secs=30):
    """Waits until a condition holds."""
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


@pytest.mark.long
def test_versions_are_swapped_without_a_failed_request(client, folder):
    stop, failed = threading.Event(), []
    seen = [[], [], []]  # By thread: a thread has no order with others.

    def ask(seen):
        while not stop.is_set():
            try:
                seen.append(client.score([1], model="swapped")[0])
            except grpc.RpcError as error:
                failed.append(error)

    asking = [threading.Thread(target=ask, args=[scores]) for scores in seen]
    for thread in asking:
        thread.start()
    try:
        for version in (2, 10, 11):  # As numbers, not as texts.
            export(str(folder / "swapped" / str(version)), float(version))
            until(lambda v=version: client.score([1], model="swapped") == [float(v)])
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    assert not failed and all(scores == sorted(scores) for scores in seen)
    assert set().union(*seen) >= {1.0, 2.0, 10.0}
    until(lambda: client.states("swapped")[10][0] == "END")
    assert client.states("swapped")[11] == ("AVAILABLE", "")


def test_a_version_that_cannot_be_loaded_or_fails_its_warm_up_is_not_served(client, folder):
    export(str(folder / "minus" / "7"), -7.0, [predict_request([1], signature_name="none")])
    (folder / "minus" / "copying").mkdir()
    (folder / "minus" / "9").mkdir()  # Without its graph, it may be on its way.
    until(lambda: client.states("minus").get(7, ("", ""))[0] == "END")
    states = client.states("minus")
    assert "Serving signature key" in states.pop(7)[1]
    assert states == {1: ("AVAILABLE", "")}
    assert client.score([1], model="minus") == [-1.0] and client.healthy("minus")
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "none"
    assert failure(client.model.GetModelStatus, request)[0] == "NOT_FOUND"


def test_a_server_listens_on_its_address_only(server):
    for port in (server.port, server.metrics_port):
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=30)


def test_metrics_count_requests_by_known_models_only(client, server):
    failure(client.prediction.Predict, predict_request([1], "chosen-by-a-client"))
    client.score([1], model="minus")
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    text = urllib.request.urlopen(url, timeout=30).read().decode()
    assert 'rec_estimator_serving_version{model="plus"} 3.0' in text
    assert 'requests_total{code="OK",method="Predict",model="minus"}' in text
    assert 'requests_total{code="NOT_FOUND",method="Predict",model=""}' in text
    assert 'seconds_count{method="Predict",model="minus"}' in text
    assert "chosen-by-a-client" not in text


def test_a_server_is_healthy_when_all_its_models_are_and_stops_after_running_requests(folder):
    (folder / "late").mkdir()
    models = {"plus": str(folder / "plus"), "late": str(folder / "late")}
    server = ModelServer(models, ServerSettings(port=0, poll_secs=0.05))
    with pytest.raises(OSError, match=f"port {server.port} of 127.0.0.1 cannot be had"):
        ModelServer(models, ServerSettings(port=server.port))
    server.start()
    client = Client(server.port)
    try:
        assert client.healthy("plus") and not client.healthy("late") and not client.healthy()
        export(str(folder / "late" / "1"), 1.0)
        until(client.healthy)
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = "plus", "slow"
        request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.int64(30_000)))
        running = client.prediction.Predict.future(request, timeout=60)
        time.sleep(0.1)
    finally:
        server.stop(60)
    assert tf.make_ndarray(running.result().outputs["steps"]) == 30_000
    client.channel.close()
