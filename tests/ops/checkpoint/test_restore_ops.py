# SPDX-License-Identifier: Apache-2.0
"""TableRestore: versions, filters, keys, slices, damaged and merged checkpoints."""

import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import (
    ADAGRAD,
    BANK,
    BLOOM,
    DIM,
    EDGE_KEYS,
    SAVE,
    contents,
    read,
    rows_of,
    train,
    write,
)

from rec_estimator import _ops
from rec_estimator.checkpoint.format.index_file import identity_of


@pytest.fixture
def trained(make_table):
    """A table whose keys occurred one to nine times, and the edge keys once."""
    table = make_table(DIM, BANK, name="trained", filter_freq=3)
    keys = np.repeat(np.arange(-40, 40), np.arange(80) % 9 + 1)
    for version, part in enumerate(np.array_split(np.random.default_rng(0).permutation(keys), 4)):
        train(table, part, version)
    train(table, EDGE_KEYS[2:], version=9)
    return table


# ------------------------------------------------------------------ versions


@pytest.mark.parametrize("version", [-1, 0, 77])
def test_every_key_gets_the_version_that_is_asked_for(make_table, trained, tmp_path, version):
    trained.save(tmp_path / "c")
    table = make_table(DIM, BANK, filter_freq=3)
    table.restore(tmp_path / "c", BANK, version=version)
    before, after = trained.export(), table.export()
    assert len(before["keys"]) and len(before["keys_filtered"])
    for name, values in before.items():
        expected = np.full_like(values, version) if name.startswith("versions") else values
        np.testing.assert_array_equal(after[name], expected, err_msg=name)


# ------------------------------------------------------------------ filters


@pytest.mark.parametrize("threshold", [0, 1, 2, 3, 5, 1000])
def test_admitted_keys_stay_and_filtered_keys_meet_the_new_threshold(
    make_table, trained, tmp_path, threshold
):
    trained.save(tmp_path / "c", slots=ADAGRAD)
    before = trained.export(ADAGRAD)
    table = make_table(DIM, BANK, filter_freq=threshold)
    table.restore(tmp_path / "c", BANK + 1, slots=ADAGRAD)
    after = table.export(ADAGRAD)
    rows = {key: i for i, key in enumerate(after["keys"])}
    stay = [rows.pop(key) for key in before["keys"]]
    for name in ("values", "Adagrad", "freqs", "versions"):
        np.testing.assert_array_equal(after[name][stay], before[name], err_msg=name)
    counted = before["freqs_filtered"]
    anew = counted >= threshold
    assert sorted(rows) == sorted(before["keys_filtered"][anew])
    for key, freq, version in zip(
        before["keys_filtered"][anew], counted[anew], before["versions_filtered"][anew]
    ):
        assert (after["freqs"][rows[key]], after["versions"][rows[key]]) == (freq, version)
        np.testing.assert_array_equal(after["values"][rows[key]], BANK[key % len(BANK)])
        np.testing.assert_array_equal(after["Adagrad"][rows[key]], np.full(DIM, 0.1, np.float32))
    for name in ("keys_filtered", "freqs_filtered", "versions_filtered"):
        np.testing.assert_array_equal(after[name], before[name][~anew], err_msg=name)


@pytest.mark.parametrize("threshold, freq", [(0, 1), (1, 1), (7, 7)])
def test_keys_without_counts_are_admitted_with_the_threshold_as_count(
    make_table, tmp_path, threshold, freq
):
    path = write(tmp_path / "c", {**rows_of([4, 5]), "t-freqs": np.zeros([0], np.int64)})
    table = make_table(DIM, filter_freq=threshold)
    table.restore(path, BANK)
    out = table.export()
    assert out["freqs"].tolist() == [freq] * 2 and out["versions"].tolist() == [-1] * 2


@pytest.mark.parametrize("filter_freq", [0, 3])
@pytest.mark.parametrize("suffix", ["", "_filtered"])
def test_a_negative_count_is_refused_and_changes_nothing(make_table, tmp_path, suffix, filter_freq):
    table = make_table(DIM, BANK, filter_freq=filter_freq)
    train(table, [1, 2, 2, 2], 5)
    before = contents(table)
    tensors = {**rows_of([4, 5]), "t-freqs": np.array([1, 1])}
    tensors["t-keys_filtered"], tensors["t-freqs_filtered"] = np.array([6, 7]), np.array([1, 1])
    tensors[f"t-freqs{suffix}"] = np.array([1, -7])
    path = write(tmp_path / "c", tensors)
    key = 7 if suffix else 5
    message = f"tensor t-freqs{suffix} of {path} must have counts >= 0, got -7 for key {key}"
    with pytest.raises(tf.errors.DataLossError, match=message):
        table.restore(path, BANK)
    assert contents(table) == before


@pytest.mark.parametrize("freq", [2**32 - 1, 2**32, 2**40, 2**63 - 1])
def test_counts_saturate_at_the_greatest_that_a_table_holds(make_table, tmp_path, freq):
    table = make_table(DIM, filter_freq=3)
    tensors = {**rows_of([4]), "t-freqs": np.array([freq]), "t-keys_filtered": np.array([6])}
    table.restore(write(tmp_path / "c", {**tensors, "t-freqs_filtered": np.array([1])}), BANK)
    assert table.frequencies([4]).tolist() == [2**32 - 1]
    train(table, [4, 4], 1)
    assert table.frequencies([4]).tolist() == [2**32 - 1]


def test_filtered_keys_without_counts_start_from_zero(make_table, tmp_path):
    tensors = {**rows_of([4]), "t-keys_filtered": np.array([6, 5])}
    table = make_table(DIM, filter_freq=2)
    table.restore(write(tmp_path / "c", tensors), BANK)
    out = table.export()
    assert out["keys_filtered"].tolist() == [5, 6]
    assert out["freqs_filtered"].tolist() == [0, 0]
    assert out["versions_filtered"].tolist() == [-1, -1]


def test_counts_of_a_counter_filter_go_into_the_bloom_filter(make_table, trained, tmp_path):
    trained.save(tmp_path / "c", slots=ADAGRAD)
    table = make_table(DIM, **BLOOM)
    table.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    before, after = trained.export(ADAGRAD), table.export(ADAGRAD)
    for name in ("keys", "values", "Adagrad", "freqs", "versions"):
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert after["keys_filtered"].size == 0
    # The filter has room for 10000 keys, so 80 keys do not collide.
    np.testing.assert_array_equal(
        table.frequencies(before["keys_filtered"]), before["freqs_filtered"]
    )


def bloom_tables(make_table, shards):
    """Returns the shards of a logical table, each trained with its keys, and all keys."""
    keys = np.random.default_rng(1).permutation(np.repeat(np.arange(300), np.arange(300) % 4 + 1))
    tables = [make_table(DIM, BANK, name=f"shard{i}", **BLOOM) for i in range(shards)]
    for i, table in enumerate(tables):
        train(table, keys[keys % 1000 % shards == i], version=2)
    return tables, np.arange(300)


@pytest.mark.parametrize("then, now", [(1, 1), (1, 3), (3, 1), (2, 5)])
def test_bloom_filters_of_any_shards_merge_into_those_of_any_other(make_table, tmp_path, then, now):
    tables, keys = bloom_tables(make_table, then)
    names = ["t"] if then == 1 else [f"t/part_{i}" for i in range(then)]
    tables[0].save(tmp_path / "c", others=tables[1:], names=names, slots=ADAGRAD)
    for part in range(now):
        table = make_table(DIM, name=f"now{part}", **BLOOM)
        table.restore(tmp_path / "c", BANK, part=part, num_parts=now, slots=ADAGRAD)
        mine = keys[keys % 1000 % now == part]
        np.testing.assert_array_equal(table.frequencies(mine), mine % 4 + 1)
        np.testing.assert_array_equal(np.sort(table.export()["keys"]), mine[mine % 4 >= 2])


def test_a_second_restore_does_not_double_the_counts(make_table, tmp_path):
    (table,), keys = bloom_tables(make_table, 1)
    table.save(tmp_path / "c", slots=ADAGRAD)
    for _ in range(2):
        table.restore(tmp_path / "c", BANK, slots=ADAGRAD)
        np.testing.assert_array_equal(table.frequencies(keys), keys % 4 + 1)


def aged_table(make_table):
    """A table with three generations, rows, counts, and an entry of an evicted key."""
    (table,), keys = bloom_tables(make_table, 1)
    train(table, [24, 24], version=2)  # Has a row, and one occurrence in cells.
    for version, more in ((3, [0, 4, 8, 12]), (6, [16, 20]), (8, [0, 1, 301])):
        train(table, more, version=version)
        table.evict(global_step=version + 1, steps_to_live=6)
    return table, keys


def test_generations_and_evicted_keys_of_a_bloom_filter_are_restored(make_table, tmp_path):
    table, keys = aged_table(make_table)
    table.save(tmp_path / "c", slots=ADAGRAD)
    generations = read(tmp_path / "c")["t-cbf_generations"]
    assert generations[:, :2].tolist() == [[2, 7], [1, 4], [0, 0]]
    assert (generations[1:, 2] > 0).all()
    restored = make_table(DIM, name="r", **BLOOM)
    restored.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert contents(restored) == contents(table)
    assert table.export()["keys_filtered"].tolist() == [24]
    np.testing.assert_array_equal(restored.frequencies(keys), table.frequencies(keys))
    restored.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert contents(restored) == contents(table)


def test_generations_of_several_shards_are_aligned_by_age(make_table, tmp_path):
    tables = [make_table(DIM, BANK, name=f"shard{part}", **BLOOM) for part in range(2)]
    for step in range(10):
        if step == 5:  # One shard rotates more often.
            tables[1].evict(global_step=step, steps_to_live=10)
        for part, table in enumerate(tables):
            train(table, [2 * step + part], version=step)
    for table in tables:
        table.evict(global_step=10, steps_to_live=10)
    names = ["t/part_0", "t/part_1"]
    tables[0].save(tmp_path / "c", others=tables[1:], names=names, slots=ADAGRAD)
    one = make_table(DIM, name="one", **BLOOM)
    one.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert (one.frequencies(np.arange(20)) == 1).all()
    one.save(tmp_path / "one", slots=ADAGRAD)
    generations = read(tmp_path / "one")["t-cbf_generations"]
    assert generations[:, :2].tolist() == [[2, 10], [1, 5], [0, 0]]
    # Each count is kept for 10 steps, and forgotten when its generation is over.
    one.evict(global_step=19, steps_to_live=10)
    assert (one.frequencies(np.arange(18, 20)) == 1).all()
    one.evict(global_step=20, steps_to_live=10)
    assert not one.frequencies(np.arange(20)).any()


def test_a_bloom_filter_of_an_earlier_release_begins_to_age(make_table, tmp_path):
    (table,), keys = bloom_tables(make_table, 1)
    table.save(tmp_path / "c", slots=ADAGRAD)
    tensors = read(tmp_path / "c")
    del tensors["t-cbf_generations"]
    # That release kept an entry of version -1 for each evicted key.
    evicted = np.arange(1000, 1100)
    tensors["t-keys_filtered"], tensors["t-freqs_filtered"] = evicted, evicted % 2
    tensors["t-versions_filtered"] = np.full(100, -1)
    del tensors["t-partition_filter_offset"]
    restored = make_table(DIM, name="r", **BLOOM)
    restored.restore(write(tmp_path / "old", tensors), BANK, slots=ADAGRAD)
    np.testing.assert_array_equal(restored.frequencies(keys), keys % 4 + 1)
    np.testing.assert_array_equal(restored.frequencies(evicted), evicted % 2)
    counted = keys[keys % 4 < 2]
    for step in (90, 95, 99):
        restored.evict(global_step=step, steps_to_live=10)
        np.testing.assert_array_equal(restored.frequencies(counted), counted % 4 + 1)
        assert restored.stats().total_count >= 100
    restored.evict(global_step=101, steps_to_live=10)
    assert restored.stats().total_count == 0
    assert not restored.frequencies(keys).any()


LOSING = {
    "counter": {"filter_freq": 3},
    "larger": {**BLOOM, "max_element_size": 200000},
    "more hashes": {**BLOOM, "false_positive_probability": 0.0001},
}
KEEPING = {
    "size": {**BLOOM, "max_element_size": 20000},
    "freq": {**BLOOM, "filter_freq": 100},
    "probability": {**BLOOM, "false_positive_probability": 0.01},
}


def loss_of(table, path):
    return table.call(
        "check_restore",
        np.array(str(path)),
        np.array(False),
        tensor_name="t",
        part=0,
        num_parts=1,
        slot_names=[],
        slot_widths=[],
        slot_initials=[],
    ).decode()


@pytest.mark.parametrize("change", [None, *LOSING])
def test_bloom_cells_that_a_filter_cannot_take_over_are_dropped(make_table, tmp_path, change):
    (table,), keys = bloom_tables(make_table, 1)
    table.save(tmp_path / "c", slots=ADAGRAD)
    restored = make_table(DIM, name="r", **LOSING.get(change, {}))
    loss = loss_of(restored, tmp_path / "c")
    restored.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert contents(restored) == contents(table)
    expected = np.where(keys % 4 >= 2, keys % 4 + 1, 0)
    np.testing.assert_array_equal(restored.frequencies(keys), expected)
    # Without a filter, no count matters.
    assert ("row of table r are dropped" in loss) == (change is not None)


@pytest.mark.parametrize("change", KEEPING)
def test_bloom_cells_of_another_layout_are_taken_over(make_table, tmp_path, change):
    (table,), keys = bloom_tables(make_table, 1)
    table.save(tmp_path / "c", slots=ADAGRAD)
    restored = make_table(DIM, name="r", **KEEPING[change])
    assert not loss_of(restored, tmp_path / "c")
    restored.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert contents(restored) == contents(table)
    counts, expected = restored.frequencies(keys), keys % 4 + 1
    assert (counts >= expected).all()
    # Cells of another number cover those of other keys, too.
    assert np.mean(counts == expected) > 0.99


def damaged_bloom(tensors):
    blocks, cells, layout = (tensors[f"t-cbf_{name}"] for name in ("blocks", "counters", "layout"))

    def generations(*rows):
        return {"t-cbf_generations": np.array(rows, np.int64)}

    n = len(blocks)
    return {
        "flat generations": {"t-cbf_generations": np.array([0, 0, n])},
        "no generation": {"t-cbf_generations": np.zeros([0, 3], np.int64)},
        "four generations": generations(*([3 - age, 0, n if age == 0 else 0] for age in range(4))),
        "too few blocks": generations([0, 0, n - 1]),
        "too many blocks": generations([0, 0, n + 1]),
        "negative blocks": generations([1, 0, n + 1], [0, 0, -1]),
        "generations with a gap": generations([2, 0, n], [0, 0, 0]),
        "generations in another order": generations([0, 0, n], [1, 0, 0]),
        "a generation before the first": generations([0, 0, n], [-1, 0, 0]),
        "an older generation that began later": generations([1, 5, n], [0, 6, 0]),
        "a start below 0": generations([0, -1, n]),
        "a start that cannot advance": generations([0, 2**63 - 1, n]),
        "a number that cannot advance": generations([2**63 - 1, 0, n]),
        "a layout of three": {"t-cbf_layout": layout[:3]},
        "a flat layout": {"t-cbf_layout": layout.reshape(2, 2)},
        "a block too many": {"t-cbf_blocks": np.append(blocks, 0)},
        "a block out of range": {"t-cbf_blocks": np.append(blocks[:-1], layout[0])},
        "a negative block": {"t-cbf_blocks": np.append([-1], blocks[1:])},
        "narrow blocks": {"t-cbf_counters": cells[:, :-1]},
        "a count too large": {"t-cbf_counters": cells + np.uint8(2 ** layout[3] - 1)},
        "wide counts": {"t-cbf_counters": cells.astype(np.uint16)},
        "no blocks": {"t-cbf_blocks": None},
        "no counts": {"t-cbf_counters": None},
    }


@pytest.mark.long
def test_a_damaged_bloom_filter_is_an_error_that_leaves_the_table_empty(make_table, tmp_path):
    (table,), keys = bloom_tables(make_table, 1)
    table.save(tmp_path / "c", slots=ADAGRAD)
    tensors = read(tmp_path / "c")
    restored = make_table(DIM, BANK, name="r", **BLOOM)
    for what, changed in damaged_bloom(tensors).items():
        bad = {k: v for k, v in {**tensors, **changed}.items() if v is not None}
        path = write(tmp_path / "bad", bad)
        with pytest.raises((tf.errors.DataLossError, tf.errors.InvalidArgumentError), match="cbf"):
            restored.restore(path, BANK, slots=ADAGRAD)
        assert restored.size() == 0, what
        assert not restored.frequencies(keys).any(), what


# ------------------------------------------------------------------ keys


def test_a_key_that_does_not_fit_the_type_of_the_table_is_an_error(make_table, tmp_path):
    table = make_table(DIM, BANK)
    for key in (2**31, -(2**31) - 1):
        for tensors in (rows_of([1, key]), {**rows_of([1]), "t-keys_filtered": np.array([key])}):
            path = write(tmp_path / "c", tensors)
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=f"t-keys.* fit into int32, got {key};"
            ):
                table.restore(path, BANK, key_dtype=tf.int32)
            assert table.stats().total_count == 0
    fits = [-(2**31), 2**31 - 1]
    table.restore(write(tmp_path / "c", rows_of(fits)), BANK, key_dtype=tf.int32)
    np.testing.assert_array_equal(np.sort(table.export()["keys"]), fits)


@pytest.mark.parametrize(
    "keys",
    [[5, 1005, 6, 5], [6, 5, 6], [1005, 5, 1005], [5, 5], [3, 2, 1, 1002, 2]],
    ids=str,
)
@pytest.mark.parametrize("ending", ["keys", "keys_filtered"])
def test_repeated_keys_are_data_loss_in_any_order(make_table, tmp_path, keys, ending):
    tensors = rows_of(keys) if ending == "keys" else rows_of([77])
    tensors[f"t-{ending}"] = np.array(keys)
    table = make_table(DIM, BANK, filter_freq=1000)
    with pytest.raises(tf.errors.DataLossError, match=f"t-{ending} .* must have distinct keys"):
        table.restore(write(tmp_path / "c", tensors), BANK)
    assert table.stats().total_count == 0


def test_a_key_that_is_admitted_and_filtered_is_data_loss(make_table, tmp_path):
    # The keys are not ordered, so only the table can detect the repeats.
    tensors = {**rows_of([5, 6]), "t-keys_filtered": np.array([9, 6, 5])}
    with pytest.raises(tf.errors.DataLossError, match="t-keys_filtered .* got 3 of which 1 are"):
        make_table(DIM, BANK).restore(write(tmp_path / "c", tensors), BANK)


def test_deeprecs_order_within_a_key_class_is_restored(make_table, tmp_path):
    keys = np.array([2000, 0, 1000, 3001, 1, 2], np.int64)
    offsets = np.searchsorted(keys % 1000, np.arange(1001)).astype(np.int32)
    tensors = {**rows_of(keys), "t-partition_offset": offsets}
    for empty in ("freqs", "versions"):
        tensors[f"t-{empty}"] = np.zeros([0], np.int64)
    table = make_table(DIM)
    table.restore(write(tmp_path / "c", tensors), BANK)
    np.testing.assert_array_equal(table.lookup(keys), tensors["t-values"])


# ------------------------------------------------------------------ slices


@pytest.mark.parametrize(
    "name, slices, kind, message",
    [
        ("t-values", ["9 3 0,4:0,3", "9 3 5,4:0,3"], "DataLoss", "a gap or an overlap at row 4"),
        ("t-values", ["9 3 0,4:0,3"], "DataLoss", "a gap or an overlap at row 4"),
        ("t-values", ["9 3 1,8:0,3"], "DataLoss", "a gap or an overlap at row 0"),
        ("t-values", ["9 3 0,9:0,2", "9 3 0,9:2,1"], "InvalidArgument", "between rows only"),
        ("t-keys", ["9 0,2", "9 3,6"], "DataLoss", "t-keys .* a gap or an overlap at row 2"),
    ],
)
def test_slices_with_gaps_or_overlaps_are_an_error(
    make_table, tmp_path, name, slices, kind, message
):
    path = write(tmp_path / "c", rows_of(np.arange(9)), {name: slices})
    table = make_table(DIM, BANK)
    with pytest.raises(getattr(tf.errors, f"{kind}Error"), match=message):
        table.restore(path, BANK)
    assert table.size() == 0


def test_slices_come_in_any_order_and_width(make_table, tmp_path):
    tensors = rows_of(np.arange(9))
    slices = {
        "t-values": ["9 3 6,3:0,3", "9 3 0,1:0,3", "9 3 1,5:0,3"],
        "t-keys": ["9 5,4", "9 0,5"],
    }
    table = make_table(DIM)
    table.restore(write(tmp_path / "c", tensors, slices), BANK)
    np.testing.assert_array_equal(table.lookup(np.arange(9)), tensors["t-values"])


# ------------------------------------------------------------------ damage


@pytest.fixture
def stored(make_table, tmp_path):
    """A folder with a chain of two checkpoints, written in slices, and the restored contents."""
    table = make_table(DIM, BANK, name="stored", **BLOOM)
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 60000)
    train(table, np.concatenate([keys] * 3 + [EDGE_KEYS]))
    table.save(tmp_path / "a", **SAVE)
    table.commit_save()
    train(table, [*keys[:100], *range(50)], version=3)
    identity = identity_of((tmp_path / "a.index").read_bytes())
    table.save(tmp_path / "b", **SAVE, delta_of=["a", identity])
    return tmp_path, contents(table)


def damages(rng, good):
    size = len(good)
    for cut_at in [0, 1, *rng.integers(0, size, 3), size - 1]:
        yield good[:cut_at]
    for at in [0, *rng.integers(0, size, 25), size - 1]:
        yield good[:at] + bytes([good[at] ^ (1 << int(rng.integers(8)))]) + good[at + 1 :]


@pytest.mark.parametrize("file", ["a.index", "b.index", "b.data-00000-of-00001"])
def test_damage_anywhere_is_an_error_or_does_no_harm(make_table, stored, file):
    folder, expected = stored
    empty = make_table(DIM, BANK, name="empty", **BLOOM)
    good = (folder / file).read_bytes()
    refused = 0
    for bad in damages(np.random.default_rng(1), good):
        (folder / file).write_bytes(bad)
        try:
            empty.restore(folder / "b", BANK, slots=ADAGRAD)
        except tf.errors.DataLossError as error:
            assert str(folder) in str(error)
            refused += 1
            assert empty.stats().total_count == 0
            continue
        # The bit belongs to padding or to a tensor that is not read, such as a slot's counts.
        assert contents(empty) == expected
        empty.initialize(BANK)
    assert refused > 10


def test_damage_of_a_large_file_is_detected_before_a_row_is_lost(make_table, stored):
    folder, expected = stored
    full = make_table(DIM, BANK, name="full", **BLOOM)
    train(full, [1, 1, 1, 2])
    before = contents(full)
    rng = np.random.default_rng(2)
    data = folder / "a.data-00000-of-00001"
    size = data.stat().st_size
    with open(data, "r+b") as file:
        # The file starts with the bank, which is read first.
        for at in [0, 30, *rng.integers(size // 100, size, 6)]:
            file.seek(int(at))
            good = file.read(1)
            file.seek(int(at))
            file.write(bytes([good[0] ^ 64]))
            file.flush()
            try:
                full.restore(folder / "b", BANK, slots=ADAGRAD)
            except tf.errors.DataLossError as error:
                assert f"{data}" in str(error)
                assert contents(full) == before
            else:
                assert contents(full) == expected
                full.initialize(BANK)
                train(full, [1, 1, 1, 2])
            file.seek(int(at))
            file.write(good)
            file.flush()
    with open(data, "r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(tf.errors.DataLossError, match=rf"{data}, got a file of {size - 1} bytes"):
        full.restore(folder / "b", BANK, slots=ADAGRAD)
    assert contents(full) == before


NONSENSE = [
    np.zeros([0], np.int64),
    np.zeros([0, 0], np.float32),
    np.zeros([3, 0], np.float32),
    np.zeros([1001], np.int32),
    np.full([1001], -1, np.int32),
    np.full([2], 2**62),
    np.full([5], -(2**63)),
    np.full([4], 2**63 - 1),
    np.full([2, DIM], np.nan, np.float32),
    np.zeros([1, 2**16], np.float32),
    np.array(2**40),
    np.array("a"),
    np.array(["x", "y"]),
    np.zeros([1, 1, 1], np.complex64),
]


@pytest.mark.long
def test_a_tensor_replaced_by_nonsense_is_an_error_or_ignored(make_table, tmp_path):
    table = make_table(DIM, BANK, name="stored", **BLOOM)
    train(table, [1, 1, 1, 2, 3, 1002])
    table.save(tmp_path / "a", **SAVE)
    table.commit_save()
    train(table, [2, 2, 2, 4])
    table.save(tmp_path / "b", **SAVE, delta_of="a")
    good = read(tmp_path / "b")
    empty = make_table(DIM, BANK, name="empty", **BLOOM)
    refused = set()
    rng = np.random.default_rng(0)
    for name in good:
        for i in rng.choice(len(NONSENSE), 6, replace=False):
            nonsense = NONSENSE[i]
            path = write(tmp_path / "c", {**good, name: nonsense})
            try:
                empty.restore(path, BANK, slots=ADAGRAD)
            except tf.errors.OpError as error:
                assert name in str(error) or "t-" in str(error)
                assert empty.stats().total_count == 0
                refused.add(name)
            empty.initialize(BANK)
    # The counts and versions of a slot are not read, because the row has its own.
    assert {name for name in good if "Adagrad" not in name} == refused - {
        name for name in refused if "Adagrad" in name
    }
    assert {"t/Adagrad-keys", "t/Adagrad-values", "t/Adagrad-partition_offset"} <= refused


def test_a_missing_data_file_is_an_error_naming_it(make_table, stored):
    folder, _ = stored
    (folder / "a.data-00000-of-00001").unlink()
    with pytest.raises(tf.errors.NotFoundError, match="a.data-00000-of-00001"):
        make_table(DIM, BANK, **BLOOM).restore(folder / "b", BANK, slots=ADAGRAD)


def test_files_of_a_merged_checkpoint_are_read(make_table, session, trained, tmp_path):
    trained.save(tmp_path / "t0", slots=ADAGRAD, names=["t"])
    write(tmp_path / "other", {"dense": np.ones([3])})
    shutil.copytree(tmp_path, tmp_path / "copy")
    merge = tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / "other"), str(tmp_path / "t0")],
        destination_prefix=str(tmp_path / "merged"),
        delete_old_dirs=False,
    )
    session.run(merge)
    table = make_table(DIM, filter_freq=3)
    table.restore(tmp_path / "merged", BANK, slots=ADAGRAD)
    assert contents(table) == contents(trained)
    table.restore(tmp_path / "copy" / "t0", BANK, slots=ADAGRAD)
    assert contents(table) == contents(trained)


def test_a_failed_restore_keeps_the_bank(make_table, tmp_path):
    # The keys are not ordered, so the repeated key is detected at the end.
    path = write(tmp_path / "c", {**rows_of([5, 4, 5]), "t/default_values": BANK + 7})
    table = make_table(DIM, BANK)
    with pytest.raises(tf.errors.DataLossError, match="distinct"):
        table.restore(path, BANK + 3)
    assert table.size() == 0
    np.testing.assert_array_equal(table.lookup([4, 5]), BANK[[4, 0]])


def test_restore_refuses_other_key_types():
    handle = _ops.gen.rec_estimator_table_handle(shared_name="t", dim=DIM)
    with pytest.raises(TypeError, match="key_dtype"):
        _ops.gen.rec_estimator_table_restore(
            handle, "p", BANK, tensor_name="t", part=0, num_parts=1, key_dtype=tf.float32,
            slot_names=[], slot_widths=[], slot_initials=[],
        )  # fmt: skip
