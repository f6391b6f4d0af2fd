# SPDX-License-Identifier: Apache-2.0
"""Tests of ``python -m rec_estimator.ps``. tests/training/test_cluster.py runs servers."""

import json
import socket

import pytest

from rec_estimator import ps


@pytest.mark.parametrize(
    "given",
    [
        "",
        "no JSON",
        "{}",
        json.dumps({"cluster": {"ps": ["h:1"]}, "task": {"type": "worker", "index": 0}}),
        json.dumps({"cluster": {"ps": ["h:1"]}, "task": {"type": "ps", "index": 1}}),
    ],
)
def test_a_configuration_that_describes_no_ps_is_refused(monkeypatch, given):
    monkeypatch.setenv("TF_CONFIG", given)
    with pytest.raises(ValueError, match="TF_CONFIG must describe a ps task of its cluster, got"):
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
