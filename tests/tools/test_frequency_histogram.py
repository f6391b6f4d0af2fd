# SPDX-License-Identifier: Apache-2.0
"""The frequency histogram: bins, text bars and PNG."""

import sys

import numpy as np
import pytest
from matplotlib import image

from rec_estimator.tools.frequency_histogram import Bin, FrequencyHistogram, draw


def histogram_of(frequencies):
    histogram = FrequencyHistogram()
    histogram.add(np.asarray(frequencies, np.int64))
    return histogram


def test_bins_are_those_of_counting_one_by_one():
    rng = np.random.default_rng(0)
    frequencies = (2 ** rng.uniform(0, 40, 5000)).astype(np.int64)
    histogram = FrequencyHistogram()
    for part in np.array_split(frequencies, 7):
        histogram.add(part)
    expected = {}
    for frequency in frequencies.tolist():
        low = 1 << (frequency.bit_length() - 1)
        expected[low] = expected.get(low, 0) + 1
    assert {each.low: each.keys for each in histogram.bins() if each.keys} == expected


@pytest.mark.parametrize("power", [0, 1, 10, 31, 32, 62])
def test_powers_of_two_begin_their_bin(power):
    edge = 2**power
    # Powers from 2**53 on: a logarithm in floats would be inexact.
    found = histogram_of([edge, 2 * edge - 1]).bins()
    assert found == [Bin(edge, 2 * edge - 1, 2)]
    assert histogram_of([edge - 1]).bins() == [Bin(edge // 2, edge - 1, 1)]


def test_keys_that_never_occurred_have_a_bin():
    assert histogram_of([0, 0, 1]).bins() == [Bin(0, 0, 2), Bin(1, 1, 1)]


def test_empty_bins_between_others_are_listed():
    assert [each.keys for each in histogram_of([1, 9]).bins()] == [1, 0, 0, 1]


def test_without_keys_there_are_no_bins():
    assert histogram_of([]).bins() == []
    assert list(histogram_of([]).lines(80)) == []


@pytest.mark.parametrize("columns", [24, 40, 80, 300])
def test_bars_fill_the_terminal_and_no_more(columns):
    lines = list(histogram_of([1] * 1000 + [3] * 500 + [5] + [2**40]).lines(columns))
    assert max(map(len, lines)) == columns
    assert all(line.isascii() for line in lines)
    bars = [line.count("#") for line in lines]
    assert bars[1] == -(-bars[0] // 2)
    # A bin with a single key has a bar, an empty one has none.
    assert bars[2] == bars[-1] == 1
    assert set(bars[3:-1]) == {0}


def test_numbers_are_not_cut_in_a_narrow_terminal():
    lines = list(histogram_of([1] * 1000 + [3]).lines(columns=1))
    assert [line.split() for line in lines] == [["1", "1,000", "#"], ["2-3", "1", "#"]]


@pytest.mark.parametrize(
    ("frequency", "label"),
    [(0, "0"), (1, "1"), (5, "4-7"), (9000, "8192-16k"), (2**19, "524k-1.0M"), (2**31, "2.1G-4.3G")]
    + [(2**62, "4.6E-9.2E")],
)
def test_labels_are_short(frequency, label):
    assert histogram_of([frequency]).bins()[0].label == label


@pytest.mark.long
@pytest.mark.parametrize(
    ("tables", "shape"),
    [(0, (300, 600)), (1, (300, 600)), (2, (600, 600)), (5, (900, 1200)), (9, (900, 1800))],
)
def test_picture_has_a_panel_for_each_table(tmp_path, tables, shape):
    pair = (histogram_of([5, 9, 100]), histogram_of([1, 1, 2]))
    path = tmp_path / "picture.png"
    draw(str(path), {f"table_{i}" * (1 + 5 * i): pair for i in range(tables)})
    assert path.read_bytes().startswith(b"\x89PNG")
    assert image.imread(path).shape[:2] == shape


def colors_of(path):
    """Which colors are in a picture: that of rows, that of filtered keys."""
    pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
    found = {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}
    colors = {"rows": (0x1F, 0x77, 0xB4), "filtered keys": (0xFF, 0x7F, 0x0E)}
    return {kind for kind, color in colors.items() if color in found}


@pytest.mark.long
@pytest.mark.parametrize("is_recorded", [(True, True), (True, False), (False, True), (False,) * 2])
def test_picture_shows_what_was_recorded(tmp_path, is_recorded):
    pair = tuple(histogram_of([1, 2, 3]) if there else None for there in is_recorded)
    draw(str(tmp_path / "a"), {"user": pair})
    expected = {kind for kind, there in zip(("rows", "filtered keys"), is_recorded) if there}
    assert colors_of(tmp_path / "a") == expected


def test_missing_matplotlib_is_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install rec_estimator\[plot\]"):
        draw(str(tmp_path / "a.png"), {})
    assert list(tmp_path.iterdir()) == []
