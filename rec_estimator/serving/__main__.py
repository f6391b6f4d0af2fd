# SPDX-License-Identifier: Apache-2.0
"""Serves SavedModels over TensorFlow Serving's gRPC protocol.

    python -m rec_estimator.serving --model ranking=exports/ranking --port 8500

A model's folder has a folder for each version, as exports make them. The newest is served; a newer
one replaces it without a failed request. SIGTERM and SIGINT end the server after the requests that
run. See docs/server.md.
"""

import argparse
import os
import signal
import sys
import threading
from typing import Any, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Serves until a signal comes, and returns the exit code, 2 if an argument is invalid."""
    parser = _parser()
    options = parser.parse_args(arguments)
    models, followed = dict(options.model), dict(options.follow)
    if len(models) < len(options.model) or len(followed) < len(options.follow):
        parser.error("--model and --follow must have a name of its own for each model")
    if set(followed) - set(models):
        parser.error(f"--follow must name one of {sorted(models)}, got {sorted(followed)}")
    for folder in (*models.values(), *followed.values()):
        if not tf.io.gfile.isdir(folder):
            parser.error(
                f"--model and --follow must name folders, got {folder!r}, which is none; make it, "
                "or wait for the first publication of the training"
            )
    try:
        # These packages are optional.
        from rec_estimator.serving.server import grpc_server
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # Before the models are loaded, so that a signal then ends the server in order, too.
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    settings = grpc_server.ServerSettings(
        options.address,
        options.port,
        options.metrics_port,
        options.poll_secs,
        options.threads,
        options.most_bytes,
        options.most_secs,
    )
    tf.logging.set_verbosity(tf.logging.INFO)
    try:
        server = grpc_server.ModelServer(models, settings, followed)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    server.start()
    print(f"listening on {options.address}:{server.port}", flush=True)
    if server.metrics_port is not None:
        print(f"metrics on http://{options.address}:{server.metrics_port}/metrics", flush=True)
    ended.wait()
    server.stop(options.grace_secs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rec_estimator.serving",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add: Any = parser.add_argument
    add(
        "--model",
        type=_model,
        action="append",
        required=True,
        metavar="NAME=DIR",
        help="a model's name in requests and the folder of its versions; may be given again",
    )
    add(
        "--follow",
        type=_model,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a model that was exported with refreshable=True, and the folder of its deltas",
    )
    add("--address", default="127.0.0.1", help="the only address to listen on")
    add("--port", type=_port, default=8500, help="the gRPC port; 0: any free one")
    add("--metrics-port", type=_port, help="the HTTP port of Prometheus metrics; 0: any free one")
    add("--poll-secs", type=_positive, default=1.0, help="seconds between looks for new versions")
    add(
        "--threads",
        type=_count,
        default=4 * (os.cpu_count() or 1),
        help="the most requests that run at once; others wait",
    )
    add("--most-bytes", type=_count, default=64 << 20, help="the most bytes of a request")
    add("--most-secs", type=_positive, default=60.0, help="the most seconds of a request")
    add(
        "--grace-secs",
        type=_positive,
        default=30.0,
        help="seconds after which a signal also ends requests that still run",
    )
    return parser


def _model(text: str) -> Tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise argparse.ArgumentTypeError(f"must be NAME=DIR, got {text!r}")
    return name, folder


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, got {port}")
    return port


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {count}")
    return count


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return number


if __name__ == "__main__":
    sys.exit(main())
