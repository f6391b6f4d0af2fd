# SPDX-License-Identifier: Apache-2.0
"""docs/porting.md names every public name, and no name that does not exist."""

import functools
import importlib
import pathlib
import re

import pytest

import rec_estimator as rec

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "porting.md"
SECTIONS = ["Names: Rec SDK", "Names: DeepRec"]

# Public names that neither Rec SDK nor DeepRec has, and names of TensorFlow.
OWN = {
    *("BestExporter", "EmbeddingFeature", "EstimatorSpec", "EvalSpec", "FinalExporter"),
    *("IncrementalSaverHook", "LatestExporter", "ModeKeys", "PredictOutput", "ProgressHook"),
    *(
        "SampleCompression",
        "ServingInputReceiver",
        "SlotSpec",
        "TableExport",
        "TableShard",
        "TrainSpec",
        "VocabInfo",
    ),
    *("build_parsing_serving_input_receiver_fn", "build_raw_serving_input_receiver_fn"),
    *("compressed_serving_input_receiver_fn", "export", "feature_column", "graph_optimizer"),
    *("inputs", "optimizers", "train_and_evaluate"),
}


def rows(section):
    """(theirs, ours) of each row of a section's table."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert all(len(cells) == 2 for cells in lines)
    return lines


def ours(cell):
    return re.findall(r"`(rec_estimator[\w.]*)`", cell)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_name_of_this_package_exists(section):
    found = rows(section)
    assert len(found) > 20
    for theirs, cell in found:
        assert ours(cell) or cell.startswith("none: "), theirs
        for name in ours(cell):
            module, rest = "rec_estimator", name.split(".")[1:]
            if rest[:1] == ["tools"] or (rest[:1] == ["optimizers"] and len(rest) > 2):
                module, rest = ".".join([module, *rest[:2]]), rest[2:]
            functools.reduce(getattr, rest, importlib.import_module(module))


def test_every_public_name_is_in_a_table_or_our_own():
    named = {name.split(".")[1] for s in SECTIONS for _, cell in rows(s) for name in ours(cell)}
    assert set(rec.__all__) >= OWN
    assert sorted(set(rec.__all__) - named - OWN) == []
