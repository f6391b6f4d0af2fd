# SPDX-License-Identifier: Apache-2.0
"""Tests of files with bad rows: the error messages, and the rows that are left after skipping."""

import gzip
import zlib

import pytest
import tensorflow.compat.v1 as tf
from input_batches import batches, column, labels, numbered, read

from rec_estimator import inputs
from rec_estimator.inputs import row_files, row_parsers


@pytest.fixture
def log(monkeypatch):
    lines = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *args: lines.append(text % args))
    return lines


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


# CSV: bad rows.

BAD_ROWS = {
    "few fields": ("3,u3", "row must have 3 fields, got 2 in '3,u3'"),
    "many fields": ("3,u3,1,2", "row must have 3 fields, got 4 in '3,u3,1,2'"),
    "no number": ("3,u3,cheap", "column 'price' must be float32, got 'cheap' in '3,u3,cheap'"),
    "no label": (",u3,1", "column 'label' must not be empty, got ',u3,1'"),
    "quote not closed": ('3,"u3,1', "row must have 3 fields, got 2"),
    "quote inside": ('3,u"3,1', "row must be CSV with quotes around whole fields only"),
    "cut": ("3,", "row must have 3 fields, got 2 in '3,'"),
    "spaces": ("   ", "row must have 3 fields, got 1 in '   '"),
}
PRICE = {"price": tf.float32}


def parser(names, **kwargs):
    """The parser of a CSV file with these columns."""
    arguments = {"features": None, "labels": None, "dtypes": {}, "defaults": {}, "multi_valued": ()}
    separators = {"delimiter": ",", "value_delimiter": "|", "header": True}
    return row_parsers.csv_rows(tuple(names), **{**arguments, **separators, **kwargs})


@pytest.mark.parametrize("row, message", BAD_ROWS.values(), ids=BAD_ROWS)
def test_csv_bad_row_is_explained(row, message):
    rows = parser(["label", "user", "price"], labels="label", dtypes=PRICE)
    assert message in rows.explain(row.encode())


def test_csv_bad_row_is_an_error_with_its_file_line_and_reason(write):
    row, message = BAD_ROWS["no number"]
    path = write("bad.csv", numbered(3) + row + "\n" + "4,u4,2\nx\n")
    message = f'bad.csv, line 5: {message}; correct it, or pass on_bad_row="skip"'
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(read(path, dtypes=PRICE))


@pytest.mark.long
def test_csv_bad_rows_are_skipped_counted_and_logged(write, log):
    bad = [row for row, _ in BAD_ROWS.values()]
    path = write("bad.csv", numbered(3) + "\n".join([*bad, "4,u4,2", *bad, "5,u5,3"]))
    input_fn = read(path, dtypes=PRICE, on_bad_row="skip", num_epochs=2)
    assert input_fn.bad_rows == 0
    assert labels(batches(input_fn)) == [0, 1, 2, 4, 5] * 2
    assert input_fn.bad_rows == 2 * 2 * len(bad)
    assert len(log) == 4 and log[:2] == log[2:]
    assert "bad.csv, line 5: row must have 3 fields" in log[0]
    assert log[1] == f"{2 * len(bad)} bad rows of this pass were skipped, 5 rows were read."


@pytest.mark.long
def test_csv_line_number_of_a_bad_row_counts_headers_and_blank_lines(write, tmp_path):
    write("a.csv", numbered(2000))
    write("b.csv", numbered(1500) + "\n\nx,u,1\n")
    input_fn = read(str(tmp_path / "?.csv"), num_parallel_reads=2, shuffle=50)
    with pytest.raises(tf.errors.InvalidArgumentError, match="b.csv, line 1504: column 'label'"):
        batches(input_fn)


@pytest.mark.long
def test_csv_skipping_many_rows_keeps_batches_full(write, log):
    rows = numbered(5000).splitlines()
    rows[10::3] = ["broken"] * len(rows[10::3])
    input_fn = read(write("a.csv", "\n".join(rows)), on_bad_row="skip", batch_size=128)
    found = batches(input_fn)
    assert {len(label) for _, label in found[:-1]} == {128}
    assert labels(found) == [int(row.split(",")[0]) for row in rows[1:] if row != "broken"]
    assert input_fn.bad_rows == rows.count("broken")


def test_csv_numbers_that_do_not_fit_their_column_are_bad_rows(write, log):
    """TensorFlow decides which rows are bad, rec_estimator explains why: they must agree."""
    dtypes = {"a": tf.int32, "b": tf.int64, "c": tf.float32, "d": tf.float64}
    bad = [
        "2147483648,,,",
        "-2147483649,,,",
        "1.5,,,",
        "x,,,",
        ",9223372036854775808,,",
        ",1e3,,",
        ",,1_0,",
        ",,,one",
    ]
    good = ["1,2,3,4", ",,,", "2147483647,-9223372036854775808,1e3,.5", " 1, 2 , 3,-4", ",,nan,inf"]
    rows = [row for pair in zip(bad, good * 2) for row in pair]
    path = write("a.csv", "\n".join(["a,b,c,d", *rows]))
    input_fn = inputs.csv_input_fn(path, dtypes=dtypes, on_bad_row="skip")
    assert sum(len(features["a"]) for features in batches(input_fn)) == len(bad)
    assert input_fn.bad_rows == len(bad)
    rows = parser("abcd", dtypes=dtypes)
    for row, name in zip(bad, "aaaabbcd"):
        assert f"column {name!r} must be {dtypes[name].name}" in rows.explain(row.encode())


def test_csv_bad_value_in_a_multi_valued_field_is_named(write):
    path = write("a.csv", "ids,label\n1|2,1\n3|x,0\n")
    input_fn = read(path, multi_valued=["ids"], dtypes={"ids": tf.int64})
    message = "a.csv, line 3: column 'ids' must be int64, got 'x'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(input_fn)


def test_csv_bad_row_may_contain_any_bytes(write):
    path = write("a.csv", b"n\n1\n\xff\x00\xc3\xa9\n")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a.csv, line 3: column 'n' must be"):
        batches(inputs.csv_input_fn(path, dtypes={"n": tf.int64}))


@pytest.mark.parametrize("rows", ["", "x,u,1\n"], ids=["header only", "bad rows only"])
def test_csv_files_without_a_good_row_are_an_error_and_not_a_hang(write, log, rows):
    path = write("a.csv", "label,user,price\n" + rows)
    message = f"at least 1 good rows, got 0 good and {len(rows) // 5} bad rows in 1 files"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(read(path, on_bad_row="skip", num_epochs=None))


def test_csv_too_few_rows_for_one_full_batch_are_an_error(write):
    input_fn = read(write("a.csv", numbered(3)), drop_remainder=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least 4 good rows, got 3"):
        batches(input_fn)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b[:-8] + bytes(8), lambda b: b[:-200] + b"?" + b[-199:]],
    ids=["cut short", "wrong checksum", "wrong byte"],
)
def test_csv_damaged_compressed_file_is_an_error_that_names_it(write, damage):
    path = write("a.csv.gz", damage(gzip.compress(numbered(3000).encode())))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a.csv.gz must be a complete GZIP"):
        batches(read(path, on_bad_row="skip"))


def test_csv_missing_file_is_an_error_that_names_it(write, tmp_path):
    path = write("a.csv", numbered(3))
    dataset = read(path)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(ValueError, match=r"file_pattern must match a file, got .*a\.csv"):
        dataset()


COMPRESSED = [
    ("a.csv.gz", gzip.compress, None),
    ("a.dat", zlib.compress, "ZLIB"),
    ("a.gz", bytes, ""),
    ("a.csv.gz", lambda b: gzip.compress(b[:50]) + gzip.compress(b[50:]), None),
]


@pytest.mark.parametrize(
    "name, compress, compression_type",
    COMPRESSED,
    ids=["gzip by name", "zlib", "not in spite of the name", "two members"],
)
def test_csv_compressed_files_give_the_same_rows(write, name, compress, compression_type):
    path = write(name, compress(numbered(3000).encode()))
    found = batches(read(path, compression_type=compression_type, batch_size=1000))
    assert labels(found) == list(range(3000))


# TFRecord.

SPEC = {
    "label": tf.io.FixedLenFeature([], tf.float32),
    "user": tf.io.FixedLenFeature([], tf.string),
    "tags": tf.io.RaggedFeature(tf.int64),
    "words": tf.io.VarLenFeature(tf.string),
}


def example(number, **changes):
    features = {
        "label": tf.train.Feature(float_list=tf.train.FloatList(value=[number])),
        "user": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"u%d" % number])),
        "tags": tf.train.Feature(int64_list=tf.train.Int64List(value=range(number % 3))),
        **changes,
    }
    features = {name: value for name, value in features.items() if value is not None}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def read_records(path, **kwargs):
    kwargs = {"label_column": "label", "batch_size": 4, **kwargs}
    return inputs.tfrecord_input_fn(path, SPEC, **kwargs)


@pytest.mark.long
@pytest.mark.parametrize("compression", ["", "GZIP"], ids=["plain", "gzip"])
def test_tfrecord_examples_are_parsed_as_declared(tmp_path, compression):
    path = write_records(tmp_path / "a", map(example, range(6)), compression)
    found = batches(read_records(path, compression_type=compression))
    assert labels(found) == list(range(6))
    assert column(found, "user") == [b"u%d" % i for i in range(6)]
    assert column(found, "tags") == [[], [0], [0, 1]] * 2
    assert isinstance(found[0][0]["words"], tf.SparseTensorValue)


@pytest.mark.long
def test_tfrecord_files_of_any_number_of_blocks_are_read_completely(tmp_path):
    for count in (1, 1023, 1024, 1025, 2048):
        write_records(tmp_path / str(count), [example(i) for i in range(count)])
    found = batches(read_records(str(tmp_path / "*"), batch_size=500, shuffle=True))
    assert sorted(labels(found)) == sorted(i for n in (1, 1023, 1024, 1025, 2048) for i in range(n))


BAD_EXAMPLES = [
    (b"not an example", "record must be a tf.train.Example, got 14 other bytes"),
    (
        example(0, user=None),
        "feature 'user' must be in the record, got ['label', 'tags']",
    ),
    (
        example(0, label=tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))),
        "feature 'label' must be float32, got a int64_list",
    ),
    (
        example(0, label=tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2]))),
        "feature 'label' must have the shape [], got 2 values",
    ),
]


@pytest.mark.parametrize(
    "record, message", BAD_EXAMPLES, ids=["garbage", "missing", "type", "shape"]
)
def test_tfrecord_bad_record_is_explained(record, message):
    assert message in row_parsers.ExampleRows(SPEC, "label").explain(record)


def test_tfrecord_bad_record_is_an_error_with_its_file_number_and_reason(tmp_path):
    record, message = BAD_EXAMPLES[0]
    path = write_records(tmp_path / "a", [*map(example, range(1030)), record, example(7)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"a, record 1031: {message}"):
        batches(read_records(path, batch_size=100))


def test_tfrecord_bad_records_are_skipped_counted_and_logged(tmp_path, log):
    records = [record for bad, _ in BAD_EXAMPLES for record in (bad, example(3))]
    path = write_records(tmp_path / "a", [example(0), *records])
    input_fn = read_records(path, on_bad_row="skip")
    assert labels(batches(input_fn)) == [0, 3, 3, 3, 3]
    assert input_fn.bad_rows == 4
    assert "a, record 2: " in log[0] and log[1].startswith("4 bad rows of this pass")


LAST = len(example(1099)) + 16
DAMAGES = {
    "cut in data": (lambda b: b[:-5], 1100),
    "cut in length": (lambda b: b[: -LAST + 5], 1100),
    "cut behind length": (lambda b: b[: -LAST + 14], 1100),
    "wrong byte": (lambda b: b[:20] + b"?" + b[21:], 1),
    "text": (lambda b: b"this is not a file of records", 1),
}


@pytest.fixture
def damaged(tmp_path):
    """The paths of files with each kind of damage."""
    path = write_records(tmp_path / "whole", map(example, range(1100)))
    whole = (tmp_path / "whole").read_bytes()
    for name, (change, _) in DAMAGES.items():
        (tmp_path / name).write_bytes(change(whole))
    return [str(tmp_path / name) for name in DAMAGES] + [path]


def test_tfrecord_damage_is_an_error_with_its_file_and_record(damaged):
    message = (
        "cut in length, record 1100: file must contain complete TFRecords, got a damaged or cut"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(read_records(damaged[1], batch_size=500))


def test_tfrecord_damage_ends_its_file_and_is_logged(damaged, monkeypatch):
    said = []
    monkeypatch.setattr(row_files.BadRows, "add", lambda self, messages: said.extend(messages))
    found = batches(read_records(damaged, batch_size=500, on_bad_row="skip"))
    rests = [range(number - 1) for _, number in DAMAGES.values()]
    assert labels(found) == [i for rest in rests for i in rest] + [*range(1100)]
    assert len(said) == len(DAMAGES)
    for message, (name, (_, number)) in zip(said, DAMAGES.items()):
        assert f"{name}, record {number}: file must contain complete TFRecords" in message


def test_tfrecord_compressed_file_cut_short_is_an_error(tmp_path):
    path = write_records(tmp_path / "a.gz", [example(i) for i in range(2000)], "GZIP")
    whole = (tmp_path / "a.gz").read_bytes()
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"a.gz, record \d+: file must contain"
    ):
        batches(read_records(path))


def test_tfrecord_files_without_records_are_an_error(tmp_path):
    path = write_records(tmp_path / "a", [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least 1 good rows, got 0"):
        batches(read_records(path, num_epochs=None))


def test_tfrecord_file_deleted_during_use_is_an_error_and_not_a_hang(tmp_path):
    path = write_records(tmp_path / "a", [example(0)])
    dataset = read_records(path, num_epochs=None, prefetch=0)()
    batch = tf.data.make_initializable_iterator(dataset)
    values = batch.get_next()
    with tf.Session() as session:
        session.run(batch.initializer)
        (tmp_path / "a").unlink()
        with pytest.raises(tf.errors.InvalidArgumentError, match="got no such file"):
            for _ in range(100):
                session.run(values)


@pytest.mark.parametrize(
    "features, label, message",
    [
        ({}, None, "features must be a dict of name to tf.io feature"),
        (SPEC, "clicks", "label_column must name columns that exist, got 'clicks'"),
    ],
    ids=["no features", "no such label"],
)
def test_tfrecord_bad_argument_is_an_error(tmp_path, features, label, message):
    path = write_records(tmp_path / "a", [example(0)])
    with pytest.raises(ValueError, match=message):
        inputs.tfrecord_input_fn(path, features, label_column=label)


# Whole files: several compressed streams, other encodings, carriage returns.

WAYS_TO_END = {
    "cut": lambda b: b[:-3],
    "junk": lambda b: b + b"junk",
    "second stream cut": lambda b: b + b[: len(b) // 2],
}


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_csv_all_streams_of_a_zlib_file_are_read(write, streams):
    text = numbered(300).encode()
    ends = [len(text) * (i + 1) // streams for i in range(streams)]
    pieces = [text[a:b] for a, b in zip([0, *ends], ends)]
    path = write("a.dat", b"".join(map(zlib.compress, pieces)))
    found = batches(read(path, compression_type="ZLIB", num_epochs=2))
    assert labels(found) == [*range(300), *range(300)]


@pytest.mark.each_value
@pytest.mark.parametrize("how", WAYS_TO_END.values(), ids=WAYS_TO_END)
@pytest.mark.parametrize("compress, kind", [(zlib.compress, "ZLIB"), (gzip.compress, "GZIP")])
def test_csv_what_follows_a_compressed_stream_is_an_error(write, how, compress, kind):
    path = write("a.dat", how(compress(numbered(300).encode())))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"a.dat must be a complete {kind}"):
        batches(read(path, compression_type=kind))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("header", [True, False], ids=["header", "no header"])
def test_csv_in_another_encoding_is_an_error_with_the_remedy(write, encoding, header):
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    path = write("a.csv", mark + numbered(3).encode(encoding))
    names = None if header else ["label", "user", "price"]
    message = r"a.csv must be UTF-8 text, got UTF-(16|32); .*iconv"
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        batches(read(path, header=header, column_names=names))


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("far", [False, True], ids=["near", "beyond the first MiB"])
@pytest.mark.parametrize("last", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_csv_a_carriage_return_inside_a_line_is_an_error(write, compress, far, last):
    lines = numbered(200_000 if far else 30).splitlines()
    place = len(lines) - 2
    lines[place] = lines[place].replace(",", ",a\rb", 1)
    path = write("a.csv", compress((last.join(lines) + last).encode()))
    kind = "" if compress is bytes else "GZIP"
    message = rf"a.csv, line {place + 1}: lines must end with .n or .r.n, got a .r elsewhere"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(read(path, compression_type=kind, batch_size=1000))


def test_csv_lines_that_end_with_a_carriage_return_alone_are_an_error(write):
    path = write("a.csv", numbered(3).replace("\n", "\r"))
    with pytest.raises(ValueError, match="a.csv, line 1: lines must end with"):
        read(path)
    names = ["label", "user", "price"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="a.csv, line 1: lines must end with"):
        batches(read(path, header=False, column_names=names))


@pytest.mark.each_value
@pytest.mark.parametrize("last", ["", "\n"], ids=["no end of line", "end of line"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_csv_lines_end_with_or_without_a_carriage_return(write, end, last):
    text = numbered(3000).rstrip("\n").replace("\n", end) + (last and end)
    assert labels(batches(read(write("a.csv", text), num_epochs=2, batch_size=1000))) == 2 * [
        *range(3000)
    ]


@pytest.mark.long
@pytest.mark.parametrize("streams", [1, 3])
def test_tfrecord_all_streams_of_a_zlib_file_are_read(tmp_path, streams):
    pieces = []
    for stream in range(streams):
        part = write_records(tmp_path / "part", map(example, range(3 * stream, 3 * stream + 3)))
        with open(part, "rb") as file:
            pieces.append(zlib.compress(file.read()))
    path = tmp_path / "all"
    path.write_bytes(b"".join(pieces))
    found = batches(read_records(str(path), compression_type="ZLIB"))
    assert labels(found) == list(range(3 * streams))
    path.write_bytes(b"".join(pieces) + b"junk")
    with pytest.raises(tf.errors.InvalidArgumentError, match="must contain complete TFRecords"):
        batches(read_records(str(path), compression_type="ZLIB"))
