# SPDX-License-Identifier: Apache-2.0
"""Tests of the Kubernetes manifest in docs/distributed.md."""

import json
import pathlib
import re

import jsonschema
import pytest
import yaml

HERE = pathlib.Path(__file__).parent
SCHEMA = json.loads((HERE / "tfjob.schema.json").read_text())


@pytest.fixture(scope="module")
def manifest():
    page = (HERE.parents[1] / "docs" / "distributed.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(text)


def test_the_manifest_of_the_page_is_a_tfjob(manifest):
    jsonschema.validate(manifest, SCHEMA)


def test_each_task_of_the_manifest_mounts_a_volume_that_it_has(manifest):
    for replicas in manifest["spec"]["tfReplicaSpecs"].values():
        pod = replicas["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert volumes == {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}


@pytest.mark.parametrize(
    "path, value",
    [
        (["Chief", "replicas"], 2),
        (["PS", "replicas"], 0),
        (["Worker", "restartPolicy"], "Sometimes"),
        (["Worker", "template", "spec", "containers"], []),
        (["Workers"], {}),
    ],
)
def test_the_schema_refuses_what_the_operator_would_refuse(manifest, path, value):
    wrong = json.loads(json.dumps(manifest))  # A copy whose tasks share no parts.
    *parents, last = path
    part = wrong["spec"]["tfReplicaSpecs"]
    for name in parents:
        part = part[name]
    part[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)
