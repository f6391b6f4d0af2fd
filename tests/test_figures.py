# SPDX-License-Identifier: Apache-2.0
"""`make docs` would change no figure of a page: each is generated from benchmarks/results."""

import json

import pytest

from benchmarks import columns, core_figures, figures, page_figures, result_file, zoo_figures
from model_zoo.runner import config

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
def test_every_generated_block_stands_in_the_one_page_that_it_names(name):
    pages = [page for page, other in BLOCKS if other == name]
    assert pages == [figures.FIGURES[name].page], (
        "put the markers into the page, or delete the function that makes the block"
    )


def test_every_result_is_shown_or_named_in_a_page():
    shown = {name for figure in figures.FIGURES.values() for name in figure.results}
    text = "".join(page.read_text() for page in figures.pages())
    for path in result_file.FOLDER.iterdir():
        assert path.stem in shown or path.name in text, f"delete {path.name}: no page quotes it"


def test_results_are_as_benchmarks_write_them():
    by_others = {"test_matrix.json"}
    for path in result_file.FOLDER.iterdir():
        if path.name not in by_others:
            text = path.read_text()
            assert text == result_file.layout(json.loads(text)) + "\n", path.name


def test_a_result_has_a_line_for_a_case_and_quartiles_for_its_rounds():
    case = {"model": "dlrm", "batch": 512, "seconds": result_file.quartiles({"a": [4, 1, 3]})}
    found = {"date": "2026-11-27", "rows": 5, "results": [case, {**case, "ratio": 1 / 3}]}
    assert result_file.layout(found).splitlines() == [
        '{"date": "2026-11-27", "rows": 5,',
        ' "results": [{"model": "dlrm", "batch": 512, "seconds": {"a": [1.0, 3.0, 4.0]}},',
        '  {"model": "dlrm", "batch": 512, "seconds": {"a": [1.0, 3.0, 4.0]}, "ratio": 0.33333}]}',
    ]


def test_a_template_scales_to_its_unit_and_shows_none_as_a_dash():
    row = {"seconds": [0.01, 0.0123, 0.02], "share": 0.32, "tfra": None}
    template = "{seconds[1]:.1f ms}, {share:.0f %} distinct, {tfra:.2f}"
    assert columns.fill(template, row) == "12.3 ms, 32 % distinct, \u2013"
    with pytest.raises(KeyError, match="stock"):
        columns.fill("{stock}", row)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"figures must be one of \[.*\], got 'speeds'"):
        figures.generate("<!-- figures: speeds -->\n<!-- end -->\n")


def test_a_stale_block_is_written_again_and_the_rest_of_the_page_stays():
    page = "before\n<!-- figures: checkpoint -->\nold\n<!-- end -->\nafter\n"
    written = figures.generate(page)
    assert "old" not in written
    assert written.startswith("before\n<!-- figures: checkpoint -->\n\n| |")
    assert written.endswith("|\n\n<!-- end -->\nafter\n")
    assert figures.generate(written) == written


def test_speed_of_two_releases_has_their_columns():
    def models(release, batches, **shares):
        floor = {"single": {"stock": 0.5, **shares}}
        results = [{"model": "dlrm", "batch": batch, "above_floor": floor} for batch in batches]
        return {"tensorflow": release, "results": results}

    def table(release, share, **ratios):
        ratios = {"train/dense": 2, "train/tfra": 8, "lookup/dense": 1.25, **ratios}
        sizes = {"batch": [4096, 26], "unique_share": share}
        return {"tensorflow": release, "ratios": {"lookup/tfra": 1, **ratios}, **sizes}

    oldest, newest = table("2.15.1", 0.32), table("2.21.0", 0.32, **{"train/dense": 5})
    hot = table("2.15.1", 0.16, **{"train/dense": 4})
    steps = models("2.15.1", [512, 8192], tfra=0.25), models("2.21.0", [512])
    batch = "4,096 × 26 ids"
    assert core_figures.speed(*steps, oldest, newest, hot).splitlines() == [
        "| | `tf.Variable`, 2.15 | TFRA 0.7.2, 2.15 | `tf.Variable`, 2.21 |",
        "|---|---|---|---|",
        "| DLRM, batch 512 | 0.50 | 0.25 | 0.50 |",
        "| DLRM, batch 8,192 | 0.50 | 0.25 | – |",
        f"| one table, train step, {batch}, 32 % distinct | 0.50 | 0.12 | 0.20 |",
        f"| one table, train step, {batch}, 16 % distinct | 0.25 | 0.12 | – |",
        f"| one table, lookup, {batch}, 32 % distinct | 0.80 | 1.00 | 0.80 |",
        f"| one table, lookup, {batch}, 16 % distinct | 0.80 | 1.00 | – |",
    ]


def test_pairs_that_were_not_run_whole_are_said_so():
    packages = {"tensorflow": "2.21.0", "python": "3.13.0", "numpy": "2.5", "protobuf": "7.36"}
    counts = {"passed": 1234, "failed": 0, "skipped": 2, "test_seconds": 600}
    whole = {**packages, "keras": "3.15", **counts}
    results = {"2.20/3.13": None, "2.21/3.12": {**whole, "parts": ["tests/a"]}, "2.21/3.13": whole}
    counted = "1,234 passed, 0 failed, 2 skipped"
    assert page_figures.test_matrix(results).splitlines()[2:] == [
        "| 2.20 | 3.13 | \u2013 | \u2013 | \u2013 | not run | \u2013 |",
        f"| 2.21.0 | 3.13.0 | 2.5 | 7.36 | 3.15 | {counted}; only `tests/a` | \u2013 |",
        f"| 2.21.0 | 3.13.0 | 2.5 | 7.36 | 3.15 | {counted} | 10 |",
    ]


@pytest.mark.parametrize("group", result_file.read("compare_zoo")["data"])
def test_the_commands_of_the_zoo_have_the_settings_of_its_figures(group):
    comparison = result_file.read("compare_zoo")["data"][group]
    found = config.load(comparison["data"]["name"], zoo_figures.settings_of(comparison)).as_dict()
    for section, settings in comparison["config"].items():
        assert settings.items() <= found[section].items(), section
