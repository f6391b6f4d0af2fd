# SPDX-License-Identifier: Apache-2.0
"""Tests of ``python -m rec_estimator.ps``. tests/training/test_cluster.py runs servers."""

import json
import socket

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


def test_a_port_of_another_process_is_an_error_with_the_address(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config = {"cluster": {"ps": [address]}, "task": {"type": "ps", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with pytest.raises(OSError, match=f"the port of ps 0 must be free .*, got {address}"):
            ps.start_server()
