# SPDX-License-Identifier: Apache-2.0
"""A model that serves takes the deltas of a training as they arrive."""

import glob
import os
import pathlib
import time
import urllib.request
import uuid

import grpc
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from test_refresh import checkpoint, rows, same

import rec_estimator as rec
from rec_estimator.serving.server.grpc_server import ModelServer, ServerSettings


class Training:
    """A session that trains a table and writes deltas; and the export that it began with."""

    def __init__(self, folder):
        self.folder = str(folder / "model")
        with tf.Graph().as_default() as graph:
            self._session = tf.Session(graph=graph)
            step = tf.train.get_or_create_global_step()
            self._ids = tf.placeholder(tf.int64, [None])
            score = self._score(self._ids)
            optimizer = rec.optimizers.GradientDescentOptimizer(1.0)
            self._train = optimizer.minimize(-tf.reduce_sum(score), global_step=step)
            self._step = step
            self._saver = rec.Saver(incremental=True)
            self._session.run(tf.global_variables_initializer())
        self._save()
        exported = self.export_to(
            str(folder / "export"), refreshable=True, refresh_folder=self.folder
        )
        self.export = exported.decode()

    def export_to(self, folder, **arguments):
        estimator = rec.RecEstimator(self._model_fn, self.folder)
        return estimator.export_saved_model(folder, self._receiver_fn, **arguments)

    @staticmethod
    def _score(ids):
        table = rec.get_embedding_variable("table", 1, initializer=tf.zeros_initializer())
        return rec.embedding_lookup(table, ids)[:, 0]

    def _model_fn(self, features, labels, mode):
        return rec.EstimatorSpec(mode, predictions={"score": self._score(features["ids"])})

    @staticmethod
    def _receiver_fn():
        ids = {"ids": tf.placeholder(tf.int64, [None], name="ids")}
        return rec.ServingInputReceiver(ids, ids)

    def _save(self, **arguments):
        path = f"{self.folder}/model.ckpt"
        return self._saver.save(self._session, path, self._step, **arguments)

    def train(self, ids, **arguments):
        """Trains each of the ids: its row grows by one; returns the prefix of a delta."""
        self._session.run(self._train, {self._ids: ids})
        return self._save(**arguments)

    def close(self):
        self._session.close()


@pytest.fixture
def training(tmp_path):
    os.mkdir(tmp_path / "model")
    training = Training(tmp_path)
    yield training
    training.close()


def until(condition, secs=30):
    """Waits until a condition holds."""
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def test_a_predictor_follows_deltas_in_order_and_reports_its_lag(training, monkeypatch):
    with rec.serving.load_predictor(training.export) as predict:
        training.train([1])
        with rec.serving.follow(predict, training.folder, poll_secs=0.02) as follower:
            training.train([1, 2])
            last = training.train([2, 3])
            until(lambda: follower.lag.checkpoint == os.path.basename(last))
            assert follower.lag == (3, os.path.basename(last), 0, 0.0, None)
            assert predict({"ids": [1, 2, 3, 4]})["score"].tolist() == [2.0, 2.0, 1.0, 0.0]

        delta = training.train([4])
        assert predict.refresh("").step == 3, "a closed follower applies nothing"
        paths = [pathlib.Path(path) for path in glob.glob(f"{delta}.data*")]
        files = {path: path.read_bytes() for path in paths}
        for path in files:
            path.unlink()
        monkeypatch.setenv("REC_ESTIMATOR_REFRESH_FOLDER", training.export)  # Has no deltas.
        with rec.serving.follow(predict, training.folder, poll_secs=0.02) as follower:
            until(lambda: follower.lag.step == 3)
            assert follower.lag[2:] == (0, 0.0, None), "a delta that is copied is no delta yet"
            for path, data in files.items():
                path.write_bytes(data)
            until(lambda: follower.lag.error is not None)
            assert follower.lag.waiting == 1 and follower.lag.secs > 0
            assert predict({"ids": [4]})["score"].tolist() == [0.0]
            monkeypatch.delenv("REC_ESTIMATOR_REFRESH_FOLDER")
            until(lambda: follower.lag.step == 4 and follower.lag.error is None)
            assert predict({"ids": [4]})["score"].tolist() == [1.0]


def test_of_two_deltas_of_one_checkpoint_the_newest_is_applied(tmp_path):
    """A training that was killed may have left the other one."""
    base = checkpoint(tmp_path / "model-1", 1, same(rows([1], 1.0)))
    abandoned = checkpoint(tmp_path / "model-9", 9, same(rows([1], 9.0)), base)
    checkpoint(tmp_path / "model-2", 2, same(rows([1], 2.0)), base)
    os.utime(f"{abandoned}.index", (1, 1))
    applied = ["model-1"]

    def refresh(delta):
        applied.extend([delta] if delta else [])
        return rec.serving.Refreshed(len(applied), 0, 0, 0, applied[-1])

    with rec.serving.Follower(refresh, str(tmp_path), poll_secs=0.02) as follower:
        until(lambda: follower.lag.checkpoint == "model-2")
    assert applied == ["model-1", "model-2"]


def test_a_stock_client_knows_a_key_that_was_trained_a_moment_ago(training):
    """From the training to the answer of a server that is never restarted."""
    settings = ServerSettings(port=0, poll_secs=0.02)
    models = {"m": os.path.dirname(training.export)}
    server = ModelServer(models, settings, {"m": training.folder})
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "m"
        request.inputs["ids"].CopyFrom(tf.make_tensor_proto(np.int64([2**40])))
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict

        def score():
            return tf.make_ndarray(predict(request, timeout=30).outputs["score"]).tolist()

        assert score() == [0.0]
        training.train([2**40])
        until(lambda: score() == [1.0])
    server.stop(5)


@pytest.mark.long
def test_a_server_follows_deltas_and_new_bases_without_a_failed_request(training, tmp_path):
    folder = str(tmp_path / "published")

    def publish(ids):
        rec.serving.publish(training.train(ids), folder, training.export_to, max_deltas=2)

    publish([1])
    settings = ServerSettings(port=0, metrics_port=0, poll_secs=0.02)
    server = ModelServer({"m": folder}, settings, {"m": f"{folder}/deltas"})
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "m"
        request.inputs["ids"].CopyFrom(tf.make_tensor_proto(np.int64([1])))
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        scores = [1.0]

        def score():  # A failed request fails the test.
            [scores[0]] = tf.make_ndarray(predict(request, timeout=30).outputs["score"])
            return scores[0]

        for step in range(2, 8):  # Two new bases.
            publish([1])
            until(lambda expected=float(step): score() == expected)
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    metrics = {'rec_estimator_serving_step{model="m"} 7.0'}
    metrics.add('rec_estimator_serving_waiting_deltas{model="m"} 0.0')
    # The model answers with the last delta before the follower says so.
    until(lambda: metrics <= set(urllib.request.urlopen(url).read().decode().splitlines()))
    server.stop(5)


def test_a_model_follows_what_is_published_to_a_file_system_of_tensorflow(training):
    folder = f"ram://{uuid.uuid4().hex}"
    rec.serving.publish(training.train([1]), folder, training.export_to)
    base = rec.serving.read_manifest(folder)["base"]
    with rec.serving.load_predictor(f"{folder}/{base}") as predict:
        with rec.serving.follow(predict, f"{folder}/deltas", poll_secs=0.02) as follower:
            for ids in ([1, 2], [2]):
                rec.serving.publish(training.train(ids), folder)
            until(lambda: follower.lag.step == 3)
            assert predict({"ids": [1, 2, 3]})["score"].tolist() == [2.0, 2.0, 0.0]


def test_a_model_without_the_signature_cannot_follow(tmp_path):
    with tf.Session() as session:
        x = tf.placeholder(tf.float32, [None])
        tf.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"y": x})
    with rec.serving.load_predictor(str(tmp_path / "m")) as predict:
        with pytest.raises(ValueError, match="refreshable=True"):
            rec.serving.follow(predict, str(tmp_path))
