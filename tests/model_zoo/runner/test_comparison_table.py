# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison: cells of runs that are written down here."""

import pytest

from model_zoo.runner.comparison_table import table as table_of


def test_a_metric_that_is_0_has_a_column():
    run = {"model": "dssm", "seed": 1, "rows": 9, "samples_per_second": 1}
    runs = [
        {**run, "variant": name, "metrics": {"hit_rate_at_10": 0.0}}
        for name in ("plain", "counter")
    ]
    heads, _, _, counter = table_of({"data": {"label": "click"}, "runs": runs}).split("\n")
    assert "hit rate at 10" in heads and counter.split("|")[-2].strip() == "+0.0000"


@pytest.mark.parametrize(
    "aucs, lost",
    [
        ({1: 0.70, 2: 0.72}, "+0.0200 ± 0.0141"),  # .03 and .01
        ({2: 0.73, 3: 0.10}, "+0.0000"),  # Seed 3 has no plain run.
        ({2: 0.73001}, "+0.0000"),
        ({3: 0.70}, ""),
    ],
)
def test_a_variant_loses_against_plain_runs_of_the_same_seeds(aucs, lost):
    def runs_of(variant, by_seed):
        common = {"model": "deepfm", "variant": variant, "rows": 9, "samples_per_second": 1}
        return [{**common, "seed": seed, "metrics": {"auc": by_seed[seed]}} for seed in by_seed]

    found = {"data": {"label": "click"}, "runs": runs_of("plain", {1: 0.73, 2: 0.73})}
    found["runs"] += runs_of("counter", aucs)
    assert table_of(found).split("|")[-2].strip() == lost


def test_a_table_has_empty_cells_for_what_was_not_measured():
    run = {"model": "dssm", "seed": 1, "rows": 9, "samples_per_second": None, "metrics": {}}
    runs = [{**run, "variant": variant} for variant in ("plain", "counter")]
    clicks = {**run, "model": "deepfm", "variant": "plain", "metrics": {"auc": 0.7}}
    for more in ([], [clicks]):
        table = table_of({"data": {"label": "click"}, "runs": [*runs, *more]}).split("\n")
        cells = dict(zip(*([each.strip() for each in table[i].split("|")] for i in (0, 3))))
        assert cells["samples/s"] == "" and cells["rows saved"] == "0%"
    assert cells["AUC lost"] == ""
