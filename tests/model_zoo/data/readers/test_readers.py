# SPDX-License-Identifier: Apache-2.0
"""Each kind of file, with the oddities of the data sets that come in it."""

import gzip

import numpy as np
import pyarrow
import pytest
import tensorflow as tf
from pyarrow import parquet
from streamed_rows import keys, load, rows


@pytest.mark.long
def test_criteo_has_no_header_tabs_and_empty_fields(tmp_path):
    schema = """
        files: {train: "day_*"}
        format: {name: tsv, names: [click, i1, i2, c1, c2]}
        columns:
          i1: {role: context, kind: number, transform: log}
          i2: {role: context, transform: log_buckets}
          c1: {role: item}
          c2: {role: item}
        labels: click
    """
    dataset = load(
        tmp_path,
        schema,
        day_1='0\t1\t\t68fd1e64\t\n1\t\t-1\t"odd\t80e26c9b\n',
        day_0="1\t3\t100\t68fd1e64\t80e26c9b\n",
    )
    found = rows(dataset)
    assert found["click"].tolist() == [1, 0, 1]  # day_0 comes first
    np.testing.assert_allclose(found["i1"], [np.log(4), np.log(2), 0], rtol=1e-6)
    assert found["i2"].tolist() == [22, 0, -2]  # floor(log(100)^2) is 21; 0 is a missing number
    assert found["c1"].tolist() == keys("68fd1e64", "68fd1e64", '"odd')
    assert found["c2"].tolist() == keys("80e26c9b", "", "80e26c9b")  # missing is a key of its own


def test_a_header_with_another_separator_than_the_format_is_refused(tmp_path):
    schema = "{files: {train: a.csv}, format: csv, columns: {item: {role: item}}, labels: click}"
    with pytest.raises(ValueError, match="only column 'item;click'; set separator: \";\""):
        load(tmp_path, schema, a__csv="item;click\n7;1\n").input_fn("train", 1)()


@pytest.mark.long
def test_avazu_has_a_header_and_hours_as_numbers(tmp_path):
    schema = """
        files: train.gz
        format: csv
        columns:
          site_id: {role: context}
          C1: {role: context, type: int}
        labels: click
        split: {by: time, column: hour, validation: 0.25, test: "14102103"}
    """
    text = "id,click,hour,C1,site_id\r\n" + "".join(
        f"{10**19 + i},{i % 2},1410210{i},1005,s{i}\r\n" for i in range(4)
    )
    dataset = load(tmp_path, schema, train__gz=gzip.compress(text.encode()))
    assert rows(dataset)["site_id"].tolist() == keys("s0", "s1")
    assert rows(dataset, "validation")["site_id"].tolist() == keys("s2")
    test = rows(dataset, "test")
    assert (test["site_id"].tolist(), test["C1"].tolist()) == (keys("s3"), [1005])


@pytest.mark.long
def test_adult_has_blanks_question_marks_and_texts_as_labels(tmp_path):
    schema = """
        files: {train: adult.data, test: adult.test}
        format: {name: csv, names: [age, workclass, hours-per-week, income], missing: ["?"]}
        columns:
          age: {role: user, transform: {buckets: [25, 50]}}
          workclass: {role: user}
          hours-per-week: {role: user, kind: number, default: 40}
        labels: {rich: "income == ' >50K'"}
    """
    dataset = load(
        tmp_path,
        schema,
        adult__data="39, State-gov, 40, <=50K\n ?, ?, ?, >50K\n\n",
        adult__test="50, Private, 13, >50K\n",
    )
    found = rows(dataset)
    assert found["age"].tolist() == [2, 0]
    assert found["workclass"].tolist() == keys(" State-gov", "")
    assert found["hours-per-week"].tolist() == [40, 40]
    assert found["rich"].tolist() == [0, 1]
    assert rows(dataset, "test")["age"].tolist() == [3]  # a boundary begins a bucket


@pytest.mark.long
def test_movielens_has_separators_of_two_characters(tmp_path):
    schema = """
        files: {train: ratings.dat}
        format: {name: csv, separator: "::", names: [user, item, genres, rating]}
        columns:
          user: {role: user, type: int}
          item: {role: item, type: int}
          genres: {role: item, separator: "|", max_length: 3}
        labels: {like: "rating >= 4", love: "rating == 5"}
    """
    text = '1::1193::War|"Film, Noir"::5\n2::661::::3.5\n3::914::a|b||c|d::4\n'
    found = rows(load(tmp_path, schema, ratings__dat=text))
    assert found["user"].tolist() == [1, 2, 3]
    assert found["genres"].tolist() == [
        [*keys("War", '"Film, Noir"'), -1],
        [-1, -1, -1],
        keys("a", "b", "c"),
    ]
    assert (found["like"].tolist(), found["love"].tolist()) == ([1, 0, 1], [1, 0, 0])


@pytest.mark.long
def test_frappe_has_one_index_per_position(tmp_path):
    schema = """
        files: {train: frappe.libfm}
        format: {name: libsvm, names: [user, item, cost]}
        columns:
          user: {role: user}
          item: {role: item, type: int}
          cost: {role: item, kind: number, source: cost.value}
        labels: {click: "label > 0"}
    """
    dataset = load(
        tmp_path, schema, frappe__libfm="1 451:1 4149:1 5041:0.5 \n-1 3:1  7:1\t9:2 # x\n"
    )
    found = rows(dataset)
    assert found["user"].tolist() == keys("451", "3")
    assert found["item"].tolist() == [4149, 7]
    assert found["cost"].tolist() == [0.5, 2.0]
    assert found["click"].tolist() == [1, 0]


@pytest.mark.long
def test_libsvm_lines_may_have_any_number_of_indices(tmp_path):
    schema = """
        files: {train: a.svm}
        format: libsvm
        columns: {features: {role: context, type: int, separator: " ", max_length: 3}}
        labels: label
    """
    found = rows(load(tmp_path, schema, a__svm="1 3:1 17:0.5\n0\n1 1:1 2:1 3:1 4:1\n"))
    assert found["features"].tolist() == [[3, 17, -1], [-1, -1, -1], [1, 2, 3]]
    assert found["label"].tolist() == [1, 0, 1]


@pytest.mark.long
def test_taobao_ads_join_texts_with_commas_in_quotes_and_histories(tmp_path):
    schema = """
        files: {train: "log.csv"}
        format: csv
        columns:
          user: {role: user, type: int, default: 0}
          adgroup_id: {role: item, type: int}
          price: {role: item, kind: number, transform: standard}
          title: {role: item}
          seen: {role: history, table: adgroup_id, type: int, separator: " ", max_length: 2}
        labels: {click: "nonclk == 0"}
    """
    text = (
        "user,time_stamp,adgroup_id,price,title,nonclk,seen\n"
        '581738,1494137644,1,199.0,"a, ""b""",1,5 6 7\n'
        ",1494137645,2,,c,0,\n"
        "3,1494137646,3,99.0,,0,1\n"
    )
    found = rows(load(tmp_path, schema, log__csv=text))
    assert found["user"].tolist() == [581738, 0, 3]
    assert found["title"].tolist() == keys('a, "b"', "c", "")
    np.testing.assert_allclose(found["price"], [1, 0, -1], atol=1e-6)  # mean 149, deviation 50
    assert found["seen"].tolist() == [[5, 6], [-1, -1], [1, -1]]
    assert found["click"].tolist() == [0, 1, 1]


def example(**features):
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    found = tf.train.Example()
    for name, values in features.items():
        getattr(found.features.feature[name], kinds[type(values[0])]).value.extend(values)
    return found.SerializeToString()


@pytest.mark.long
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_tfrecords_have_examples_that_may_lack_features(tmp_path, compression):
    schema = """
        files: {train: a.tfrecord}
        format: {name: tfrecord, compression: COMPRESSION}
        columns:
          user: {role: user}
          item: {role: item, default: 9}
          price: {role: item, kind: number}
          tags: {role: item, max_length: 2}
        labels: click
    """.replace("COMPRESSION", compression.lower() or "none")
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord"), compression) as writer:
        writer.write(example(user=[b"u"], item=[7], price=[2.5], tags=[1, 2, 3], click=[1]))
        writer.write(example(user=[b"v"], click=[0]))
    found = rows(load(tmp_path, schema))
    assert found["user"].tolist() == keys("u", "v")
    assert found["item"].tolist() == [7, 9]
    assert found["price"].tolist() == [2.5, 0]
    assert found["tags"].tolist() == [[1, 2], [-1, -1]]
    assert found["click"].tolist() == [1, 0]


@pytest.mark.long
def test_a_cut_tfrecord_file_is_to_be_written_again(tmp_path):
    schema = """
        files: {train: a.tfrecord}
        format: tfrecord
        columns: {item: {role: item}}
        labels: click
    """
    path = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for item in range(300):
            writer.write(example(item=[item], click=[1]))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="record 300: .*; write the file agai"):
        rows(load(tmp_path, schema))
    path.write_bytes(bytes(100))
    with pytest.raises(ValueError, match="schema.yaml: .*a.tfrecord must contain complete TFRecor"):
        rows(load(tmp_path, schema))


@pytest.mark.long
def test_parquet_has_types_lists_and_missing_values(tmp_path):
    schema = """
        files: {train: "part-*.parquet"}
        format: parquet
        columns:
          user: {role: user}
          item: {role: item, default: 9}
          zip: {role: user, type: text}
          big: {role: item}
          price: {role: item, kind: number}
          tags: {role: item, max_length: 2}
        labels: click
    """
    columns = {
        "user": pyarrow.array(["u", None]).dictionary_encode(),
        "item": pyarrow.array([7, None], pyarrow.int32()),
        "zip": pyarrow.array([4, 5], pyarrow.int64()),
        "big": pyarrow.array([2**64 - 2, 1], pyarrow.uint64()),
        "price": pyarrow.array([2.5, None], pyarrow.float64()),
        "tags": pyarrow.array([["a", "b", "c"], None]),
        "click": pyarrow.array([True, False]),
        "unused": pyarrow.array([{"a": 1}, None]),
    }
    for part in (1, 2):
        parquet.write_table(pyarrow.table(columns), tmp_path / f"part-{part}.parquet")
    found = rows(load(tmp_path, schema))
    assert found["user"].tolist() == keys("u", "") * 2
    assert found["item"].tolist() == [7, 9] * 2
    assert found["zip"].tolist() == keys("4", "5") * 2
    assert found["big"].tolist() == [-2, 1] * 2
    assert found["price"].tolist() == [2.5, 0] * 2
    assert found["tags"].tolist() == [keys("a", "b"), [-1, -1]] * 2
    assert found["click"].tolist() == [1, 0] * 2


@pytest.mark.long
def test_a_bad_row_of_parquet_is_named(tmp_path):
    schema = """
        files: {train: a.parquet}
        format: parquet
        columns: {item: {role: item}, tags: {role: item, max_length: 2}, name: {role: user}}
        labels: click
    """
    columns = {
        "item": pyarrow.array([7, 8, 9, 10, None, None]),
        "tags": pyarrow.array([["a"], [], None, ["b"], [], []]),
        "name": pyarrow.array(["u"] * 6),
        "click": pyarrow.array([0] * 6),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a.parquet, row 5: column 'item' mus"):
        rows(load(tmp_path, schema), batch_size=6)
