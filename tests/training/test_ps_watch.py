# SPDX-License-Identifier: Apache-2.0
"""PsWatch: which connections it closes, and when it ends."""

import contextlib
import gc
import socket
import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from rec_estimator.training import ps_watch


@pytest.fixture(autouse=True)
def is_quick(monkeypatch):
    monkeypatch.setattr(ps_watch, "_LEAST_ANSWER_SECONDS", 0.25)


@contextlib.contextmanager
def listener():
    """A server that accepts connections and never answers, and its address."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


def answer(server, connections):
    """Answers every connection of a server by one byte, as long as the server is open."""
    with contextlib.suppress(OSError):
        while True:
            connections.append(server.accept()[0])
            with contextlib.suppress(OSError):
                connections[-1].send(b".")


def connect(address):
    host, port = address.split(":")
    # A recv that should end and does not is a TimeoutError.
    return socket.create_connection((host, int(port)), timeout=30)


def watch_of(*addresses):
    config = types.SimpleNamespace(
        cluster_spec=tf.train.ClusterSpec({"ps": list(addresses)}), ps_wait_secs=2.0
    )
    return ps_watch.PsWatch(config)


def watching():
    return [each for each in threading.enumerate() if each.name == "ps_watch"]


def test_only_connections_to_a_server_that_does_not_answer_are_closed():
    connections = []
    with listener() as (_, silent), listener() as (server, healthy):
        threading.Thread(target=answer, args=(server, connections), daemon=True).start()
        watch = watch_of(healthy, silent)
        with connect(silent) as to_silent, connect(healthy) as to_healthy:
            assert to_healthy.recv(1) == b"."
            watch.check()
            watch.begin()
            assert to_silent.recv(1) == b""
            with pytest.raises(TimeoutError, match=f"ps 1 at {silent} must answer within 2 sec"):
                watch.check()
            connections[0].send(b"!")
            assert to_healthy.recv(1) == b"!"
            watch.end(None)
        server.shutdown(socket.SHUT_RDWR)


def test_a_server_that_answers_again_is_no_error():
    connections = []
    with listener() as (server, address):
        watch = watch_of(address)
        with connect(address) as connection:
            watch.begin()
            assert connection.recv(1) == b""
        threading.Thread(target=answer, args=(server, connections), daemon=True).start()
        state = watch._state
        while state.silent:
            state.ended.wait(0.01)
        watch.check()
        watch.end(None)
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("how", ["end", "lose"])
def test_the_thread_ends_with_the_training_also_if_the_training_fails(how):
    before = set(watching())
    watch = watch_of("127.0.0.1:1")
    watch.begin()
    (thread,) = set(watching()) - before
    if how == "end":
        watch.end(None)
    del watch
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
