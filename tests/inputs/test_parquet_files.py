# SPDX-License-Identifier: Apache-2.0
"""Tests of Parquet files: values, order, bad rows, and the columns that are refused."""

import decimal
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow.compat.v1 as tf
from input_batches import batches, column, labels

from rec_estimator import inputs
from rec_estimator.inputs import parquet_files


@pytest.fixture
def write(tmp_path):
    def write_file(name, columns, row_group_size=4):
        path = tmp_path / name
        pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
        return str(path)

    return write_file


def numbered(count, start=0):
    return {"user": np.arange(start, start + count), "label": np.zeros(count)}


def users(path, **kwargs):
    kwargs = {"label_column": "label", "batch_size": 5, **kwargs}
    return column(batches(inputs.parquet_input_fn(path, **kwargs)), "user")


def test_every_kind_of_column_reads_its_values(write):
    lists = [[1, 2], [], [3]]
    columns = {
        "byte": pa.array([1, 2, 255], pa.uint8()),
        "int": pa.array([-(2**31), 0, 5], pa.int32()),
        "key": pa.array([2**63 - 1, -(2**63), 0], pa.int64()),
        "flag": pa.array([True, False, True]),
        "half": pa.array(np.array([0.5, 1, 2], np.float16)),
        "price": pa.array([0.25, -1, np.inf], pa.float32()),
        "wide": pa.array([0.1, 1e300, 3]),
        "text": pa.array(["a", "", "ü"]),
        "bytes": pa.array([b"\xff", b"", b"b"], pa.large_binary()),
        "coded": pa.array(["x", "y", "x"]).dictionary_encode(),
        "ids": pa.array(lists),
        "large": pa.array(lists, pa.large_list(pa.int32())),
        "pairs": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "tags": pa.array([["a"], ["b", ""], []]),
        "label": pa.array([1, 0, 1], pa.int8()),
    }
    path = write("a.parquet", columns, row_group_size=2)
    found = batches(inputs.parquet_input_fn(path, label_column="label", batch_size=2))
    expected = {name: array.to_pylist() for name, array in columns.items()}
    expected["text"] = [b"a", b"", "ü".encode()]
    expected["coded"] = [b"x", b"y", b"x"]
    expected["tags"] = [[b"a"], [b"b", b""], []]
    for name in list(columns)[:-1]:
        assert column(found, name) == expected[name], name
    assert labels(found) == [1, 0, 1] and found[0][1].dtype == np.float32
    dtypes = {name: value.dtype for name, value in found[0][0].items()}
    assert dtypes["int"] == np.int32 and dtypes["byte"] == dtypes["flag"] == np.int64
    assert dtypes["half"] == np.float32 and dtypes["wide"] == np.float64


def test_chosen_columns_and_types_are_read_and_no_others(write):
    path = write("a.parquet", {**numbered(3), "other": [None] * 3, "price": [1, 2, None]})
    found = batches(
        inputs.parquet_input_fn(
            path,
            label_column=["label", "price"],
            columns=["user"],
            dtypes={"user": tf.int32, "price": tf.float64},
            defaults={"price": -1},
        )
    )
    ((features, targets),) = found
    assert list(features) == ["user"] and features["user"].dtype == np.int32
    assert targets["price"].tolist() == [1, 2, -1] and targets["price"].dtype == np.float64


def test_batches_cross_row_groups_files_and_passes(write, tmp_path):
    write("a.parquet", numbered(7))
    write("b.parquet", numbered(6, start=7))
    path = str(tmp_path / "*.parquet")
    found = batches(inputs.parquet_input_fn(path, num_epochs=2, batch_size=5))
    assert [len(features["user"]) for features in found] == [5, 5, 5, 5, 5, 1]
    assert users(path, num_epochs=2) == [*range(13), *range(13)]
    full = inputs.parquet_input_fn(path, num_epochs=2, batch_size=5, drop_remainder=True)
    assert full().element_spec["user"].shape == [5] and len(batches(full)) == 5


def test_the_order_of_a_seed_is_the_same_with_any_number_of_parallel_reads(write):
    path = write("a.parquet", numbered(40))
    order = users(path, shuffle=10, seed=3, num_epochs=2)
    assert order == users(path, shuffle=10, seed=3, num_epochs=2, num_parallel_reads=3)
    assert order != users(path, shuffle=10, seed=4, num_epochs=2)
    first, second = order[:40], order[40:]
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second and first != list(range(40))
    # As many row groups of 4 rows are mixed as hold 10 rows: three.
    assert len({user // 4 for user in first[:12]}) == 3


def test_no_more_row_groups_are_read_than_the_order_of_rows_needs(write, monkeypatch):
    path = write("a.parquet", numbered(80))
    read = []
    whole = parquet_files.ParquetBatches._read
    monkeypatch.setattr(
        parquet_files.ParquetBatches,
        "_read",
        lambda self, group: read.append(group.number) or whole(self, group),
    )
    input_fn = inputs.parquet_input_fn(
        path, batch_size=4, prefetch=0, shuffle=8, num_parallel_reads=3
    )
    batches(input_fn, limit=1)
    assert len(read) <= 2 + 2 + 3  # Two mixed, the next two for the next batch, three ahead.


MISSING = "without a missing value, got"
BAD = {
    "missing": (pa.array([1, 2, 3, None]), tf.int64, f"{MISSING} None"),
    "missing in a list": (pa.array([[1], [], [3], [2, None]]), tf.int64, rf"{MISSING} \[2, None\]"),
    "missing text": (pa.array(["a", "", "b", None]), tf.string, f"{MISSING} None"),
    "too large": (pa.array([1, 2, 3, 2**64 - 1], pa.uint64()), tf.int64, "18446744073709551615"),
    "too large for its type": (pa.array([1, 2, 3, 2**31]), tf.int32, "got 2147483648"),
    "no integer": (pa.array([1.0, 2.0, 3.0, 0.5]), tf.int64, "got 0.5"),
}


@pytest.mark.parametrize("array, dtype, message", BAD.values(), ids=BAD)
def test_a_bad_row_is_named_by_file_row_and_column_or_skipped(write, array, dtype, message):
    path = write("a.parquet", {"user": range(4), "x": array}, row_group_size=3)
    rule = f"a.parquet, row 4: column 'x' must be {dtype.name} .*{message}; correct it, or pass on"
    with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
        batches(inputs.parquet_input_fn(path, dtypes={"x": dtype}))
    input_fn = inputs.parquet_input_fn(
        path, label_column="x", dtypes={"x": dtype}, on_bad_row="skip", num_epochs=2
    )
    assert column(batches(input_fn), "user") == [0, 1, 2, 0, 1, 2]
    assert input_fn.bad_rows == 2


def test_missing_values_read_their_default_and_missing_lists_are_empty(write):
    columns = {"price": [1.5, None], "tags": [None, ["a", None]], "ids": [[None, 3], None]}
    path = write("a.parquet", columns)
    defaults = {"price": -1.0, "tags": "?", "ids": 7}
    found = batches(inputs.parquet_input_fn(path, defaults=defaults))
    assert found[0]["price"].tolist() == [1.5, -1]
    assert found[0]["tags"].to_list() == [[], [b"a", b"?"]]
    assert found[0]["ids"].to_list() == [[7, 3], []]


@pytest.mark.parametrize(
    "array, kind",
    [
        (pa.array([decimal.Decimal("1.5")]), "decimal"),
        (pa.array([0], pa.timestamp("s")), "timestamp"),
        (pa.array([0], pa.date32()), "date32"),
        (pa.array([{"a": 1}]), "struct"),
        (pa.array([[[1]]]), "list<"),
        (pa.array([None]), "null"),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(write, array, kind):
    path = write("a.parquet", {**numbered(1), "x": array})
    with pytest.raises(ValueError, match=rf"a.parquet: column 'x' must hold numbers.*got {kind}"):
        inputs.parquet_input_fn(path)
    assert users(path, columns=["user"]) == [0]


def test_arguments_and_files_that_cannot_be_read_are_refused(write, tmp_path):
    path = write("a.parquet", numbered(3))
    for arguments, message in [
        ({"columns": ["age"]}, "columns must name columns that exist, got 'age'"),
        ({"label_column": "age"}, "label_column must name columns that exist"),
        ({"columns": ["label"], "label_column": "label"}, "columns must leave out the labels"),
        ({"dtypes": {"user": tf.string}}, "string for text only, got tf.string for 'user'"),
        ({"defaults": {"user": 0.5}}, "defaults must be of their columns' dtypes, got 0.5"),
        ({"num_parallel_reads": 0}, "num_parallel_reads must be an integer >= 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            inputs.parquet_input_fn(path, **arguments)
    write("b.parquet", {"user": [["7"]], "label": [0.0]})
    with pytest.raises(
        ValueError, match="b.parquet: column 'user' must be as in .*int64, got lists of string"
    ):
        inputs.parquet_input_fn(str(tmp_path / "*.parquet"))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match="c.parquet must be a complete Parquet file, got one with"):
        inputs.parquet_input_fn(str(tmp_path / "c.parquet"))


def test_a_damaged_row_group_and_files_without_rows_are_errors(write, tmp_path):
    path = write("a.parquet", numbered(8))
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    data[offset : offset + 40] = b"\xff" * 40
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="a.parquet, row group 1: file must be"
    ):
        users(path)
    path = write("b.parquet", numbered(0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least 1 good rows, got 0 good"):
        users(path)


def test_without_pyarrow_the_error_names_the_extra(write, monkeypatch):
    path = write("a.parquet", numbered(1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rec_estimator\[parquet\]'"):
        inputs.parquet_input_fn(path)
