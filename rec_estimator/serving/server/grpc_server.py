# SPDX-License-Identifier: Apache-2.0
"""The server: services on a port, health, metrics, and an end without failed requests."""

import concurrent.futures
import dataclasses
from typing import Dict, List, Mapping, Optional

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

from rec_estimator.serving.following import Follower
from rec_estimator.serving.server import services
from rec_estimator.serving.server.answers import Limits
from rec_estimator.serving.server.metrics import Metrics
from rec_estimator.serving.server.versions import ServedModel, ServedModels
from rec_estimator.serving.server.warmup import load_warm


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and its limits.

    Attributes:
      address: The address to listen on.
      port: The gRPC port; 0: any free one.
      metrics_port: The HTTP port of metrics; 0: any free one; None: no metrics.
      poll_secs: Seconds between two looks for new versions.
      threads: The most requests that run at once; others wait.
      most_bytes: The most bytes of a request.
      most_secs: The most seconds of a request.
    """

    address: str = "127.0.0.1"
    port: int = 8500
    metrics_port: Optional[int] = None
    poll_secs: float = 1.0
    threads: int = 16
    most_bytes: int = 64 << 20
    most_secs: float = 60.0


class ModelServer:
    """Serves models. It listens from the beginning, and answers after ``start``.

    Args:
      models: {name: folder with the folders of versions}.
      settings: Where it listens, and its limits.
      follow: {name: folder with the deltas of a model}.

    Raises:
      OSError: A port cannot be had.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        settings: ServerSettings = ServerSettings(),
        follow: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._followed = dict(follow or {})
        self._followers: List[Follower] = []
        self._poll_secs = settings.poll_secs
        limits = Limits(settings.most_bytes, settings.most_secs)
        served = {
            name: ServedModel(name, folder, lambda folder: load_warm(folder, limits))
            for name, folder in models.items()
        }
        self._models = ServedModels(served, settings.poll_secs, self._show_versions)
        self._health = health.HealthServicer()
        self._metrics: Optional[Metrics] = None
        if settings.metrics_port is not None:
            self._metrics = Metrics(settings.address, settings.metrics_port)
        self._threads = concurrent.futures.ThreadPoolExecutor(settings.threads, "requests")
        self._server = grpc.server(
            self._threads,
            options=[
                ("grpc.max_receive_message_length", settings.most_bytes),
                ("grpc.max_send_message_length", -1),
                # Otherwise a second server may take the same port.
                ("grpc.so_reuseport", 0),
            ],
        )
        prediction = services.PredictionService(self._models, limits, self._observe)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            prediction, self._server
        )
        model = services.ModelService(self._models)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(model, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._listen(settings.address, settings.port)

    @property
    def metrics_port(self) -> Optional[int]:
        """The HTTP port of metrics."""
        return None if self._metrics is None else self._metrics.port

    def start(self) -> None:
        """Loads the models, and answers from then on."""
        self._models.start()
        for name, folder in self._followed.items():
            follower = Follower(self._models.find(name).refresh, folder, self._poll_secs)
            self._followers.append(follower)
            if self._metrics is not None:
                self._metrics.show_lag(name, follower)
        self._server.start()

    def stop(self, grace_secs: float) -> None:
        """Refuses new requests, waits for the running ones, and frees the models.

        Args:
          grace_secs: Seconds after which requests that still run are cancelled.
        """
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_secs).wait()
        self._threads.shutdown()
        for follower in self._followers:
            follower.close()
        self._models.close()
        if self._metrics is not None:
            self._metrics.close()

    def _listen(self, address: str, port: int) -> int:
        try:
            found = self._server.add_insecure_port(f"{address}:{port}")
        except RuntimeError:
            found = 0
        if not found:
            if self._metrics is not None:
                self._metrics.close()
            raise OSError(f"port {port} of {address} cannot be had; another program may have it")
        return found

    def _observe(self, model: str, method: str, code: str, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.observe(model, method, code, seconds)

    def _show_versions(self) -> None:
        versions = self._models.served()
        ready: Dict[str, bool] = {name: number is not None for name, number in versions.items()}
        # The empty name is the whole server.
        for name, is_ready in {**ready, "": all(ready.values())}.items():
            status = health_pb2.HealthCheckResponse
            self._health.set(name, status.SERVING if is_ready else status.NOT_SERVING)
        if self._metrics is not None:
            self._metrics.show_versions(versions)
