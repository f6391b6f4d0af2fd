# SPDX-License-Identifier: Apache-2.0
"""Waits until the parameter servers (ps) answer, and checks that they can train a model.

Each failed check raises an error that names the task and its address.
"""

import contextlib
import os
import socket
import time
import uuid
from typing import Iterator, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import estimator as tf_estimator

# Seconds that a task waits for the parameter servers by default.
PS_WAIT_SECS = 60.0

# Seconds between two checks of a task that is not ready.
POLL_SECONDS = 0.5

# The errors that MonitoredSession treats as a lost task, and that of a deadline.
LOST_TASK_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
)


def seconds_to_wait(config: tf_estimator.RunConfig) -> float:
    """The seconds that a task waits for the ps tasks: ``ps_wait_secs`` of RunConfig."""
    # TensorFlow's own RunConfig has no such property.
    return getattr(config, "ps_wait_secs", PS_WAIT_SECS)


def wait_for_ps(config: tf_estimator.RunConfig) -> None:
    """Waits until the ps tasks of a cluster answer; the chief also checks that they see its folder.

    Args:
      config: The configuration of a chief or worker in a cluster with ps tasks.

    Raises:
      TimeoutError, RuntimeError, OSError: As wait_for_ports and check_servers.
    """
    addresses = config.cluster_spec.job_tasks("ps")
    wait_for_ports(addresses, seconds_to_wait(config))
    model_dir = config.model_dir if config.is_chief else None
    check_servers(addresses, model_dir, seconds_to_wait(config))


def wait_for_ports(addresses: List[str], seconds: float) -> None:
    """Waits until every ps accepts connections.

    Args:
      addresses: host:port of each ps.
      seconds: How long to wait for all of them.

    Raises:
      TimeoutError: One does not accept connections in this time.
    """
    deadline = time.monotonic() + seconds
    for task, address in enumerate(addresses):
        while True:
            try:
                socket.create_connection(host_and_port(address), timeout=5).close()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"ps {task} must accept connections at {address} within {seconds:g} "
                        f"seconds, got {error}; start it, for example with `python -m "
                        "rec_estimator.ps`, or correct TF_CONFIG"
                    ) from error
                time.sleep(POLL_SECONDS)


def host_and_port(address: str) -> Tuple[str, int]:
    """Splits host:port, where the host may be an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_servers(addresses: List[str], model_dir: Optional[str], seconds: float) -> None:
    """Checks that every ps answers, is the task of its address, has our ops and sees the folder.

    Args:
      addresses: host:port of each ps.
      model_dir: The folder of the checkpoints, into which the ps tasks write their shards. None:
        whether they see it is not checked.
      seconds: The deadline of each ps.

    Raises:
      TimeoutError: A ps accepts connections, but does not answer as a server of TensorFlow.
      RuntimeError: A ps has not loaded our library or has loaded another version, or another task
        answers at its address.
      OSError: A ps does not see the folder.
    """
    with _probe_in(model_dir) as probe:
        for task, address in enumerate(addresses):
            _check_until_it_answers(task, address, probe, seconds)


@contextlib.contextmanager
def _probe_in(folder: Optional[str]) -> Iterator[Optional[str]]:
    """Yields the path of a file whose name ends with its content; None without a folder."""
    if folder is None:
        yield None
        return
    tf.io.gfile.makedirs(folder)
    token = uuid.uuid4().hex
    probe = os.path.join(folder, f"ps_probe_{token}")
    with tf.io.gfile.GFile(probe, "w") as file:
        file.write(token)
    try:
        yield probe
    finally:
        tf.io.gfile.remove(probe)


def _check_until_it_answers(task: int, address: str, probe: Optional[str], seconds: float) -> None:
    """Checks a ps; repeats the check while the ps is restarted."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            _check_server(task, address, probe, seconds)
            return
        # A chief that begins a training ends the sessions of others, also this one.
        except (*LOST_TASK_ERRORS, tf.errors.CancelledError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"ps {task} at {address} must answer within {seconds:g} seconds, got "
                    f"{error.message}; start it again, or correct TF_CONFIG"
                ) from error
            time.sleep(POLL_SECONDS)


def _check_server(task: int, address: str, probe: Optional[str], seconds: float) -> None:
    device = f"/job:ps/task:{task}"
    config = tf.ConfigProto(device_filters=[device], operation_timeout_in_ms=round(1000 * seconds))
    with tf.Graph().as_default(), tf.device(f"{device}/device:CPU:0"):
        theirs = _ops.gen.rec_estimator_ops_fingerprint()
        read = tf.io.read_file(probe) if probe else None
        try:
            with tf.Session(f"grpc://{address}", config=config) as session:
                # They include the devices of the server itself, whatever the filters are.
                names = {device.name for device in session.list_devices()}
                others = sorted(
                    n for n in names if not n.startswith(f"/job:ps/replica:0/task:{task}/")
                )
                if others or not names:
                    raise _wrong_task(task, address, f"{others or 'no device'}")
                fingerprint = session.run(theirs)
                seen = session.run(read).decode() if read is not None else ""
        except tf.errors.NotFoundError as error:
            if probe is None or "Op type not registered" in str(error):
                raise _library_error(task, address, "a server without these ops") from error
            raise _folder_error(task, address, probe) from error
        except (tf.errors.InvalidArgumentError, tf.errors.UnknownError) as error:
            raise _wrong_task(task, address, error.message) from error
    if fingerprint != _fingerprint():
        raise _library_error(task, address, "other ops")
    if probe and not (seen and probe.endswith(seen)):
        raise _folder_error(task, address, probe)


def _fingerprint() -> bytes:
    """The fingerprint of the ops that this process has loaded."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(_ops.gen.rec_estimator_ops_fingerprint())


def _library_error(task: int, address: str, got: str) -> RuntimeError:
    return RuntimeError(
        f"ps {task} at {address} must have loaded the ops of this version of rec_estimator, got "
        f"{got}; install the same version there, and import rec_estimator or start it with `python "
        "-m rec_estimator.ps`"
    )


def _wrong_task(task: int, address: str, got: str) -> RuntimeError:
    return RuntimeError(
        f"the server at {address} must be ps {task} of the cluster, got {got}; give all tasks the "
        "same cluster in TF_CONFIG"
    )


def _folder_error(task: int, address: str, probe: str) -> OSError:
    return OSError(
        f"model_dir must be a folder that ps {task} at {address} shares with the chief, got "
        f"{os.path.dirname(probe)!r}, in which it does not see the chief's files; give an absolute "
        "path on a shared file system"
    )
