# SPDX-License-Identifier: Apache-2.0
"""``python -m rec_estimator.ps`` is a parameter server: it holds shards of tables and variables.

TF_CONFIG selects the task:

    TF_CONFIG='{"cluster": {"chief": ["host0:2222"], "ps": ["host1:2222", "host2:2222"]},
                "task": {"type": "ps", "index": 0}}' python -m rec_estimator.ps

It serves until it is killed. With ``--grace-secs=25`` it goes on after SIGTERM until the chief has
ended, at most for so many seconds, so that the chief can save. A script that calls
``rec_estimator.train_and_evaluate`` also serves if its TF_CONFIG names a ps.
"""

import argparse
import math
import signal
import socket
import threading
import time
from typing import List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator import _ops as _ops  # A server needs the library of our ops.
from rec_estimator.training.cluster import port_error
from rec_estimator.training.ps_tasks import POLL_SECONDS, host_and_port
from rec_estimator.training.tf_config import read_tf_config


def start_server() -> tf.train.Server:
    """Starts the server of the ps that TF_CONFIG describes.

    Returns:
      The server. Its ``join()`` does not return.

    Raises:
      ValueError: TF_CONFIG does not describe a ps.
      OSError: Another process uses its port.

    Example:
      >>> # rec_estimator.ps.start_server().join()
    """
    config = read_tf_config()
    if "ps" not in config.get("cluster", {}) or config.get("task", {}).get("type") != "ps":
        raise ValueError(
            f"TF_CONFIG must describe a ps task of its cluster, got {config}; for example "
            '{"cluster": {"chief": ["host0:2222"], "ps": ["host1:2222"]}, '
            '"task": {"type": "ps", "index": 0}}'
        )
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"].get("index", 0)
    try:
        return tf.train.Server(cluster, job_name="ps", task_index=task)
    except tf.errors.UnknownError as error:
        raise port_error(cluster, "ps", task) from error


def wait_for_end(addresses: Sequence[str], seconds: float) -> None:
    """Waits until no server accepts connections at these addresses.

    Args:
      addresses: host:port of each.
      seconds: How long to wait.
    """
    deadline = time.monotonic() + seconds
    while any(map(_accepts_connections, addresses)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _accepts_connections(address: str) -> bool:
    try:
        socket.create_connection(host_and_port(address), timeout=POLL_SECONDS).close()
        return True
    except OSError:
        return False


def _chiefs() -> List[str]:
    """The addresses of the task that saves."""
    cluster = read_tf_config()["cluster"]
    return [*cluster.get("chief", []), *cluster.get("master", [])]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Serves until the process is killed.

    Args:
      arguments: Of the command line. None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m rec_estimator.ps")
    parser.add_argument(
        "--grace-secs",
        type=float,
        default=0.0,
        help="seconds that it serves after SIGTERM, at most, until the chief has ended; default 0",
    )
    grace = parser.parse_args(arguments).grace_secs
    if not 0 <= grace < math.inf:
        parser.error(f"--grace-secs must be a finite number >= 0, got {grace}; 0 ends at once")
    tf.logging.set_verbosity(tf.logging.INFO)
    is_asked = threading.Event()
    if grace > 0:
        signal.signal(signal.SIGTERM, lambda number, frame: is_asked.set())
    server = start_server()
    tf.logging.info("Serving at %s.", server.target)
    if grace == 0:
        server.join()
    # Python handles signals in this thread, which join() would block.
    is_asked.wait()
    tf.logging.info("SIGTERM: serving until the chief ends, for %g seconds at most.", grace)
    wait_for_end(_chiefs(), grace)


if __name__ == "__main__":
    main()
