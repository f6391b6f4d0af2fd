# SPDX-License-Identifier: Apache-2.0
"""`make docs` would change no figure of a page: each is generated from benchmarks/results."""

import json

import pytest

from benchmarks import figures, speed_figures

BLOCKS = sorted(
    (page.relative_to(figures.ROOT).as_posix(), name)
    for page in figures.pages()
    for name in figures.names_in(page.read_text())
)


@pytest.mark.parametrize(("page", "name"), BLOCKS, ids=[f"{page}: {name}" for page, name in BLOCKS])
def test_figures_of_a_page_are_those_of_the_raw_results(page, name):
    text = (figures.ROOT / page).read_text()
    written = {
        match.group(2): (match.group(0), figures.generate(match.group(0)))
        for match in figures.BLOCK.finditer(text)
    }
    found, expected = written[name]
    assert found == expected, f"{page} is stale: run `make docs` and commit what it changes"


def test_every_marker_is_part_of_a_block():
    for page in figures.pages():
        text = page.read_text()
        lines = text.splitlines()
        markers = sum(line.startswith(("<!-- figures:", "<!-- end -->")) for line in lines)
        assert markers == 2 * len(figures.names_in(text)), f"{page}: a marker lacks its partner"


@pytest.mark.parametrize("name", sorted(figures.FIGURES))
def test_every_generated_block_stands_in_one_page_that_its_docstring_names(name):
    pages = [page for page, other in BLOCKS if other == name]
    assert pages == [figures.FIGURES[name].__doc__.partition(":")[0]], (
        "put the markers into the page, or delete the function from benchmarks/figures.py"
    )


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"figures must be one of \[.*\], got 'speed'"):
        figures.generate("<!-- figures: speed -->\n<!-- end -->\n")


def test_a_stale_block_is_written_again_and_the_rest_of_the_page_stays():
    page = "before\n<!-- figures: checkpoint -->\nold\n<!-- end -->\nafter\n"
    written = figures.generate(page)
    assert "old" not in written
    assert written.startswith("before\n<!-- figures: checkpoint -->\n\n| |")
    assert written.endswith("|\n\n<!-- end -->\nafter\n")
    assert figures.generate(written) == written


def test_speed_of_two_releases_has_their_columns():
    def found(release, share, **ratios):
        ratios = {
            "train/dense": 2,
            "train/tfra": 7,
            "lookup/dense": 1.5,
            "lookup/tfra": 1,
            **ratios,
        }
        result = {"tensorflow": release, "ratios": ratios, "batch": [4096, 26]}
        return {**result, "unique_share": share}

    oldest, hot = found("2.15.1", 0.32), found("2.15.1", 0.16, **{"train/dense": 4})
    batch = "4,096 × 26 ids"
    newest = found("2.21.0", 0.32, **{"train/dense": 6})
    assert figures.table(*speed_figures.tables([oldest, hot], newest)).splitlines() == [
        "| | dense `tf.Variable`, 2.15 | TFRA 0.7.2, 2.15 | dense `tf.Variable`, 2.21 |",
        "|---|---|---|---|",
        f"| train step, {batch}, 32 % distinct | 2.00× as fast | 7.00× as fast | 6.00× as fast |",
        f"| train step, {batch}, 16 % distinct | 4.00× as fast | 7.00× as fast | – |",
        f"| lookup, {batch}, 32 % distinct | 1.50× as fast | 1.00× as fast | 1.50× as fast |",
        f"| lookup, {batch}, 16 % distinct | 1.50× as fast | 1.00× as fast | – |",
    ]


def test_pairs_that_were_not_run_whole_are_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    packages = {"tensorflow": "2.21.0", "python": "3.13.0", "numpy": "2.5", "protobuf": "7.36"}
    counts = {"passed": 1234, "failed": 0, "skipped": 2, "test_seconds": 600}
    whole = {**packages, "keras": "3.15", **counts}
    results = {"2.20/3.13": None, "2.21/3.12": {**whole, "parts": ["tests/a"]}, "2.21/3.13": whole}
    (tmp_path / "test_matrix.json").write_text(json.dumps(results))
    counted = "1,234 passed, 0 failed, 2 skipped"
    assert figures.test_matrix().splitlines()[2:] == [
        "| 2.20 | 3.13 | \u2013 | \u2013 | \u2013 | not run | \u2013 |",
        f"| 2.21.0 | 3.13.0 | 2.5 | 7.36 | 3.15 | {counted}; only `tests/a` | \u2013 |",
        f"| 2.21.0 | 3.13.0 | 2.5 | 7.36 | 3.15 | {counted} | 10 |",
    ]
