# SPDX-License-Identifier: Apache-2.0
"""Tests of ``python -m rec_estimator.ps``. tests/training/test_cluster.py runs servers."""

import json
import socket
import threading

import pytest

from rec_estimator import ps


@pytest.mark.parametrize(
    "given, message",
    [
        ("", "must describe a ps task of its cluster, got {}"),
        ("{}", "must describe a ps task of its cluster, got {}"),
        ("no JSON", "must be JSON"),
        ('{"cluster": {"ps": ["h:1"], "worker": ["h:2"]}, "task": {"type": "worker"}}', "describe"),
        (
            '{"cluster": {"ps": ["h:1"]}, "task": {"type": "ps", "index": 1}}',
            "ps 1; the cluster has",
        ),
        ('{"cluster": {"ps": ["h"]}, "task": {"type": "ps", "index": 0}}', "host:port"),
    ],
)
def test_a_configuration_that_describes_no_ps_is_refused(monkeypatch, given, message):
    monkeypatch.setenv("TF_CONFIG", given)
    with pytest.raises(ValueError, match=f"TF_CONFIG.*{message}"):
        ps.start_server()


@pytest.mark.parametrize("grace", ["-1", "nan", "inf", "x"])
def test_a_grace_that_is_no_number_of_seconds_is_refused(grace, capsys):
    with pytest.raises(SystemExit):
        ps.main([f"--grace-secs={grace}"])
    assert "--grace-secs" in capsys.readouterr().err


def test_a_ps_waits_until_no_chief_accepts_connections():
    with socket.socket() as chief:
        chief.bind(("127.0.0.1", 0))
        chief.listen()
        addresses = ["127.0.0.1:1", f"127.0.0.1:{chief.getsockname()[1]}"]
        waiting = threading.Thread(target=ps.wait_for_end, args=(addresses, 600))
        waiting.start()
        chief.accept()[0].close()  # It has asked once, and found a chief.
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_port_of_another_process_is_an_error_with_the_address(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config = {"cluster": {"ps": [address]}, "task": {"type": "ps", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with pytest.raises(OSError, match=f"the port of ps 0 must be free .*, got {address}"):
            ps.start_server()
