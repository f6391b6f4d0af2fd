# SPDX-License-Identifier: Apache-2.0
"""TableExport, and TableRestore from checkpoints that SaveV2 writes."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import KEY_CLASSES, TableOracle
from written_checkpoints import (
    ADAGRAD,
    BANK,
    DIM,
    EDGE_KEYS,
    assert_same,
    rows_of,
    tensors_of,
    train,
    train_randomly,
    write,
)

from rec_estimator import _ops


def two_slices(array):
    """Returns two slices of an array, a third and the rest of its rows, in SaveV2's notation."""
    shape = " ".join(map(str, array.shape))
    columns = "".join(f":0,{width}" for width in array.shape[1:])
    rows, third = len(array), len(array) // 3
    return [f"{shape} 0,{third}{columns}", f"{shape} {third},{rows - third}{columns}"]


def assert_same_export(table, oracle, slots=()):
    assert_same(table.export(slots), oracle.export(slots))


@pytest.fixture
def trained(make_table):
    """A table with Adagrad slots and about 300 keys, including the edge keys."""
    return train_randomly(make_table(DIM, BANK))


@pytest.fixture
def tensors(trained):
    return tensors_of(trained)


# ------------------------------------------------------------------ shape functions


def handle():
    return _ops.gen.rec_estimator_table_handle(shared_name="t", dim=DIM)


def export_op(**changed):
    attrs = {"dim": DIM, "num_slots": 1, "slot_names": ["a"], "slot_widths": [4]}
    attrs.update({"slot_initials": [0.0], **changed})
    return _ops.gen.rec_estimator_table_export(handle(), **attrs)


def restore_op(prefix="p", bank=BANK, **changed):
    attrs = {"tensor_name": "t", "part": 0, "num_parts": 1}
    attrs.update({"slot_names": [], "slot_widths": [], "slot_initials": [], **changed})
    return _ops.gen.rec_estimator_table_restore(handle(), prefix, bank, **attrs)


def test_export_knows_ranks_dims_and_the_length_of_offsets():
    out = export_op()
    assert out.keys.shape.as_list() == out.freqs.shape.as_list() == [None]
    assert out.values.shape.as_list() == [None, DIM]
    assert out.bank.shape.as_list() == [None, DIM]
    assert out.slot_values[0].shape.as_list() == [None, 4]
    assert out.partition_offset.shape == out.partition_filter_offset.shape == [KEY_CLASSES + 1]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"num_slots": 0}, "slot_widths must be of length num_slots = 0, got 1"),
        ({"num_slots": 2}, "slot_widths must be of length num_slots = 2, got 1"),
        ({"slot_widths": [-3]}, "slot_widths must be >= 1, got -3"),
    ],
)
def test_export_checks_its_slots_when_the_graph_is_built(changed, message):
    with pytest.raises(ValueError, match=message):
        export_op(**changed)


@pytest.mark.parametrize("changed", [{"prefix": ["p"]}, {"bank": [1.0]}], ids=["prefix", "bank"])
def test_restore_checks_ranks_when_the_graph_is_built(changed):
    with pytest.raises(ValueError, match="Shape must be rank"):
        restore_op(**changed)


# ------------------------------------------------------------------ export: errors


def test_exporting_before_initialization_names_table_and_remedy(make_table):
    message = "table t must be initialized before it is saved.*global_variables_initializer"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        make_table(DIM).export()


def test_a_slot_asked_for_with_another_width_is_an_error(trained):
    message = "slot_widths must be those of table t, 3 for slot Adagrad, got 2"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        trained.export([("Adagrad", 2, 0.1)])


def test_export_with_another_dim_is_an_error(trained):
    trained.dim = 4
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="dim must be that of table t, 3, got 4"
    ):
        trained.export()


def test_lists_of_different_lengths_are_an_error(session):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must be of equal length, got 1, 1 and 0"
    ):
        session.run(export_op(slot_initials=[]).keys)


# ------------------------------------------------------------------ export


def test_an_empty_table_exports_its_bank_and_no_rows(make_table):
    assert_same_export(make_table(DIM, BANK), TableOracle(BANK), ADAGRAD)


def test_rows_come_by_key_class_then_key_and_offsets_say_where(make_table):
    table = make_table(DIM, BANK)
    train(table, [1002, 2, 1, 1001, 1000, 0, -1])
    out = table.export()
    np.testing.assert_array_equal(out["keys"], [0, 1000, 1, 1001, 2, 1002, -1])
    np.testing.assert_array_equal(out["partition_offset"][:5], [0, 2, 4, 6, 6])
    np.testing.assert_array_equal(out["partition_offset"][-2:], [6, 7])


def test_random_training_exports_the_bits_of_the_oracle(make_table):
    table, oracle = make_table(DIM, BANK), TableOracle(BANK)
    rng = np.random.default_rng(0)
    for step in range(20):
        keys = [*rng.integers(-3000, 3000, 200), *EDGE_KEYS]
        grads = rng.normal(size=[len(keys), DIM])
        for target in (table, oracle):
            kwargs = {"slots": ADAGRAD} if target is table else {}
            target.apply("Adagrad", [0.5], keys, grads, [77], version=step, **kwargs)
    assert_same_export(table, oracle, ADAGRAD)
    assert_same_export(table, oracle, [])


def test_a_missing_slot_is_exported_as_its_initial_value(trained):
    out = trained.export([("other", 2, 0.75), *ADAGRAD])
    np.testing.assert_array_equal(out["other"], np.full([len(out["keys"]), 2], 0.75))
    np.testing.assert_array_equal(out["Adagrad"], trained.export(ADAGRAD)["Adagrad"])


def test_an_export_during_applies_is_consistent_per_row(make_table):
    # Value and slot of a row follow from the number of applies, so a torn row is detected.
    table = make_table(DIM, np.zeros([1, DIM]))
    slots = [("Momentum", DIM, 0.0)]
    keys = np.arange(3000)

    def step():
        # Momentum 1 without decay: after n steps of -1, the slot is -n and the value n (n + 1) / 2.
        table.apply("Momentum", [1.0, 1.0, 0.0], keys, -np.ones([3000, DIM]), slots=slots)

    step()
    table.export(slots)
    trainer = threading.Thread(target=lambda: [step() for _ in range(30)])
    trainer.start()
    torn = 0
    while trainer.is_alive():
        out = table.export(slots)
        n = -out["Momentum"]
        torn += np.count_nonzero(out["values"] != n * (n + 1) / 2)
        torn += np.count_nonzero(out["freqs"] != n[:, 0])
    trainer.join()
    assert torn == 0


# ------------------------------------------------------------------ restore: errors


def test_a_missing_file_is_not_found(make_table, tmp_path):
    table = make_table(DIM, BANK)
    with pytest.raises(tf.errors.NotFoundError, match="nothing"):
        table.restore(tmp_path / "nothing", BANK)


def test_a_missing_table_is_not_found_and_the_error_lists_what_is_there(
    make_table, tmp_path, tensors
):
    path = write(tmp_path / "c", tensors)
    message = "table u must be in checkpoint .*c as u-keys or u/part_0-keys, got .* tables t\n"
    with pytest.raises(tf.errors.NotFoundError, match=message):
        make_table(DIM, BANK, name="u").restore(path, BANK, tensor_name="u")


def test_the_list_of_tables_in_an_error_is_bounded(make_table, tmp_path):
    tensors = {f"table{i}/part_{j}-keys": [0] for i in range(12) for j in range(2)}
    path = write(tmp_path / "c", {**tensors, "dense": [0]})
    with pytest.raises(tf.errors.NotFoundError, match=r"tables (table\d+, ){8}\.\.\.\n"):
        make_table(DIM, BANK).restore(path, BANK)
    path = write(tmp_path / "d", {"dense": [0]})
    with pytest.raises(tf.errors.NotFoundError, match="tables none\n"):
        make_table(DIM, BANK).restore(path, BANK)


N = 204  # Differs from the number of keys in `tensors`.

FILE_ERRORS = {
    "values of another dim": (
        {"t-values": np.zeros([0, 4], np.float32)},
        "InvalidArgument",
        "tensor t-values of .* must have 3 columns, the dim of the table, got 4",
    ),
    "fewer values": ({"t-values": np.zeros([N, 3], np.float32)}, "DataLoss", "t-values .* got 204"),
    "no values": ({"t-values": None}, "DataLoss", "checkpoint .* has t-keys but no t-values"),
    "double values": ({"t-values": np.zeros([N, 3])}, "InvalidArgument", "float, got double"),
    "flat values": ({"t-values": np.zeros([N], np.float32)}, "InvalidArgument", "rank 2.*204"),
    "string keys": ({"t-keys": np.array(["a"])}, "InvalidArgument", "t-keys .* int64, got string"),
    "float keys": ({"t-keys": np.zeros([N])}, "InvalidArgument", "t-keys .* int64, got double"),
    "matrix of keys": ({"t-keys": np.zeros([N, 1], int)}, "InvalidArgument", "t-keys .* rank 1"),
    "fewer keys": (
        {"t-keys": np.arange(N)},
        "DataLoss",
        "t-partition_offset .* 1001 offsets from 0 to 204",
    ),
    "fewer freqs": ({"t-freqs": np.zeros([N], int)}, "DataLoss", "t-freqs .* one per key, got 204"),
    "int32 freqs": (
        {"t-freqs": np.zeros([N], np.int32)},
        "InvalidArgument",
        "t-freqs .*int64, got int32",
    ),
    "fewer versions": ({"t-versions": np.zeros([N], int)}, "DataLoss", "t-versions .* got 204"),
    "fewer offsets": (
        {"t-partition_offset": np.zeros([7], np.int32)},
        "DataLoss",
        "got 7; the file",
    ),
    "no offsets": ({"t-partition_offset": np.zeros([0], np.int32)}, "DataLoss", "got 0; the file"),
    "slot of another width": (
        {"t/Adagrad-values": np.zeros([N, 4], np.float32)},
        "InvalidArgument",
        "t/Adagrad-values .* 3 columns, the width of the slot, got 4",
    ),
    "slot without values": ({"t/Adagrad-values": None}, "DataLoss", "but no t/Adagrad-values"),
    "slot of fewer rows": (
        {"t/Adagrad-values": np.zeros([N, 3], np.float32)},
        "DataLoss",
        "t/Adagrad-values .* got 204",
    ),
    "bank of another dim": (
        {"t/default_values": np.zeros([5, 4], np.float32)},
        "InvalidArgument",
        "t/default_values .* 3 columns, the dim of the table, got 4",
    ),
    "bank of no rows": (
        {"t/default_values": np.zeros([0, 3], np.float32)},
        "DataLoss",
        "has no row",
    ),
}


@pytest.mark.parametrize("changed, kind, message", FILE_ERRORS.values(), ids=FILE_ERRORS)
def test_an_inconsistent_file_is_an_error_and_leaves_the_table_unchanged(
    make_table, tmp_path, tensors, changed, kind, message
):
    tensors.update(changed)
    path = write(tmp_path / "c", {k: v for k, v in tensors.items() if v is not None})
    table = make_table(DIM, BANK + 1, name="u")
    train(table, [3, 4])
    before = table.export(ADAGRAD)
    with pytest.raises(getattr(tf.errors, f"{kind}Error"), match=message):
        table.restore(path, BANK, slots=ADAGRAD)
    after = table.export(ADAGRAD)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize(
    "tensors",
    [
        rows_of([5, 6, 5]),
        {**rows_of([5]), **rows_of([6, 6], "t/Adagrad")},
    ],
    ids=["in one part", "in a slot"],
)
def test_a_repeated_key_is_data_loss(make_table, tmp_path, tensors):
    path = write(tmp_path / "c", tensors)
    with pytest.raises(
        tf.errors.DataLossError, match="distinct keys, got (3 of which 2 are|6 twice)"
    ):
        make_table(DIM, BANK).restore(path, BANK, slots=ADAGRAD)


@pytest.mark.parametrize("shape", [[0, DIM], [2, DIM + 1], [DIM], []], ids=str)
def test_a_bank_of_the_wrong_shape_is_an_error(make_table, tmp_path, shape):
    path = write(tmp_path / "c", rows_of([1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bank of table t must be \[b, dim\]"):
        make_table(DIM, BANK).restore(path, np.zeros(shape))


def test_a_prefix_must_be_a_scalar(make_table):
    table = make_table(DIM, BANK)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"prefix must be \[\], got shape \[2\]"
    ):
        table.call(
            "restore", np.array(["a", "b"]), BANK, tensor_name="t", part=0, num_parts=1,
            slot_names=[], slot_widths=[], slot_initials=[],
        )  # fmt: skip


def test_a_part_beyond_the_parts_is_an_error(session):
    with pytest.raises(tf.errors.InvalidArgumentError, match="part must be < num_parts = 2, got 2"):
        session.run(restore_op(part=2, num_parts=2))


def test_a_slot_that_the_table_has_with_another_width_is_an_error(trained, tmp_path):
    path = write(tmp_path / "c", rows_of([1]))
    message = "slot_widths must be those of table t, 3 for slot Adagrad, got 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        trained.restore(path, BANK, slots=[("Adagrad", 1, 0.1)])


@pytest.mark.long
def test_a_damaged_file_is_an_error_wherever_the_damage_is(make_table, tmp_path, tensors):
    write(tmp_path / "c", tensors)
    table = make_table(DIM, BANK, name="u")
    rng = np.random.default_rng(0)
    for file in sorted(tmp_path.glob("c.*")):
        good = file.read_bytes()
        size = len(good)
        damaged = [good[:cut] for cut in [0, 1, *rng.integers(0, size, 15), size - 1]]
        for _ in range(40):
            at = int(rng.integers(0, size))
            bit = 1 << int(rng.integers(0, 8))
            damaged.append(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
        for bad in damaged:
            file.write_bytes(bad)
            try:
                table.restore(tmp_path / "c", BANK, tensor_name="t", slots=ADAGRAD)
            except tf.errors.OpError:
                continue
            # The bit belongs to padding, another tensor or the footer: all rows must be right.
            assert_same_export(
                table, TableOracle.restore(tensors, "t", 0, 1, ADAGRAD, BANK), ADAGRAD
            )
        file.write_bytes(good)


# ------------------------------------------------------------------ restore


@pytest.mark.parametrize(
    "slots", [[], ADAGRAD, [("new", 2, 0.5), *ADAGRAD]], ids=["none", "one", "two"]
)
def test_restore_replaces_what_the_table_held(make_table, tmp_path, tensors, slots):
    path = write(tmp_path / "c", tensors)
    table = make_table(DIM, BANK + 1, name="u")
    table.apply("GradientDescent", [1.0], [123456, 5], np.ones([2, DIM]))
    table.restore(path, BANK + 2, slots=slots)
    assert_same_export(table, TableOracle.restore(tensors, "t", 0, 1, slots, BANK), slots)


def test_restore_initializes_a_table(make_table, tmp_path):
    path = write(tmp_path / "c", rows_of([1]))
    table = make_table(DIM)
    table.restore(path, BANK)
    assert table.call("is_initialized")
    np.testing.assert_array_equal(table.lookup([1, 7]), [[0, 1, 2], BANK[2]])


def test_training_goes_on_from_a_restore_as_if_nothing_had_happened(make_table, tmp_path, trained):
    path = write(tmp_path / "c", tensors_of(trained))
    restored = make_table(DIM, name="u")
    restored.restore(path, BANK, slots=ADAGRAD)
    for table in (trained, restored):
        train(table, [1, 2, 3, *EDGE_KEYS], version=9)
    actual, expected = restored.export(ADAGRAD), trained.export(ADAGRAD)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


@pytest.mark.parametrize("now", [1, 2, 3, 1000, 1500])
@pytest.mark.parametrize("then", [1, 2, 5])
def test_any_number_of_parts_restores_into_any_other(make_table, tmp_path, tensors, then, now):
    whole = TableOracle.restore(tensors, "t", 0, 1, ADAGRAD, BANK)
    split = tensors
    if then > 1:
        split = {"t/default_values": tensors["t/default_values"]}
        for part in range(then):
            out = TableOracle.restore(tensors, "t", part, then, ADAGRAD, BANK).export(ADAGRAD)
            out.pop("bank")
            values = {"": out.pop("values"), "/Adagrad": out.pop("Adagrad")}
            for suffix, rows in values.items():
                split[f"t/part_{part}{suffix}-values"] = rows
                for name, array in out.items():
                    split[f"t/part_{part}{suffix}-{name}"] = array
    path = write(tmp_path / "c", split)
    keys = np.array(list(whole.rows))
    restored = []
    for part in sorted({0, 1 % now, now // 2, now - 1}):
        table = make_table(DIM, name=f"u{part}")
        table.restore(path, BANK, part=part, num_parts=now, slots=ADAGRAD)
        expected = TableOracle.restore(split, "t", part, now, ADAGRAD, BANK)
        assert_same_export(table, expected, ADAGRAD)
        restored.extend(expected.rows)
        assert all(key % KEY_CLASSES % now == part for key in expected.rows)
    if now <= 3:
        np.testing.assert_array_equal(np.sort(restored), np.sort(keys))


def test_slots_are_matched_by_key_and_start_fresh_where_they_are_missing(make_table, tmp_path):
    tensors = {
        **rows_of([3, 1, 2]),
        "t/Adagrad-keys": np.array([2, 9, 3]),
        "t/Adagrad-values": np.array([[2] * 3, [9] * 3, [3] * 3], np.float32),
    }
    table = make_table(DIM)
    table.restore(write(tmp_path / "c", tensors), BANK, slots=ADAGRAD)
    out = table.export(ADAGRAD)
    np.testing.assert_array_equal(out["keys"], [1, 2, 3])
    fresh = np.float32(0.1)
    np.testing.assert_array_equal(out["Adagrad"], [[fresh] * 3, [2] * 3, [3] * 3])


@pytest.mark.parametrize("empty", [{}, {"t-freqs": [], "t-versions": []}], ids=["absent", "empty"])
def test_without_frequencies_and_versions_keys_are_admitted_and_counted_once(
    make_table, tmp_path, empty
):
    empty = {name: np.zeros([0], np.int64) for name in empty}
    table = make_table(DIM)
    table.restore(write(tmp_path / "c", {**rows_of([4, 5]), **empty}), BANK)
    out = table.export()
    np.testing.assert_array_equal(out["freqs"], [1, 1])
    np.testing.assert_array_equal(out["versions"], [-1, -1])


def test_int32_keys_widen(make_table, tmp_path):
    keys = np.array([-5, 2**31 - 1, -(2**31)], np.int32)
    table = make_table(DIM)
    table.restore(write(tmp_path / "c", rows_of(keys)), BANK)
    np.testing.assert_array_equal(np.sort(table.export()["keys"]), np.sort(keys))
    np.testing.assert_array_equal(table.lookup(keys), rows_of(keys)["t-values"])


def test_tensors_written_in_slices_read_like_whole_ones(make_table, tmp_path, tensors):
    names = ["t-keys", "t-values", "t-freqs", "t/Adagrad-values"]
    path = write(tmp_path / "c", tensors, {name: two_slices(tensors[name]) for name in names})
    table = make_table(DIM, name="u")
    table.restore(path, BANK, slots=ADAGRAD)
    assert_same_export(table, TableOracle.restore(tensors, "t", 0, 1, ADAGRAD, BANK), ADAGRAD)


def test_an_empty_table_restores(make_table, tmp_path):
    empty = tensors_of(make_table(DIM, BANK))
    table = make_table(DIM, BANK + 1, name="u")
    train(table, [1, 2])
    table.restore(write(tmp_path / "c", empty), BANK, slots=ADAGRAD)
    assert table.size() == 0
    np.testing.assert_array_equal(table.lookup([1]), BANK[1:2])


def test_a_table_without_a_filter_admits_filtered_keys_anew(make_table, tmp_path, tensors):
    tensors["t-keys_filtered"] = np.array([7777777])
    tensors["t-freqs_filtered"] = tensors["t-versions_filtered"] = np.array([1])
    del tensors["t-partition_filter_offset"]
    table = make_table(DIM, name="u")
    table.restore(write(tmp_path / "c", tensors), BANK)
    out = table.export()
    (at,) = np.flatnonzero(out["keys"] == 7777777)
    assert out["freqs"][at] == out["versions"][at] == 1
    np.testing.assert_array_equal(out["values"][at], BANK[7777777 % len(BANK)])


def test_a_large_table_comes_back_whole(make_table, tmp_path):
    table = make_table(DIM, BANK)
    train(table, np.random.default_rng(0).integers(-(2**62), 2**62, 50000), version=1)
    tensors = tensors_of(table)
    again = make_table(DIM, name="u")
    again.restore(write(tmp_path / "c", tensors), BANK, slots=ADAGRAD)
    for name, array in tensors_of(again).items():
        np.testing.assert_array_equal(array, tensors[name], err_msg=name)


# ------------------------------------------------------------------ threads


def test_a_restore_during_training_includes_each_step_fully_or_not_at_all(make_table, tmp_path):
    keys = np.arange(5000)
    path = write(tmp_path / "c", rows_of(keys))
    table = make_table(DIM)
    table.restore(path, BANK)

    def step():
        table.apply("GradientDescent", [1.0], keys, np.ones([5000, DIM]))

    step()
    for _ in range(15):
        trainer = threading.Thread(target=lambda: [step() for _ in range(3)])
        trainer.start()
        table.restore(path, BANK)
        trainer.join()
        out = table.export()
        assert len(out["keys"]) == 5000
        # The number of steps after the restore varies, but it is the same for every key.
        (steps,) = set(out["freqs"] - 1)
        np.testing.assert_array_equal(out["values"], rows_of(keys)["t-values"][out["keys"]] - steps)
