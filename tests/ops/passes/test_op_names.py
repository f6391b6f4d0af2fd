# SPDX-License-Identifier: Apache-2.0
"""Passes spell the types of ops by the constants of op_names.h."""

import pathlib
import re

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes import op_registry

OPS = pathlib.Path(__file__).parents[3] / "ops"
FOLDER = OPS / "passes"
LITERAL = re.compile(r'"((?:RecEstimator>)?\w+)"')


def is_op_type(name):
    return name in {op.name for op in op_registry.OPS} or hasattr(tf.raw_ops, name)


def test_each_constant_is_the_type_of_an_op():
    header = (FOLDER / "op_names.h").read_text()
    names = re.findall(r'constexpr char k\w+\[\] =\s+"(.+)";', header)
    assert len(names) > 20
    assert [name for name in names if not is_op_type(name)] == []


def test_only_the_header_spells_the_types_of_ops():
    files = {*FOLDER.iterdir(), *OPS.rglob("*_pass.cc")} - {FOLDER / "op_names.h"}
    assert len(files) > 8
    spelled = {
        f"{path.name}: {name}"
        for path in files
        for name in LITERAL.findall(path.read_text())
        if is_op_type(name)
    }
    assert spelled == set(), "use the constants of ops/passes/op_names.h"


def test_each_pass_is_in_the_folder_of_passes():
    assert {path.parent for path in OPS.rglob("*_pass.cc")} == {FOLDER}


def test_each_pass_has_a_file_of_tests_or_one_that_names_it():
    here = pathlib.Path(__file__).parent
    texts = "".join(path.read_text() for path in here.parents[1].glob("**/test_*.py"))
    passes = [*FOLDER.glob("*_pass.cc"), *FOLDER.glob("reduce_*.cc")]
    untested = [
        path.name
        for path in passes
        if path.name not in texts and not (here / f"test_{path.stem}.py").exists()
    ]
    assert untested == []
