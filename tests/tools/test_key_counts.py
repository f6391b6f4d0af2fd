# SPDX-License-Identifier: Apache-2.0
"""Counts of streams: exact where they fit, estimates within their error beyond."""

import collections

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from rec_estimator.tools import key_streams
from rec_estimator.tools.key_counts import NONE, KeyCounter
from rec_estimator.tools.key_streams import hashes_of_array, hashes_of_csv, hashes_of_parquet


def zipf(length, seed=0):
    """Keys int64 [length], of which most occur once."""
    rng = np.random.default_rng(seed)
    return (rng.random(length) ** -2.5).astype(np.int64) * 7919 - 10


def expected(keys):
    """(frequencies, how many keys have each), counted by Python."""
    counts = collections.Counter(collections.Counter(keys.tolist()).values())
    return sorted(counts), [counts[each] for each in sorted(counts)]


def counted(batches, **settings):
    counter = KeyCounter(**settings)
    for batch in batches:
        counter.add(*batch)
    return counter


@pytest.mark.parametrize("batches", [(1, 1), (7, 50), (1 << 10, 1 << 18)])
@pytest.mark.parametrize("length", [0, 1, 999, 5000])
def test_a_stream_that_fits_is_counted_as_by_numpy(length, batches, tmp_path, monkeypatch):
    if length > 999 and batches == (1, 1):
        length = 1200  # A merge for each element.
    monkeypatch.setattr(key_streams, "_BATCHES", batches)
    keys = zipf(length)
    np.save(tmp_path / "keys.npy", keys)
    np.savetxt(tmp_path / "keys.csv", np.stack([keys, keys], 1), "%d", ",", header="a,b")
    table = pyarrow.table({"a": keys, "b": keys})
    parquet.write_table(table, tmp_path / "keys.parquet", row_group_size=700)
    for found in (
        counted(hashes_of_array(str(tmp_path / "keys.npy"))),
        counted(hashes_of_csv(str(tmp_path / "keys.csv"), ["b"], ",")),
        counted(hashes_of_parquet(str(tmp_path / "keys.parquet"), ["b"])),
    ):
        frequencies, numbers = found.frequencies()
        assert (frequencies.tolist(), numbers.tolist()) == expected(keys)
        assert (found.occurrences, found.keys) == (length, len(np.unique(keys)))


def test_parquet_has_lists_dictionaries_and_missing_values(tmp_path):
    columns = {
        "item": pyarrow.array([7, None, 7, 9], pyarrow.uint64()),
        "seen": [[7], None, [9, 9, None], []],
        "tag": pyarrow.array(["a", "", None, "a"]).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "day.parquet")
    for names, frequencies in ((["item"], [1, 2]), (["item", "seen"], [3]), (["tag"], [2])):
        found = counted(hashes_of_parquet(str(tmp_path / "day.parquet"), names))
        assert found.frequencies().frequencies.tolist() == frequencies


def test_a_stream_that_does_not_fit_is_estimated_within_its_error(tmp_path):
    keys = zipf(300_000)
    np.save(tmp_path / "keys.npy", keys)
    capacity = 512
    found = counted(hashes_of_array(str(tmp_path / "keys.npy")), capacity=capacity)
    assert len(found._hashes) <= capacity
    counts = np.unique(keys, return_counts=True)[1]
    assert len(counts) > 10 * capacity
    frequencies, numbers = found.frequencies()
    for least in (1, 2, 5):
        there = np.sum(counts >= least)
        kept = there * capacity / 2 / len(counts)  # At least half of the capacity is in use.
        estimate = np.sum(numbers[frequencies >= least])
        assert abs(estimate - there) < 4 * there / np.sqrt(kept)


def test_keys_of_a_longer_stream_are_extrapolated_from_its_beginning():
    keys = zipf(1 << 18)

    def batches(length):
        for part in np.array_split(keys[:length], 32):
            distinct, counts = np.unique(part, return_counts=True)
            yield distinct.astype(np.uint64), counts

    beginning = counted(batches(1 << 15))
    there = counted(batches(1 << 18)).keys
    # 8 times as long; the law is a model.
    assert abs(beginning.keys_after(1 << 18) - there) < 0.15 * there
    assert beginning.keys_after(0) == beginning.keys_after(1 << 15) == beginning.keys


def test_few_keys_do_not_grow():
    batch = np.arange(100, dtype=np.uint64), np.ones(100, np.int64)
    assert counted([batch] * 10).keys_after(10**9) == 100
    assert KeyCounter().keys_after(10) == 0


def test_merged_frequencies_add_keys_of_the_same_frequency():
    found = NONE.merged(np.array([3, 1, 3]), np.array([1, 1, 5]))
    assert [each.tolist() for each in found] == [[1, 3], [1, 6]]
    assert found.occurrences == 19


def test_empty_values_are_no_ids_and_strings_are(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"x\t1\n\ty\nx\t\xff\n\n")
    found = counted(hashes_of_csv(str(tmp_path / "a.tsv"), ["0"], "tab"))
    assert [each.tolist() for each in found.frequencies()] == [[2], [1]]
    found = counted(hashes_of_csv(str(tmp_path / "a.tsv"), ["0", "1"], "tab"))
    assert [each.tolist() for each in found.frequencies()] == [[1, 2], [3, 1]]
    np.save(tmp_path / "a.npy", np.array([["x", "y"], ["x", "z"]]))
    found = counted(hashes_of_array(str(tmp_path / "a.npy")))
    assert [each.tolist() for each in found.frequencies()] == [[1, 2], [2, 1]]
