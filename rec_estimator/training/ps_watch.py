# SPDX-License-Identifier: Apache-2.0
"""Ends the wait for a parameter server (ps) that no longer answers, though its connection is open.

A process that was stopped, or a network that drops packets, closes no connection, so TensorFlow
waits for an answer forever; a deadline or the end of the session ends the step, but not the calls
that clean up after it. PsWatch closes the connections. TensorFlow then takes the ps for lost, as it
does when its process dies.
"""

import contextlib
import os
import socket
import stat
import threading
import time
import weakref
from typing import Dict, Iterator, List, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import estimator as tf_estimator
from rec_estimator.training import ps_tasks

# A client of HTTP/2 begins with these bytes; a server answers with its settings, whatever the
# client asks for (RFC 9113, section 3.4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

# How often the ps tasks are asked within the seconds that a task waits for them.
_ROUNDS = 8

# Seconds that a ps with a high load may need to answer, at least.
_LEAST_ANSWER_SECONDS = 1.0

_Peer = Tuple[str, int]  # IP address and port.


class PsWatch(tf.train.SessionRunHook):
    """Asks the ps tasks for a sign of life while a session makes no progress.

    Long steps of ps tasks that answer go on. If a ps has not answered for ``ps_wait_secs``, its
    connections are closed until it answers again, so that each wait for it ends.

    Args:
      config: The configuration of a chief or worker in a cluster with ps tasks.
    """

    def __init__(self, config: tf_estimator.RunConfig) -> None:
        self._state = _State(config.cluster_spec.job_tasks("ps"), ps_tasks.seconds_to_wait(config))

    def begin(self) -> None:
        """Starts the watch, which covers the creation of sessions, too."""
        state = self._state
        state.progress = time.monotonic()
        # An error ends a training without a call of end().
        weakref.finalize(self, state.ended.set)
        threading.Thread(target=_watch, args=(state,), name="ps_watch", daemon=True).start()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Notes that the ps tasks have answered."""
        del session, coord
        self._state.progress = time.monotonic()

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        """Notes that the time between two runs is no wait for a ps."""
        del run_context
        self._state.progress = time.monotonic()

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Notes that the ps tasks have answered."""
        del run_context, run_values
        self._state.progress = time.monotonic()

    def end(self, session: tf.Session) -> None:
        """Ends the watch."""
        del session
        self._state.ended.set()

    def check(self) -> None:
        """Refuses to go on with a ps that was given up.

        Raises:
          TimeoutError: A ps has not answered for ``ps_wait_secs``.
        """
        for task, address in enumerate(self._state.addresses):
            if address in self._state.silent:
                raise TimeoutError(
                    f"ps {task} at {address} must answer within {self._state.seconds:g} seconds, "
                    "got no answer; end its process and start it again"
                )


class _State:
    """What a PsWatch and its thread share.

    Attributes:
      addresses: host:port of each ps.
      seconds: After which a silent ps is given up.
      progress: When the session last made progress, by the monotonic clock.
      silent: The addresses that have not answered for `seconds`.
      ended: Set when the thread must end.
    """

    def __init__(self, addresses: List[str], seconds: float) -> None:
        self.addresses = addresses
        self.seconds = seconds
        self.progress = time.monotonic()
        self.silent: Set[str] = set()
        self.ended = threading.Event()


def _watch(state: _State) -> None:
    peers: Dict[str, Set[_Peer]] = {address: set() for address in state.addresses}
    answered = dict.fromkeys(state.addresses, state.progress)
    interval = state.seconds / _ROUNDS
    while not state.ended.wait(min(ps_tasks.POLL_SECONDS, interval) if state.silent else interval):
        is_waiting = bool(state.silent) or time.monotonic() - state.progress >= interval
        for address in state.addresses:
            # A name may be unknown as soon as its machine is lost.
            if is_waiting or not peers[address]:
                peers[address].update(_peers_of(address))
            if not is_waiting:
                continue
            if _answers(address, max(interval, _LEAST_ANSWER_SECONDS)):
                answered[address] = time.monotonic()
                state.silent.discard(address)
            elif time.monotonic() - max(answered[address], state.progress) > state.seconds:
                state.silent.add(address)
                _close_connections(peers[address])


def _peers_of(address: str) -> Set[_Peer]:
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(*ps_tasks.host_and_port(address), type=socket.SOCK_STREAM)
        return {(str(host), int(port)) for *_, (host, port, *_) in found}
    return set()


def _answers(address: str, seconds: float) -> bool:
    """Whether the server at an address answers within some seconds."""
    try:
        with socket.create_connection(ps_tasks.host_and_port(address), seconds) as connection:
            connection.sendall(_HTTP2_PREFACE)
            return bool(connection.recv(1))
    except OSError:
        return False


def _close_connections(peers: Set[_Peer]) -> None:
    """Shuts down all connections of this process to `peers`."""
    for connection in _sockets():
        with contextlib.suppress(OSError):  # Not connected, or closed meanwhile.
            host, port = connection.getpeername()[:2]
            if (host.replace("::ffff:", ""), port) in peers:
                connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """The internet sockets of this process. Each is valid until the next one is asked for."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            # A descriptor of our own: TensorFlow may close its own at any moment.
            duplicate = os.dup(number)
        except OSError:  # Closed meanwhile.
            continue
        if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
            os.close(duplicate)
            continue
        with socket.socket(fileno=duplicate) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                yield found
