# SPDX-License-Identifier: Apache-2.0
"""Warm-up: requests that a model answers before clients reach it."""

import itertools
import os
from typing import Iterator

import tensorflow.compat.v1 as tf
from tensorflow_serving.apis import prediction_log_pb2

from rec_estimator.serving.model_session import ModelSession, load_saved_model
from rec_estimator.serving.server import answers

# Where TensorFlow Serving looks for them, and how many it takes.
_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
_MOST = 1000


def load_warm(folder: str, limits: answers.Limits) -> ModelSession:
    """Loads a SavedModel and answers the requests in its file of warm-up requests, if it has one.

    The file ``assets.extra/tf_serving_warmup_requests`` holds PredictionLogs as TFRecords.

    Raises:
      OSError, tf.errors.OpError: The model cannot be loaded, or a request fails.
    """
    model = load_saved_model(folder)
    try:
        path = os.path.join(folder, _FILE)
        if tf.io.gfile.exists(path):
            for record in itertools.islice(_records(path), _MOST):
                _replay(model, prediction_log_pb2.PredictionLog.FromString(record), limits)
    except BaseException:
        model.close()
        raise
    return model


def _replay(
    model: ModelSession, log: prediction_log_pb2.PredictionLog, limits: answers.Limits
) -> None:
    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
        answers.predict(model, log.predict_log.request, limits)
    elif kind == "classify_log":
        answers.classify(model, log.classify_log.request, limits)
    elif kind == "regress_log":
        answers.regress(model, log.regress_log.request, limits)
    else:
        raise tf.errors.UnimplementedError(
            None, None, f"warm-up requests must predict, classify or regress, got {kind}"
        )


def _records(path: str) -> Iterator[bytes]:
    with tf.Graph().as_default(), tf.Session() as session:
        record = tf.data.make_one_shot_iterator(tf.data.TFRecordDataset(path)).get_next()
        while True:
            try:
                yield session.run(record)
            except tf.errors.OutOfRangeError:
                return
