# SPDX-License-Identifier: Apache-2.0
"""shrink_ckpt_with_filtered_features: what it drops and keeps, its errors, and crashes."""

import contextlib
import os
import pathlib
import runpy
import signal
import sys
import tracemalloc

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.checkpoint.format.stored_tables import find_tables
from rec_estimator.tools.shrink_ckpt_with_filtered_features import ShrunkTable, main, shrink

SHARDS = [f"scope/user/part_{i}{slot}" for i in range(3) for slot in ("", "/Adam", "/Adam_1")]


def tensors_of(prefix):
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_tensors(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert np.shape(found[name]) == np.shape(array), name
        assert plain(found[name]) == plain(array), name


def plain(array):
    array = np.asarray(array)
    return array.tolist() if array.dtype == object else (array.dtype, array.tobytes())


def without_filtered(tensors, shards):
    """The oracle: the tensors of a shrunk checkpoint."""
    shrunk = dict(tensors)
    for shard in shards:
        for part in ("keys", "freqs", "versions"):
            name = f"{shard}-{part}_filtered"
            shrunk[name] = np.zeros([0], tensors[name].dtype)
        shrunk[f"{shard}-partition_filter_offset"] = np.zeros(1001, np.int32)
        for part in ("blocks", "counters", "layout", "generations"):
            shrunk.pop(f"{shard}-cbf_{part}", None)
    return shrunk


@pytest.mark.long
def test_filtered_features_are_dropped_and_all_else_is_kept(checkpoint, tmp_path):
    prefix, _ = checkpoint
    before = tensors_of(prefix)
    output = str(tmp_path / "shrunk")
    done = shrink(prefix, output)
    expected = without_filtered(before, [*SHARDS, "item"])
    assert_same_tensors(tensors_of(output), expected)
    assert_same_tensors(tensors_of(prefix), before)
    filtered = sum(len(before[f"scope/user/part_{i}-keys_filtered"]) for i in range(3))
    assert filtered > 50
    assert done.tables == [ShrunkTable("item", 50, 40), ShrunkTable("scope/user", 200, filtered)]
    sizes = [
        sum(path.stat().st_size for path in tmp_path.glob(f"{os.path.basename(stem)}.*"))
        for stem in (prefix, output)
    ]
    assert [done.bytes_before, done.bytes_after] == sizes
    assert sizes[1] < sizes[0]


@pytest.mark.long
def test_slots_of_tables_are_dropped_if_asked(checkpoint, tmp_path):
    prefix, _ = checkpoint
    outputs = [str(tmp_path / name) for name in ("shrunk", "served")]
    kept = shrink(prefix, outputs[0])
    dropped = shrink(prefix, outputs[1], drop_slots=True)
    expected = tensors_of(outputs[0])
    slots = [name for name in expected if "/Adam-" in name or "/Adam_1-" in name]
    assert len(slots) > 10
    for name in slots:
        del expected[name]
    assert_same_tensors(tensors_of(outputs[1]), expected)
    assert dropped.tables == kept.tables and dropped.bytes_after < kept.bytes_after


@pytest.mark.long
def test_tensors_keep_the_form_in_which_they_are_stored(checkpoint, tmp_path):
    prefix, _ = checkpoint
    shrink(prefix, tmp_path / "shrunk")
    before, after = (Bundle(path).tensors for path in (prefix, tmp_path / "shrunk"))
    for name in ("item-keys", "scope/user/part_1/Adam-values", "half", "names"):
        sums = [
            [(piece.key, piece.begin, piece.entry.crc32c) for piece in tensors[name].ranges]
            for tensors in (before, after)
        ]
        assert sums[0] == sums[1]


def test_bloom_filters_are_left_out(tmp_path, write_checkpoint, table_tensors):
    tensors = table_tensors("emb", range(100), [])
    tensors["emb-cbf_blocks"] = np.arange(5)
    tensors["emb-cbf_counters"] = np.ones([5, 64], np.uint8)
    tensors["emb-cbf_layout"] = np.array([1000, 64, 7, 8])
    tensors["emb-cbf_generations"] = np.array([[0, 0, 5]])
    tensors["other-cbf_blocks"] = np.arange(5)  # Belongs to no table.
    prefix = write_checkpoint(tmp_path / "model", tensors)
    shrink(prefix, tmp_path / "shrunk")
    assert_same_tensors(tensors_of(str(tmp_path / "shrunk")), without_filtered(tensors, ["emb"]))


def test_checkpoint_from_before_filters_is_copied(tmp_path, write_checkpoint):
    tensors = {"v-keys": np.arange(3), "v-values": np.ones([3, 2], np.float32)}
    prefix = write_checkpoint(tmp_path / "model", tensors)
    assert shrink(prefix, tmp_path / "shrunk").tables == [ShrunkTable("v", 3, 0)]
    assert_same_tensors(tensors_of(str(tmp_path / "shrunk")), tensors)


@pytest.mark.long
def test_shrinking_twice_equals_shrinking_once(checkpoint, tmp_path):
    prefix, _ = checkpoint
    shrink(prefix, tmp_path / "once")
    shrink(tmp_path / "once", tmp_path / "twice")
    for file in ("index", "data-00000-of-00001"):
        once, twice = ((tmp_path / f"{name}.{file}").read_bytes() for name in ("once", "twice"))
        assert once == twice


def build(shards):
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table = rec.get_embedding_variable("emb", 3, partitioner=partitioner)
    keys = tf.placeholder(tf.int64, [None])
    weight = tf.get_variable("weight", [3], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys) * weight - 1.0))
    step = tf.train.get_or_create_global_step()
    return keys, rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=step), table


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver])
@pytest.mark.parametrize(("shards", "sharded"), [(1, False), (3, True)])
def test_training_goes_on_from_the_copy_as_from_the_original(tmp_path, saver, shards, sharded):
    batches = np.random.default_rng(0).integers(-3000, 3000, [6, 40])
    with tf.Graph().as_default(), tf.Session() as session:
        keys, train, _ = build(shards)
        session.run(tf.global_variables_initializer())
        for batch in batches[:3]:
            session.run(train, {keys: batch})
        prefix = saver(sharded=sharded).save(session, str(tmp_path / "model"))
    done = shrink(prefix, tmp_path / "shrunk")
    assert done.tables == [ShrunkTable("emb", len(np.unique(batches[:3])), 0)]

    def train_on(prefix):
        with tf.Graph().as_default(), tf.Session() as session:
            keys, train, table = build(shards)
            saver(sharded=sharded).restore(session, str(prefix))
            for batch in batches[3:]:
                session.run(train, {keys: batch})
            return [part.tobytes() for part in session.run(table.export())]

    assert train_on(tmp_path / "shrunk") == train_on(prefix)


def test_restored_from_the_copy_filtered_features_count_from_zero(tmp_path):
    def build():
        option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(filter_freq=3))
        table = rec.get_embedding_variable("emb", 3, ev_option=option)
        keys = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys) - 1.0))
        step = tf.train.get_or_create_global_step()
        return keys, rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)

    def frequencies(prefix, part=""):
        reader = tf.train.load_checkpoint(str(prefix))
        names = (f"emb-{name}{part}" for name in ("keys", "freqs"))
        return dict(zip(*(reader.get_tensor(name).tolist() for name in names)))

    with tf.Graph().as_default(), tf.Session() as session:
        keys, train = build()
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [7, 7, 7, 7, 8, 8, -9]})
        prefix = rec.Saver().save(session, str(tmp_path / "model"))
    assert frequencies(prefix, "_filtered") == {8: 2, -9: 1}
    assert shrink(prefix, tmp_path / "shrunk").tables == [ShrunkTable("emb", 1, 2)]
    with tf.Graph().as_default(), tf.Session() as session:
        keys, train = build()
        rec.Saver().restore(session, str(tmp_path / "shrunk"))
        session.run(train, {keys: [7, 8, 8]})
        prefix = rec.Saver().save(session, str(tmp_path / "after"))
    assert frequencies(prefix) == {7: 5}
    assert frequencies(prefix, "_filtered") == {8: 2}


@pytest.mark.long
def test_memory_is_a_few_megabytes_whatever_the_form(tmp_path, write_checkpoint, table_tensors):
    prefix = write_checkpoint(
        tmp_path / "model", table_tensors("emb", range(150_000), range(150_000, 250_000), dim=64)
    )
    shrink(prefix, tmp_path / "warm")  # Makes the checksum tables, which stay.
    tracemalloc.start()
    try:
        done = shrink(prefix, tmp_path / "shrunk")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.bytes_before > 40 << 20
    # A chunk of 1 MiB, its transpose, and the index.
    assert peak < 6 << 20


@pytest.fixture
def small(tmp_path, write_checkpoint, table_tensors, monkeypatch):
    """Prefix of a checkpoint model/model.ckpt-1 in the working directory."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("model")
    return write_checkpoint("model/model.ckpt-1", table_tensors("emb", range(9), range(9, 20)))


def everything_in(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def checkpoint_state(write):
    tf.train.update_checkpoint_state("model", "model/model.ckpt-1")


def delta(write):
    tensors = tensors_of("model/model.ckpt-1")
    tensors["emb-delta_of"] = np.array(b"model.ckpt-1")
    tensors["emb-keys_erased"] = np.arange(2)
    write("model/model.ckpt-2", tensors)


@pytest.mark.parametrize(
    ("prepare", "source", "output", "error", "message"),
    [
        (None, "model/other", "out", FileNotFoundError, "model/other.index does not exist"),
        (None, "", "out", FileNotFoundError, "got ''"),
        (None, "model", "out", IsADirectoryError, "a folder; no file 'checkpoint' in it names"),
        (
            checkpoint_state,
            "model",
            "out",
            IsADirectoryError,
            "a folder; pass model/model.ckpt-1",
        ),
        (
            None,
            "model/model.ckpt-1.index",
            "out",
            ValueError,
            "one of its files; pass model/model.ckpt-1",
        ),
        (
            None,
            "model/model.ckpt-1.data-00000-of-00001",
            "out",
            ValueError,
            "one of its files; pass model/model.ckpt-1",
        ),
        (
            lambda write: pathlib.Path("old.ckpt").write_bytes(b"x"),
            "old.ckpt",
            "out",
            ValueError,
            "V1 format",
        ),
        (None, "model/model.ckpt-1", "model/model.ckpt-1", ValueError, "must differ"),
        (None, "model/model.ckpt-1", "./model/../model/model.ckpt-1", ValueError, "must differ"),
        (
            lambda write: os.symlink("model", "link"),
            "model/model.ckpt-1",
            "link/model.ckpt-1",
            ValueError,
            "must differ",
        ),
        (
            lambda write: os.symlink("model/model.ckpt-1.index", "link.index"),
            "model/model.ckpt-1",
            "link",
            ValueError,
            "must differ",
        ),
        (
            lambda write: os.link("model/model.ckpt-1.index", "hard.index"),
            "model/model.ckpt-1",
            "hard",
            FileExistsError,
            "do not exist, got 'hard'; remove them",
        ),
        (
            lambda write: os.symlink("nowhere", "dangling.index"),
            "model/model.ckpt-1",
            "dangling",
            FileExistsError,
            "do not exist",
        ),
        (
            lambda write: pathlib.Path("out.index.unfinished").write_bytes(b""),
            "model/model.ckpt-1",
            "out",
            FileExistsError,
            "in use, got out.index.unfinished; if no other run",
        ),
        (None, "model/model.ckpt-1", "model", IsADirectoryError, "pass model/model.ckpt"),
        (None, "model/model.ckpt-1", "model/", IsADirectoryError, "pass model/model.ckpt"),
        (None, "model/model.ckpt-1", "", ValueError, "got ''; pass model.ckpt"),
        (None, "model", "out", IsADirectoryError, "got 'model', a folder; no file 'checkpoint'"),
        (
            delta,
            "model/model.ckpt-2",
            "out",
            ValueError,
            "changed in 'emb' since model.ckpt-1; resume its training",
        ),
    ],
)
def test_bad_paths_are_refused_and_nothing_changes(
    small, write_checkpoint, capsys, prepare, source, output, error, message
):
    if prepare:
        prepare(write_checkpoint)
    before = everything_in(".")
    with pytest.raises(error, match=message):
        shrink(source, output)
    arguments = ["--input_checkpoint", source, "--output_checkpoint", output]
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("rec-estimator shrink: error: ")
    assert shown.err.count("\n") == 1
    assert everything_in(".") == before


@pytest.mark.parametrize("file", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_damaged_input_leaves_no_output(small, file, damage):
    path = pathlib.Path(f"{small}.{file}")
    data = bytearray(path.read_bytes())
    data[100] ^= damage == "flip"
    path.write_bytes({"flip": data, "cut": data[: len(data) // 2], "empty": b""}[damage])
    before = everything_in(".")
    with pytest.raises(tf.errors.DataLossError, match=f"model.ckpt-1.{file} is damaged"):
        shrink(small, "out")
    assert everything_in(".") == before


def test_full_disk_leaves_no_output(small, monkeypatch):
    before = everything_in(".")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        shrink(small, "out")
    assert everything_in(".") == before


@pytest.mark.parametrize(
    ("function", "call", "is_there"),
    [("fsync", 1, False), ("fsync", 2, False), ("replace", 1, False), ("replace", 2, False)]
    + [("fsync", 3, True)],
)
def test_killed_at_any_step_it_leaves_a_whole_checkpoint_or_none(small, function, call, is_there):
    expected = without_filtered(tensors_of(small), ["emb"])
    child = os.fork()
    if not child:
        signal.alarm(60)  # So that a hanging child ends.
        # Like kill -9 just before that call: no cleanup runs.
        original, left = getattr(os, function), [call]

        def killed(*arguments):
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            return original(*arguments)

        setattr(os, function, killed)
        with contextlib.suppress(BaseException):
            shrink(small, "out")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert os.path.exists("out.index") == is_there
    if not is_there:
        with pytest.raises(FileExistsError, match="one was killed: remove that file"):
            shrink(small, "out")
        for path in pathlib.Path().glob("out.*.unfinished"):
            path.unlink()
        shrink(small, "out")
    assert_same_tensors(tensors_of("out"), expected)


def test_command_says_what_it_did(small, capsys, monkeypatch):
    arguments = ["--input_checkpoint", small, "--output_checkpoint", "out"]
    monkeypatch.setattr(sys, "argv", ["shrink", *arguments])
    name = "rec_estimator.tools.shrink_ckpt_with_filtered_features"
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(name, run_name="__main__")
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "emb: 9 rows kept, 11 filtered keys dropped"
    sizes = [Bundle(prefix).nbytes / 1000 for prefix in ("out", small)]
    assert lines[1:] == [f"out: {sizes[0]:.1f} kB, was {sizes[1]:.1f} kB"]


def test_checkpoint_without_tables_is_copied(tmp_path, write_checkpoint, capsys):
    prefix = write_checkpoint(tmp_path / "model", {"w": np.ones(3, np.float32)})
    output = str(tmp_path / "out")
    assert main(["--input_checkpoint", prefix, "--output_checkpoint", output]) == 0
    assert capsys.readouterr().out.startswith("no tables in it\n")
    assert_same_tensors(tensors_of(output), {"w": np.ones(3, np.float32)})


def test_missing_argument_exits_with_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--input_checkpoint", "x"])
    assert stopped.value.code == 2
    assert "--output_checkpoint" in capsys.readouterr().err


def test_the_folder_of_the_output_is_made(small):
    shrink(small, "made/for/out.ckpt")
    assert find_tables(Bundle("made/for/out.ckpt"))["emb"].dim == 4
