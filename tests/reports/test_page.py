# SPDX-License-Identifier: Apache-2.0
"""docs/public_reports.md names tests that exist, and all of those in this folder's files."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
LINE = re.compile(r"\| \[`(test_\w+)`\]\(([\w./]+)\) \|$", re.MULTILINE)
TESTS = LINE.findall((DOCS / "public_reports.md").read_text())


@pytest.mark.parametrize("name, path", TESTS)
def test_a_test_that_the_page_names_exists(name, path):
    assert re.search(rf"^ *def {name}\(", (DOCS / path).read_text(), re.MULTILINE)


def test_the_page_names_a_test_for_each_report_in_this_folder():
    named = {name.split("_")[1] for name, path in TESTS if "/reports/" in path}
    tested = {
        number
        for file in pathlib.Path(__file__).parent.glob("test_*_reports.py")
        for number in re.findall(r"^ *def test_(\d+)_", file.read_text(), re.MULTILINE)
    }
    assert tested - named <= {"252"}  # The page names a stricter test for it.
    assert len(TESTS) > 30
