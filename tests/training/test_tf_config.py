# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of TF_CONFIG: each wrong entry is named before TensorFlow sees it."""

import json

import pytest

import rec_estimator as rec
from rec_estimator.training.tf_config import read_tf_config

WRONG = {
    "no JSON": ("{", r"TF_CONFIG must be JSON, got .*; for example"),
    "nested": ("[" * 100_000, "TF_CONFIG must be JSON"),
    "list": ([], r"TF_CONFIG must be an object, got \[\]"),
    "null": (None, "TF_CONFIG must be an object, got None"),
    "number": (5, "TF_CONFIG must be an object, got 5"),
    "cluster": ({"cluster": ["h:1"]}, r'TF_CONFIG\["cluster"\] must be an object'),
    "job": ({"cluster": {"ps": {"1": "h:1"}}}, r'\["cluster"\]\["ps"\] must be a list, got {'),
    "one address": ({"cluster": {"ps": "h:1"}}, r'\["ps"\] must be a list, got .h:1'),
    "no port": ({"cluster": {"ps": ["h:1", "h"]}}, r'\["ps"\]\[1\] must be host:port .* got .h.;'),
    "name as port": ({"cluster": {"ps": ["h:http"]}}, "must be host:port"),
    "port 0": ({"cluster": {"ps": ["h:0"]}}, "a port from 1 to 65535, got .h:0"),
    "port 65536": ({"cluster": {"ps": ["h:65536"]}}, "a port from 1 to 65535"),
    "scheme": ({"cluster": {"ps": ["grpc://h:1"]}}, "without a scheme"),
    "no host": ({"cluster": {"ps": [":1"]}}, "must be host:port"),
    "space": ({"cluster": {"ps": [" h:1"]}}, "must be host:port"),
    "number as address": ({"cluster": {"ps": [2222]}}, "must be host:port .* got 2222"),
    "twice": (
        {"cluster": {"chief": ["h:1"], "ps": ["h:1"]}},
        r"which is that of .*\[.chief.\]\[0\]",
    ),
    "task": ({"task": 3}, r'TF_CONFIG\["task"\] must be an object'),
    "type": ({"task": {"type": 3}}, r'\["type"\] must be a string, got 3'),
    "index": (
        {"task": {"type": "ps", "index": -1}},
        r'\["index"\] must be an integer >= 0, got -1',
    ),
    "text as index": ({"task": {"type": "ps", "index": "0"}}, "must be an integer >= 0, got .0"),
    "no such task": (
        {"cluster": {"ps": ["h:1"]}, "task": {"type": "ps", "index": 1}},
        "must be a task of its cluster, got ps 1; the cluster has {'ps': 1}",
    ),
}


@pytest.mark.parametrize("content, message", WRONG.values(), ids=WRONG)
def test_a_wrong_entry_is_named(monkeypatch, tmp_path, content, message):
    text = content if isinstance(content, str) else json.dumps(content)
    monkeypatch.setenv("TF_CONFIG", text)
    for read in (read_tf_config, rec.RunConfig, lambda: rec.RecEstimator(None, str(tmp_path))):
        with pytest.raises(ValueError, match=message):
            read()


RIGHT = {
    "empty": {},
    "sizes": {"cluster": {"chief": ["a:1"], "ps": ["b.c:65535", "[::1]:2", "127.0.0.1:3"]}},
    "evaluator": {"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}},
    "others": {"cluster": {"chief": ["a:1"]}, "environment": "cloud", "job": {"any": 1}},
}


@pytest.mark.parametrize("content", RIGHT.values(), ids=RIGHT)
def test_what_tensorflow_reads_passes(monkeypatch, content):
    monkeypatch.setenv("TF_CONFIG", json.dumps(content))
    assert read_tf_config() == content


def test_no_variable_is_an_empty_configuration(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert read_tf_config() == {}
