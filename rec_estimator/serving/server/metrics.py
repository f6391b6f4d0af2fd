# SPDX-License-Identifier: Apache-2.0
"""Metrics of a server as Prometheus text, on an HTTP port of their own."""

from typing import Dict, Optional

import prometheus_client

from rec_estimator.serving.following import Follower

_PREFIX = "rec_estimator_serving"

_FOLLOWING = {
    "step": "The global step of a followed model.",
    "waiting_deltas": "Deltas that wait.",
    "lag_seconds": "Seconds since the oldest delta that waits arrived.",
}


class Metrics:
    """Counts and times requests, and tells which versions are served.

    Args:
      address: The address to listen on.
      port: The HTTP port; 0: any free one.

    Raises:
      OSError: The port cannot be had.
    """

    def __init__(self, address: str, port: int) -> None:
        # A registry of its own, because a process may have several servers.
        registry = prometheus_client.CollectorRegistry()
        labels = ["model", "method"]
        self._requests = prometheus_client.Counter(
            f"{_PREFIX}_requests", "Requests by code.", [*labels, "code"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            f"{_PREFIX}_seconds", "Seconds of a request.", labels, registry=registry
        )
        self._version = prometheus_client.Gauge(
            f"{_PREFIX}_version", "The version that answers.", ["model"], registry=registry
        )
        self._step, self._waiting, self._lag = (
            prometheus_client.Gauge(f"{_PREFIX}_{name}", text, ["model"], registry=registry)
            for name, text in _FOLLOWING.items()
        )
        self._server, self._thread = prometheus_client.start_http_server(port, address, registry)
        self.port: int = self._server.server_port

    def observe(self, model: str, method: str, code: str, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(model, method, code).inc()
        self._seconds.labels(model, method).observe(seconds)

    def show_versions(self, versions: Dict[str, Optional[int]]) -> None:
        """Shows which versions are served; models without one are left out."""
        for model, number in versions.items():
            if number is not None:
                self._version.labels(model).set(number)

    def show_lag(self, model: str, follower: Follower) -> None:
        """Shows how far a model is behind its deltas, as it is when somebody asks."""
        self._step.labels(model).set_function(lambda: follower.lag.step)
        self._waiting.labels(model).set_function(lambda: follower.lag.waiting)
        self._lag.labels(model).set_function(lambda: follower.lag.secs)

    def close(self) -> None:
        """Stops to listen."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
