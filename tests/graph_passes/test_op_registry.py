# SPDX-License-Identifier: Apache-2.0
"""The registry of our op types is complete, and the only place that spells their names."""

import ast
import pathlib
import re

import pytest

from rec_estimator import _ops
from rec_estimator.graph_passes import op_registry

ROOT = pathlib.Path(__file__).resolve().parents[2]
REGISTRY = ROOT / "rec_estimator" / "graph_passes" / "op_registry.py"


def registered_op_types():
    """The op types that the C++ sources register."""
    text = "".join(path.read_text() for path in sorted(ROOT.glob("ops/*/*_ops.cc")))
    return re.findall(r'^REGISTER_OP\("([^"]+)"\)', text, re.MULTILINE)


def function_of(op_type):
    """The generated function of an op type: RecEstimator>TableStats, rec_estimator_table_stats."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", op_type.removeprefix(op_registry.PREFIX)).lower()
    return getattr(_ops.gen, f"rec_estimator_{name}")


def test_every_op_of_the_library_has_one_entry():
    assert sorted(entry.name for entry in op_registry.OPS) == sorted(registered_op_types())


@pytest.mark.parametrize("entry", op_registry.OPS, ids=lambda entry: entry.name)
def test_an_entry_fits_the_op_of_the_library(entry):
    assert entry.name.startswith(op_registry.PREFIX)
    arguments = function_of(entry.name).__code__.co_varnames
    takes_table = arguments[0] in ("table", "tables")
    if entry.reads is not op_registry.Reads.NOTHING:
        assert takes_table
    if entry.is_outside_steps:
        assert takes_table or arguments[0] == "prefix"
    if entry.is_row_wise:
        assert arguments[1] == "keys"


@pytest.mark.long
def test_no_other_module_spells_an_op_type():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "rec_estimator").rglob("*.py"))
        if path != REGISTRY
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and op_registry.PREFIX in node.value
    ]
    assert found == [], "take the name from rec_estimator/graph_passes/op_registry.py"
