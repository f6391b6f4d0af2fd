# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Serving's PredictionService and ModelService."""

import time
from typing import Any, Callable, Dict, NoReturn, Optional

import grpc
import tensorflow.compat.v1 as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from rec_estimator.serving.server import answers, messages
from rec_estimator.serving.server.versions import ServedModel, ServedModels

# TensorFlow's codes of errors are gRPC's.
_CODES: Dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# Called with model, method, code and seconds of each request.
_Observe = Callable[[str, str, str, float], None]


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict, Classify, Regress and GetModelMetadata; MultiInference is not implemented.

    Args:
      models: The models.
      limits: The limits of a request.
      observe: Called with model, method, code and seconds of each request.
    """

    def __init__(self, models: ServedModels, limits: answers.Limits, observe: _Observe) -> None:
        self._models = models
        self._limits = limits
        self._observe = observe

    def Predict(
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        """Runs a signature with the tensors of the request."""
        return self._answered("Predict", answers.predict, request, context)

    def Classify(
        self, request: classification_pb2.ClassificationRequest, context: grpc.ServicerContext
    ) -> classification_pb2.ClassificationResponse:
        """Returns classes and scores of tf.train.Examples."""
        return self._answered("Classify", answers.classify, request, context)

    def Regress(
        self, request: regression_pb2.RegressionRequest, context: grpc.ServicerContext
    ) -> regression_pb2.RegressionResponse:
        """Returns a value for each tf.train.Example."""
        return self._answered("Regress", answers.regress, request, context)

    def GetModelMetadata(
        self,
        request: get_model_metadata_pb2.GetModelMetadataRequest,
        context: grpc.ServicerContext,
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """Returns the signatures of a model."""
        return self._answered("GetModelMetadata", _metadata, request, context)

    def _answered(
        self, method: str, answer: Callable[..., Any], request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Answers a request with the version of the model that it names."""
        started = time.monotonic()
        known, code = "", grpc.StatusCode.OK
        try:
            model = _asked(self._models, request)
            known = model.name  # Clients must not choose the labels of metrics.
            with model.use(_number(request)) as version:
                response = answer(version.model, request, self._limits_of(context))
                response.model_spec.name = model.name
                response.model_spec.version.value = version.number
            if not isinstance(response, get_model_metadata_pb2.GetModelMetadataResponse):
                response.model_spec.signature_name = answers.signature_name(request)
            return response
        except tf.errors.OpError as error:
            code = _CODES.get(error.error_code, grpc.StatusCode.UNKNOWN)
            _abort(context, error)
        except BaseException:
            code = grpc.StatusCode.UNKNOWN
            raise
        finally:
            self._observe(known, method, code.name, time.monotonic() - started)

    def _limits_of(self, context: grpc.ServicerContext) -> answers.Limits:
        """The limits of a request, with the deadline of its client."""
        remaining: Optional[float] = context.time_remaining()
        if remaining is None:
            return self._limits
        if remaining <= 0:
            raise tf.errors.DeadlineExceededError(None, None, "the deadline has passed")
        return self._limits._replace(secs=min(remaining, self._limits.secs))


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus; HandleReloadConfigRequest is not implemented.

    Args:
      models: The models.
    """

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def GetModelStatus(
        self, request: get_model_status_pb2.GetModelStatusRequest, context: grpc.ServicerContext
    ) -> get_model_status_pb2.GetModelStatusResponse:
        """Returns the states of a model's versions."""
        try:
            return _status(self._models, request)
        except tf.errors.OpError as error:
            _abort(context, error)


def _abort(context: grpc.ServicerContext, error: tf.errors.OpError) -> NoReturn:
    context.abort(_CODES.get(error.error_code, grpc.StatusCode.UNKNOWN), error.message)
    raise AssertionError("abort raises")


def _asked(models: ServedModels, request: Any) -> ServedModel:
    if not request.HasField("model_spec"):
        raise messages.invalid("Missing ModelSpec")
    if request.model_spec.version_label:
        raise messages.invalid("version labels are not supported; name a version or none")
    return models.find(request.model_spec.name)


def _number(request: Any) -> Optional[int]:
    spec = request.model_spec
    return spec.version.value if spec.HasField("version") else None


def _metadata(
    model: Any, request: get_model_metadata_pb2.GetModelMetadataRequest, limits: answers.Limits
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    del limits  # Runs no model.
    fields = set(request.metadata_field)
    if fields != {"signature_def"}:
        raise messages.invalid(f"metadata_field must be 'signature_def', got {sorted(fields)}")
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, definition in model.definitions.items():
        signatures.signature_def[name].CopyFrom(definition)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.metadata["signature_def"].Pack(signatures)
    return response


def _status(
    models: ServedModels, request: get_model_status_pb2.GetModelStatusRequest
) -> get_model_status_pb2.GetModelStatusResponse:
    statuses = _asked(models, request).statuses()
    asked = _number(request)
    if asked is not None:
        statuses = {number: each for number, each in statuses.items() if number == asked}
    if not statuses:
        which = "any versions" if asked is None else f"version {asked}"
        message = f"Could not find {which} of model {request.model_spec.name}"
        raise tf.errors.NotFoundError(None, None, message)
    response = get_model_status_pb2.GetModelStatusResponse()
    for number, status in sorted(statuses.items()):
        found = response.model_version_status.add(version=number, state=status.state)
        if status.error is not None:
            found.status.error_code = getattr(status.error, "error_code", tf.errors.UNKNOWN)
            found.status.error_message = str(status.error)
    return response
