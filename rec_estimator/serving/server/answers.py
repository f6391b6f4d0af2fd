# SPDX-License-Identifier: Apache-2.0
"""What a loaded model answers to a request. Errors have the codes of TensorFlow Serving."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow_serving.apis import classification_pb2, predict_pb2, regression_pb2

from rec_estimator.serving.model_session import ModelSession
from rec_estimator.serving.server import messages
from rec_estimator.serving.signature import Signature

_constants = tf.saved_model.signature_constants


class Limits(NamedTuple):
    """What a request may ask for.

    Attributes:
      bytes: The most bytes of a request, and of each tensor in it.
      secs: The most seconds that a request may take.
    """

    bytes: int
    secs: float


def predict(
    model: ModelSession, request: predict_pb2.PredictRequest, limits: Limits
) -> predict_pb2.PredictResponse:
    """Answers a PredictRequest.

    Raises:
      tf.errors.FailedPreconditionError: The model has no such signature.
      tf.errors.InvalidArgumentError: An input or an output does not fit the signature.
      tf.errors.OpError: The model failed.
    """
    name = signature_name(request)
    if name not in model.signatures:
        raise tf.errors.FailedPreconditionError(
            None, None, f'Serving signature key "{name}" not found.'
        )
    signature = model.signatures[name]
    asked = list(request.output_filter)
    for output in asked:
        if output not in signature.outputs or asked.count(output) > 1:
            raise messages.invalid(
                f"output_filter must name outputs of {sorted(signature.outputs)} once, got {asked}"
            )
    features = messages.arrays_of(request.inputs, limits.bytes)
    response = predict_pb2.PredictResponse()
    messages.write_arrays(_run(model, signature, features, limits, asked), response.outputs)
    return response


def classify(
    model: ModelSession, request: classification_pb2.ClassificationRequest, limits: Limits
) -> classification_pb2.ClassificationResponse:
    """Answers a ClassificationRequest.

    Raises:
      tf.errors.InvalidArgumentError: The model has no such signature, it is not one that
        classifies, or the examples do not fit.
      tf.errors.OpError: The model failed.
    """
    signature = _signature_for(model, request, _constants.CLASSIFY_METHOD_NAME)
    names = (_constants.CLASSIFY_OUTPUT_CLASSES, _constants.CLASSIFY_OUTPUT_SCORES)
    examples = messages.examples_of(request.input)
    features = {_constants.CLASSIFY_INPUTS: examples}
    outputs = _run(model, signature, features, limits, [n for n in names if n in signature.outputs])
    response = classification_pb2.ClassificationResponse()
    messages.write_classes(outputs, len(examples), response.result)
    return response


def regress(
    model: ModelSession, request: regression_pb2.RegressionRequest, limits: Limits
) -> regression_pb2.RegressionResponse:
    """Answers a RegressionRequest.

    Raises:
      tf.errors.InvalidArgumentError: The model has no such signature, it is not one that
        regresses, or the examples do not fit.
      tf.errors.OpError: The model failed.
    """
    signature = _signature_for(model, request, _constants.REGRESS_METHOD_NAME)
    examples = messages.examples_of(request.input)
    features = {_constants.REGRESS_INPUTS: examples}
    name = _constants.REGRESS_OUTPUTS
    response = regression_pb2.RegressionResponse()
    values = _run(model, signature, features, limits, [name])[name]
    messages.write_values(values, len(examples), response.result)
    return response


def signature_name(request: Any) -> str:
    """The name of the signature that a request asks for."""
    return request.model_spec.signature_name or _constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def _signature_for(model: ModelSession, request: Any, method: str) -> Signature:
    name = signature_name(request)
    if name not in model.signatures:
        raise messages.invalid(f"No signature was found with the name: {name}")
    found = model.definitions[name].method_name
    if found != method:
        raise messages.invalid(f"signature {name!r} must have the method {method}, got {found!r}")
    return model.signatures[name]


def _run(
    model: ModelSession,
    signature: Signature,
    features: Mapping[str, Any],
    limits: Limits,
    outputs: Optional[Sequence[str]],
) -> Dict[str, np.ndarray]:
    try:
        return model.run(signature, features, outputs, limits.secs)
    except (TypeError, ValueError) as error:
        raise messages.invalid(str(error)) from error
