# SPDX-License-Identifier: Apache-2.0
"""TablesSave: full and incremental saves, errors, and the memory they take."""

import json
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import (
    ADAGRAD,
    BANK,
    BLOOM,
    DIM,
    assert_same,
    read,
    tensors_of,
    train,
    train_randomly,
)

from rec_estimator import _ops


@pytest.fixture
def trained(make_table):
    return train_randomly(make_table(DIM, BANK))


# ------------------------------------------------------------------ full saves


def test_a_save_holds_the_bits_of_an_export(trained, tmp_path):
    trained.save(tmp_path / "c", slots=ADAGRAD)
    assert_same(read(tmp_path / "c"), tensors_of(trained))


def test_an_empty_table_is_saved_with_empty_tensors(make_table, tmp_path):
    table = make_table(DIM, BANK)
    table.save(tmp_path / "c", slots=ADAGRAD)
    assert_same(read(tmp_path / "c"), tensors_of(table))


def test_a_table_of_many_slices_reads_like_one_of_a_stock_saver(make_table, session, tmp_path):
    table = make_table(DIM, BANK)
    table.save(tmp_path / "empty", slots=ADAGRAD)
    train(table, np.random.default_rng(0).integers(-(2**62), 2**62, 100000), version=1)
    table.save(tmp_path / "c", slots=ADAGRAD)
    expected = tensors_of(table)
    whole, sliced = (len(files(tmp_path)[f"{name}.index"]) for name in ("empty", "c"))
    assert sliced > 1.5 * whole, "the index must have entries of slices"
    assert_same(read(tmp_path / "c"), expected)
    # A slice can be restored too, as a Saver of partitioned variables does.
    values = expected["t-values"]
    n = len(values)
    part = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "c"),
        tensor_names=["t-values"],
        shape_and_slices=[f"{n} {DIM} 1000,{n - 2000}:0,{DIM}"],
        dtypes=[tf.float32],
    )
    np.testing.assert_array_equal(session.run(part)[0], values[1000 : n - 1000])


def test_a_missing_slot_is_saved_as_its_initial_value(trained, tmp_path):
    slots = [("other", 2, 0.75), *ADAGRAD]
    trained.save(tmp_path / "c", slots=slots)
    assert_same(read(tmp_path / "c"), tensors_of(trained, slots=slots))


def test_tables_of_one_file_keep_their_own_slots_types_and_banks(make_table, trained, tmp_path):
    narrow = make_table(DIM, BANK + 1, name="u")
    train(narrow, [-(2**31), 2**31 - 1, 7])
    trained.save(
        tmp_path / "c", others=[narrow], names=["a", "b/part_0"],
        bank_names=["a/default_values", ""], key_dtypes=[tf.int64, tf.int32], num_slots=[1, 0],
        slot_names=["Adagrad"], slot_widths=[DIM], slot_initials=[0.1],
    )  # fmt: skip
    expected = {**tensors_of(trained, "a"), **tensors_of(narrow, "b/part_0", slots=[])}
    del expected["b/part_0/default_values"]
    for name in ("b/part_0-keys", "b/part_0-keys_filtered"):
        expected[name] = expected[name].astype(np.int32)
    assert_same(read(tmp_path / "c"), expected)


@pytest.mark.parametrize(
    "value, saved", [(None, True), ("True", True), ("False", False), ("false", False), ("0", False)]
)
def test_filtered_keys_are_saved_unless_the_environment_says_no(
    make_table, tmp_path, monkeypatch, value, saved
):
    if value is not None:
        monkeypatch.setenv("TF_EV_SAVE_FILTERED_FEATURES", value)
    table = make_table(DIM, BANK, filter_freq=2)
    train(table, [1, 1, 2, 1003, -1], version=4)
    table.save(tmp_path / "c", slots=ADAGRAD)
    tensors = read(tmp_path / "c")
    assert_same(tensors, tensors_of(table))
    assert tensors["t-keys"].tolist() == [1]
    for source in ("t", "t/Adagrad"):
        filtered = [2, 1003, -1] if saved else []
        assert tensors[f"{source}-keys_filtered"].tolist() == filtered
        assert tensors[f"{source}-freqs_filtered"].tolist() == [1] * len(filtered)
        assert tensors[f"{source}-versions_filtered"].tolist() == [4] * len(filtered)
        assert tensors[f"{source}-partition_filter_offset"][-1] == len(filtered)


@pytest.mark.long
def test_keys_listed_in_several_parts_are_complete_and_ordered(make_table, tmp_path):
    # More keys than one list holds. They do not own rows, so the table stays small.
    n = 2_700_000
    table = make_table(DIM, BANK, filter_freq=2)
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, n)
    table.apply("GradientDescent", [0.1], [], np.zeros([0, DIM]), counted_keys=keys, version=1)
    table.save(tmp_path / "c")
    tensors = read(tmp_path / "c")
    expected = np.unique(keys)
    saved = tensors["t-keys_filtered"]
    np.testing.assert_array_equal(saved, expected[np.lexsort([expected, expected % 1000])])
    classes = np.bincount(saved % 1000, minlength=1000)
    np.testing.assert_array_equal(np.diff(tensors["t-partition_filter_offset"]), classes)
    assert tensors["t-freqs_filtered"].min() == tensors["t-versions_filtered"].max() == 1


@pytest.mark.parametrize(
    "freq, dtype", [(3, np.uint8), (200, np.uint8), (300, np.uint16), (70000, np.uint32)]
)
def test_a_bloom_filter_is_saved_as_its_touched_blocks(make_table, tmp_path, freq, dtype):
    table = make_table(DIM, BANK, **{**BLOOM, "filter_freq": freq})
    train(table, [1, 2, 2, 3])
    table.save(tmp_path / "c", slots=ADAGRAD)
    tensors = read(tmp_path / "c")
    layout = tensors["t-cbf_layout"]
    numbers, cells = tensors["t-cbf_blocks"], tensors["t-cbf_counters"]
    assert layout.dtype == numbers.dtype == np.int64 and cells.dtype == dtype
    assert layout[3] in (4, 8, 16, 32) and 2 ** layout[3] > freq
    assert cells.shape == (len(numbers), layout[1])
    assert 1 <= len(numbers) <= 3 and (np.diff(numbers) > 0).all()
    assert numbers[0] >= 0 and numbers[-1] < layout[0]
    # Each key raises the cells of its hashes to its count. Two keys may share a cell.
    assert cells.max() == 2 and 0 < np.count_nonzero(cells) <= 3 * layout[2]
    no_slots = {"num_slots": 0, "slot_names": [], "slot_widths": [], "slot_initials": []}
    types = [tf.int64, tf.int64, tf.int64, tf.as_dtype(dtype)]
    export = table.call("export", dim=DIM, sketch_types=types, **no_slots)
    expected = [layout, [[0, 0, len(numbers)]], numbers, cells]
    for array, value in zip(export.sketch, expected):
        np.testing.assert_array_equal(array, value)
    np.testing.assert_array_equal(tensors["t-cbf_generations"], expected[1])
    assert export.bloom_blocks.size == export.bloom_counters.size == 0
    # A graph of an older release.
    export = table.call("export", dim=DIM, bloom_type=tf.as_dtype(dtype), **no_slots)
    older = [export.bloom_layout, export.bloom_generations]
    for array, value in zip([*older, export.bloom_blocks, export.bloom_counters], expected):
        np.testing.assert_array_equal(array, value)
    assert export.sketch == []


def test_an_export_with_counters_of_another_type_is_an_error(make_table):
    table = make_table(DIM, BANK, **{**BLOOM, "filter_freq": 300})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="bloom_type must be .* uint16, got ui"
    ):
        table.export()
    types = [tf.int64, tf.int64, tf.int64, tf.uint8]
    message = "sketch_types must be those of table"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{message}.* uint16, got .* uint8"):
        table.export(sketch_types=types)
    counter = make_table(DIM, BANK, name="counter", filter_freq=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        counter.export(sketch_types=types)


def test_a_save_during_applies_is_consistent_per_row(make_table, tmp_path):
    # Value and slot of a row follow from the number of applies, so a torn row is detected.
    table = make_table(DIM, np.zeros([1, DIM]))
    slots = [("Momentum", DIM, 0.0)]
    keys = np.arange(3000)

    def step():
        # Momentum 1 without decay: after n steps of -1, the slot is -n and the value n (n + 1) / 2.
        table.apply("Momentum", [1.0, 1.0, 0.0], keys, -np.ones([3000, DIM]), slots=slots)

    step()
    table.save(tmp_path / "c", slots=slots)
    trainer = threading.Thread(target=lambda: [step() for _ in range(30)])
    trainer.start()
    torn = 0
    while trainer.is_alive():
        table.save(tmp_path / "c", slots=slots)
        out = read(tmp_path / "c")
        n = -out["t/Momentum-values"]
        torn += np.count_nonzero(out["t-values"] != n * (n + 1) / 2)
        torn += np.count_nonzero(out["t-freqs"] != n[:, 0])
    trainer.join()
    assert torn == 0


def test_concurrent_saves_restores_and_applies_do_not_deadlock(make_table, tmp_path):
    # A save holds all locks of the table. A restore waits for them on threads of the same pool.
    table = make_table(DIM, BANK)
    keys = np.arange(40000)
    train(table, keys)
    table.save(tmp_path / "c", slots=ADAGRAD)
    expected = read(tmp_path / "c")

    def lookup_or_be_refused():
        try:
            table.lookup(keys)
        except tf.errors.AbortedError as error:
            assert "is being restored" in error.message

    works = [
        lambda: table.save(tmp_path / "d", slots=ADAGRAD),
        lambda: table.restore(tmp_path / "c", BANK, slots=ADAGRAD),
        lambda: table.restore(tmp_path / "c", BANK, slots=ADAGRAD),
        lambda: train(table, keys),
        lookup_or_be_refused,
    ]
    for work in works:
        work()  # Builds the op now, because threads must not change a graph at the same time.
    done = []

    def repeat(work):
        for _ in range(5):
            work()
        done.append(work)

    threads = [threading.Thread(target=repeat, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(works)
    table.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert_same(tensors_of(table), expected)


# ------------------------------------------------------------------ errors


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "attrs, message",
    [
        ({"names": ["t", "u"]}, "tensor_names, key_dtypes, .* length N = 1, got 2, 1, 2 and 1"),
        ({"key_dtypes": []}, "of length N = 1, got 1, 0, 1 and 1"),
        ({"bank_names": []}, "of length N = 1, got 1, 1, 0 and 1"),
        ({"num_slots": []}, "of length N = 1, got 1, 1, 1 and 0"),
        ({"num_slots": [2]}, "num_slots must be >= 0 and in sum the length 1 of slot_names, got 2"),
        ({"num_slots": [-1]}, "num_slots must be >= 0 .* got -1"),
        ({"num_slots": [0]}, "must be of length 0, the sum of num_slots, got 1, 1 and 1"),
        ({"slot_widths": []}, "must be of length 1, the sum of num_slots, got 1, 0 and 1"),
        ({"slot_widths": [0]}, "slot_widths must be >= 1 .* got 0 for slot Adagrad"),
        ({"slot_widths": [4]}, "slot_widths must be those of table t, 3 for slot Adagrad, got 4"),
        ({"slot_names": [""]}, "slot_names must be distinct and not empty, got '' at 0"),
        ({"names": [""]}, "tensor_names must be distinct and not empty, got '' at 0"),
        (
            {"delta_of": "../c"},
            "delta_of must be the name of a checkpoint in the folder of prefix, got ../c",
        ),
    ],
    ids=str,
)
def test_invalid_arguments_are_an_error_and_leave_no_file(trained, tmp_path, attrs, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        trained.save(tmp_path / "c", **{"slots": ADAGRAD, **attrs})
    assert files(tmp_path) == {}


@pytest.mark.parametrize("prefix", ["", "/", "folder/"])
def test_a_prefix_must_name_a_file(trained, prefix):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"must name a file, got '{prefix}'"):
        trained.save(prefix)


@pytest.mark.parametrize("name, shape", [("prefix", [2]), ("delta_of", [3]), ("delta_of", [1, 2])])
def test_prefix_and_parent_must_have_their_shapes(trained, name, shape):
    inputs = {"prefix": np.array("c"), "delta_of": np.array("")}
    inputs[name] = np.full(shape, "a")
    fed = {tf.placeholder(tf.string): value for value in inputs.values()}
    attrs = {"tensor_names": ["t"], "key_dtypes": [tf.int64], "bank_names": [""], "num_slots": [0]}
    attrs.update(slot_names=[], slot_widths=[], slot_initials=[])
    save = _ops.gen.rec_estimator_tables_save([trained.handle], *fed, **attrs)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"{name} must be \[\].*, got shape \["
    ):
        trained.session.run(save, fed)
    if shape != [3]:
        with pytest.raises(ValueError, match="Shape must be (at most )?rank [01]"):
            _ops.gen.rec_estimator_tables_save([trained.handle], **inputs, **attrs)


def test_saving_before_initialization_names_table_and_remedy(make_table, tmp_path):
    message = "table t must be initialized before it is saved.*global_variables_initializer"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        make_table(DIM).save(tmp_path / "c")
    assert files(tmp_path) == {}


def test_a_save_that_fails_leaves_the_checkpoint_before_as_it_was(make_table, trained, tmp_path):
    trained.save(tmp_path / "c", slots=ADAGRAD)
    before = files(tmp_path)
    message = "keys of table t must fit into int32 to be saved so, got -?[0-9]{10}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        trained.save(tmp_path / "c", slots=ADAGRAD, key_dtypes=[tf.int32])
    assert files(tmp_path) == before
    with pytest.raises(tf.errors.InvalidArgumentError, match="duplicate key: t/default_values"):
        trained.save(
            tmp_path / "c", others=[make_table(DIM, BANK, name="u")], names=["t", "u"],
            bank_names=["t/default_values"] * 2,
        )  # fmt: skip
    assert files(tmp_path) == before


def test_a_folder_that_cannot_be_created_is_an_error(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tf.errors.OpError, match="file"):
        trained.save(tmp_path / "file" / "c")
    with pytest.raises(tf.errors.OpError, match="nowhere"):
        trained.save(tmp_path / "nowhere" / "at" / "c")


# ------------------------------------------------------------------ memory

CHILD = """
import json, os, pathlib, resource, signal, sys
import numpy as np
import tensorflow.compat.v1 as tf
from rec_estimator import _ops

tf.disable_eager_execution()
gen, folder, dim = _ops.gen, sys.argv[1], 16
# One row of ten in memory, the others in files in the given folder.
storage = [dict(storage_paths=[path], memory_rows=150000) for path in sys.argv[2:]]
session = tf.Session()
bank = np.zeros([4096, dim], np.float32)
slot = dict(slot_names=["Adagrad"], slot_widths=[dim], slot_initials=[0.1])

def handle(name):
    return gen.rec_estimator_table_handle(shared_name=name, dim=dim, **(storage or [{}])[0])

def fill(rows):
    session.run(gen.rec_estimator_table_initialize(handle("t"), bank))
    keys = tf.random.uniform([50000], -(2**62), 2**62, tf.int64)
    grads = tf.ones([50000, dim])
    step = gen.rec_estimator_tables_apply(
        gen.rec_estimator_tables_reserve([handle("t")], [keys], [[]], rule="Adagrad", **slot)[0],
        [grads], tf.constant(1, tf.int64), [0.1],
    )
    for _ in range(rows // 50000):
        session.run(step)

def save():
    session.run(
        gen.rec_estimator_tables_save(
            [handle("t")], f"{folder}/c", "", tensor_names=["t"], key_dtypes=[tf.int64],
            bank_names=["t/default_values"], num_slots=[1], **slot,
        )
    )

def restore(name):
    session.run(
        gen.rec_estimator_table_restore(
            handle(name), f"{folder}/c", bank, tensor_name="t", part=0, num_parts=1, **slot
        )
    )

def bytes_of(name):
    return int(session.run(gen.rec_estimator_table_stats(handle(name)).memory_bytes))

def growth(work):
    # Peak memory of the process during work() minus its memory before, in bytes.
    def field(name):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = field("VmRSS")
    work()
    return field("VmHWM") - before

fill(1500000)
save()  # The first call also allocates memory that TensorFlow keeps.
print(json.dumps({
    "saving": growth(save),
    "restoring": growth(lambda: restore("u")),
    "table": bytes_of("t"),
    "restored": bytes_of("u"),
}))
# Simulates a full disk by a limit on the size of files. The limit holds for the whole process.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 20, resource.RLIM_INFINITY))
before = sorted(os.listdir(folder))
try:
    save()
except tf.errors.OpError as error:
    left = sorted(os.listdir(folder)) == before
    print(json.dumps({"refused": error.message, "left": left}))
"""


@pytest.fixture(scope="module", params=["in memory", "on disk"])
def large_table(request, tmp_path_factory):
    """Memory and errors of saving and restoring a table of 250 MB, measured in a subprocess."""
    folder = tmp_path_factory.mktemp("large")
    rows = [str(tmp_path_factory.mktemp("rows"))] if request.param == "on disk" else []
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), *rows],
        cwd=pathlib.Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = {
        name: value for line in done.stdout.splitlines() for name, value in json.loads(line).items()
    }
    assert (found["table"] > 200 << 20) == (not rows), "which is in memory"
    return found


@pytest.mark.long
def test_saving_and_restoring_take_little_memory_beside_the_table(large_table):
    most = (64 << 20) + large_table["table"] // 100
    assert large_table["saving"] < most
    assert large_table["restoring"] < large_table["restored"] + most


@pytest.mark.long
def test_a_full_disk_is_an_error_that_leaves_what_was_there(large_table):
    assert "File too large" in large_table["refused"]
    assert large_table["left"]


# ------------------------------------------------------------------ changes


def test_an_incremental_save_before_a_full_one_is_refused(trained, tmp_path):
    message = "table t must be saved in full, with track_changes, before its changes .* = base"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        trained.save(tmp_path / "c", delta_of="base")
    trained.save(tmp_path / "base")
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        trained.save(tmp_path / "c", delta_of="base")


def test_a_delta_holds_the_changed_rows_and_keys(make_table, tmp_path):
    table = make_table(DIM, BANK, filter_freq=2)
    train(table, [1, 1, 2, 2, 3, 4], version=1)
    table.save(tmp_path / "base", slots=ADAGRAD, track_changes=True)
    table.commit_save()
    train(table, [2, 4, 5], version=7)
    parent = ["base", "12-0a1b2c3d"]
    table.save(tmp_path / "delta", slots=ADAGRAD, track_changes=True, delta_of=parent)
    tensors = read(tmp_path / "delta")
    assert tensors["t-keys"].tolist() == tensors["t/Adagrad-keys"].tolist() == [2, 4]
    assert tensors["t-freqs"].tolist() == [3, 2] and tensors["t-versions"].tolist() == [7, 7]
    assert tensors["t-keys_filtered"].tolist() == [5]
    assert tensors["t-partition_offset"][[2, 3, 4, 5, 1000]].tolist() == [0, 1, 1, 2, 2]
    assert tensors["t-keys_erased"].shape == (0,)
    assert [tensors["t-delta_of"], tensors["t-delta_of_index"]] == [b"base", b"12-0a1b2c3d"]
    whole = table.export(ADAGRAD)
    np.testing.assert_array_equal(tensors["t-values"], whole["values"][[1, 2]])
    np.testing.assert_array_equal(tensors["t/Adagrad-values"], whole["Adagrad"][[1, 2]])


def test_changes_are_saved_again_until_they_are_committed(make_table, tmp_path):
    table = make_table(DIM, BANK)
    save = {"slots": ADAGRAD, "track_changes": True}
    train(table, [1, 2])
    table.save(tmp_path / "base", **save)
    table.commit_save()
    train(table, [2])
    table.evict(global_step=9, steps_to_live=8)
    for expected in ([2], [2, 3]):
        table.save(tmp_path / "delta", **save, delta_of="base")
        tensors = read(tmp_path / "delta")
        if expected == [2]:
            # The first eviction erased nothing. This one does, and the erased keys are saved until
            # they are committed.
            table.evict(global_step=100, steps_to_live=3)
            train(table, [3], version=100)
    assert tensors["t-keys_erased"].tolist() == [1, 2]
    assert tensors["t-keys"].tolist() == [3]
    table.commit_save()
    table.save(tmp_path / "delta", **save, delta_of="base")
    tensors = read(tmp_path / "delta")
    assert tensors["t-keys"].size == tensors["t-keys_erased"].size == 0


@pytest.mark.parametrize(
    "filter_attrs", [{}, {"filter_freq": 3}, BLOOM], ids=["none", "counter", "bloom"]
)
def test_a_chain_of_deltas_restores_the_bits_of_the_live_table(make_table, tmp_path, filter_attrs):
    table = make_table(DIM, BANK, **filter_attrs)
    rng = np.random.default_rng(3)
    save = {"slots": ADAGRAD, "track_changes": True}
    every_key = np.arange(-150, 150)
    names = [f"c{i}" for i in range(6)]
    for step, (name, parent) in enumerate(zip(names, ["", *names])):
        for _ in range(3):
            train(table, rng.integers(-150, 150, 60), version=step)
        evicted = table.evict(global_step=step, steps_to_live=1)
        assert step < 3 or evicted > 0
        train(table, rng.integers(-150, 150, 20), version=step)
        table.save(tmp_path / name, **save, delta_of=parent)
        table.commit_save()
        restored = make_table(DIM, name=f"restored{step}", **filter_attrs)
        restored.restore(tmp_path / name, BANK, slots=ADAGRAD)
        assert_same(restored.export(ADAGRAD), table.export(ADAGRAD))
        np.testing.assert_array_equal(restored.frequencies(every_key), table.frequencies(every_key))
        np.testing.assert_array_equal(restored.versions(every_key), table.versions(every_key))
