# SPDX-License-Identifier: Apache-2.0
"""TableRestore of chains into tables with a row limit: they are counted before rows are lost."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import BANK, DIM, contents, rows_of, train, write

KEY_CLASSES = 1000


def sort(keys):
    return np.array(sorted(keys, key=lambda key: (key % KEY_CLASSES, key)), np.int64)


def write_chain(folder, links):
    """Writes {suffix: keys} checkpoints that each hold the changes to the one before."""
    for i, link in enumerate(links):
        tensors = {**rows_of(sort(link.get("keys", ()))), "t/default_values": BANK}
        filtered = sort(link.get("keys_filtered", ()))
        tensors["t-keys_filtered"] = filtered
        tensors["t-freqs_filtered"] = np.full(len(filtered), link.get("freq", 1))
        tensors["t-versions_filtered"] = np.full(len(filtered), -1)
        if i:
            tensors["t-delta_of"] = np.array(f"c{i - 1}")
            tensors["t-keys_erased"] = sort(link.get("keys_erased", ()))
        write(folder / f"c{i}", tensors)
    return folder / f"c{len(links) - 1}"


@pytest.mark.parametrize("max_rows", [4, 5])
@pytest.mark.parametrize(
    "links",
    [
        [{"keys": range(6), "keys_erased": []}],
        [{"keys": range(4)}, {"keys": [4, 5]}],
        [{"keys": range(4)}, {"keys": [2, 9], "keys_erased": [0]}, {"keys": [0, 11]}],
        [{"keys": range(9)}, {"keys_erased": range(4)}],
        [{"keys": range(4)}, {"keys_filtered": [7, 8], "freq": 3}],
        [{"keys": range(4)}, {"keys_filtered": [7, 8], "freq": 2}],
        [{"keys": range(6)}, {"keys_filtered": [1, 2], "keys_erased": [1, 2]}],
    ],
    ids=["full", "more", "twice", "erased", "admitted", "filtered", "evicted"],
)
@pytest.mark.parametrize("has_padding_key", [False, True])
def test_a_chain_that_does_not_fit_leaves_a_full_table_as_it_was(
    make_table, tmp_path, links, max_rows, has_padding_key
):
    if has_padding_key:
        links = [{**links[0], "keys": [-1, *links[0]["keys"]]}, *links[1:]]
    path = write_chain(tmp_path, links)
    unlimited = make_table(DIM, name="u", filter_freq=3, has_padding_key=has_padding_key)
    unlimited.restore(path, BANK)
    rows = unlimited.size()
    table = make_table(DIM, BANK, max_rows=max_rows, filter_freq=3, has_padding_key=has_padding_key)
    train(table, [20, 20, 20, 21, 21, 21])
    before = contents(table)
    if rows <= max_rows:
        table.restore(path, BANK)
        assert contents(table, []) == contents(unlimited, [])
        return
    with pytest.raises(
        tf.errors.ResourceExhaustedError, match=f"at most {max_rows} rows, got {rows}"
    ):
        table.restore(path, BANK)
    assert contents(table) == before
    assert table.call("is_initialized")


@pytest.mark.long
def test_chains_of_random_changes_fit_or_are_refused(make_table, tmp_path):
    rng = np.random.default_rng(0)
    table = make_table(DIM, BANK, max_rows=6, filter_freq=3)
    unlimited = make_table(DIM, name="u", filter_freq=3)
    outcomes = set()
    for i in range(30):
        live, links = set(), []
        for _ in range(4):
            erased = {k for k in live if rng.random() < 0.3}
            added = set(rng.integers(0, 12, 3).tolist())
            filtered = set(rng.integers(0, 12, 2).tolist()) - added - (live - erased)
            live = (live - erased) | added
            links.append({"keys": added, "keys_erased": erased, "keys_filtered": filtered})
        folder = tmp_path / str(i)
        folder.mkdir()
        path = write_chain(folder, links)
        unlimited.restore(path, BANK)
        table.initialize(BANK)
        train(table, [20] * 3)
        before = contents(table)
        try:
            table.restore(path, BANK)
        except tf.errors.ResourceExhaustedError:
            assert unlimited.size() > 6 and contents(table) == before
            outcomes.add("refused")
        else:
            assert unlimited.size() <= 6 and contents(table, []) == contents(unlimited, [])
            outcomes.add("restored")
    assert outcomes == {"refused", "restored"}
