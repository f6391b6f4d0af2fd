# SPDX-License-Identifier: Apache-2.0
"""`make docs` would change no figure of a page: each is generated from benchmarks/results."""

import pytest

from benchmarks import figures

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
