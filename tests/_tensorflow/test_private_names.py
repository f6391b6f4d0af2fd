# SPDX-License-Identifier: Apache-2.0
"""Private names of TensorFlow: each is used, has a reason and was checked on a release."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "rec_estimator" / "_tensorflow").glob("[!_]*.py"))
NAMES = [
    pytest.param(path, node, name, id=f"{path.stem}.{name}")
    for path in MODULES
    for node in ast.parse(path.read_text()).body
    for name in (
        [target.id for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.Assign)
        else [getattr(node, "name", "_")]
    )
    if not name.startswith("_")
]


def used_names(path):
    """Names that a module imports by name or takes from another module."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {a.name for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names}
    return imported | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@functools.cache
def names_used_in():
    """{path: used names} of all modules. Not when tests are collected, which every run does."""
    return {
        path: used_names(path)
        for folder in ("rec_estimator", "model_zoo", "benchmarks", "tests")
        for path in (ROOT / folder).rglob("*.py")
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_says_on_which_releases_it_was_checked(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert re.search(r"Checked on TensorFlow \d+\.\d+", docstring)


@pytest.mark.parametrize(("path", "node", "name"), NAMES)
def test_name_is_used_by_another_module(path, node, name):
    users = [other for other, names in names_used_in().items() if other != path and name in names]
    assert users, f"nobody needs {name}: delete it from {path.name}"


FUNCTIONS = [each for each in NAMES if isinstance(each.values[1], ast.FunctionDef)]


@pytest.mark.parametrize(("path", "node", "name"), FUNCTIONS)
def test_function_says_why_no_public_name_serves(path, node, name):
    lines = path.read_text().splitlines()[node.lineno : node.end_lineno]
    assert any(line.strip().startswith("#") for line in lines), f"add the reason to {name}"
