# SPDX-License-Identifier: Apache-2.0
"""Checks TF_CONFIG before TensorFlow reads it, and names the entry that is wrong.

TensorFlow ends the process for an address that it cannot parse, and raises errors without a name
for values of another type.
"""

import json
import os
import re
from typing import Any, Dict, List

_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^\[\]:/\s]+):(\d{1,5})")

_EXAMPLE = (
    '{"cluster": {"chief": ["host0:2222"], "ps": ["host1:2222"]}, '
    '"task": {"type": "chief", "index": 0}}'
)


def read_tf_config() -> Dict[str, Any]:
    """Returns the content of the environment variable TF_CONFIG; {} if it is not set.

    Raises:
      ValueError: It is not JSON, or an entry has another form than TensorFlow expects.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"TF_CONFIG must be JSON, got {error}; for example {_EXAMPLE}") from None
    _check("", config, dict)
    cluster = _check('["cluster"]', config.get("cluster", {}), dict)
    addresses: Dict[str, str] = {}
    for job, tasks in cluster.items():
        for task, address in enumerate(_check(f'["cluster"]["{job}"]', tasks, list)):
            name = f'["cluster"]["{job}"][{task}]'
            _check_address(name, address)
            if address in addresses:
                raise ValueError(
                    f"TF_CONFIG{name} must be an address of its own, got {address!r}, which is "
                    f"that of {addresses[address]}; give each task its own port"
                )
            addresses[address] = name
    task = _check('["task"]', config.get("task", {}), dict)
    if task:
        _check_task(task, cluster)
    return config


def _check(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        rule = "an object" if kind is dict else "a list"
        raise ValueError(f"TF_CONFIG{name} must be {rule}, got {value!r}; for example {_EXAMPLE}")
    return value


def _check_address(name: str, address: Any) -> None:
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(
            f"TF_CONFIG{name} must be host:port with a port from 1 to 65535, got {address!r}; "
            'for example "host0:2222", without a scheme such as grpc://'
        )


def _check_task(task: Dict[str, Any], cluster: Dict[str, List[str]]) -> None:
    job, index = task.get("type"), task.get("index", 0)
    if not isinstance(job, str):
        raise ValueError(f'TF_CONFIG["task"]["type"] must be a string, got {job!r}; name a job')
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(
            f'TF_CONFIG["task"]["index"] must be an integer >= 0, got {index!r}; number the tasks '
            "of a job from 0"
        )
    # The evaluator reads checkpoints only, so it has no address.
    if cluster and job != "evaluator" and index >= len(cluster.get(job, [])):
        raise ValueError(
            f'TF_CONFIG["task"] must be a task of its cluster, got {job} {index}; the cluster has '
            f"{ {name: len(tasks) for name, tasks in cluster.items()} }"
        )
