# SPDX-License-Identifier: Apache-2.0
"""``python -m rec_estimator.ps`` is a parameter server: it holds shards of tables and variables.

TF_CONFIG selects the task:

    TF_CONFIG='{"cluster": {"chief": ["host0:2222"], "ps": ["host1:2222", "host2:2222"]},
                "task": {"type": "ps", "index": 0}}' python -m rec_estimator.ps

It serves until it is killed. A script that calls ``rec_estimator.train_and_evaluate`` also
serves if its TF_CONFIG names a ps.
"""

import tensorflow.compat.v1 as tf

from rec_estimator import _ops as _ops  # A server needs the library of our ops.
from rec_estimator.training.cluster import port_error
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


def main() -> None:
    """Serves until the process is killed."""
    tf.logging.set_verbosity(tf.logging.INFO)
    server = start_server()
    tf.logging.info("Serving at %s.", server.target)
    server.join()


if __name__ == "__main__":
    main()
