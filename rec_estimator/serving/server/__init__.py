# SPDX-License-Identifier: Apache-2.0
"""A gRPC server of TensorFlow Serving's protocol, for development, tests and small services.

The modules follow a request: services receive it, versions find the model, answers convert it with
messages and run the model.
"""

import importlib

_MODULES = (
    "grpc",
    "grpc_health.v1.health",
    "prometheus_client",
    "tensorflow_serving.apis.predict_pb2",
)

for _module in _MODULES:
    try:
        importlib.import_module(_module)
    except ImportError as error:
        raise ImportError(
            f"the server needs the module {_module}, which cannot be imported ({error}); "
            "run: pip install 'rec_estimator[serving]', and then, for TensorFlow X.Y: "
            "pip install --no-deps 'tensorflow-serving-api==X.Y.*'"
        ) from error
