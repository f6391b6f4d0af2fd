# SPDX-License-Identifier: Apache-2.0
"""`make test-matrix`: which pairs there are, which of them run, and what is counted."""

import configparser
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "_build"))

import tensorflow_dist  # noqa: E402
import test_matrix  # noqa: E402


def test_matrix_has_every_release_and_every_python_of_the_metadata_at_its_ends():
    minors, pythons = zip(*(pair.split("/") for pair in test_matrix.PAIRS))
    assert sorted(set(minors)) == list(tensorflow_dist.MINORS)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = re.findall(r"Python :: (3\.\d+)$", config["metadata"]["classifiers"], re.MULTILINE)
    assert {listed[0], listed[-1]} <= set(pythons) <= set(listed)
    assert config["options"]["python_requires"] == ">=3.9,<3.14"
    assert (listed[0], listed[-1]) == ("3.9", "3.13")


def test_matrix_names_a_missing_python_with_the_remedy(capsys):
    assert test_matrix.main(["--pairs", "2.21/3.99"])
    assert capsys.readouterr().err == (
        "Python 3.99 is in none of PATH, pyenv and uv; "
        "run: uv python install 3.99, or leave 2.21/3.99 out with --pairs\n"
        "failed: 2.21/3.99\n"
    )


def test_matrix_goes_on_without_a_python_that_may_be_missing(capsys):
    assert test_matrix.main(["--pairs", "2.21/3.99", "--skip_missing"]) == 0
    assert "in none of PATH, pyenv and uv" in capsys.readouterr().err


def test_matrix_keeps_the_results_of_other_pairs_and_names_those_that_were_not_run(tmp_path):
    path = tmp_path / "results.json"
    whole, parts = {"passed": 9}, {"passed": 1, "parts": ["tests/table"]}
    for pair, result in (("2.21/3.13", whole), ("2.18/3.12", parts), ("2.16/3.12", parts)):
        test_matrix.store(path, pair, result)
    # Parts do not replace a whole run, but a whole run replaces parts.
    test_matrix.store(path, "2.21/3.13", parts)
    test_matrix.store(path, "2.18/3.12", whole)
    stored = json.loads(path.read_text())
    assert tuple(stored) == test_matrix.PAIRS
    expected = {"2.21/3.13": whole, "2.18/3.12": whole, "2.16/3.12": parts}
    assert {pair: result for pair, result in stored.items() if result} == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("stored", "ends"),
    [
        ({"commit": "abc", "failed": 0}, True),
        ({"commit": "abc", "failed": 1}, False),
        ({"commit": "abc", "failed": 0, "parts": ["tests/table"]}, False),
        ({"commit": "def", "failed": 0}, False),
        (None, False),
    ],
    ids=["whole", "failed", "parts", "another commit", "not run"],
)
def test_matrix_runs_a_pair_once_for_a_commit(tmp_path, monkeypatch, stored, ends):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"2.21/3.13": stored}))
    ran = []
    counts = {"passed": 1, "failed": 0}
    monkeypatch.setattr(test_matrix, "_commit", lambda: "abc")
    monkeypatch.setattr(test_matrix, "run", lambda pair, settings: ran.append(pair) or counts)
    arguments = ["--pairs", "2.21/3.13", "--output", str(path)]
    assert test_matrix.main(arguments) == 0
    assert ran == ([] if ends else ["2.21/3.13"])
    ran.clear()
    assert test_matrix.main([*arguments, "--again"]) == 0
    assert ran == ["2.21/3.13"]
    assert json.loads(path.read_text())["2.21/3.13"] == {"commit": "abc", **counts}


def test_matrix_never_skips_a_pair_where_the_commit_is_unknown(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"2.21/3.13": {"commit": None, "failed": 0}}))
    assert not test_matrix.is_done(path, "2.21/3.13", None)
    monkeypatch.setattr(test_matrix, "ROOT", tmp_path)  # Without git.
    assert test_matrix._commit() is None


def test_matrix_counts_a_test_that_passes_alone_as_passed_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "test_it.py").write_text(
        "import pathlib\nseen = pathlib.Path(__file__).with_name('seen')\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert 0\n"
        "def test_fails_once():\n    ran = seen.exists()\n    seen.touch()\n    assert ran\n"
    )
    monkeypatch.setattr(test_matrix, "ROOT", tmp_path)
    settings = test_matrix.Settings(processes=0)
    counts = test_matrix._count(sys.executable, tmp_path, settings)
    assert counts == {"passed": 2, "failed": 1, "skipped": 0, "again": 1}


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("def test_a(): pass", {"passed": 1, "failed": 0, "skipped": 0}),
        (
            "import pytest\ndef test_a(): assert 0\ndef test_b(): pytest.skip()\n"
            "@pytest.fixture\ndef broken(): raise OSError\ndef test_c(broken): pass",
            {"passed": 0, "failed": 2, "skipped": 1},
        ),
    ],
    ids=["all pass", "one of each"],
)
def test_matrix_counts_tests(tmp_path, monkeypatch, body, counts):
    (tmp_path / "test_it.py").write_text(body)
    monkeypatch.setattr(test_matrix, "ROOT", tmp_path)
    assert test_matrix._pytest(sys.executable, tmp_path, []) == counts


def test_matrix_takes_no_counts_from_a_run_that_did_not_end(tmp_path, monkeypatch):
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_a(): pytest.exit('stop')")
    monkeypatch.setattr(test_matrix, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match=r"pytest must run to its end, got status 2"):
        test_matrix._pytest(sys.executable, tmp_path, [])
