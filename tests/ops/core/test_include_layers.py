# SPDX-License-Identifier: Apache-2.0
"""Includes inside ops/core run downwards: base includes no folder, math and storage base only."""

import pathlib
import re

import pytest

CORE = pathlib.Path(__file__).resolve().parents[3] / "ops/core"
# From the bottom to the top.
LAYERS = ("base", "math", "storage", "table")
INCLUDE = re.compile(r'^#include "ops/core/(\w+)/', re.MULTILINE)


@pytest.mark.parametrize("layer", LAYERS)
def test_includes_run_downwards(layer):
    sources = sorted((CORE / layer).iterdir())
    assert sources
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    upwards = [
        f"{source.name} includes {included}"
        for source in sources
        for included in INCLUDE.findall(source.read_text())
        if included not in allowed
    ]
    assert not upwards


@pytest.mark.parametrize("layer", LAYERS)
def test_every_source_has_a_header_or_is_named_after_one(layer):
    headers = {path.stem for path in (CORE / layer).glob("*.h")}
    orphans = [
        path.name
        for path in (CORE / layer).glob("*.cc")
        if not any(path.stem == name or path.stem.startswith(f"{name}_") for name in headers)
    ]
    assert not orphans
