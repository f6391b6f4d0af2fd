# SPDX-License-Identifier: Apache-2.0
"""inspect_checkpoint: its numbers against dicts, its output, its files and its errors."""

import csv
import os
import pathlib
import runpy
import sys
import tracemalloc

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.format.bundle import Bundle, format_bytes
from rec_estimator.checkpoint.format.index_file import identity_of
from rec_estimator.checkpoint.format.stored_tables import find_tables
from rec_estimator.tools import inspect_checkpoint
from rec_estimator.tools.inspect_checkpoint import (
    filtered_features,
    main,
    most_frequent,
    report,
)

PARTS = {
    "scope/user": [f"scope/user/part_{part}" for part in range(3)],
    "item": ["item"],
}


def column(tensors, table, suffix):
    return np.concatenate([tensors[f"{shard}-{suffix}"] for shard in PARTS[table]])


def expected_features(tensors, table):
    """The oracle: filtered features as (key, frequency, version), by key."""
    columns = [column(tensors, table, f"{part}_filtered") for part in ("keys", "freqs", "versions")]
    return sorted(zip(*(values.tolist() for values in columns)))


def run(capsys, *arguments):
    """Output of the command as lines."""
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_tables_are_found_with_their_shards_and_slots(checkpoint):
    prefix, _ = checkpoint
    tables = find_tables(Bundle(prefix))
    assert list(tables) == ["item", "scope/user"]
    user = tables["scope/user"]
    assert (user.dim, user.key_dtype, user.shards) == (4, tf.int64, PARTS["scope/user"])
    assert user.slots == {
        slot: [f"{shard}/{slot}" for shard in user.shards] for slot in ("Adam", "Adam_1")
    }
    assert (tables["item"].dim, tables["item"].key_dtype) == (1, tf.int32)
    assert (tables["item"].shards, tables["item"].slots) == (["item"], {})


def test_table_named_like_a_slot_is_a_table_if_it_has_a_bank(
    tmp_path, write_checkpoint, table_tensors
):
    tensors = {}
    for name in ("a", "a/Adagrad", "a/b", "a/b/Adagrad"):
        tensors.update(table_tensors(name, [1, 2], []))
    for name in ("a", "a/b"):
        tensors[f"{name}/default_values"] = np.zeros([8, 4], np.float32)
    tables = find_tables(Bundle(write_checkpoint(tmp_path / "m", tensors)))
    slots = {name: table.slots for name, table in tables.items()}
    assert slots == {"a": {"Adagrad": ["a/Adagrad"]}, "a/b": {"Adagrad": ["a/b/Adagrad"]}}


def test_more_than_ten_shards_are_in_order(tmp_path, write_checkpoint, table_tensors):
    tensors = {}
    for part in range(12):
        tensors.update(table_tensors(f"t/part_{part}", [part], []))
    tables = find_tables(Bundle(write_checkpoint(tmp_path / "m", tensors)))
    assert tables["t"].shards == [f"t/part_{part}" for part in range(12)]


@pytest.mark.parametrize("table", PARTS)
def test_report_has_the_numbers_of_the_tensors(checkpoint, table):
    prefix, tensors = checkpoint
    bundle = Bundle(prefix)
    found = report(bundle, find_tables(bundle)[table])
    assert found.rows == len(column(tensors, table, "keys"))
    assert found.filtered_keys == len(column(tensors, table, "keys_filtered"))
    versions = column(tensors, table, "versions")
    assert -1 in versions
    assert found.versions == (versions[versions >= 0].min(), versions.max())
    for histogram, suffix in (
        (found.frequencies, "freqs"),
        (found.filtered_frequencies, "freqs_filtered"),
    ):
        frequencies = column(tensors, table, suffix)
        for each in histogram.bins():
            inside = (each.low <= frequencies) & (frequencies <= each.high)
            assert each.keys == inside.sum()
        assert sum(each.keys for each in histogram.bins()) == len(frequencies)
    assert sum(found.nbytes.values()) == sum(
        array.nbytes
        for name, array in tensors.items()
        if name.startswith((f"{table}-", f"{table}/"))
    )
    assert found.nbytes["values"] == column(tensors, table, "values").nbytes
    assert found.notes == {}


@pytest.mark.parametrize("table", PARTS)
@pytest.mark.parametrize("rows", [1, 16, 1 << 17])
def test_filtered_features_are_listed_whole(checkpoint, monkeypatch, table, rows):
    monkeypatch.setattr(inspect_checkpoint, "_ROWS", rows)
    prefix, tensors = checkpoint
    bundle = Bundle(prefix)
    features = list(filtered_features(bundle, find_tables(bundle)[table]))
    assert sorted(features) == expected_features(tensors, table)


@pytest.mark.each_value
@pytest.mark.parametrize("top", [1, 5, 33, 1000])
@pytest.mark.parametrize("rows", [1, 16, 1 << 17])
def test_most_frequent_filtered_features_come_first_then_by_key(checkpoint, monkeypatch, top, rows):
    monkeypatch.setattr(inspect_checkpoint, "_ROWS", rows)
    prefix, tensors = checkpoint
    bundle = Bundle(prefix)
    expected = sorted(
        expected_features(tensors, "scope/user"), key=lambda feature: (-feature[1], feature[0])
    )
    assert most_frequent(bundle, find_tables(bundle)["scope/user"], top) == expected[:top]


def test_output_says_all_of_it(checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    prefix, tensors = checkpoint
    lines = run(capsys, prefix)
    own = ("item-", "scope/user/")
    of_tables = sum(array.nbytes for name, array in tensors.items() if name.startswith(own))
    assert lines[0].startswith(f"{prefix}: 2 tables, {format_bytes(of_tables)}, and ")
    assert lines[2:7] == [
        "item: dim 1, int32 keys",
        "  rows             50",
        "  filtered keys    40",
        "  versions         0 to 99" if 0 in tensors["item-versions"] else lines[5],
        f"  bytes            {format_bytes(own_bytes(tensors, 'item-'))}",
    ]
    user = lines[lines.index("scope/user: dim 4, int64 keys, 3 shards") :]
    adam = own_bytes(tensors, "scope/user/", "/Adam-")
    assert f"    slot Adam      {format_bytes(adam)}" in user
    assert "  frequency of rows" in user
    assert "  frequency of filtered keys" in user
    assert max(map(len, lines[2:])) == 80


def own_bytes(tensors, start, middle=""):
    return sum(
        array.nbytes for name, array in tensors.items() if name.startswith(start) and middle in name
    )


def test_output_fits_a_narrow_terminal(checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = run(capsys, checkpoint[0])
    assert max(map(len, lines[1:])) == 40


def test_one_table_is_shown_if_asked_for(checkpoint, capsys):
    lines = run(capsys, checkpoint[0], "--table", "item")
    assert [line for line in lines[1:] if line and not line.startswith(" ")] == [
        "item: dim 1, int32 keys"
    ]


@pytest.mark.long
def test_folder_stands_for_its_latest_checkpoint(checkpoint, capsys):
    prefix, _ = checkpoint
    folder = os.path.dirname(prefix)
    tf.train.update_checkpoint_state(folder, prefix)
    assert run(capsys, folder) == run(capsys, prefix)


def test_checkpoint_beside_a_folder_of_its_name_is_the_one_shown(
    tmp_path, write_checkpoint, table_tensors, capsys
):
    tensors = {**table_tensors("t", [1], []), "t-delta_of": np.array(b"parent")}
    prefix = write_checkpoint(tmp_path / "model", tensors)
    (tmp_path / "model").mkdir()
    inside = write_checkpoint(tmp_path / "model/inside", {"w": np.ones(3, np.float32)})
    tf.train.update_checkpoint_state(prefix, inside)
    lines = run(capsys, prefix)
    assert lines[0].startswith(f"{prefix}: 1 table, ")
    assert "  changes since  parent" in lines
    assert run(capsys, f"{prefix}/")[0].startswith(f"{inside}: 0 tables, ")


@pytest.mark.long
def test_filtered_features_are_shown(checkpoint, capsys):
    prefix, tensors = checkpoint
    lines = run(capsys, prefix, "--table", "item", "--filtered", "--top", 3)
    place = lines.index("  most frequent filtered features")
    expected = sorted(expected_features(tensors, "item"), key=lambda x: (-x[1], x[0]))[:3]
    assert lines[place + 1].split() == ["key", "frequency", "version"]
    assert [tuple(map(int, line.split())) for line in lines[place + 2 :]] == expected
    lines = run(capsys, prefix, "--table", "item", "--filtered", "--top", 40)
    assert lines[-42] == "  filtered features"


def test_csv_has_every_filtered_feature(checkpoint, tmp_path, capsys):
    prefix, tensors = checkpoint
    run(capsys, prefix, "--filtered", "--top", 1, "--csv", tmp_path / "a.csv")
    rows = rows_of(tmp_path / "a.csv")
    for table in PARTS:
        found = [
            (int(row["key"]), int(row["frequency"]), int(row["version"]))
            for row in rows
            if row["table"] == table
        ]
        assert sorted(found) == expected_features(tensors, table)
    assert {row["table"] for row in rows} == set(PARTS)


def test_csv_has_the_histograms(checkpoint, tmp_path, capsys):
    prefix, tensors = checkpoint
    run(capsys, prefix, "--csv", tmp_path / "a.csv")
    rows = rows_of(tmp_path / "a.csv")
    for table in PARTS:
        for kind, suffix in (("rows", "freqs"), ("filtered", "freqs_filtered")):
            frequencies = column(tensors, table, suffix)
            mine = [row for row in rows if (row["table"], row["kind"]) == (table, kind)]
            assert sum(int(row["keys"]) for row in mine) == len(frequencies)
            for row in mine:
                low, high = int(row["frequency_from"]), int(row["frequency_to"])
                inside = (low <= frequencies) & (frequencies <= high)
                assert int(row["keys"]) == inside.sum()


@pytest.mark.long
def test_png_is_drawn(checkpoint, tmp_path, capsys):
    run(capsys, checkpoint[0], "--png", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def deeprec_tensors(table_tensors):
    """As DeepRec saves without TF_RECORD_FREQ and steps_to_live, and as its old releases did."""
    tensors = table_tensors("var", range(20), range(20, 30))
    for name in ("freqs", "versions", "versions_filtered"):
        tensors[f"var-{name}"] = np.zeros([0], np.int64)
    tensors["old-keys"] = np.arange(5)
    tensors["old-values"] = np.ones([5, 2], np.float32)
    return tensors


def test_output_says_what_deeprec_did_not_record(tmp_path, write_checkpoint, table_tensors, capsys):
    tensors = deeprec_tensors(table_tensors)
    prefix = write_checkpoint(tmp_path / "m", tensors)
    arguments = ("--filtered", "--csv", tmp_path / "a.csv", "--png", tmp_path / "a.png")
    lines = run(capsys, prefix, *arguments)
    old, var = lines.index("old: dim 2, int64 keys"), lines.index("var: dim 4, int64 keys")
    assert old < var
    for shown in (lines[old:var], lines[var:]):
        assert any(line.split() == ["versions", "not", "recorded"] for line in shown)
        assert "  frequency of rows: not recorded" in shown
    assert "  no filtered features" in lines[old:var]
    assert all(line.endswith(" -") for line in lines[-10:])
    found = [(int(row["key"]), int(row["frequency"])) for row in rows_of(tmp_path / "a.csv")]
    expected = zip(tensors["var-keys_filtered"], tensors["var-freqs_filtered"])
    assert sorted(found) == sorted(expected)
    assert {row["version"] for row in rows_of(tmp_path / "a.csv")} == {""}


@pytest.mark.parametrize(("has_generations", "blocks"), [(True, "2,000"), (False, "1,000")])
def test_incremental_and_bloom_parts_are_shown(
    tmp_path, write_checkpoint, table_tensors, capsys, has_generations, blocks
):
    tensors = {}
    for part in range(2):
        shard = f"t/part_{part}"
        tensors.update(table_tensors(shard, [part, part + 1000], []))
        tensors[f"{shard}-delta_of"] = np.array(b"model.ckpt-7")
        tensors[f"{shard}-keys_erased"] = np.arange(3)
        tensors[f"{shard}-cbf_blocks"] = np.arange(5 + part)
        tensors[f"{shard}-cbf_counters"] = np.ones([5 + part, 64], np.uint8)
        tensors[f"{shard}-cbf_layout"] = np.array([1000, 64, 7, 8])
        if has_generations:
            tensors[f"{shard}-cbf_generations"] = np.array([[1, 90, 5], [0, 40, part]])
    lines = run(capsys, write_checkpoint(tmp_path / "m", tensors), "--filtered")
    for expected in (
        "features that the Bloom filter counts are not known by key",
        "changes since model.ckpt-7",
        "erased keys 6",
        f"Bloom filter 11 of {blocks} blocks, 64 cells of 8 bits each, 7 hashes",
        f"Bloom filter {format_bytes(11 * (8 + 64) + 2 * 8 * (4 + 6 * has_generations))}",
    ):
        assert expected in [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize(
    ("parent", "note"),
    [
        ("right", None),
        ("another one", "{0}/m-1 was written again or exchanged: {0}/m-2 holds the changes"),
        ("none", "{0}/m-1, to which {0}/m-2 holds the changes, is missing"),
    ],
)
def test_delta_with_a_missing_or_overwritten_parent_shows_the_problem(
    tmp_path, write_checkpoint, table_tensors, capsys, parent, note
):
    if parent != "none":
        write_checkpoint(tmp_path / "m-1", table_tensors("t", [1], []))
    identity = "12-0a1b2c3d"
    if parent == "right":
        identity = identity_of((tmp_path / "m-1.index").read_bytes())
    tensors = {"t-delta_of": np.array(b"m-1"), "t-delta_of_index": np.array(identity.encode())}
    prefix = write_checkpoint(tmp_path / "m-2", {**table_tensors("t", [2], []), **tensors})
    notes = [line for line in run(capsys, prefix) if line.startswith("  problem")]
    assert len(notes) == (note is not None)
    assert not notes or note.format(tmp_path) in notes[0]


def test_delta_with_a_cut_data_file_is_an_error(tmp_path, write_checkpoint, table_tensors, capsys):
    tensors = {**table_tensors("t", [], []), "t-delta_of": np.array(b"m-1")}
    prefix = write_checkpoint(tmp_path / "m-2", tensors)
    os.truncate(tmp_path / "m-2.data-00000-of-00001", 0)
    assert inspect_checkpoint.main([str(prefix)]) == 2
    assert "m-2.data-00000-of-00001 is damaged" in capsys.readouterr().err


def test_trained_table_is_shown_as_it_was_saved(tmp_path, capsys):
    table = rec.get_embedding_variable("emb", 3, partitioner=tf.fixed_size_partitioner(3))
    loss = tf.reduce_sum(rec.embedding_lookup(table, [5, 5, 5, -7, 9]))
    step = tf.train.get_or_create_global_step()
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            session.run(train)
        prefix = rec.Saver().save(session, str(tmp_path / "model"))
    lines = run(capsys, prefix, "--csv", tmp_path / "a.csv")
    assert lines[2] == "emb: dim 3, int64 keys, 3 shards"
    assert lines[3].split() == ["rows", "3"]
    assert lines[5].split() == ["versions", "3", "to", "3"]
    assert any(line.startswith("    slot Adagrad ") for line in lines)
    assert any(line.startswith("    initial values ") for line in lines)
    # Two keys with 4 occurrences, one with 12.
    assert [(row["frequency_from"], row["keys"]) for row in rows_of(tmp_path / "a.csv")] == [
        ("4", "2"),
        ("8", "1"),
    ]


def test_checkpoint_without_tables_has_none(tmp_path, write_checkpoint, capsys):
    prefix = write_checkpoint(tmp_path / "m", {"w": np.ones([7], np.float32)})
    assert run(capsys, prefix) == [f"{prefix}: 0 tables, 0 B, and 28 B of other tensors"]


def test_control_characters_of_names_are_escaped(tmp_path, write_checkpoint, table_tensors, capsys):
    name = "t\x1b[31m\n\u202e"
    tensors = table_tensors(name, [3], [], dim=2)
    printed = "\n".join(run(capsys, write_checkpoint(tmp_path / "m", tensors)))
    assert "t\\x1b[31m\\n\\u202e: dim 2" in printed
    assert all(character.isprintable() or character == "\n" for character in printed)


def test_empty_table_is_shown(tmp_path, write_checkpoint, table_tensors, capsys):
    prefix = write_checkpoint(tmp_path / "m", table_tensors("t", [], []))
    lines = run(capsys, prefix, "--filtered")
    assert [line.split() for line in lines[3:5]] == [["rows", "0"], ["filtered", "keys", "0"]]
    assert lines[-1] == "  no filtered features"


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere.index does not exist"),
        ([""], "checkpoint must be the prefix of a checkpoint, as model.ckpt-100 of"),
        (["."], "a folder; no file 'checkpoint' in it names one"),
        (["model.ckpt-100.index"], "one of its files; pass model.ckpt-100"),
        (["model.ckpt-100", "--table", "user"], r"one of ['item', 'scope/user'], got 'user'"),
        (["model.ckpt-100", "--top", "0"], "--top must be an integer in [1, 2147483647], got 0"),
        (["model.ckpt-100", "--csv", "no/a.csv"], "No such file or directory: 'no/a.csv'"),
        (["model.ckpt-100", "--png", "no/a.png"], "No such file or directory: 'no/a.png'"),
        (["model.ckpt-100", "--csv", "./model.ckpt-100.index"], "must not be files of the"),
        (["model.ckpt-100", "--png", "model.ckpt-100.data-00000-of-00001"], "must not be files of"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    checkpoint, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("rec-estimator inspect: error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_missing_matplotlib_is_an_error_in_one_line(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([checkpoint[0], "--png", str(tmp_path / "a.png")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "pip install rec_estimator[plot]\n" in shown.err


def test_damaged_frequencies_are_an_error_and_no_file_is_written(checkpoint, tmp_path, capsys):
    prefix, _ = checkpoint
    path = pathlib.Path(prefix + ".data-00000-of-00001")
    data = bytearray(path.read_bytes())
    data[Bundle(prefix).tensors["item-freqs_filtered"].ranges[-1].entry.offset] ^= 1
    path.write_bytes(data)
    assert main([prefix, "--filtered", "--csv", str(tmp_path / "a.csv")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "data-00000-of-00001 is damaged: the checksum of" in shown.err
    assert not (tmp_path / "a.csv").exists()


def test_closed_pipe_is_not_an_error(checkpoint, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main([checkpoint[0]]) == 0


def test_module_runs_as_a_program(checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["inspect", checkpoint[0]])
    name = "rec_estimator.tools.inspect_checkpoint"
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(name, run_name="__main__")
    assert stopped.value.code == 0
    assert ": 2 tables, " in capsys.readouterr().out


@pytest.mark.long
def test_memory_is_a_few_megabytes(tmp_path, write_checkpoint, table_tensors):
    prefix = write_checkpoint(
        tmp_path / "m", table_tensors("emb", range(800_000), range(800_000, 1_600_000), dim=1)
    )
    bundle = Bundle(prefix)
    table = find_tables(bundle)["emb"]
    tracemalloc.start()
    try:
        found = report(bundle, table)
        best = most_frequent(bundle, table, 20)
        assert next(filtered_features(bundle, table)).key in range(800_000, 1_600_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.rows, found.filtered_keys) == (800_000, 800_000)
    assert [feature.frequency for feature in best] == [4] * 20
    # Reads 40 MB of keys, counts and versions, one chunk of three columns at a time.
    assert peak < 12 << 20
