# SPDX-License-Identifier: Apache-2.0
"""Tests of the input_fn builders: their batches, and the errors for bad arguments."""

import datetime

import numpy as np
import pandas
import pytest
import tensorflow.compat.v1 as tf
from input_batches import batches, column, labels, numbered, read

import rec_estimator as rec
from rec_estimator import inputs


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


# CSV: fields.


@pytest.mark.long
def test_csv_columns_have_their_declared_types_and_labels_are_separate(write):
    path = write("a.csv", "user,price,n,liked\n7,0.5,3,1\n8,1.5,4,0\n")
    input_fn = inputs.csv_input_fn(
        path, label_column="liked", dtypes={"price": tf.float32, "n": tf.int64}
    )
    [(features, liked)] = batches(input_fn)
    assert sorted(features) == ["n", "price", "user"]
    assert features["user"].tolist() == [b"7", b"8"]
    assert features["price"].dtype == np.float32 and features["price"].tolist() == [0.5, 1.5]
    assert features["n"].dtype == np.int64 and features["n"].tolist() == [3, 4]
    assert liked.dtype == np.float32 and liked.tolist() == [1, 0]


def test_csv_without_labels_gives_features_only(write):
    [features] = batches(inputs.csv_input_fn(write("a.csv", "a,b\n1,2\n")))
    assert features["b"].tolist() == [b"2"]


def test_csv_with_several_labels_gives_a_dict_of_them(write):
    path = write("a.csv", "a,click,buy\n1,1,0\n")
    input_fn = inputs.csv_input_fn(path, label_column=["click", "buy"], dtypes={"buy": tf.int64})
    [(features, found)] = batches(input_fn)
    assert sorted(features) == ["a"]
    assert found["click"].tolist() == [1.0] and found["buy"].dtype == np.int64


def test_csv_empty_fields_read_their_defaults(write):
    path = write("a.csv", "s,f,i,d\n,,,\nx,1,2,3\n")
    input_fn = inputs.csv_input_fn(
        path, dtypes={"f": tf.float32, "i": tf.int32}, defaults={"d": -7, "s": "none"}
    )
    [features] = batches(input_fn)
    assert features["s"].tolist() == [b"none", b"x"]
    assert features["f"].tolist() == [0, 1] and features["i"].tolist() == [0, 2]
    assert features["d"].dtype == np.int64 and features["d"].tolist() == [-7, 3]


def test_csv_quoted_fields_keep_delimiters_and_quotes(write):
    path = write("a.csv", 'a,b\n"x,y","say ""hi"""\n')
    [features] = batches(inputs.csv_input_fn(path))
    assert features["a"].tolist() == [b"x,y"] and features["b"].tolist() == [b'say "hi"']


@pytest.mark.long
def test_csv_multi_valued_columns_are_ragged(write):
    path = write("a.csv", "genres,ids,label\nwar|drama,3|-4,1\n,,0\n|x||,5,1\n")
    input_fn = read(path, multi_valued=["genres", "ids"], dtypes={"ids": tf.int64})
    found = batches(input_fn)
    assert column(found, "genres") == [[b"war", b"drama"], [], [b"x"]]
    assert column(found, "ids") == [[3, -4], [], [5]]


def test_csv_reads_only_the_chosen_columns(write):
    path = write("a.csv", "a,b,label\n1,2,3\n")
    [(features, _)] = batches(read(path, columns=["b"]))
    assert sorted(features) == ["b"]


@pytest.mark.parametrize("header", [True, False], ids=["header", "no header"])
def test_csv_line_ends_byte_order_marks_and_blank_lines_are_ignored(write, tmp_path, header):
    forms = [
        "user,label\nu0,0\nu1,1\n",
        "user,label\r\nu0,0\r\nu1,1\r\n",
        "\ufeffuser,label\nu0,0\nu1,1\n",
        "user,label\nu0,0\nu1,1",
        "user,label\n\nu0,0\n\n\r\nu1,1\n\n",
    ]
    for number, form in enumerate(forms):
        write(f"{number}.csv", form if header else form.replace("user,label", "u9,9"))
    names = {} if header else {"header": False, "column_names": ["user", "label"]}
    found = batches(read(str(tmp_path / "*.csv"), **names))
    assert column(found, "user") == (([] if header else [b"u9"]) + [b"u0", b"u1"]) * len(forms)
    assert labels(found) == (([] if header else [9]) + [0, 1]) * len(forms)


def test_csv_delimiter_can_be_chosen(write):
    path = write("a.csv", numbered(3).replace(",", "\t"))
    assert column(batches(read(path, delimiter="\t")), "user") == [b"u0", b"u1", b"u2"]


# CSV: files, order and batches.


def test_csv_files_are_read_by_name_each_with_its_header(write, tmp_path):
    for name, start in (("b", 10), ("a", 0), ("empty", None), ("c", 20)):
        write(f"{name}.csv", "" if start is None else numbered(5, start))
    found = batches(read(str(tmp_path / "*.csv")))
    assert labels(found) == [*range(5), *range(10, 15), *range(20, 25)]
    assert [len(label) for _, label in found] == [4, 4, 4, 3]


@pytest.mark.long
def test_csv_files_read_in_parallel_give_the_same_order_every_time(write, tmp_path):
    for i in range(3):
        write(f"{i}.csv", numbered(1500, 10000 * i))
    input_fn = read(str(tmp_path / "*.csv"), num_parallel_reads=3, batch_size=500)
    first = labels(batches(input_fn))
    assert first[1024] == 10000, "blocks of 1024 rows are taken from the files in turn"
    assert sorted(first) == [10000 * i + row for i in range(3) for row in range(1500)]
    assert first == labels(batches(input_fn))


def test_a_batch_may_span_two_passes(write):
    found = batches(read(write("a.csv", numbered(5)), num_epochs=3))
    assert labels(found) == [0, 1, 2, 3, 4] * 3
    assert [len(label) for _, label in found] == [4, 4, 4, 3]


def test_num_epochs_none_means_unlimited(write):
    found = batches(read(write("a.csv", numbered(5)), num_epochs=None), limit=50)
    assert labels(found) == [0, 1, 2, 3, 4] * 40


@pytest.mark.long
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_drop_remainder_drops_the_last_short_batch_and_fixes_the_shape(write, shuffle):
    input_fn = read(write("a.csv", numbered(6)), drop_remainder=True, shuffle=shuffle)
    assert [len(label) for _, label in batches(input_fn)] == [4]
    features, label = tf.data.make_initializable_iterator(input_fn()).get_next()
    assert features["user"].shape.as_list() == [4] and label.shape.as_list() == [4]


def file_rows(write, **kwargs):
    return read(write("a.csv", numbered(200)), batch_size=50, **kwargs)


def memory_rows(write, **kwargs):
    numbers = np.arange(200.0)
    return inputs.numpy_input_fn({"user": numbers}, numbers, batch_size=50, **kwargs)


BUILDERS = pytest.mark.parametrize("make", [file_rows, memory_rows], ids=["files", "memory"])


@BUILDERS
def test_each_shuffled_pass_has_every_row_once_in_a_new_order(write, make):
    order = labels(batches(make(write, shuffle=True, seed=3, num_epochs=2)))
    first, second = order[:200], order[200:]
    assert sorted(first) == sorted(second) == list(range(200))
    assert first != second and first != sorted(first)


@pytest.mark.long
@BUILDERS
def test_seed_determines_the_order(write, make):
    orders = [labels(batches(make(write, shuffle=True, seed=seed))) for seed in (3, 3, -3)]
    assert orders[0] == orders[1] != orders[2]


@BUILDERS
def test_without_a_seed_the_graph_seed_determines_the_order(write, make):
    first, second = [labels(batches(make(write, shuffle=True))) for _ in range(2)]
    assert first == second


def test_shuffle_buffer_limits_how_far_a_row_moves_forward(write):
    order = labels(batches(file_rows(write, shuffle=10, seed=1)))
    assert sorted(order) == list(range(200)) != order
    assert all(row < place + 10 for place, row in enumerate(order))


# CSV: arguments.


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer >= 1, got 2.5"),
        ({"num_epochs": 0}, "num_epochs must be an integer >= 1, got 0"),
        ({"shuffle": -5}, "shuffle must be True, False or a number of rows >= 1, got -5"),
        ({"seed": "a"}, "seed must be an integer or None, got 'a'"),
        ({"prefetch": -2}, "prefetch must be a number of batches >= 0 or tf.data.AUTOTUNE, got -2"),
        ({"drop_remainder": "no"}, "drop_remainder must be True or False, got 'no'"),
        ({"num_parallel_reads": 0}, "num_parallel_reads must be an integer >= 1, got 0"),
        ({"on_bad_row": "ignore"}, 'on_bad_row must be "error" or "skip", got \'ignore\''),
        ({"compression_type": "zip"}, 'compression_type must be None, "", "GZIP" or "ZLIB"'),
        ({"delimiter": "::"}, "delimiter must be one ASCII character, got '::'"),
        ({"value_delimiter": ""}, "value_delimiter must be one ASCII character, got ''"),
        ({"label_column": "clicks"}, r"label_column .*'clicks'.*\['label', 'user', 'price'\]"),
        ({"columns": ["label"]}, r"columns must leave out the labels, got \['label'\]"),
        ({"columns": ["item"]}, "columns must name columns that exist, got 'item'"),
        ({"dtypes": {"item": tf.int64}}, "dtypes must name columns that exist, got 'item'"),
        ({"dtypes": {"user": tf.bool}}, "dtypes must be float32, .* for 'user'"),
        ({"defaults": {"item": 1}}, "defaults must name columns that exist, got 'item'"),
        (
            {"defaults": {"price": "x"}, "dtypes": {"price": tf.float32}},
            "defaults must be of their columns' dtypes, got 'x' for 'price', which is float32",
        ),
        ({"multi_valued": ["tags"]}, "multi_valued must name columns that exist, got 'tags'"),
        ({"header": False}, "column_names must be given if the files have no header, got None"),
        ({"column_names": ["a", "b", "c"]}, "header must name the columns of column_names"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_csv_bad_argument_is_an_error_when_the_input_fn_is_built(write, arguments, message):
    path = write("a.csv", numbered(3))
    with pytest.raises(ValueError, match=message):
        read(path, **arguments)


@pytest.mark.parametrize("build", [read, lambda p: inputs.tfrecord_input_fn(p, {"a": None})])
def test_pattern_without_a_file_is_an_error_that_names_it(tmp_path, build):
    with pytest.raises(ValueError, match=r"file_pattern must match a file, got '.*nothing-\*"):
        build(str(tmp_path / "nothing-*"))


@pytest.mark.parametrize("pattern", [[], None, 3, [3], ""], ids=repr)
def test_pattern_must_be_text(pattern):
    with pytest.raises(ValueError, match="file_pattern must be a path or pattern, or several, got"):
        read(pattern)


def test_files_with_different_columns_are_an_error_that_names_both(write, tmp_path):
    write("a.csv", "label,user\n1,2\n")
    write("b.csv", "user,label\n1,2\n")
    with pytest.raises(ValueError, match=r"b\.csv, line 1: header must name .*a\.csv"):
        read(str(tmp_path / "*.csv"))


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "file_pattern must match a file with a header, got empty files only"),
        ("\n1,2\n", "line 1: header must name the columns, got a blank line"),
        ("a,a\n1,2\n", "line 1: header must name each column once"),
    ],
    ids=["empty file", "blank line", "name twice"],
)
def test_csv_without_a_proper_header_is_an_error(write, content, message):
    with pytest.raises(ValueError, match=message):
        inputs.csv_input_fn(write("a.csv", content))


def test_existing_path_with_brackets_is_not_a_pattern(write):
    path = write("a[1].csv", numbered(2))
    assert labels(batches(read(path))) == [0, 1]


# Columns in memory.


def test_numpy_columns_keep_types_and_shapes():
    columns = {
        "id": np.arange(5),
        "price": np.linspace(0, 1, 5),
        "vector": np.ones([5, 3], np.float32),
        "name": np.array(list("abcdé")),
        "text": ["x", b"y", "z", "", "é"],
        "flag": np.array([True, False] * 2 + [True]),
    }
    found = batches(inputs.numpy_input_fn(columns, np.arange(5), batch_size=2))
    assert [len(label) for _, label in found] == [2, 2, 1]
    first = found[0][0]
    assert first["vector"].shape == (2, 3)
    assert [first[name].dtype for name in ("id", "price", "vector", "flag")] == [
        np.int64,
        np.float64,
        np.float32,
        bool,
    ]
    assert column(found, "name") == [b"a", b"b", b"c", b"d", "é".encode()]
    assert column(found, "text") == [b"x", b"y", b"z", b"", "é".encode()]


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_numpy_lists_of_lists_are_ragged_and_stay_with_their_row(shuffle):
    lists = [list(range(n % 4)) for n in range(50)]
    words = [[f"w{n}"] * (n % 3) for n in range(50)]
    columns = {"n": np.arange(50), "lists": lists, "words": words}
    found = batches(
        inputs.numpy_input_fn(columns, np.arange(50), batch_size=7, shuffle=shuffle, num_epochs=2)
    )
    order = column(found, "n")
    assert order == labels(found)
    assert column(found, "lists") == [lists[n] for n in order]
    assert column(found, "words") == [[w.encode() for w in words[n]] for n in order]


def test_numpy_lists_of_equal_length_are_ragged_and_arrays_are_dense():
    columns = {"lists": [[1, 2], [3, 4]], "array": np.array([[1, 2], [3, 4]])}
    [features] = batches(inputs.numpy_input_fn(columns))
    assert features["lists"].to_list() == [[1, 2], [3, 4]]
    assert features["array"].tolist() == [[1, 2], [3, 4]]


def test_numpy_labels_may_be_none_or_several_and_dtypes_cast_them():
    columns = {"a": np.arange(3)}
    assert list(batches(inputs.numpy_input_fn(columns))[0]) == ["a"]
    both = {"click": [1, 0, 1], "buy": np.array([0.5, 0, 1])}
    [(features, found)] = batches(
        inputs.numpy_input_fn(columns, both, dtypes={"buy": tf.float32, "a": tf.int32})
    )
    assert features["a"].dtype == np.int32
    assert found["click"].tolist() == [1, 0, 1] and found["buy"].dtype == np.float32


def test_numpy_batches_of_a_fixed_size_have_a_static_shape():
    columns = {"a": np.arange(9), "l": [[1]] * 9}
    input_fn = inputs.numpy_input_fn(columns, np.arange(9), batch_size=4, drop_remainder=True)
    features, label = tf.data.make_initializable_iterator(input_fn()).get_next()
    assert features["a"].shape.as_list() == [4] and label.shape.as_list() == [4]
    assert [len(value) for _, value in batches(input_fn)] == [4, 4]


def test_numpy_columns_are_not_copied_into_the_graph():
    with tf.Graph().as_default() as graph:
        inputs.numpy_input_fn({"a": np.zeros(1_000_000)}, shuffle=True)()
        assert graph.as_graph_def().ByteSize() < 100_000


@pytest.mark.parametrize(
    "columns, label, error, message",
    [
        ({}, None, ValueError, "columns must be a dict of name to array"),
        ([1, 2], None, ValueError, "columns must be a dict of name to array"),
        ({"a": []}, None, ValueError, r"columns must have at least one row, got none in \['a'\]"),
        ({"a": [1], "b": [1, 2]}, None, ValueError, r"the same length, got {'a': 1, 'b': 2}"),
        ({"a": [1]}, [1, 2], ValueError, r"the same length, got {'a': 1, 'labels': 2}"),
        ({"a": 3}, None, ValueError, "column 'a' must be an array or list of rows, got array.3"),
        (
            {"a": ["x", None]},
            None,
            TypeError,
            "have a value in every row, got None in row 1; fill in",
        ),
        ({"a": [[1], 2]}, None, ValueError, "column 'a' must hold a flat list in .* 2 in row 1"),
        ({"a": [[[1]]]}, None, ValueError, "column 'a' must hold a flat list in every row"),
        ({"a": np.array(["2020"], "M8")}, None, TypeError, "column 'a' must be numbers, strings"),
        ({3: [1]}, None, TypeError, "columns must have strings as names, got 3"),
    ],
    ids=[
        "none",
        "list",
        "empty",
        "lengths",
        "label",
        "scalar",
        "None",
        "mixed",
        "deep",
        "date",
        "name",
    ],
)
def test_numpy_bad_column_is_an_error_that_names_it(columns, label, error, message):
    with pytest.raises(error, match=message):
        inputs.numpy_input_fn(columns, label)


def test_numpy_bad_argument_is_an_error():
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1, got -1"):
        inputs.numpy_input_fn({"a": [1]}, batch_size=-1)
    with pytest.raises(ValueError, match="dtypes must name columns that exist, got 'b'"):
        inputs.numpy_input_fn({"a": [1]}, dtypes={"b": tf.int64})
    with pytest.raises(
        TypeError, match="dtypes must convert numbers to numbers, got int64 for 'a'"
    ):
        inputs.numpy_input_fn({"a": ["x"]}, dtypes={"a": tf.int64})
    with pytest.raises(ValueError, match="at least 4 rows, got 3; drop_remainder"):
        inputs.numpy_input_fn({"a": [1, 2, 3]}, batch_size=4, drop_remainder=True)
    with pytest.raises(ValueError, match="at least 2 rows, got 1; drop_remainder"):
        inputs.numpy_input_fn({"a": [1]}, batch_size=4, num_epochs=3, drop_remainder=True)


class Series:
    """The part of a Series that pandas_input_fn needs: NumPy can read it."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self._values


class DataFrame:
    """The part of a DataFrame that pandas_input_fn needs: keys() and columns by name."""

    def __init__(self, **columns):
        self._columns = columns

    def keys(self):
        return list(self._columns)

    def __getitem__(self, name):
        return Series(self._columns[name])


@pytest.mark.parametrize("kind", [dict, DataFrame], ids=["dict", "DataFrame"])
def test_pandas_columns_become_features_and_labels(kind):
    lists = np.empty(3, object)
    lists[:] = [[1], [], [2, 3]]
    frame = kind(user=["a", "b", "c"], tags=lists, liked=[1, 0, 1], bought=[0, 0, 1])
    found = batches(inputs.pandas_input_fn(frame, "liked", dtypes={"liked": tf.float32}))
    assert sorted(found[0][0]) == ["bought", "tags", "user"]
    assert column(found, "user") == [b"a", b"b", b"c"]
    assert column(found, "tags") == [[1], [], [2, 3]]
    assert found[0][1].dtype == np.float32 and labels(found) == [1, 0, 1]
    [(_, both)] = batches(inputs.pandas_input_fn(frame, ["liked", "bought"]))
    assert both["bought"].tolist() == [0, 0, 1]


def test_pandas_bad_argument_is_an_error():
    with pytest.raises(TypeError, match="dataframe must be a DataFrame or a mapping, got 3"):
        inputs.pandas_input_fn(3)
    with pytest.raises(ValueError, match=r"label_column .* got 'y'; there are \['a'\]"):
        inputs.pandas_input_fn({"a": [1]}, "y")


# In an Estimator.


@pytest.mark.long
def test_estimator_trains_evaluates_and_predicts_from_a_file(write, tmp_path):
    path = write("a.csv", "user,tags,label\n" + "".join(f"{i},t{i}|x,{i % 2}\n" for i in range(64)))

    def input_fn(**kwargs):
        return read(path, dtypes={"user": tf.int64}, multi_valued=["tags"], batch_size=16, **kwargs)

    def model_fn(features, labels, mode):
        logits = tf.reduce_sum(features["user"] + features["tags"], 1)
        if mode == rec.ModeKeys.PREDICT:
            return rec.EstimatorSpec(mode, predictions={"logits": logits})
        loss = tf.losses.sigmoid_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.5).minimize(loss, global_step=step)
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = rec.RecEstimator(
        model_fn,
        str(tmp_path / "model"),
        embedding_features=[
            rec.EmbeddingFeature("user", 4),
            rec.EmbeddingFeature("tags", 4, dtype=tf.string),
        ],
    )
    estimator.train(input_fn(shuffle=True, num_epochs=None), steps=60)
    assert estimator.evaluate(input_fn())["loss"] < 0.3
    assert len(list(estimator.predict(input_fn()))) == 64


# Values that must arrive as they are, or not at all.

NUMBER_TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


@pytest.mark.parametrize("kind", NUMBER_TYPES)
@pytest.mark.parametrize("order", [">", "<"])
def test_numpy_numbers_in_any_byte_order_keep_their_values(kind, order):
    native = np.array([1, 2, 100]).astype(kind)
    columns = {"x": native.astype(order + kind), "lists": [native.astype(order + kind)] * 3}
    [(features, label)] = batches(inputs.numpy_input_fn(columns, columns["x"]))
    assert features["x"].dtype == label.dtype == native.dtype
    assert features["x"].tolist() == label.tolist() == native.tolist()
    assert features["lists"].values.tolist() == 3 * native.tolist()


REFUSED_VALUES = {
    "masked": (
        np.ma.array([1, 2], mask=[False, True]),
        None,
        "a value in every row, got -- at position 1",
    ),
    "masked list": (
        [[1], np.ma.array([1, 2], mask=[0, 1])],
        None,
        "a value in every row, got -- at",
    ),
    "none": ([1, None], None, "a value in every row, got None in row 1"),
    "NaN among texts": (["a", float("nan")], None, "a value in every row, got nan in row 1"),
    "none in a list": ([["a"], ["b", None]], None, "a value in every row, got None in row 1"),
    "date": ([datetime.date(2020, 1, 1)], None, r"got datetime.date\(2020, 1, 1\) in row 0; conv"),
    "surrogate": (["a", "\ud800"], None, "text that UTF-8 can encode, got '.ud800' in row 1"),
    "both": ([1, "a"], None, "must be numbers or strings, got both"),
    "both in lists": ([[1], ["a"]], None, "must be numbers or strings, got both"),
    "wide": ([-1, 2**63], None, "must fit into int64 or uint64"),
    "wide in lists": ([[-1], np.array([2**63], "u8")], None, "must fit into int64 or uint64"),
    "NaN": ([1.0, float("nan")], tf.int64, "'x' must be int64, got nan in row 1"),
    "fraction": ([1.0, 2.7], tf.int64, "'x' must be int64, got 2.7 in row 1"),
    "fraction in a list": (
        [[1.0], [], [2.0, 2.7]],
        tf.int64,
        "'x' must be int64, got 2.7 in row 2",
    ),
    "uint64": (np.array([2**63], "u8"), tf.int64, "'x' must be int64, got 9223372036854775808"),
    "int32": ([2**31], tf.int32, "'x' must be int32, got 2147483648 in row 0"),
    "negative": ([-1], tf.uint8, "'x' must be uint8, got -1 in row 0"),
    "infinite": ([1e300], tf.float32, r"'x' must be float32, got 1e\+300 in row 0"),
    "bool": ([2], tf.bool, "'x' must be bool, got 2 in row 0"),
    "long double": (np.array([1], np.longdouble), None, "numbers, strings or lists of them"),
}


@pytest.mark.parametrize("values, dtype, message", REFUSED_VALUES.values(), ids=REFUSED_VALUES)
def test_numpy_values_that_would_change_are_refused(values, dtype, message):
    with pytest.raises((TypeError, ValueError), match=message):
        inputs.numpy_input_fn({"x": values}, dtypes=dtype and {"x": dtype})


@pytest.mark.parametrize(
    "values, dtype, expected",
    [
        ([float(2**62)], tf.int64, [2**62]),
        (np.array([2**63 - 1], "u8"), tf.int64, [2**63 - 1]),
        ([float("nan"), float("inf")], tf.float32, [float("nan"), float("inf")]),
        ([2**24 + 1], tf.float32, [2**24]),
        ([True, False], tf.int32, [1, 0]),
        ([1, 0], tf.bool, [True, False]),
        (np.array([1, 2], object), None, [1, 2]),
        (np.ma.array([1, 2], mask=False), None, [1, 2]),
    ],
)
def test_numpy_values_that_fit_are_converted(values, dtype, expected):
    [features] = batches(inputs.numpy_input_fn({"x": values}, dtypes=dtype and {"x": dtype}))
    np.testing.assert_array_equal(features["x"], expected)


def test_pandas_two_columns_of_one_name_are_refused():
    frame = pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])
    with pytest.raises(ValueError, match="dataframe must name each column once, got 'a' 2 times"):
        inputs.pandas_input_fn(frame)


@pytest.mark.parametrize(
    "values, message",
    [
        (pandas.array([True, None], "boolean"), "a value in every row, got <NA> at position 1"),
        (pandas.array([1, None], "Int64"), "a value in every row, got <NA> at position 1"),
        (pandas.array(["a", None], "string"), "a value in every row, got <NA> in row 1"),
        (pandas.to_datetime(["2020-01-01"]), "must be numbers, strings or lists of them, got dat"),
        (pandas.Categorical(["a", None]), "a value in every row, got nan (in row|at position) 1"),
    ],
    ids=["boolean", "Int64", "string", "dates", "categorical"],
)
def test_pandas_missing_values_and_dates_are_named(values, message):
    with pytest.raises((TypeError, ValueError), match=message):
        inputs.pandas_input_fn(pandas.DataFrame({"x": values}))


# The calls of tf.compat.v1.estimator.inputs.

X = {"a": np.array([1, 2, 3])}
Y = np.array([0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((X, Y), {}),
        ((), {"x": X, "y": Y}),
        ((X,), {"y": Y, "shuffle": False, "num_epochs": 1, "num_threads": 1}),
        ((X, Y, 2, 1, False, 1000, 4), {}),
        ((), {"x": X, "y": Y, "batch_size": 2, "queue_capacity": 10, "shuffle": False}),
    ],
    ids=["positional", "by name", "mixed", "all positional", "queue"],
)
def test_numpy_takes_the_arguments_of_tensorflow(args, kwargs):
    found = batches(inputs.numpy_input_fn(*args, **kwargs))
    assert [row for features, _ in found for row in features["a"]] == [1, 2, 3]
    assert [row for _, label in found for row in label] == [0, 1, 0]


def test_numpy_takes_a_single_array():
    [(features, _)] = batches(inputs.numpy_input_fn(X["a"], Y))
    assert features.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="columns must be given once, got x as well"):
        inputs.numpy_input_fn(X, x=X)


@pytest.mark.parametrize("target", [{}, {"target_column": "clicked"}], ids=["", "target_column"])
def test_pandas_takes_the_arguments_of_tensorflow(target):
    frame = pandas.DataFrame({"a": [1, 2, 3]}, index=[5, 6, 7])
    series = pandas.Series([0.0, 1.0, 0.0], index=[5, 6, 7])
    for target_labels in (series, frame.assign(b=series)[["b"]]):
        [(features, label)] = batches(
            inputs.pandas_input_fn(x=frame, y=target_labels, shuffle=False, num_threads=1, **target)
        )
        assert list(features) == ["a"] and features["a"].tolist() == [1, 2, 3]
        assert (label if target_labels is series else label["b"]).tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="label_column must have the index of dataframe"):
        inputs.pandas_input_fn(frame, series.reset_index(drop=True))
